"""Follows the KV events of one worker: its live stream, and after a gap its replay, into what applies them.

A publisher drops what a slow or absent subscriber does not take, and the sequence shows it. Then a replay brings what
is missing, or nothing that is known of the worker holds any more.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Never

import structlog
import zmq
import zmq.asyncio

from kvaware_cluster.kv_order import EventOrder, Step
from kvaware_cluster.kv_socket import Inbox, LiveSocket, bounded_socket
from kvaware_cluster.kv_turns import Turns
from kvaware_cluster.kv_words import BlockSink, GapResult, KvCounts, ReplayResult
from kvaware_cluster.parse.kv_events import END, KvBatch, PassedOver, Unread, parse_kv_events
from kvaware_cluster.settings import KvEventSettings
from kvaware_cluster.worker_membership import KvEventTarget
from kvaware_crds.errors import WireError
from kvaware_engine.blocks.events import BlockEvent, BlocksCleared

__all__ = ["KvStream"]

REPLAY_BATCHES: Final = 100_000
"""Taken of one replay."""
REPLAY_HIGH_WATER: Final = 16_384
"""Servers keep 10,000 batches and send them at once; what does not fit in our queue or theirs, a ROUTER drops."""
BYTES_OF_A_BLOCK: Final = 2**13
"""So much of a message takes the time of one block: 10 us."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Slice:
    """What is applied in one turn."""

    room: int
    """Blocks; whatever else takes time counts as some."""
    events: list[BlockEvent] = field(default_factory=list)


@dataclass(slots=True)
class Replied:
    """What one turn brought of a replay."""

    batches: int = 0
    more: bool = True
    """Whether there may be."""
    ended: bool = False
    whole: bool = True
    """Whether none was missing."""


