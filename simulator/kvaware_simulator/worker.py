"""A modelled worker: FIFO prefill and batched decode at a hardware profile's speed, over a KV pool with prefix cache.

What it leaves out: prefill and decode do not slow each other down; blocks of answers cannot be found again, since a
trace does not tell their hashes; the room for an answer is set aside when its prefill begins, as TensorRT-LLM does with
``GUARANTEED_NO_EVICT``, so no request is ever preempted. It does so for every policy alike.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from math import ceil, inf

from kvaware_engine import HardwareProfile
from kvaware_simulator.prefix_cache import PrefixCache

__all__ = ["Happening", "ModelledWorker", "WorkerEvent", "WorkerFigures", "WorkerRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """What a gateway sends to a model server, and how long the answer will be."""

    id: str
    input_tokens: int
    output_tokens: int
    block_hashes: Sequence[int] = ()
    """Of the prompt's whole blocks."""


class Happening(StrEnum):
    """What becomes of a request."""

    STARTED = "started"
    """Its prefill begins."""
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent:
    """Something happened to a request."""

    at_s: float
    type: Happening
    request: WorkerRequest
    queue_wait_ms: float
    cached_tokens: int
    """Of its prompt, found in the cache when its prefill began."""
    ttft_ms: float | None
    """From its coming to the worker; None before the first token."""
    output_tokens: int
    """So far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What the worker would say in a heartbeat."""

    waiting: int
    running: int
    """In prefill or decode."""
    batch_size: int
    """That decode."""
    queued_tokens: int
    """Prompt tokens that are not in the cache and not computed, the running prefill's rest included."""
    kv_blocks_total: int
    kv_blocks_free: int
    """That no running request holds."""


@dataclass(slots=True, kw_only=True)
class _Running:
    """A request from the beginning of its prefill on."""

    request: WorkerRequest
    order: int
    came_at_s: float
    began_at_s: float
    matched_blocks: int
    cached_tokens: int
    more_blocks: int
    """Beside the prompt's whole blocks."""
    computed_at_s: float
    """When its prefill ends: its first token."""
    left_tokens: float
    """Of its answer, after the first."""


