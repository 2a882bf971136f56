"""Places requests: one owner of fleets, block indexes, reservations and tenants' limits; select-and-reserve is atomic.

Production feeds it from the cluster with the loop's clock, the simulator from modelled workers with virtual time. Every
method is synchronous, none waits, and ``now_s`` never goes back.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, assert_never

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.events import BlockEvent
from kvaware_engine.blocks.index import Match
from kvaware_engine.blocks.residency import Applied
from kvaware_engine.observations import ModelObservation, NodeObservation, ObjectKey, TenantQuotaObservation
from kvaware_engine.policies import Policy
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.decide import decide, reserve, too_late
from kvaware_engine.requests.explain import RequestExplanation, explain
from kvaware_engine.requests.fit import precision_at
from kvaware_engine.requests.fleet import FleetChange
from kvaware_engine.requests.ledger import Ending, RequestLedger, Reservation, same_demand
from kvaware_engine.requests.lengths import OutputLengths
from kvaware_engine.requests.limits import LimitRefusal, RequestLimits
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.rows import CONFIDENCE, REQUESTS
from kvaware_engine.requests.served_names import ServedNames
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.words import (
    Action,
    BlockGroup,
    EventType,
    EventVerdict,
    Mode,
    Phase,
    Placement,
    PlacementEvent,
    PlacementReason,
    PlacementRefusal,
    RequestDemand,
)
from kvaware_engine.requests.worker_places import WorkerPlaces
from kvaware_engine.workers import Workers

__all__ = ["Placer"]

_NOBODY: Final[frozenset[str]] = frozenset()
_MS_PER_S: Final = 1000.0
_ANSWER_TOKENS_MIN: Final = 8
"""Shorter answers tell more of the jitter of events than of decoding."""

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
        self._now_s = 0.0
        self._doubted: dict[str, None] = {}
        self._explained: deque[Reservation] = deque()
        """Those whose snapshots are kept, the oldest first."""

    # -- what is observed --------------------------------------------------------------------------------------------

    def observe_model(self, key: ObjectKey, model: ModelObservation | None) -> None:
        """An InferenceModel came, changed, or (None) went: with it goes what is reserved on its workers."""
        self._names.observe(key, model)
        state = self._models.get(key)
        if model is None:
            if state is not None:
                for reservation in [each for each in self.ledger if each.model == key]:
                    self._end(reservation, self._now_s, self.ledger.release, keep=False)
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
        found = self._found(worker)
        if found is None:
            return Applied()
        state, slot = found
        if state.fleet.follow_events(worker, followed=True):
            state.history.forget(slot)  # from now on it says itself what it holds
        return state.residency.apply(slot, events)

    def blocks_lost(self, worker: str, *, now_s: float) -> None:
        """A worker's events have a gap, or it started again: nothing is known of its blocks any more."""
        self._advance(now_s)
        found = self._found(worker)
        if found is not None:
            state, slot = found
            state.forget_blocks(slot)
            state.fleet.restore_confidence(worker)

    def events_ended(self, worker: str, *, now_s: float) -> None:
        """A worker's events are followed no more: what it is sent is all that is known from now on."""
        self.blocks_lost(worker, now_s=now_s)
        found = self._found(worker)
        if found is not None:
            found[0].fleet.follow_events(worker, followed=False)

    def take_doubted(self) -> list[str]:
        """Workers of which requests find less than half of what their events told, each once: to be asked anew."""
        doubted, self._doubted = list(self._doubted), {}
        return doubted

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
            self._follow(self._now_s)
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

    def block_groups(self, model: ObjectKey, most: int) -> list[BlockGroup]:
        """A model's block groups that most prompts ran through, at most so many."""
        state = self._models.get(model)
        return [] if state is None else state.block_groups(most)

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
        return None if state is None else self._seen(state, demand, _NOBODY, now_s, self._expected(state, demand))[0]

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
        expected = self._expected(state, demand)
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
            reservation = self._decide(state, demand, expected, now_s)
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
        if event.type is EventType.REFUSED:
            return self._refused(reservation, event, now_s)
        state = self._models[reservation.model]
        if event.worker is not None and event.worker != reservation.worker:
            first = reservation.placement.prefill  # also once its part is over: events come in any order
            if (first is None or first.worker != event.worker) and not self._move(
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
                self._first_token(state, reservation, event, now_s)
                return verdict, None
            case EventType.PROGRESS:
                if event.output_tokens is not None:
                    state.fleet.progressed(reservation, event.output_tokens)
                return EventVerdict.TAKEN, None
            case EventType.FINISHED:
                self._finished(state, reservation, event, now_s)
                return EventVerdict.TAKEN, None
            case _ as never:
                assert_never(never)

    # -- events ------------------------------------------------------------------------------------------------------

    def _first_token(self, state: ModelState, reservation: Reservation, event: PlacementEvent, now_s: float) -> None:
        """Its prompt is computed; what that took corrects the profile, what it found the trust in the index. Once."""
        if reservation.first_token_at_s is not None:
            return
        reservation.first_token_at_s = now_s
        placement = reservation.placement
        prefill = placement.prefill
        option = prefill or placement.option
        fleet = state.fleet
        fleet.prefilled(reservation, now_s)
        part = self.ledger.handed_over(reservation)
        if part is not None:
            fleet.discharge(part, now_s)
        if reservation.copies:
            self._copies_end(reservation)
        cached = event.cached_tokens
        if cached is not None:
            cached = min(cached, reservation.input_tokens)
            confidence = placement.confidence_ratio if prefill is None else placement.prefill_confidence_ratio
            if option.action is Action.LOCAL and confidence > 0:
                # The option's tokens are those expected; what the index said is told by undoing the confidence.
                predicted = option.matched_tokens / confidence
                if state.verify(option.worker, reservation.demand, predicted_tokens=predicted, cached_tokens=cached):
                    self._doubted[option.worker] = None
        if event.ttft_ms is not None and reservation.demand.phase is not Phase.DECODE:
            terms = option.terms
            brought_ms = terms.network + terms.migration + terms.cache_access - option.prefill_ms
            if prefill is not None:
                brought_ms += placement.option.terms.network
            fleet.learn_prefill(
                option.worker,
                ttft_ms=event.ttft_ms,
                queue_wait_ms=event.queue_wait_ms,
                expected_wait_ms=option.wait_ms,
                brought_ms=brought_ms,
                uncached_tokens=None if cached is None else reservation.input_tokens - cached,
                cached_tokens=cached or 0,
            )

    def _finished(self, state: ModelState, reservation: Reservation, event: PlacementEvent, now_s: float) -> None:
        first_token_at_s = reservation.first_token_at_s
        if first_token_at_s is None and (event.ttft_ms is not None or event.cached_tokens is not None):
            self._first_token(state, reservation, event, now_s)
        output_tokens = event.output_tokens
        if output_tokens is not None and output_tokens <= state.answer_max_tokens(reservation.demand):
            # What cannot be is neither learned nor charged: one figure could lock a tenant out for hours.
            if first_token_at_s is not None and output_tokens >= _ANSWER_TOKENS_MIN and now_s > first_token_at_s:
                tpot_ms = (now_s - first_token_at_s) * _MS_PER_S / (output_tokens - 1)
                state.fleet.learn_decode(reservation.worker, tpot_ms=tpot_ms)
            if reservation.demand.phase is not Phase.PREFILL:  # its one token is no answer
                self.lengths.observe(reservation.model, reservation.tenant, output_tokens)
            if reservation.charge is not None:
                reservation.charge.settle(actual_tokens=reservation.input_tokens + output_tokens, now_s=now_s)
        self._end(reservation, now_s, self.ledger.settle, keep=True)

    def _refused(
        self, reservation: Reservation, event: PlacementEvent, now_s: float
    ) -> tuple[EventVerdict, Outcome | None]:
        """The worker says no: the next best one, as often as is tried."""
        worker, demand = reservation.worker, reservation.demand
        state = self._models[reservation.model]
        if event.worker is not None and event.worker not in {part.worker for part in reservation.parts}:
            if event.worker not in reservation.refused_by and event.worker not in state.fleet.slot_of:
                return EventVerdict.UNKNOWN_WORKER, None
            return EventVerdict.REPEATED, reservation.placement  # it is at the next one already
        worker = event.worker or worker
        state.fleet.refused(worker, now_s)
        self._let_go(state, reservation, now_s, keep=False)
        refused_by = reservation.refused_by | {worker}
        following: Reservation | PlacementRefusal
        if reservation.attempt >= self.settings.ledger.attempts_max:
            following = PlacementRefusal(
                demand=demand,
                reason=PlacementReason.TOO_MANY_REFUSALS,
                message=f"expected one of {reservation.attempt} workers to take the request, all refused it",
                retryable=True,
                details={"attempts": reservation.attempt},
            )
        else:
            expected = reservation.placement.expected_output_tokens
            following = self._decide(state, demand, expected, now_s, after=reservation, refused_by=refused_by)
        if isinstance(following, PlacementRefusal):
            self.ledger.release(reservation, now_s)
            self.limits.undo(demand.tenant, reservation.charge)
            return EventVerdict.TAKEN, following
        # Its id is the next attempt's, and so is the demand: with its end the hashes must not go. Nobody can ask for
        # what it saw any more.
        reservation.demand, reservation.snapshot = replace(demand, block_hashes=()), None
        self.ledger.release(reservation, now_s)
        following.charge = reservation.charge
        self.ledger.reserve(following)
        return EventVerdict.TAKEN, following.placement

    def _move(self, state: ModelState, reservation: Reservation, worker: str, now_s: float) -> bool:
        """It runs on another worker than decided. Returns: False where the model has no such worker."""
        slot = state.fleet.slot_of.get(worker)
        facts = None if slot is None else state.fleet.facts[slot]
        if slot is None or facts is None:
            return False
        demand = reservation.demand
        self._let_go(state, reservation, now_s, keep=False)
        candidates, match = self._seen(state, demand, _NOBODY, now_s, reservation.placement.expected_output_tokens)
        # What had to be commanded was so for another worker: here it does what it does by itself.
        option = next(each for each in state.policy.options(candidates, slot) if each.mode is Mode.EXPECTED)
        self.ledger.move(reservation, slot=slot, worker=worker, incarnation=facts.incarnation)
        reservation.prefill_ms = option.prefill_ms
        reservation.uncached_tokens = reservation.input_tokens - option.matched_tokens
        reservation.transfer_bytes = option.transfer_bytes
        placement = reservation.placement
        reservation.decided = reservation.decided or placement
        reservation.placement = replace(
            placement,
            option=option,
            address=facts.address,
            precision=precision_at(facts, demand),
            confidence_ratio=candidates.figures.item(CONFIDENCE, slot),
            queue_length=int(candidates.figures.item(REQUESTS, slot)),
            prefill=None,
            prefill_address=None,
        )
        state.fleet.charge(reservation, now_s)
        self._charge_transfers(reservation, now_s)
        state.assume(reservation, match)
        return True

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

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _expected(self, state: ModelState, demand: RequestDemand) -> int:
        """Output tokens: as the client says, else as was seen lately; never more than can be.

        Whoever says more would make a worker look full for as long as the request runs.
        """
        told = demand.expected_output_tokens
        expected = self.lengths.expected(demand.model, demand.tenant) if told is None else told
        return int(min(expected, state.answer_max_tokens(demand)))

    def _seen(
        self, state: ModelState, demand: RequestDemand, refused_by: frozenset[str], now_s: float, expected: int
    ) -> tuple[Candidates, Match]:
        limits, tenant = self.limits, demand.tenant
        return state.candidates(
            demand,
            expected_output_tokens=expected,
            refused=refused_by,
            remote_bytes=limits.remote_bytes(tenant, now_s),
            migration_bytes=limits.migration_bytes(tenant, now_s),
            now_s=now_s,
        )

    def _decide(
        self,
        state: ModelState,
        demand: RequestDemand,
        expected: int,
        now_s: float,
        *,
        after: Reservation | None = None,
        refused_by: frozenset[str] = _NOBODY,
    ) -> Reservation | PlacementRefusal:
        """Choose, and charge what is chosen to its worker's figures. What is returned is not in the ledger yet."""
        candidates, match = self._seen(state, demand, refused_by, now_s, expected)
        decision = decide(state, candidates)
        if decision is None:
            return state.nobody(candidates, refused_by)
        saturated = too_late(candidates, decision)
        if saturated is not None:
            return saturated
        placement_id = self.ledger.new_id() if after is None else after.placement_id
        attempt = 1 if after is None else after.attempt + 1
        reservation = reserve(state, candidates, decision, placement_id=placement_id, attempt=attempt)
        reservation.refused_by = refused_by
        fleet = state.fleet
        fleet.charge(reservation, now_s)
        if reservation.prefill is not None:
            fleet.charge(reservation.prefill, now_s)
        if decision.option.transfer_bytes or decision.prefill is not None:
            self._charge_transfers(reservation, now_s)
        state.assume(reservation, match)
        explained = self._explained
        explained.append(reservation)
        if len(explained) > self.settings.ledger.kept_explained:
            explained.popleft().forget_snapshot()
        return reservation

    def _charge_transfers(self, reservation: Reservation, now_s: float) -> None:
        """What is brought from elsewhere, for either part, counts for its tenant; copies until the first token."""
        placement, tenant = reservation.placement, reservation.tenant
        for option in (placement.option, placement.prefill):
            if option is None or not option.transfer_bytes:
                continue
            if option.action is Action.MIGRATE:
                self.limits.charge_migration(tenant, option.transfer_bytes, now_s)
                reservation.copies += 1
            else:
                self.limits.charge_remote_read(tenant, option.transfer_bytes, now_s)

    # -- endings -----------------------------------------------------------------------------------------------------

    def _let_go(self, state: ModelState, reservation: Reservation, now_s: float, *, keep: bool) -> None:
        """Take what it holds out of the figures and the index; its tenant's bill stays as it is."""
        fleet = state.fleet
        fleet.discharge(reservation, now_s)
        if reservation.prefill is not None:
            fleet.discharge(reservation.prefill, now_s)
        state.unassume(reservation, keep=keep)
        if reservation.copies:
            self._copies_end(reservation)

    def _copies_end(self, reservation: Reservation) -> None:
        """Its copies are made, or will not be."""
        for _ in range(reservation.copies):
            self.limits.end_migration(reservation.tenant)
        reservation.copies = 0

    def _end(
        self, reservation: Reservation, now_s: float, how: Callable[[Reservation, float], bool], *, keep: bool
    ) -> None:
        """End a live one."""
        how(reservation, now_s)
        self._ended(reservation, now_s, keep=keep)

    def _ended(self, reservation: Reservation, now_s: float, *, keep: bool = False) -> None:
        """Give back what one held that the ledger has ended."""
        self._let_go(self._models[reservation.model], reservation, now_s, keep=keep)
        self.limits.release(reservation.tenant)

    def _advance(self, now_s: float) -> None:
        """What has to be known before anything is decided: which workers changed, and what has expired."""
        self._now_s = now_s
        if self._places.any_changed:
            self._follow(now_s)
        for reservation in self.ledger.expire(now_s):
            self._ended(reservation, now_s)

    def _follow(self, now_s: float) -> None:
        """Bring the workers that changed to what is believed of them now."""
        places, workers = self._places, self._workers
        for worker in places.changed():
            place = workers.place(worker)
            before = places.model_of.get(worker)
            if before is not None and (place is None or place.model != before):
                self._lose(self._models.get(before), worker, now_s)
            state = None if place is None else self._models.get(place.model)
            if place is None or state is None:
                continue
            places.model_of[worker] = place.model
            node = places.node_of(worker)
            change = state.fleet.follow(
                workers,
                worker,
                node,
                now_s,
                reserved_for=places.reserved_for(node),
                cached_tokens=state.cached_tokens(worker),
            )
            slot = state.fleet.slot_of.get(worker)
            if slot is None:
                places.forget(worker)
            elif change is FleetChange.STARTED_AGAIN:
                facts = state.fleet.facts[slot]
                self._lose_reservations(worker, now_s, None if facts is None else facts.incarnation)
                state.forget_blocks(slot)
            elif workers.asleep(worker):
                state.forget_blocks(slot)  # a sleeping server holds no blocks (vllm-project/aibrix#2287)

    def _lose(self, state: ModelState | None, worker: str, now_s: float) -> None:
        """A worker is gone from a model's fleet."""
        self._places.forget(worker)
        if state is None:
            return
        slot = state.fleet.slot_of.get(worker)
        self._lose_reservations(worker, now_s, None)
        if slot is not None:
            state.forget_blocks(slot)
        state.fleet.drop(worker)

    def _lose_reservations(self, worker: str, now_s: float, incarnation: str | None) -> None:
        for reservation in self.ledger.lose(worker, now_s, incarnation=incarnation):
            self._ended(reservation, now_s)

    def _found(self, worker: str) -> tuple[ModelState, int] | None:
        """A worker's model and slot; None: no fleet has it."""
        model = self._places.model_of.get(worker)
        state = None if model is None else self._models.get(model)
        slot = None if state is None else state.fleet.slot_of.get(worker)
        return None if state is None or slot is None else (state, slot)


def _first(at_s: float | None) -> EventVerdict:
    return EventVerdict.TAKEN if at_s is None else EventVerdict.REPEATED