class KvStream:
    """Of one worker. It has one owner, which awaits ``run``."""

    def __init__(
        self,
        target: KvEventTarget,
        *,
        context: zmq.asyncio.Context,
        sink: BlockSink,
        settings: KvEventSettings,
        turns: Turns,
        counts: KvCounts,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """Follow nothing yet.

        Args:
            target: Where its events are.
            context: Of all streams.
            sink: Applies them.
            settings: See there.
            turns: Of all streams.
            counts: Of all streams.
            clock: Monotonic seconds.
            rng: For jitter.
        """
        self._target = target
        self._context = context
        self._sink = sink
        self._settings = settings
        self._turns = turns
        self._counts = counts
        self._clock = clock
        self._rng = rng
        self._live: LiveSocket | None = None
        self._order = EventOrder()
        self._rest: Iterator[BlockEvent | Unread] = iter(())
        """Of the batch in work."""
        self._no_replay_before_s = float("-inf")
        self._told: set[str] = set()
        self.heard = False
        """Whether the worker told anything, or its replay ended: it is followed."""
        self._queued = False
        """Whether it is among those that have something; while a replay is waited for it is not added."""
        self._behind: asyncio.Future[KvBatch] | None = None
        """Waits for a batch before which others are missing; None: a replay is going on, or nothing yet."""

    @property
    def connected(self) -> bool:
        """Whether the worker's publisher is connected now."""
        return self._live is not None and self._live.connected

    async def run(self) -> Never:
        """Follow until cancelled."""
        live = self._live = LiveSocket(
            self._context,
            f"tcp://{self._target.address}",
            high_water=self._settings.high_water_batches,
            frame_bytes=self._settings.frame_bytes,
            readable=self._readable,
            rng=self._rng,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(live.watch(), name=f"kv-events-watch-{self._target.worker}")
                await self._catch_up()
                while True:
                    await self._fill(await self._gap())
        finally:
            self._live = None
            live.close()

    # -- the live stream ---------------------------------------------------------------------------------------------

    async def _gap(self) -> KvBatch:
        """Apply the live stream. Returns: the batch before which others are missing."""
        self._behind = asyncio.get_running_loop().create_future()
        self._readable()
        try:
            return await self._behind
        finally:
            self._behind = None

    def _readable(self) -> None:
        """The live stream may have something."""
        if not self._queued and self._behind is not None:
            self._queued = True
            self._turns.add(self)

    def slice(self, room: int) -> int:
        """See ``Sliced``."""
        self._queued = False
        live, behind = self._live, self._behind
        if live is None or behind is None or behind.done():
            return room
        part = Slice(room)
        try:
            more, batch = self._live_slice(live.take, part)
        except Exception as error:  # noqa: BLE001  # ``run`` raises it: it ends this stream, and no other
            behind.set_exception(error)
            return part.room - 1
        if batch is not None:
            behind.set_result(batch)
        elif more:
            self._readable()
        return part.room - 1  # coming by takes some time too

    def _live_slice(self, take: Callable[[], list[bytes] | None], part: Slice) -> tuple[bool, KvBatch | None]:
        """Apply what is there, as far as the slice goes.

        Returns: Whether there may be more, and the batch before which others are missing.
        """
        while self._collect(part):
            frames = take()
            if frames is None:
                self._apply(part.events)
                return False, None
            batch = self._read(frames, part)
            if batch is None:
                continue
            match self._order.live(batch.sequence, batch.at_s):
                case Step.NEXT:
                    self._begin(batch)
                case Step.GAP:
                    self._apply(part.events)
                    return True, batch
                case Step.RESTARTED:
                    self._start_over(part, GapResult.RESTARTED)
                    return True, batch
                case Step.AGAIN:
                    pass
        self._apply(part.events)
        return True, None

    async def _fill(self, batch: KvBatch) -> None:
        """Bring what is missing before a batch, then go on with it."""
        order = self._order
        restarted = order.last is None
        result = None
        if batch.sequence > 0:
            result = await self._replay(0 if order.last is None else order.last + 1, until=batch.sequence)
        if order.last is not None and order.last + 1 < batch.sequence:
            self._start_over(None, GapResult.LOST)
        elif result is ReplayResult.COMPLETE and not restarted:
            self._counts.gaps[GapResult.FILLED] += 1
        if order.last is None or order.last < batch.sequence:  # else the replay brought it
            self._begin(batch)

    # -- replays -----------------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Learn what the worker holds from what it remembers of its events."""
        match await self._replay(0, until=None):
            case ReplayResult.COMPLETE | ReplayResult.INCOMPLETE:
                self._apply((), even_nothing=True)
            case ReplayResult.BROKEN_OFF:  # what was removed since is not known
                self._start_over(None, GapResult.LOST)
            case _:
                pass

    async def _replay(self, start: int, *, until: int | None) -> ReplayResult | None:
        """Ask for the batches from ``start`` on and apply them, up to the one before ``until``, or to the last.

        Returns: How it ended; None: nobody can be asked, or a short while ago nobody answered.
        """
        address = self._target.replay_address
        if address is None or self._clock() < self._no_replay_before_s:
            return None
        # One socket for each: late replies to an earlier question would be taken for those to this one.
        socket = bounded_socket(
            self._context,
            zmq.DEALER,
            high_water=REPLAY_HIGH_WATER,
            frame_bytes=self._settings.frame_bytes,
        )
        try:
            socket.connect(f"tcp://{address}")
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            result = await self._replies(Inbox(socket), until)
        finally:
            socket.close(linger=0)
        if result in {ReplayResult.SILENT, ReplayResult.BROKEN_OFF}:
            self._no_replay_before_s = self._clock() + self._settings.replay_pause_s
        self._counts.replays[result] += 1
        return result

    async def _replies(self, inbox: Inbox, until: int | None) -> ReplayResult:
        """Take the replies. Only waiting is limited: that we apply slowly is not the worker's fault."""
        loop, left_s, batches, whole = asyncio.get_running_loop(), self._settings.replay_wait_s, 0, True
        while batches < REPLAY_BATCHES:
            began_s = loop.time()
            try:
                async with asyncio.timeout(left_s):
                    await inbox.wait()
            except TimeoutError:
                break
            left_s -= loop.time() - began_s
            more = True
            while more and batches < REPLAY_BATCHES:
                async with self._turns:
                    replied = self._replay_slice(inbox)
                more, batches, whole = replied.more, batches + replied.batches, whole and replied.whole
                last = self._order.last
                if replied.ended or (until is not None and last is not None and last + 1 >= until):
                    await self._finish()
                    return ReplayResult.COMPLETE if whole else ReplayResult.INCOMPLETE
        return ReplayResult.BROKEN_OFF if batches else ReplayResult.SILENT

    def _replay_slice(self, inbox: Inbox) -> Replied:
        """Apply what is there of a replay, as far as one slice goes."""
        part, replied = Slice(self._settings.slice_blocks), Replied()
        while self._collect(part):
            frames = inbox.take()
            if frames is None:
                replied.more = False
                break
            replied.batches += 1
            if frames[-2:-1] == [END]:
                replied.more, replied.ended = False, True
                break
            batch = self._read(frames, part)
            if batch is None:
                replied.whole = False
                continue
            match self._order.replayed(batch.sequence):
                case Step.NEXT:
                    self._begin(batch)
                case Step.GAP:
                    self._start_over(part, GapResult.LOST)
                    replied.whole = False
                    self._begin(batch)
                case _:
                    pass
        self._apply(part.events)
        return replied

    async def _finish(self) -> None:
        """Apply the rest of the batch in work."""
        more = True
        while more:
            part = Slice(self._settings.slice_blocks)
            async with self._turns:
                more = not self._collect(part)
                self._apply(part.events)

    # -- both --------------------------------------------------------------------------------------------------------

    def _read(self, frames: Sequence[bytes], part: Slice) -> KvBatch | None:
        """Read one message; None: it cannot be, and nothing that is known can be believed."""
        part.room -= 1 + len(frames[-1]) // BYTES_OF_A_BLOCK
        try:
            return parse_kv_events(frames)
        except WireError as error:
            self._tell("batch", str(error))
            self._start_over(part, GapResult.UNREADABLE)
            return None

    def _begin(self, batch: KvBatch) -> None:
        self._order.took(batch.sequence, batch.at_s)
        self._rest = batch.events()

    def _collect(self, part: Slice) -> bool:
        """Read events of the batch in work until the slice is full. Returns: whether there is room for another."""
        while part.room > 0:
            event = next(self._rest, None)
            if event is None:
                return True
            if isinstance(event, Unread):
                part.room -= 1
                self._counts.passed_over[event.why] += 1
                if event.why is not PassedOver.ELSEWHERE:  # usual where servers share a store
                    self._tell(event.why, event.problem)
                if event.why is PassedOver.UNREADABLE:
                    self._lose(part, GapResult.UNREADABLE)
            else:
                part.room -= _blocks(event)
                part.events.append(event)
        return False

    def _apply(self, events: Sequence[BlockEvent], *, even_nothing: bool = False) -> None:
        if events or even_nothing:
            self.heard = True
            self._counts.events += len(events)
            self._sink.blocks(self._target.worker, events)

    def _start_over(self, part: Slice | None, why: GapResult) -> None:
        """Forget what was told, and take whatever comes next for a beginning."""
        self._rest = iter(())
        self._order.start_over()
        self._lose(part, why)

    def _lose(self, part: Slice | None, why: GapResult) -> None:
        """Forget what was told: what is collected, and what is applied."""
        if part is not None:
            part.events.clear()
        self._counts.gaps[why] += 1
        if self.heard:  # else nothing was told, and what is estimated stays
            self._sink.lost(self._target.worker)

    def _tell(self, what: str, problem: str) -> None:
        """Say once of each kind what is wrong with a worker's events."""
        if what not in self._told:
            self._told.add(what)
            log.warning("KV events are not applied", worker=self._target.worker, what=what, problem=problem)


def _blocks(event: BlockEvent) -> int:
    """What an event takes of a slice."""
    return 1 if isinstance(event, BlocksCleared) else max(1, len(event.engine_hashes))
