"""What one worker reported, and what was reserved there: how the two add up.

    figure = as reported at its observation + what was reserved after that and has not ended

What was reserved before the observation is taken to be in the report; when it has ended since, it is subtracted until
the next report. A report never erases what was reserved after it, and a reservation never overwrites a report
(ai-dynamo/dynamo#7753). Each figure has the time of its own observation.

The queue is known better than that. Servers count a prompt that is being computed as running, so a report without
waiting requests may hide seconds of prefill. Of our own requests it is known when their prefill would end; the reported
number of waiting ones tells which of them, the latest, have not begun.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, nan
from typing import Final, Protocol

from kvaware_engine.reports import ReportTimes, WorkerView
from kvaware_engine.requests.hardware_classes import HardwareClass

__all__ = ["Charged", "MeanPrompt", "WorkerColumn"]


_ENDED_MAX: Final = 1024
"""Requests that ended since a worker's last report and are remembered; of more the first count until the next one."""


class Charged(Protocol):
    """What a fleet reads of a reservation. It is told apart by identity, and must not change while it is charged."""

    slot: int
    incarnation: str
    prefill_ms: float
    """0: it keeps no prefill, as the decode part of a pair."""
    uncached_tokens: int
    expected_output_tokens: float
    """0: it does not decode, as the prefill part of a pair."""
    kv_tokens: float
    transfer_bytes: int
    prefilled: bool

    @property
    def input_tokens(self) -> int:
        """Of the whole prompt."""

    @property
    def priority(self) -> int:
        """Higher goes first."""


@dataclass(slots=True)
class MeanPrompt:
    """Of the requests that came lately: what waits elsewhere is taken for such ones."""

    input_tokens: float = 1024.0
    uncached_tokens: float = 1024.0

    def add(self, input_tokens: float, uncached_tokens: float) -> None:
        """One more; the last hundred or so count."""
        self.input_tokens += (input_tokens - self.input_tokens) / 64
        self.uncached_tokens += (uncached_tokens - self.uncached_tokens) / 64


