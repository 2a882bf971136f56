"""One model's workers as columns: what was reported of each, what was reserved since, how far it is believed.

A stale worker weighs less and is not "full" (llm-d/llm-d-router#2408, #2547): its confidence falls from one report
interval to the time-out; beyond it gets nothing new, and one report brings it back. A Ready worker that was never heard
is a candidate for one time-out, with a low confidence: pods alone must neither shut it out nor vouch for it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from math import inf, isnan, nan
from typing import Any, Final, cast

import numpy as np

from kvaware_engine.observations import ModelObservation, NodeObservation, ObjectKey
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.reports import ReportTimes, WorkerPlace, WorkerView
from kvaware_engine.requests.candidates import WorkerFacts
from kvaware_engine.requests.charges import Charged, MeanPrompt, WorkerColumn
from kvaware_engine.requests.congestion import Congestion
from kvaware_engine.requests.facts import worker_facts
from kvaware_engine.requests.figures import FIGURES, Figure
from kvaware_engine.requests.hardware_classes import HardwareClasses
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.priority_queues import PriorityQueues
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.roles import DECODE, Roles
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.standing import Standing
from kvaware_engine.requests.trust import Trust
from kvaware_engine.requests.words import FloatArray
from kvaware_engine.requests.workspace import Workspace
from kvaware_engine.settings import WorkerSettings
from kvaware_engine.workers import Workers

__all__ = ["FleetChange", "WorkerFleet"]

_SLOTS: Final = 16
"""To begin with; doubled whenever they are used up."""
_REFUSAL_SHARE: Final = 0.1
"""Weight of one assignment in the chance that the next is refused."""
_REFUSAL_MIN: Final = 0.01
"""A smaller chance is none."""
_UNTOLD_RATIO: Final = 0.1
"""A TTFT says something of the prefill only when what else was expected in it, and nobody tells, is a smaller share of
it than this: blocks that are brought, and the wait where the server does not tell it."""
_MAY_BE_UNKNOWN: Final = (
    Figure.KV_TOTAL_TOKENS,
    Figure.KV_FREE_TOKENS,
    Figure.GPU_UTILIZATION_RATIO,
    Figure.HBM_USED_BYTES,
    Figure.CPU_FREE_BYTES,
    Figure.SSD_FREE_BYTES,
    Figure.OBSERVED_AT_S,
)


class FleetChange(StrEnum):
    """What became of a worker in a fleet."""

    CAME = "came"
    SAME = "same"
    """What is reserved there, and its blocks, are what they were."""
    STARTED_AGAIN = "started_again"
    """Another incarnation: what was reserved there is gone, and its blocks with it."""
    ABSENT = "absent"
    """It is not shown at present; what is reserved there is kept."""
    FORGOTTEN = "forgotten"
    """It was not shown for too long, or serves another model: what was reserved there is gone."""
    UNKNOWN = "unknown"
    """It was not here and is not."""


@dataclass(slots=True)
class _Seen:
    """What a worker's column was made of."""

    view: WorkerView
    times: ReportTimes
    place: WorkerPlace
    node: NodeObservation | None
    reserved_for: frozenset[str] | None
    cached_tokens: float | None
    events_followed: bool = False


