"""One model's workers as columns: what was reported of each, what was reserved since, how far it is believed.

What is reserved is in ``fleet_charges.py``, what is on its way in ``fleet_links.py``, whom to believe in
``standing.py``.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, cast

from kvaware_engine.observations import ModelObservation, NodeObservation, ObjectKey
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.reports import ReportTimes, WorkerPlace, WorkerView
from kvaware_engine.requests.block_sizes import BlockSizes
from kvaware_engine.requests.candidates import WorkerFacts
from kvaware_engine.requests.charges import WorkerColumn
from kvaware_engine.requests.congestion import Congestion
from kvaware_engine.requests.facts import worker_facts
from kvaware_engine.requests.figures import Figure, blank, no_figures, row
from kvaware_engine.requests.fleet_charges import FleetCharges
from kvaware_engine.requests.fleet_links import FleetLinks
from kvaware_engine.requests.hardware_classes import HardwareClasses
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.reported_figures import ReportedFigures
from kvaware_engine.requests.risk import Risk
from kvaware_engine.requests.roles import DECODE, Roles
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.standing import Standing
from kvaware_engine.requests.words import FloatArray
from kvaware_engine.requests.workspace import Workspace
from kvaware_engine.settings import WorkerSettings
from kvaware_engine.workers import Workers

__all__ = ["FleetChange", "WorkerFleet"]

_SLOTS: Final = 16
"""To begin with; doubled whenever they are used up."""
_UNTOLD_RATIO: Final = 0.1
"""A TTFT says something of the prefill only when what else was expected in it, and nobody tells, is a smaller share of
it than this: blocks that are brought, and the wait where the server does not tell it."""


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
        self.figures = no_figures(0)
        """Shape (FIGURES, slots), see ``Figure``. Another array once there are more workers than slots."""
        self.smallest_pool_tokens = inf
        """Of the workers that tell the size of their KV pool; infinity: nobody does."""
        self.largest_pool_tokens = inf
        """Of them; infinity: nobody tells."""
        self._settings = settings
        self._revision = ""
        self._capabilities: frozenset[str] = frozenset()
        self._reach: Reach | None = None
        self._roles: Roles | None = None
        self._block_sizes = BlockSizes()
        self.block_tokens = self._block_sizes.common_tokens
        """Tokens per KV block: as most of the workers tell, else as the spec says."""
        self._seen: dict[int, _Seen] = {}
        self._reserved: set[int] = set()
        """Slots of those that are for some tenants alone."""
        self._hardware = HardwareClasses(profiles)
        self._standing = Standing(reports or WorkerSettings(), refusal_mark_s=settings.costs.refusal_mark_s)
        self._reported = ReportedFigures(unknown_reuse_ratio=settings.costs.unknown_reuse_ratio)
        self._risk = Risk(settings.costs.refused_ms)
        self._links = FleetLinks(links or NodeLinks())
        self._congestion = Congestion(settings.costs)
        self._charges = charges = FleetCharges(self._congestion, self._links, self._risk)
        # What happens to every request is called without a call of the fleet's between.
        self.charge = charges.charge
        self.prefilled = charges.prefilled
        self.progressed = charges.progressed
        self.discharge = charges.discharge
        self.waits_ahead_ms = charges.waits_ahead_ms
        self._work = Workspace(0)
        self._grow(_SLOTS)

    def close(self) -> None:
        """The model is gone: nothing follows it any more."""
        self._links.close()

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
        return self._reported.reuse_total / len(self.slot_of) if self.slot_of else None

    @property
    def reserves(self) -> bool:
        """Whether some workers are for some tenants alone."""
        return bool(self._reserved)

    # -- who is there ------------------------------------------------------------------------------------------------

    def configure(self, model: ModelObservation) -> None:
        """What the model's spec says of all its workers."""
        sizes = self._block_sizes
        said = (model.revision, model.block_size_tokens, model.workers.capabilities)
        if said == (self._revision, sizes.spec_tokens, self._capabilities):
            return
        self._revision, sizes.spec_tokens, self._capabilities = said
        self.block_tokens = sizes.common_tokens
        for slot, seen in self._seen.items():
            self._take_over(self._there(slot), seen)

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
            if self._charges.full:
                self._grow(2 * self.slots)
            column = self._charges.begin(view.worker, hardware, view.incarnation)
            slot = self.slot_of[view.worker] = column.slot
            self._know_nothing(slot)
        else:
            column = self._there(slot)
            if column.incarnation != view.incarnation:
                change = FleetChange.STARTED_AGAIN
                self._charges.lose(column)
                column.incarnation = view.incarnation
                self._know_nothing(slot)
        if column.hardware is not hardware or change is FleetChange.CAME:
            column.hardware.slots.discard(slot)
            hardware.slots.add(slot)
            column.hardware = hardware
        before = self._seen.get(slot)
        if self._risk.ms[slot] and before is not None and times.any_at_s > before.times.any_at_s:
            self._risk.served(slot)  # it lives
        self._block_sizes.count(None if before is None else before.view, view)
        self.block_tokens = self._block_sizes.common_tokens
        seen = self._seen[slot] = _Seen(
            view, times, place, node, reserved_for, cached_tokens, before is not None and before.events_followed
        )
        self._standing.shown(slot, view, times, now_s, prefills=place.role != DECODE)
        self._take_over(column, seen)
        return change

    def absent(self, worker: str) -> FleetChange:
        """It is not shown at present: it gets nothing new and keeps what is reserved (ai-dynamo/dynamo#13513)."""
        slot = self.slot_of.get(worker)
        if slot is None:
            return FleetChange.UNKNOWN
        self._standing.absent(slot)
        return FleetChange.ABSENT

    def drop(self, worker: str) -> FleetChange:
        """It is forgotten. Its slot is given again once no reservation names it.

        What else is kept by slot, such as its blocks, must be cleared before.
        """
        slot = self.slot_of.pop(worker, None)
        if slot is None:
            return FleetChange.UNKNOWN
        column = self._there(slot)
        self._charges.end(column)
        self._know_nothing(slot)
        column.hardware.slots.discard(slot)
        self._links.moved(slot, column.node, None)
        self._block_sizes.count(self._seen.pop(slot).view, None)
        self.block_tokens = self._block_sizes.common_tokens
        self._set_facts(slot, None)
        self._reported.leave(slot)
        blank(self.figures, slot)
        self._reserved.discard(slot)
        self._measure_pools()
        return FleetChange.FORGOTTEN

    def follow_events(self, worker: str, *, followed: bool) -> bool:
        """Whether its KV events are followed now. Returns: whether that is new."""
        slot = self.slot_of.get(worker)
        if slot is None or self._seen[slot].events_followed == followed:
            return False
        self._seen[slot].events_followed = followed
        self._take_over(self._there(slot), self._seen[slot])
        return True

    def refresh(self, now_s: float) -> None:
        """Bring confidence, time-outs and marks to now. Before figures are read; 0.2 µs where nothing is due."""
        self._standing.refresh(self.figures, now_s)

    @property
    def without_marks(self) -> FloatArray | None:
        """BARRED as it were if nobody had refused anything lately, at the last ``refresh``; None: the same."""
        return self._standing.without_marks

    def congestion(self, now_s: float) -> float:
        """λ of the cost model: what a millisecond of prefill taken now costs those who come next."""
        return self._congestion.price(self._standing.serving, now_s)

    # -- what is learned ---------------------------------------------------------------------------------------------

    def refused(self, worker: str, now_s: float) -> None:
        """It refused an assignment: it is a risk, and passed over for a time."""
        slot = self.slot_of.get(worker)
        if slot is not None:
            self._standing.refused(slot, now_s)
            self._risk.refused(slot)

    def restore_confidence(self, worker: str) -> None:
        """Its index begins anew after a gap in its events: what is known from now on is not to blame."""
        slot = self.slot_of.get(worker)
        if slot is not None:
            self._standing.restore(slot)

    def verify_hits(self, worker: str, *, predicted_tokens: float, cached_tokens: float) -> bool:
        """A request found so many cached tokens where so many were matched, before any confidence was applied.

        Returns: Whether its index is to be built anew, see ``Trust.verify``; False as well where there is no such
            worker.
        """
        slot = self.slot_of.get(worker)
        return slot is not None and self._standing.verify(
            slot, predicted_tokens=predicted_tokens, cached_tokens=cached_tokens
        )

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
        slot = self.slot_of.get(worker)
        if slot is None or uncached_tokens is None:
            return
        untold_ms = brought_ms if queue_wait_ms is not None else brought_ms + expected_wait_ms
        if untold_ms > _UNTOLD_RATIO * ttft_ms:
            return
        hardware = self._there(slot).hardware
        if hardware.calibration.observe_prefill(
            ttft_ms - (queue_wait_ms or 0.0) - untold_ms, uncached_tokens=uncached_tokens, cached_tokens=cached_tokens
        ):
            self._hardware.correct(hardware, self.figures)

    def learn_decode(self, worker: str, *, tpot_ms: float, batch: float | None = None) -> None:
        """A request was answered at so many milliseconds per token.

        Args:
            worker: Where.
            tpot_ms: From the first token to the last, per token after the first.
            batch: Sequences that decoded there, itself included; None: as many as are there now, before it is
                discharged, less those whose first token has not come.
        """
        slot = self.slot_of.get(worker)
        if slot is None:
            return
        column = self._there(slot)
        if batch is None:
            batch = max(1, column.batch - len(column.prefill_ends_s))
        if column.hardware.calibration.observe_decode(tpot_ms, batch=batch):
            self._hardware.correct(column.hardware, self.figures)

    # -- columns -----------------------------------------------------------------------------------------------------

    def _grow(self, slots: int) -> None:
        before = self.slots
        figures = no_figures(slots)
        figures[:, :before] = self.figures
        self.figures = figures
        self.facts += (None,) * (slots - before)
        self._reach = self._roles = None
        self._standing.grow(slots)
        self._reported.grow(figures)
        self._charges.grow(figures)
        self._links.grow(row(figures, Figure.LINK_BYTES_IN_FLIGHT))
        self._risk.ms = row(figures, Figure.RISK_MS)

    def _there(self, slot: int) -> WorkerColumn:
        """Of a slot that has a worker."""
        return cast("WorkerColumn", self._charges.columns[slot])

    def _know_nothing(self, slot: int) -> None:
        """Of whoever is there now."""
        self._standing.begin(slot)
        self._risk.begin(slot)

    def _take_over(self, column: WorkerColumn, seen: _Seen) -> None:
        slot, view, place = column.slot, seen.view, seen.place
        spec_tokens = self._block_sizes.spec_tokens
        self._charges.count(
            column,
            view,
            seen.times,
            block_tokens=spec_tokens,
            mean_output_tokens=self._settings.ledger.expected_output_tokens,
            prefills=place.role != DECODE,
        )
        if column.node != place.node:
            self._links.moved(slot, column.node, place.node)
            column.node = place.node
        facts = worker_facts(
            view,
            place,
            seen.node,
            revision=self._revision,
            block_tokens=spec_tokens,
            capabilities=self._capabilities,
            reserved_for=seen.reserved_for,
            publishes_events=seen.events_followed,
        )
        if facts != self.facts[slot]:
            self._set_facts(slot, facts)
        self._reported.write(column, view, seen.times, seen.cached_tokens)
        self._measure_pools()
        if seen.reserved_for is None:
            self._reserved.discard(slot)
        else:
            self._reserved.add(slot)

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
        self.smallest_pool_tokens, self.largest_pool_tokens = self._reported.pools_tokens()