class ModelledWorker:
    """One model server with one KV pool. Time is an argument and never goes back; nothing happens in between.

    Equal calls give equal events: there is no chance in it.
    """

    def __init__(
        self, profile: HardwareProfile, *, kv_blocks: int, block_tokens: int, batch_max: int = 256, now_s: float = 0.0
    ) -> None:
        """An idle worker with an empty cache.

        Args:
            profile: How fast it is.
            kv_blocks: Size of its KV pool, 1 or more.
            block_tokens: Tokens per block, 1 or more.
            batch_max: Requests that may run at once (vLLM's ``max_num_seqs``).
            now_s: When it begins to be.
        """
        if block_tokens < 1 or batch_max < 1:
            raise ValueError(f"expected block_tokens and batch_max of 1 or more, got {block_tokens} and {batch_max}")
        self.profile = profile
        self.block_tokens = block_tokens
        self.cache = PrefixCache(kv_blocks)
        self._batch_max = batch_max
        self._now_s = now_s
        self._order = count()
        self._waiting: deque[tuple[WorkerRequest, float]] = deque()
        self._prefill: _Running | None = None
        self._decoding: list[_Running] = []

    def takes(self, request: WorkerRequest) -> bool:
        """Whether the request fits into the pool when nothing else is there; else it would wait for ever."""
        return self._blocks(request) <= self.cache.blocks

    def submit(self, request: WorkerRequest, *, now_s: float) -> list[WorkerEvent]:
        """A request comes.

        Returns: What has happened since the last call, and its start where nobody is before it.
        Raises: ValueError when it does not fit at all, or when time goes back.
        """
        if not self.takes(request):
            raise ValueError(f"{request.id}: expected at most {self.cache.blocks} blocks, got {self._blocks(request)}")
        happened = self.advance(now_s)
        self._waiting.append((request, now_s))
        self._begin(happened)
        return happened

    def advance(self, now_s: float) -> list[WorkerEvent]:
        """Let time pass; infinity: until all is done.

        Returns: What happened, in order.
        Raises: ValueError when time goes back.
        """
        if now_s < self._now_s:
            raise ValueError(f"expected a time of {self._now_s} or later, got {now_s}")
        happened: list[WorkerEvent] = []
        while (at_s := self.next_at_s()) <= now_s and at_s < inf:
            self._decode_until(at_s)
            self._end_prefill(happened)
            self._end_decodes(happened)
            self._begin(happened)
        if now_s < inf:
            self._decode_until(now_s)
        return happened

    def next_at_s(self) -> float:
        """When something happens if nobody else comes; infinity: never."""
        prefill_s = self._prefill.computed_at_s if self._prefill is not None else inf
        if not self._decoding:
            return prefill_s
        least = min(each.left_tokens for each in self._decoding)
        return min(prefill_s, self._now_s + least * self._step_s())

    def figures(self) -> WorkerFigures:
        """As of the last call that told the time."""
        queued = sum(self._uncached(request, self.cache.matched(request.block_hashes)) for request, _ in self._waiting)
        if self._prefill is not None:
            whole_s = self._prefill.computed_at_s - self._prefill.began_at_s
            rest = (self._prefill.computed_at_s - self._now_s) / whole_s if whole_s > 0 else 0.0
            queued += round(rest * (self._prefill.request.input_tokens - self._prefill.cached_tokens))
        return WorkerFigures(
            waiting=len(self._waiting),
            running=len(self._decoding) + (self._prefill is not None),
            batch_size=len(self._decoding),
            queued_tokens=queued,
            kv_blocks_total=self.cache.blocks,
            kv_blocks_free=self.cache.free_blocks,
        )

    def _begin(self, happened: list[WorkerEvent]) -> None:
        """Start the next prefill, if there is one and room for it. Who is first in the queue is waited for."""
        if self._prefill is not None or not self._waiting or len(self._decoding) >= self._batch_max:
            return
        request, came_at_s = self._waiting[0]
        hashes = request.block_hashes
        more = self._blocks(request) - len(hashes)
        if not self.cache.has_room(hashes, more_blocks=more):
            return
        self._waiting.popleft()
        matched = self.cache.take(hashes, more_blocks=more)
        uncached = self._uncached(request, matched)
        cached = request.input_tokens - uncached
        self._prefill = _Running(
            request=request,
            order=next(self._order),
            came_at_s=came_at_s,
            began_at_s=self._now_s,
            matched_blocks=matched,
            cached_tokens=cached,
            more_blocks=more,
            computed_at_s=self._now_s + self.profile.prefill_ms(uncached, cached_tokens=cached) / 1000,
            left_tokens=request.output_tokens - 1,
        )
        happened.append(self._event(Happening.STARTED, self._prefill, output_tokens=0))

    def _end_prefill(self, happened: list[WorkerEvent]) -> None:
        done = self._prefill
        if done is None or done.computed_at_s > self._now_s:
            return
        self._prefill = None
        self.cache.computed(done.request.block_hashes[done.matched_blocks :])
        self._decoding.append(done)
        happened.append(self._event(Happening.FIRST_TOKEN, done, output_tokens=1))

    def _end_decodes(self, happened: list[WorkerEvent]) -> None:
        # a millionth of a token is what floating point leaves over
        for done in [each for each in self._decoding if each.left_tokens <= 1e-6]:
            self._decoding.remove(done)
            self.cache.leave(done.request.block_hashes, more_blocks=done.more_blocks)
            happened.append(self._event(Happening.FINISHED, done, output_tokens=done.request.output_tokens))

    def _decode_until(self, at_s: float) -> None:
        if self._decoding and at_s > self._now_s:
            tokens = (at_s - self._now_s) / self._step_s()
            for each in self._decoding:
                each.left_tokens -= tokens
        self._now_s = at_s

    def _step_s(self) -> float:
        return self.profile.decode_step_ms(len(self._decoding)) / 1000

    def _blocks(self, request: WorkerRequest) -> int:
        return ceil((request.input_tokens + request.output_tokens) / self.block_tokens)

    def _uncached(self, request: WorkerRequest, matched_blocks: int) -> int:
        """The last token is always computed: the first of the answer follows from it."""
        return max(1, request.input_tokens - matched_blocks * self.block_tokens)

    def _event(self, type_: Happening, of: _Running, *, output_tokens: int) -> WorkerEvent:
        return WorkerEvent(
            at_s=self._now_s,
            type=type_,
            request=of.request,
            queue_wait_ms=1000 * (of.began_at_s - of.came_at_s),
            cached_tokens=of.cached_tokens,
            ttft_ms=None if type_ is Happening.STARTED else 1000 * (of.computed_at_s - of.came_at_s),
            output_tokens=output_tokens,
        )