class WorkerFleet:
    """One owner. ``now_s`` never goes back. Whoever reads ``figures`` calls ``refresh`` before."""

    def __init__(
        self,
        model: ObjectKey,
        settings: RequestSettings,
        profiles: ProfileBook,
        *,
        reports: WorkerSettings | None = None,
        links: NodeLinks | None = None,
    ) -> None:
        """Begin without workers.

        Args:
            model: Whose workers.
            settings: Of requests.
            profiles: Where the hardware profiles come from.
            reports: How often workers report and how long that counts: those of ``Workers``.
            links: What is on its way over the nodes' links; one for all fleets.
        """
        self.model = model
        self.facts: tuple[WorkerFacts | None, ...] = ()
        """By slot. Another tuple after each change, so that a decision keeps what it saw for nothing."""
        self.slot_of: dict[str, int] = {}
        """By worker id. A worker that is not shown at present keeps its slot until it is forgotten."""
        self.figures: FloatArray = np.empty((FIGURES, 0))
        """Shape (FIGURES, slots), see ``Figure``. Another array once there are more workers than slots."""
        self.smallest_pool_tokens = inf
        """Of the workers that tell the size of their KV pool; infinity: nobody does."""
        self.largest_pool_tokens = inf
        """Of them; infinity: nobody tells."""
        self._reserved: set[int] = set()
        self._settings = settings
        self._standing = Standing(reports or WorkerSettings())
        self._links = links or NodeLinks()
        self._links.subscribe(self._link_changed)
        self._revision = ""
        self._block_tokens = 16
        self._capabilities: frozenset[str] = frozenset()
        self._reach: Reach | None = None
        self._roles: Roles | None = None
        self.block_tokens = 16
        """Tokens per KV block: as most of the workers tell, else as the spec says."""
        self._block_sizes: Counter[int] = Counter()
        """As workers tell them."""
        self._reuse_total = 0.0
        """Sum of REUSE_RATIO."""
        self._columns: list[WorkerColumn | None] = []
        """By slot; that of a forgotten worker stays while a reservation names its slot."""
        self._seen: dict[int, _Seen] = {}
        self._column_of: dict[Charged, WorkerColumn] = {}
        """Whom it is, or was, charged to; until it ends."""
        self._transfers: dict[Charged, str] = {}
        """Node over whose link its blocks are on their way."""
        self._free_slots: list[int] = []
        self._on_node: dict[str, set[int]] = {}
        self._hardware = HardwareClasses(profiles)
        self._trust: dict[int, Trust] = {}
        self._refused_at_s: dict[int, float] = {}
        self._awaited_since_s: dict[int, float] = {}
        self._mean = MeanPrompt()
        self._congestion = Congestion(settings.costs)
        self._queues = PriorityQueues()
        self._chosen = 0
        self._work = Workspace(0)
        self._grow(_SLOTS)

    def close(self) -> None:
        """The model is gone: nothing follows it any more."""
        for reservation in list(self._transfers):
            self._stop_transfer(reservation)
        self._links.unsubscribe(self._link_changed)

    @property
    def classes(self) -> tuple[HardwareProfile, ...]:
        """Of HARDWARE_CLASS, as corrected by what was observed."""
        return self._hardware.profiles

    @property
    def slots(self) -> int:
        """Length of every column."""
        return int(self.figures.shape[1])

    @property
    def workers(self) -> list[str | None]:
        """Ids by slot."""
        return [None if facts is None else facts.worker for facts in self.facts]

    @property
    def able(self) -> int:
        """Workers that may be chosen, at the last ``refresh``."""
        return self._standing.able

    @property
    def serving(self) -> int:
        """Workers that may be chosen and that prefill, at the last ``refresh``."""
        return self._standing.serving

    @property
    def reach(self) -> Reach:
        """Where the workers are and what can move between them; made again when facts have changed."""
        if self._reach is None:
            self._reach = Reach(self.facts)
        return self._reach

    @property
    def roles(self) -> Roles:
        """What the workers do; made again when facts have changed."""
        if self._roles is None:
            self._roles = Roles(self.facts)
        return self._roles

    @property
    def reuse_ratio(self) -> float | None:
        """Chance that what is cached is asked for again, 0..1: the mean of all workers; None: there is none."""
        return self._reuse_total / len(self.slot_of) if self.slot_of else None

    @property
    def reserves(self) -> bool:
        """Whether some workers are for some tenants alone."""
        return bool(self._reserved)

    # -- who is there ------------------------------------------------------------------------------------------------

    def configure(self, model: ModelObservation) -> None:
        """What the model's spec says of all its workers."""
        said = (model.revision, model.block_size_tokens, model.workers.capabilities)
        if said == (self._revision, self._block_tokens, self._capabilities):
            return
        self._revision, self._block_tokens, self._capabilities = said
        self._count_block_sizes(None, None)
        for slot, seen in self._seen.items():
            self._take_over(cast("WorkerColumn", self._columns[slot]), seen)

    def follow(
        self,
        workers: Workers,
        worker: str,
        node: NodeObservation | None,
        now_s: float,
        *,
        reserved_for: frozenset[str] | None = None,
        cached_tokens: float | None = None,
    ) -> FleetChange:
        """Bring one worker to what is believed of it now; whenever ``Workers`` told of it, or its node changed.

        Args:
            workers: Where it is known.
            worker: Its id.
            node: Where it is; None: unknown.
            now_s: Now.
            reserved_for: Tenants that alone may use its node; None: anybody.
            cached_tokens: That it is known to hold; None: unknown, then all that is free is taken for cached.
        Returns: What became of it. What is reserved on one that came is none, so it is to be lost where it started
            again or was forgotten.
        """
        place, times = workers.place(worker), workers.times(worker, now_s)
        if place is None or times is None or place.model != self.model:
            return self.drop(worker)
        view = workers.view(worker, now_s)
        if view is None:
            return self.absent(worker)
        return self.observe(view, times, place, node, now_s, reserved_for=reserved_for, cached_tokens=cached_tokens)

    def observe(
        self,
        view: WorkerView,
        times: ReportTimes,
        place: WorkerPlace,
        node: NodeObservation | None,
        now_s: float,
        *,
        reserved_for: frozenset[str] | None = None,
        cached_tokens: float | None = None,
    ) -> FleetChange:
        """Take over what is believed of a worker, and add what was reserved after it was observed."""
        slot = self.slot_of.get(view.worker)
        hardware = self._hardware.of(place)
        change = FleetChange.SAME
        if slot is None:
            change = FleetChange.CAME
            slot = self._new_slot()
            column = self._columns[slot] = WorkerColumn(view.worker, slot, hardware, view.incarnation)
            self.slot_of[view.worker] = slot
            self._begin(slot)
        else:
            column = cast("WorkerColumn", self._columns[slot])
            if column.incarnation != view.incarnation:
                change = FleetChange.STARTED_AGAIN
                self._lose_charges(column)
                column.incarnation = view.incarnation
                self._begin(slot)
        if column.hardware is not hardware or change is FleetChange.CAME:
            column.hardware.slots.discard(slot)
            hardware.slots.add(slot)
            column.hardware = hardware
        before = self._seen.get(slot)
        if self._risk_ms[slot] and before is not None and times.any_at_s > before.times.any_at_s:
            # It lives. Without this end, one that nobody chooses for its risk would never be served by again.
            self._risk(slot, refused=False)
        self._count_block_sizes(None if before is None else before.view, view)
        seen = self._seen[slot] = _Seen(
            view, times, place, node, reserved_for, cached_tokens, before is not None and before.events_followed
        )
        self._stand(slot, seen, now_s)
        self._take_over(column, seen)
        return change

    def absent(self, worker: str) -> FleetChange:
        """It is not shown at present: it gets nothing new and keeps what is reserved (ai-dynamo/dynamo#13513)."""
        slot = self.slot_of.get(worker)
        if slot is None:
            return FleetChange.UNKNOWN
        self._standing.shown(slot, fit=False, prefills=False)
        return FleetChange.ABSENT

    def drop(self, worker: str) -> FleetChange:
        """It is forgotten. Its slot is given again once no reservation names it.

        What else is kept by slot, such as its blocks, must be cleared before.
        """
        slot = self.slot_of.pop(worker, None)
        if slot is None:
            return FleetChange.UNKNOWN
        column = cast("WorkerColumn", self._columns[slot])
        self._lose_charges(column)
        self._begin(slot)
        column.present = False
        column.hardware.slots.discard(slot)
        self._leave_node(slot, column.node)
        self._count_block_sizes(self._seen.pop(slot).view, None)
        self._set_facts(slot, None)
        self._reach = self._roles = None
        self._reuse_total -= self.figures.item(Figure.REUSE_RATIO, slot)
        self.figures[:, slot] = 0.0
        self.figures[list(_MAY_BE_UNKNOWN), slot] = nan
        self.figures[Figure.KV_FREE_TOKENS, slot] = inf
        self.figures[Figure.BARRED, slot] = inf
        self.figures[Figure.FREE_AT_S, slot] = -inf
        self._reserved.discard(slot)
        self._measure_pools()
        if not column.lost:
            self._vacate(slot)
        return FleetChange.FORGOTTEN

    def follow_events(self, worker: str, *, followed: bool) -> None:
        """Whether its KV events are followed now."""
        slot = self.slot_of.get(worker)
        if slot is not None and self._seen[slot].events_followed != followed:
            self._seen[slot].events_followed = followed
            self._take_over(cast("WorkerColumn", self._columns[slot]), self._seen[slot])

    def refresh(self, now_s: float) -> None:
        """Bring confidence, time-outs and marks to now. Before figures are read; 0.2 µs where nothing is due."""
        self._standing.refresh(self.figures, now_s)

    @property
    def without_marks(self) -> FloatArray | None:
        """BARRED as it were if nobody had refused anything lately, at the last ``refresh``; None: the same."""
        return self._standing.without_marks

    # -- what is reserved --------------------------------------------------------------------------------------------

    def charge(self, reservation: Charged, now_s: float) -> None:
        """Add a reservation to its worker's figures.

        Raises: ValueError when it is charged already, or its slot or incarnation is nobody's.
        """
        slot = reservation.slot
        column = self._columns[slot]
        if column is None or column.incarnation != reservation.incarnation or not column.present:
            raise ValueError(f"slot {slot}: expected {reservation.incarnation!r} there, found another or nobody")
        if reservation in self._column_of:
            raise ValueError(f"slot {slot}: expected a reservation that is not charged yet")
        self._column_of[reservation] = column
        column.charged_at_s[reservation] = now_s
        prefill_ms = reservation.prefill_ms
        if prefill_ms > 0 and not reservation.prefilled:
            end_s = max(column.free_at_s, now_s) + prefill_ms / 1000
            column.free_at_s = self._free_at_s[slot] = column.prefill_ends_s[reservation] = end_s
            column.pending_ms += prefill_ms
            self._congestion.reserved(prefill_ms, now_s)
            self._queues.add(slot, reservation.priority, prefill_ms)
        column.requests += 1
        self._requests[slot] = column.requests
        output_tokens = reservation.expected_output_tokens
        if output_tokens > 0:
            column.batch = batch = column.batch + 1
            self._batch[slot] = batch
            self._half_step_ms[slot], self._decode_ms[slot] = column.hardware.decode_figures(batch)
            column.remaining_tokens += output_tokens
            self._remaining[slot] = column.remaining_tokens
        column.kv_free_tokens -= reservation.kv_tokens
        self._kv_free[slot] = column.kv_free_tokens
        self._chosen = chosen = self._chosen + 1
        self._last_chosen[slot] = chosen
        if chosen & 7 == 0 and prefill_ms > 0:  # a mean of every eighth is as good: 0.3 µs
            self._mean.add(reservation.input_tokens, reservation.uncached_tokens)
        if reservation.transfer_bytes and column.node is not None and not reservation.prefilled:
            self._transfers[reservation] = column.node
            self._links.add(column.node, reservation.transfer_bytes)

    def prefilled(self, reservation: Charged, now_s: float) -> None:
        """Its first token is there, so its prefill and its transfer are over. Told again, or not charged: nothing."""
        column = self._column_of.get(reservation)
        if column is None:
            return
        if self._transfers:
            self._stop_transfer(reservation)
        if reservation in column.prefill_ends_s:
            slot = column.slot
            column.prefilled(reservation, now_s)
            self._free_at_s[slot] = column.free_at_s
            self._queues.take(slot, reservation.priority, reservation.prefill_ms)
            if self._risk_ms[slot]:
                self._risk(slot, refused=False)

    def progressed(self, reservation: Charged, output_tokens: int) -> None:
        """It has answered so many tokens."""
        column = self._column_of.get(reservation)
        if column is not None and reservation in column.charged_at_s:
            expected = reservation.expected_output_tokens
            left = max(0.0, expected - output_tokens)
            column.remaining_tokens += left - column.left_tokens.get(reservation, expected)
            column.left_tokens[reservation] = left
            self._remaining[column.slot] = column.remaining_tokens

    def discharge(self, reservation: Charged, now_s: float) -> None:
        """It has ended. Told again, or of what is not charged: nothing."""
        column = self._column_of.pop(reservation, None)
        if column is None:
            return
        slot = column.slot
        if reservation not in column.charged_at_s:
            column.lost.discard(reservation)
            if not column.lost and not column.present:
                self._vacate(slot)
            return
        if self._transfers:
            self._stop_transfer(reservation)
        reserved_at_s = column.charged_at_s[reservation]
        if reservation in column.prefill_ends_s:
            undone_ms = column.withdrawn(reservation, now_s)
            self._free_at_s[slot] = column.free_at_s
            self._queues.take(slot, reservation.priority, reservation.prefill_ms)
            if undone_ms:
                self._congestion.returned(undone_ms, reserved_at_s, now_s)
        del column.charged_at_s[reservation]
        # It may have been in a report that came after its end: then it is not there a second time.
        if column.requests > 0:
            column.requests -= 1
            self._requests[slot] = column.requests
        output_tokens = reservation.expected_output_tokens
        column.ended.append((reserved_at_s, now_s, output_tokens > 0, reservation.kv_tokens))
        if output_tokens > 0:
            if column.batch > 0:
                column.batch = batch = column.batch - 1
                self._batch[slot] = batch
                self._half_step_ms[slot], self._decode_ms[slot] = column.hardware.decode_figures(batch)
            if column.left_tokens:
                output_tokens = column.left_tokens.pop(reservation, output_tokens)
            column.remaining_tokens = self._remaining[slot] = max(0.0, column.remaining_tokens - output_tokens)
        free = min(column.kv_free_tokens + reservation.kv_tokens, column.kv_total_tokens)
        column.kv_free_tokens = self._kv_free[slot] = free

    def waits_ahead_ms(self, priority: int, now_s: float) -> FloatArray | None:
        """What waits at this priority or above. Shape (slots,), new; None: all that waits, FREE_AT_S.

        What others have put into a worker's queue counts as ahead: their priority is not known.
        """
        below_ms = self._queues.below_ms(priority, self.slots, self._waiting, now_s)
        if below_ms is None:
            return None
        ahead_ms = (self.figures[Figure.FREE_AT_S] - now_s) * 1000 - below_ms
        return cast("FloatArray", np.maximum(ahead_ms, 0.0, out=ahead_ms))

    def _waiting(self, now_s: float) -> Iterator[tuple[int, int, float]]:
        """Slot, priority and what is left of the prefill, of all that wait."""
        for column in self._columns:
            if column is not None:
                for reservation, end_s in column.prefill_ends_s.items():
                    left_ms = min(reservation.prefill_ms, (end_s - now_s) * 1000)
                    if left_ms > 0:
                        yield column.slot, reservation.priority, left_ms

    def congestion(self, now_s: float) -> float:
        """λ of the cost model: what a millisecond of prefill taken now costs those who come next."""
        return self._congestion.price(self._standing.serving, now_s)

    # -- what is learned ---------------------------------------------------------------------------------------------

    def refused(self, worker: str, now_s: float) -> None:
        """It refused an assignment: it is passed over for a time, or until it says that it is well.

        Without an end a worker that refused once would stay idle for good (ai-dynamo/dynamo#12138).
        """
        slot = self.slot_of.get(worker)
        if slot is not None:
            self._refused_at_s[slot] = now_s
            self._standing.refused(slot, now_s + self._settings.costs.refusal_mark_s)
            self._risk(slot, refused=True)

    def restore_confidence(self, worker: str) -> None:
        """Its index begins anew after a gap in its events: what is known from now on is not to blame."""
        slot = self.slot_of.get(worker)
        if slot is not None:
            self._trust[slot].start_over()
            self._standing.trusted(slot, self._trust[slot].ratio)

    def verify_hits(self, worker: str, *, predicted_tokens: float, cached_tokens: float) -> bool:
        """A request found so many cached tokens where so many were matched, before any confidence was applied.

        Returns: Whether its index is to be built anew, see ``Trust.verify``; False as well where there is no such
            worker.
        """
        slot = self.slot_of.get(worker)
        if slot is None:
            return False
        trust = self._trust[slot]
        before = trust.ratio
        rebuild = trust.verify(predicted_tokens, cached_tokens)
        if trust.ratio != before:
            self._standing.trusted(slot, trust.ratio)
        return rebuild

    def learn_prefill(
        self,
        worker: str,
        *,
        ttft_ms: float,
        queue_wait_ms: float | None,
        expected_wait_ms: float,
        brought_ms: float = 0.0,
        uncached_tokens: int | None,
        cached_tokens: int = 0,
    ) -> None:
        """A request's first token came; its hardware class's profile is corrected.

        Args:
            worker: Where.
            ttft_ms: Since it was sent there.
            queue_wait_ms: Of that before its prefill began, as the server told; None: untold, then it counts only where
                little was expected.
            expected_wait_ms: What was expected of that.
            brought_ms: What was expected of blocks that were brought there, from elsewhere or from lower tiers.
            uncached_tokens: That the server computed; None: unknown, then it does not count.
            cached_tokens: Before them.
        """
        column = self._column(worker)
        if column is None or uncached_tokens is None:
            return
        untold_ms = brought_ms if queue_wait_ms is not None else brought_ms + expected_wait_ms
        if untold_ms > _UNTOLD_RATIO * ttft_ms:
            return
        if column.hardware.calibration.observe_prefill(
            ttft_ms - (queue_wait_ms or 0.0) - untold_ms, uncached_tokens=uncached_tokens, cached_tokens=cached_tokens
        ):
            self._hardware.correct(column.hardware, self.figures)

    def learn_decode(self, worker: str, *, tpot_ms: float, batch: float | None = None) -> None:
        """A request was answered at so many milliseconds per token.

        Args:
            worker: Where.
            tpot_ms: From the first token to the last, per token after the first.
            batch: Sequences that decoded there, itself included; None: as many as are there now, before it is
                discharged, less those whose first token has not come.
        """
        column = self._column(worker)
        if column is None:
            return
        if batch is None:
            batch = max(1, column.batch - len(column.prefill_ends_s))
        if column.hardware.calibration.observe_decode(tpot_ms, batch=batch):
            self._hardware.correct(column.hardware, self.figures)

    # -- slots -------------------------------------------------------------------------------------------------------

    def _grow(self, slots: int) -> None:
        before = self.slots
        figures = np.zeros((FIGURES, slots))
        figures[list(_MAY_BE_UNKNOWN)] = nan
        figures[Figure.KV_FREE_TOKENS] = inf
        figures[Figure.BARRED] = inf
        figures[Figure.FREE_AT_S] = -inf
        figures[:, :before] = self.figures
        self.figures = figures
        self._standing.grow(slots)
        self.facts += (None,) * (slots - before)
        self._reach = self._roles = None
        self._columns.extend([None] * (slots - before))
        for slot in range(before, slots):
            heappush(self._free_slots, slot)
        # One item of a row's memoryview is written in 0.05 µs; of the row in 0.09, of the array in 0.14, and with an
        # IntEnum for its row in 0.39. (mypy does not know that they hold floats.)
        rows = [cast("Any", memoryview(figures[figure])) for figure in range(FIGURES)]
        self._free_at_s = rows[Figure.FREE_AT_S]
        self._batch = rows[Figure.BATCH]
        self._requests = rows[Figure.REQUESTS]
        self._half_step_ms = rows[Figure.HALF_STEP_MS]
        self._decode_ms = rows[Figure.DECODE_MS_PER_TOKEN]
        self._kv_free = rows[Figure.KV_FREE_TOKENS]
        self._remaining = rows[Figure.REMAINING_TOKENS]
        self._last_chosen = rows[Figure.LAST_CHOSEN]
        self._risk_ms = rows[Figure.RISK_MS]

    def _new_slot(self) -> int:
        if not self._free_slots:
            self._grow(2 * self.slots)
        return heappop(self._free_slots)

    def _vacate(self, slot: int) -> None:
        self._columns[slot] = None
        heappush(self._free_slots, slot)

    def _begin(self, slot: int) -> None:
        """Nothing is known of whoever is there now."""
        self._standing.begin(slot)
        self._trust[slot] = Trust()
        self._refused_at_s.pop(slot, None)
        self._awaited_since_s.pop(slot, None)
        self._risk_ms[slot] = 0.0

    def _lose_charges(self, column: WorkerColumn) -> None:
        for reservation in column.charged_at_s:
            self._stop_transfer(reservation)
        for reservation in column.prefill_ends_s:
            self._queues.take(column.slot, reservation.priority, reservation.prefill_ms)
        column.start_over()

    def _column(self, worker: str) -> WorkerColumn | None:
        slot = self.slot_of.get(worker)
        return None if slot is None else self._columns[slot]

    # -- columns -----------------------------------------------------------------------------------------------------

    def _stand(self, slot: int, seen: _Seen, now_s: float) -> None:
        """Whether it may be chosen."""
        view, times = seen.view, seen.times
        fit = view.ready and not view.draining and not view.asleep
        self._standing.shown(slot, fit=fit, prefills=seen.place.role != DECODE)
        if times.any_at_s > -inf:
            self._standing.heard(slot, times.any_at_s)
            refused_at_s = self._refused_at_s.get(slot)
            if refused_at_s is not None and fit and view.waiting == 0 and times.waiting_at_s > refused_at_s:
                del self._refused_at_s[slot]
                self._standing.refused(slot, -inf)
        elif fit:
            self._standing.awaited(slot, self._awaited_since_s.setdefault(slot, now_s))

    def _take_over(self, column: WorkerColumn, seen: _Seen) -> None:
        slot, view, place = column.slot, seen.view, seen.place
        column.count(
            view,
            seen.times,
            block_tokens=self._block_tokens,
            mean=self._mean,
            mean_output_tokens=self._settings.ledger.expected_output_tokens,
            prefills=place.role != DECODE,
        )
        if column.node != place.node:
            self._leave_node(slot, column.node)
            column.node = place.node
            if place.node is not None:
                self._on_node.setdefault(place.node, set()).add(slot)
        facts = worker_facts(
            view,
            place,
            seen.node,
            revision=self._revision,
            block_tokens=self._block_tokens,
            capabilities=self._capabilities,
            reserved_for=seen.reserved_for,
            publishes_events=seen.events_followed,
        )
        if facts != self.facts[slot]:
            self._set_facts(slot, facts)
        reuse = view.prefix_hit_ratio
        if reuse is None:
            reuse = self._settings.costs.unknown_reuse_ratio
        figures = self.figures
        figures[Figure.FREE_AT_S, slot] = column.free_at_s
        figures[Figure.REQUESTS, slot] = column.requests
        figures[Figure.KV_TOTAL_TOKENS, slot] = column.kv_total_tokens
        figures[Figure.KV_FREE_TOKENS, slot] = column.kv_free_tokens
        figures[Figure.REMAINING_TOKENS, slot] = column.remaining_tokens
        self._reuse_total += reuse - figures.item(Figure.REUSE_RATIO, slot)
        figures[Figure.REUSE_RATIO, slot] = reuse
        share = _displaced_ratio(seen.cached_tokens, column.kv_free_tokens)
        figures[Figure.PRESSURE_MS_PER_TOKEN, slot] = share * reuse * column.hardware.recompute_ms_per_token
        figures[Figure.HARDWARE_CLASS, slot] = column.hardware.index
        figures[Figure.LINK_BYTES_IN_FLIGHT, slot] = self._links.in_flight_bytes(place.node)
        figures[Figure.OBSERVED_AT_S, slot] = seen.times.any_at_s if seen.times.any_at_s > -inf else nan
        for figure, value in (
            (Figure.GPU_UTILIZATION_RATIO, view.gpu_utilization_ratio),
            (Figure.HBM_USED_BYTES, view.hbm_used_bytes),
            (Figure.CPU_FREE_BYTES, view.cpu_tier_free_bytes),
            (Figure.SSD_FREE_BYTES, view.ssd_tier_free_bytes),
        ):
            figures[figure, slot] = nan if value is None else value
        self._write_batch(column, slot)
        self._measure_pools()
        if seen.reserved_for is None:
            self._reserved.discard(slot)
        else:
            self._reserved.add(slot)

    def _count_block_sizes(self, before: WorkerView | None, after: WorkerView | None) -> None:
        sizes = self._block_sizes
        told = (None if view is None else view.block_size_tokens for view in (before, after))
        for size, more in zip(told, (-1, 1), strict=True):
            if size:
                sizes[size] += more
                if not sizes[size]:
                    del sizes[size]
        self.block_tokens = max(sizes, key=lambda size: (sizes[size], size), default=self._block_tokens)

    @property
    def work(self) -> Workspace:
        """Where the costs of one decision are added up."""
        if self._work.slots != self.figures.shape[1]:
            self._work = Workspace(self.figures.shape[1])
        return self._work

    def _set_facts(self, slot: int, facts: WorkerFacts | None) -> None:
        self.facts = (*self.facts[:slot], facts, *self.facts[slot + 1 :])
        self._reach = self._roles = None

    def _measure_pools(self) -> None:
        pools = self.figures[Figure.KV_TOTAL_TOKENS]
        self.smallest_pool_tokens = float(np.fmin.reduce(pools, initial=inf))
        self.largest_pool_tokens = float(np.fmax.reduce(pools, initial=-inf))
        if self.largest_pool_tokens < 0:
            self.largest_pool_tokens = inf

    def _write_batch(self, column: WorkerColumn, slot: int) -> None:
        batch = column.batch
        self._batch[slot] = batch
        self._half_step_ms[slot], self._decode_ms[slot] = column.hardware.decode_figures(batch)

    def _risk(self, slot: int, *, refused: bool) -> None:
        refused_ms = self._settings.costs.refused_ms
        chance = self._risk_ms[slot] / refused_ms if refused_ms else 0.0
        chance += _REFUSAL_SHARE * (refused - chance)
        self._risk_ms[slot] = refused_ms * chance if chance >= _REFUSAL_MIN else 0.0

    # -- links -------------------------------------------------------------------------------------------------------

    def _stop_transfer(self, reservation: Charged) -> None:
        node = self._transfers.pop(reservation, None)
        if node is not None:
            self._links.add(node, -reservation.transfer_bytes)

    def _link_changed(self, node: str, in_flight_bytes: int) -> None:
        for slot in self._on_node.get(node, ()):
            self.figures[Figure.LINK_BYTES_IN_FLIGHT, slot] = in_flight_bytes

    def _leave_node(self, slot: int, node: str | None) -> None:
        if node is not None:
            self._on_node[node].discard(slot)
            if not self._on_node[node]:
                del self._on_node[node]


def _displaced_ratio(cached_tokens: float | None, free_tokens: float) -> float:
    """Which share of new tokens displaces cached ones: a pool that never filled gives room for nothing.

    Args:
        cached_tokens: That are free to be displaced and worth something; None: unknown.
        free_tokens: Not held by what runs; NaN: unknown.
    Returns: 0..1; where it cannot be told, 1.
    """
    if cached_tokens is None or isnan(free_tokens) or free_tokens <= 0:
        return 1.0
    return min(1.0, cached_tokens / free_tokens)
