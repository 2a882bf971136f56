"""Places requests: one owner of fleets, block indexes, reservations and tenants' limits; select-and-reserve is atomic.

Production feeds it from the cluster with the loop's clock, the simulator from modelled workers with virtual time. Every
method is synchronous, none waits, and ``now_s`` never goes back.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.events import BlockEvent
from kvaware_engine.blocks.residency import Applied
from kvaware_engine.observations import ModelObservation, NodeObservation, ObjectKey, TenantQuotaObservation
from kvaware_engine.policies import Policy
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.requests.attempts import NOBODY, Attempts
from kvaware_engine.requests.books import Books
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.explain import RequestExplanation, explain
from kvaware_engine.requests.ledger import Ending, RequestLedger, Reservation, same_demand
from kvaware_engine.requests.lengths import OutputLengths
from kvaware_engine.requests.limits import LimitRefusal, RequestLimits
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.request_events import RequestEvents
from kvaware_engine.requests.served_names import ServedNames
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.words import (
    BlockGroup,
    EventType,
    EventVerdict,
    Placement,
    PlacementEvent,
    PlacementReason,
    PlacementRefusal,
    RequestDemand,
)
from kvaware_engine.requests.worker_follower import WorkerFollower
from kvaware_engine.requests.worker_places import WorkerPlaces
from kvaware_engine.workers import Workers

__all__ = ["Placer"]

Outcome = Placement | PlacementRefusal


class Placer:
    """Decides where requests go, and keeps the books of those in flight."""

    def __init__(
        self,
        workers: Workers,
        settings: RequestSettings | None = None,
        profiles: Mapping[str, HardwareProfile] | None = None,
        *,
        seed: str = "",
    ) -> None:
        """Begin without models.

        Args:
            workers: What workers report; followed from now on.
            settings: All of them.
            profiles: Hardware profiles by name; None: the fallback alone.
            seed: Begins every placement id; see ``RequestLedger``.
        """
        self.settings = settings or RequestSettings()
        self.limits = RequestLimits(self.settings.ledger)
        self.ledger = RequestLedger(self.settings.ledger, seed=seed)
        self.lengths = OutputLengths(self.settings.ledger)
        self.budget = IndexBudget(self.settings.index.max_bytes)
        self._workers = workers
        self._book = ProfileBook(profiles or {})
        self._links = NodeLinks()
        self._names = ServedNames()
        self._models: dict[ObjectKey, ModelState] = {}
        self._places = WorkerPlaces(workers)
        ledger = self.settings.ledger
        self._books = Books(self._models, self.ledger, self.limits)
        self._follower = WorkerFollower(workers, self._places, self._models, self._books)
        self._attempts = Attempts(
            self.ledger, self.limits, self.lengths, self._books, kept_explained=ledger.kept_explained
        )
        self._events = RequestEvents(
            self.ledger, self.limits, self.lengths, self._books, self._attempts, attempts_max=ledger.attempts_max
        )
        self._now_s = 0.0

    # -- what is observed --------------------------------------------------------------------------------------------

    def observe_model(self, key: ObjectKey, model: ModelObservation | None) -> None:
        """An InferenceModel came, changed, or (None) went: with it goes what is reserved on its workers."""
        self._names.observe(key, model)
        state = self._models.get(key)
        if model is None:
            if state is not None:
                for reservation in [each for each in self.ledger if each.model == key]:
                    self.ledger.release(reservation, self._now_s)
                    self._books.ended(reservation, self._now_s)
                del self._models[key]
                state.close(self.budget)
        elif state is None:
            self._models[key] = ModelState(
                model,
                settings=self.settings,
                profiles=self._book,
                reports=self._workers.settings,
                links=self._links,
                budget=self.budget,
            )
            self._places.look_again(model=key)
        else:
            if model.revision != state.observation.revision:
                for reservation in [each for each in self.ledger if each.model == key]:
                    state.unassume(reservation, keep=False)  # in an index that is about to go
            state.observe(model)

    def observe_node(self, name: str, node: NodeObservation | None) -> None:
        """A node came, changed, or (None) went: where its workers are, and for whom."""
        self._places.observe_node(name, node)

    def observe_quota(self, name: str, quota: TenantQuotaObservation | None) -> None:
        """A TenantQuota came, changed, or (None) went."""
        self.limits.observe_quota(name, quota)
        self._places.observe_quota(name, quota)

    def observe_blocks(self, worker: str, events: Iterable[BlockEvent], *, now_s: float) -> Applied:
        """A worker's KV events, in their order. Returns: what became of them; nothing of a worker that no fleet has."""
        self._advance(now_s)
        found = self._follower.found(worker)
        if found is None:
            return Applied()
        state, slot = found
        if state.fleet.follow_events(worker, followed=True):
            state.history.forget(slot)  # from now on it says itself what it holds
        return state.residency.apply(slot, events)

    def blocks_lost(self, worker: str, *, now_s: float) -> None:
        """A worker's events have a gap, or it started again: nothing is known of its blocks any more."""
        self._advance(now_s)
        found = self._follower.found(worker)
        if found is not None:
            state, slot = found
            state.forget_blocks(slot)
            state.fleet.restore_confidence(worker)

    def events_ended(self, worker: str, *, now_s: float) -> None:
        """A worker's events are followed no more: what it is sent is all that is known from now on."""
        self.blocks_lost(worker, now_s=now_s)
        found = self._follower.found(worker)
        if found is not None:
            found[0].fleet.follow_events(worker, followed=False)

    def take_doubted(self) -> list[str]:
        """Workers of which requests find less than half of what their events told, each once: to be asked anew."""
        return self._events.take_doubted()

    def tick(self, now_s: float) -> None:
        """Let time pass: what nobody reports on ends."""
        self._advance(now_s)

    # -- questions ---------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> ObjectKey | None:
        """The model that a request asks for by a served name, or by ``namespace/name``; None: there is none."""
        return self._names.resolve(name)

    def adapter(self, model: ObjectKey, served_name: str) -> str | None:
        """Which adapter a served name stands for, as workers tell; None: the model itself, as far as is known."""
        if self._places.any_changed and self._now_s > 0:  # a report that came since the last decision may name it
            self._follower.follow(self._now_s)
        return served_name if served_name in self._models[model].fleet.roles.adapters else None

    def root(self, model: ObjectKey, adapter: str | None, salt: str | None) -> int:
        """Where the hashes of a model's prompts begin."""
        return self._models[model].root(adapter, salt)

    def block_tokens(self, model: ObjectKey) -> int:
        """Tokens per block: as most of the model's workers tell, else as its spec says."""
        return self._models[model].block_tokens

    def priority(self, tenant: str, asked: int | None) -> int:
        """The priority that a tenant's request gets; None: it names none."""
        return self.limits.priority(tenant, asked)

    def placement(self, placement_id: str) -> Placement | None:
        """What was decided, of a request in flight or one that ended lately; None: unknown."""
        reservation = self.ledger.find(placement_id)
        return None if reservation is None else reservation.placement

    def explain(self, placement_id: str) -> RequestExplanation | None:
        """Why a request went where it went; None: unknown, or decided too long ago.

        The one method that may run in a thread, beside the others: it takes some 30 ms, and reads what never changes.
        """
        reservation = self.ledger.find(placement_id)
        if reservation is None:
            return None
        # Each once, and in this order: the request may move, and its snapshot be forgotten, at any moment.
        placement, snapshot = reservation.placement, reservation.snapshot
        return None if snapshot is None else explain(reservation.decided or placement, snapshot)

    def block_groups(self, model: ObjectKey, most: int) -> Iterator[BlockGroup]:
        """A model's block groups that most prompts ran through, at most so many; others may change it in between."""
        state = self._models.get(model)
        return iter(()) if state is None else state.block_groups(most)

    def index_blocks(self) -> dict[ObjectKey, int]:
        """Model to how many blocks are known of it."""
        return {key: state.index.blocks for key, state in self._models.items()}

    def policy(self, model: ObjectKey) -> Policy:
        """How a model's workers are chosen."""
        return self._models[model].policy

    def candidates(self, demand: RequestDemand, *, now_s: float) -> Candidates | None:
        """What a policy would see now, without deciding; None: there is no such model."""
        self._advance(now_s)
        state = self._models.get(demand.model)
        if state is None:
            return None
        return self._attempts.seen(state, demand, NOBODY, now_s, self._attempts.expected(state, demand))[0]

    # -- decisions ---------------------------------------------------------------------------------------------------

    def place(self, demand: RequestDemand, *, now_s: float) -> Outcome:
        """Choose a worker and reserve it, or say why not. The same demand again gives the same placement."""
        self._advance(now_s)
        state = self._models.get(demand.model)
        if state is None:
            message = f"there is no InferenceModel {demand.model.namespace}/{demand.model.name}"
            return PlacementRefusal(demand=demand, reason=PlacementReason.MODEL_NOT_FOUND, message=message)
        earlier = self.ledger.in_flight(demand.tenant, demand.request_id)
        if earlier is not None:
            return self._again(earlier, demand, now_s)
        too_long = state.too_long(demand)
        if too_long is not None:
            return too_long
        expected = self._attempts.expected(state, demand)
        tokens = demand.input_tokens + expected
        charge = self.limits.admit(demand.tenant, tokens=tokens, priority=demand.priority, now_s=now_s)
        if charge is not None and isinstance(charge, LimitRefusal):
            return PlacementRefusal(
                demand=demand,
                reason=PlacementReason.TENANT_QUOTA_EXCEEDED,
                message=charge.message,
                retryable=charge.retryable,
                retry_after_s=charge.retry_after_s,
                details=charge.details,
            )
        try:
            reservation = self._attempts.decide(state, demand, expected, now_s)
        except BaseException:
            self.limits.undo(demand.tenant, charge)  # a mistake of ours must not shut its tenant out for good
            raise
        if isinstance(reservation, PlacementRefusal):
            self.limits.undo(demand.tenant, charge)
            return reservation
        reservation.charge = charge
        self.ledger.reserve(reservation)
        return reservation.placement

    def event(self, placement_id: str, event: PlacementEvent, *, now_s: float) -> tuple[EventVerdict, Outcome | None]:
        """Take a report on a placed request over.

        Returns: What became of it; for a refusal the next attempt, or why there is none.
        """
        self._advance(now_s)
        reservation = self.ledger.find(placement_id)
        if reservation is None:
            return EventVerdict.UNKNOWN_PLACEMENT, None
        if reservation.ending is not None:
            again = event.type is EventType.FINISHED and reservation.ending is Ending.SETTLED
            return (EventVerdict.REPEATED if again else EventVerdict.LATE), None
        state = self._models[reservation.model]
        if event.type is EventType.REFUSED:
            return self._events.refused(state, reservation, event, now_s)
        if event.worker is not None and event.worker != reservation.worker:
            first = reservation.placement.prefill  # also once its part is over: events come in any order
            if (first is None or first.worker != event.worker) and not self._events.move(
                state, reservation, event.worker, now_s
            ):
                return EventVerdict.UNKNOWN_WORKER, None
        self.ledger.renew(reservation, now_s)
        match event.type:
            case EventType.STARTED:
                verdict = _first(reservation.started_at_s)
                if verdict is EventVerdict.TAKEN:
                    reservation.started_at_s = now_s
                return verdict, None
            case EventType.FIRST_TOKEN:
                verdict = _first(reservation.first_token_at_s)
                self._events.first_token(state, reservation, event, now_s)
                return verdict, None
            case EventType.PROGRESS:
                if event.output_tokens is not None:
                    state.fleet.progressed(reservation, event.output_tokens)
                return EventVerdict.TAKEN, None
            case EventType.FINISHED:
                self._events.finished(state, reservation, event, now_s)
                return EventVerdict.TAKEN, None
            case _ as never:
                assert_never(never)

    def _again(self, earlier: Reservation, demand: RequestDemand, now_s: float) -> Outcome:
        """The answer to a request_id that is in flight: who asks again still wants it, so its time starts again."""
        if same_demand(earlier.demand, demand):
            self.ledger.renew(earlier, now_s)
            return earlier.placement
        return PlacementRefusal(
            demand=demand,
            reason=PlacementReason.DUPLICATE_REQUEST,
            message=f"request_id: expected one that is not in flight, or the same demand again; {demand.request_id!r} "
            f"stands for another demand, placement {earlier.placement_id}",
            details={"placement_id": earlier.placement_id},
        )

    def _advance(self, now_s: float) -> None:
        """What has to be known before anything is decided: which workers changed, and what has expired."""
        self._now_s = now_s
        if self._places.any_changed:
            self._follower.follow(now_s)
        for reservation in self.ledger.expire(now_s):
            self._books.ended(reservation, now_s)


def _first(at_s: float | None) -> EventVerdict:
    return EventVerdict.TAKEN if at_s is None else EventVerdict.REPEATED