class WorkerColumn:
    """One worker's figures as Python numbers, which are cheaper to add to than items of an array.

    What is charged stands in dicts by reservation and not in objects of its own: making one takes 0.4 µs, per request.
    """

    __slots__ = (
        "_queue_at_s",
        "base_end_s",
        "batch",
        "charged_at_s",
        "ended",
        "free_at_s",
        "hardware",
        "incarnation",
        "kv_free_tokens",
        "kv_total_tokens",
        "left_tokens",
        "lost",
        "node",
        "pending_ms",
        "prefill_ends_s",
        "present",
        "remaining_tokens",
        "requests",
        "slot",
        "worker",
    )

    def __init__(self, worker: str, slot: int, hardware: HardwareClass, incarnation: str) -> None:
        self.worker = worker
        self.slot = slot
        self.hardware = hardware
        self.incarnation = incarnation
        self.node: str | None = None
        self.present = True
        """Whether it is not forgotten."""
        self.lost: set[Charged] = set()
        """What was charged to an incarnation that is gone, and not ended yet: it still names the slot."""
        self.charged_at_s: dict[Charged, float] = {}
        """Reservation → when it was charged, in this order."""
        self.prefill_ends_s: dict[Charged, float] = {}
        """Those whose prefill is not over → when it is expected to be."""
        self.left_tokens: dict[Charged, float] = {}
        """Output still expected of those that told of progress."""
        self.ended: deque[tuple[float, float, bool, float]] = deque(maxlen=_ENDED_MAX)
        """When it was charged, when it ended, whether it decoded, its KV tokens; since the last report."""
        self.start_over()

    def start_over(self) -> None:
        """Nothing is known and nothing is reserved: another incarnation."""
        self.lost.update(self.charged_at_s)
        self.charged_at_s.clear()
        self.prefill_ends_s.clear()
        self.left_tokens.clear()
        self.ended.clear()
        self._queue_at_s = -inf
        """When the reported queue was observed."""
        self.requests = 0
        self.batch = 0
        self.kv_total_tokens = nan
        self.kv_free_tokens = nan
        self.remaining_tokens = 0.0
        self.base_end_s = -inf
        """When what was reported to wait will be computed."""
        self.free_at_s = -inf
        self.pending_ms = 0.0
        """Prefill of what was charged after the report and waits."""

    def count(
        self,
        view: WorkerView,
        times: ReportTimes,
        *,
        block_tokens: int,
        mean: MeanPrompt,
        mean_output_tokens: float,
        prefills: bool = True,
    ) -> None:
        """Add up anew from a report and what is reserved. Takes time by the number of charges.

        Args:
            view: What is believed of it.
            times: When each of that was observed.
            block_tokens: Where it does not tell.
            mean: What requests of others are taken for.
            mean_output_tokens: Of them: on average half is still to come.
            prefills: Whether it computes prompts; else what waits there waits for its KV or for room.
        """
        block_tokens = view.block_size_tokens or block_tokens
        self.kv_total_tokens = nan if view.kv_blocks_total is None else float(view.kv_blocks_total * block_tokens)
        self.kv_free_tokens = nan if view.kv_blocks_free is None else float(view.kv_blocks_free * block_tokens)
        reported = (view.waiting or 0) + (view.running or 0)
        self.requests = self.batch = reported
        if view.running is None and view.batch_size is not None:
            self.requests = self.batch = (view.waiting or 0) + view.batch_size
        self._count_queue(view, times, mean if prefills else None)
        others = reported
        remaining = 0.0
        for reservation, at_s in self.charged_at_s.items():
            if at_s > times.load_at_s:
                self.requests += 1
                self.batch += reservation.expected_output_tokens > 0
            else:
                others -= 1
            if at_s > times.kv_at_s:
                self.kv_free_tokens -= reservation.kv_tokens
            remaining += self.left_tokens.get(reservation, reservation.expected_output_tokens)
        needed_s = min(times.load_at_s, times.kv_at_s)
        while self.ended and self.ended[0][1] <= needed_s:
            self.ended.popleft()
        for at_s, ended_at_s, decoded, kv_tokens in self.ended:
            if at_s <= times.load_at_s < ended_at_s:
                self.requests -= 1
                self.batch -= decoded
                others -= 1
            if at_s <= times.kv_at_s < ended_at_s:
                self.kv_free_tokens += kv_tokens
        self.requests, self.batch = max(0, self.requests), max(0, self.batch)
        self.kv_free_tokens = min(self.kv_free_tokens, self.kv_total_tokens)
        self.remaining_tokens = remaining + max(0, others) * mean_output_tokens / 2

    def _count_queue(self, view: WorkerView, times: ReportTimes, mean: MeanPrompt | None) -> None:
        """``free_at_s``: what was reported to wait, then what was reserved after that.

        ``mean``: of others' prompts; None: none is computed there.
        """
        if max(times.waiting_at_s, times.queued_tokens_at_s) == self._queue_at_s:
            return  # the same report, from which what was done since is taken already
        by_tokens = view.queued_tokens is not None and times.queued_tokens_at_s >= times.waiting_at_s
        queued_tokens = view.queued_tokens if by_tokens else None
        at_s = self._queue_at_s = max(times.waiting_at_s, times.queued_tokens_at_s)
        ends_s = self.prefill_ends_s
        before = [each for each in ends_s if self.charged_at_s[each] <= at_s]
        begun = len(before) - _not_begun(before, view.waiting, queued_tokens)
        end_s = at_s
        for number, reservation in enumerate(before):
            prefill_s = reservation.prefill_ms / 1000
            if number < begun:
                prefill_s = min(prefill_s, max(0.0, ends_s[reservation] - at_s))
            end_s += prefill_s
            ends_s[reservation] = end_s
        if mean is not None:
            end_s += self._others_ms(before[begun:], view.waiting, queued_tokens, mean) / 1000
        self.base_end_s = end_s
        self.pending_ms = 0.0
        for reservation in list(ends_s)[len(before) :]:
            self.pending_ms += reservation.prefill_ms
            end_s = max(end_s, self.charged_at_s[reservation]) + reservation.prefill_ms / 1000
            ends_s[reservation] = end_s
        self.free_at_s = end_s

    def _others_ms(self, own: list[Charged], waiting: int | None, queued_tokens: int | None, mean: MeanPrompt) -> float:
        """Prefill of what waits there beside our own."""
        others = max(0, waiting - len(own)) if waiting is not None else 0
        if queued_tokens is None:
            return others * self.hardware.profile.prefill_ms(mean.uncached_tokens)
        tokens = max(0, queued_tokens - sum(each.input_tokens for each in own))
        if not tokens:
            return 0.0
        requests = others or max(1, round(tokens / mean.input_tokens))
        uncached = tokens * min(1.0, mean.uncached_tokens / mean.input_tokens)
        # One after another, each with an attention of its own: not the prefill of one prompt as long as all together.
        return requests * self.hardware.profile.prefill_ms(uncached / requests)

    def prefilled(self, reservation: Charged, now_s: float) -> None:
        """The first token of one that waits is there: what was before it is done, what came after it is next.

        When it is earlier or later than expected, so is what waits behind it: by no more than what is known to wait,
        and by no more than it was late itself, since not every client tells of every first token.
        """
        expected_s = self.prefill_ends_s.pop(reservation)
        if self.charged_at_s[reservation] <= self._queue_at_s:
            return  # what was reported ends by itself as time goes on
        self._take(reservation)
        free_at_s = max(now_s, self.base_end_s) + self.pending_ms / 1000
        self.free_at_s = min(free_at_s, self.free_at_s + max(0.0, now_s - expected_s))

    def withdrawn(self, reservation: Charged, now_s: float) -> float:
        """One that waits ends before its first token was told: what is left of it is not waited for.

        Returns: What is left, in milliseconds; 0 where it would have been over by now.
        """
        left_s = min(reservation.prefill_ms / 1000, max(0.0, self.prefill_ends_s.pop(reservation) - now_s))
        if self.charged_at_s[reservation] <= self._queue_at_s:
            self.base_end_s -= left_s
        else:
            self._take(reservation)
        self.free_at_s = self.free_at_s - left_s if self.prefill_ends_s else self.base_end_s
        return left_s * 1000

    def _take(self, reservation: Charged) -> None:
        # Sums of floats that come to nothing are nothing.
        self.pending_ms = self.pending_ms - reservation.prefill_ms if self.prefill_ends_s else 0.0


def _not_begun(own: list[Charged], waiting: int | None, queued_tokens: int | None) -> int:
    """How many of our own requests before the report have not begun: servers take them in turn, so the latest.

    Where only tokens are told, as many of the latest as these are enough for.
    """
    if waiting is not None:
        return min(waiting, len(own))
    if queued_tokens is None:
        return 0
    left = queued_tokens
    for number, reservation in enumerate(reversed(own)):
        left -= reservation.input_tokens
        if left < 0:
            return number
    return len(own)
