"""What becomes of placed requests, as gateways and workers tell: what is taken back, moved on, and learned from it."""

from dataclasses import replace
from typing import Final

from kvaware_engine.requests.attempts import NOBODY, Attempts
from kvaware_engine.requests.books import Books
from kvaware_engine.requests.fit import precision_at
from kvaware_engine.requests.ledger import RequestLedger, Reservation
from kvaware_engine.requests.lengths import OutputLengths
from kvaware_engine.requests.limits import RequestLimits
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.rows import CONFIDENCE, REQUESTS
from kvaware_engine.requests.words import (
    Action,
    EventVerdict,
    Mode,
    Phase,
    Placement,
    PlacementEvent,
    PlacementReason,
    PlacementRefusal,
)

__all__ = ["RequestEvents"]

_MS_PER_S: Final = 1000.0
_ANSWER_TOKENS_MIN: Final = 8
"""Shorter answers tell more of the jitter of events than of decoding."""


class RequestEvents:
    """Of requests that are in flight, of all models. Which of them an event is of, and whether it is new, is known."""

    __slots__ = ("_attempts", "_attempts_max", "_books", "_doubted", "_ledger", "_lengths", "_limits")

    def __init__(
        self,
        ledger: RequestLedger,
        limits: RequestLimits,
        lengths: OutputLengths,
        books: Books,
        attempts: Attempts,
        *,
        attempts_max: int,
    ) -> None:
        """Begin without any.

        Args:
            ledger: Where reservations end.
            limits: Of tenants.
            lengths: Of answers, learned from those that end.
            books: What is given back.
            attempts: The next, after a refusal.
            attempts_max: So many workers are tried.
        """
        self._ledger = ledger
        self._limits = limits
        self._lengths = lengths
        self._books = books
        self._attempts = attempts
        self._attempts_max = attempts_max
        self._doubted: dict[str, None] = {}

    def take_doubted(self) -> list[str]:
        """Workers of which requests find less than half of what their events told, each once: to be asked anew."""
        doubted, self._doubted = list(self._doubted), {}
        return doubted

    def first_token(self, state: ModelState, reservation: Reservation, event: PlacementEvent, now_s: float) -> None:
        """Its prompt is computed; what that took corrects the profile, what it found the trust in the index. Once."""
        if reservation.first_token_at_s is not None:
            return
        reservation.first_token_at_s = now_s
        placement = reservation.placement
        prefill = placement.prefill
        option = prefill or placement.option
        fleet = state.fleet
        fleet.prefilled(reservation, now_s)
        part = self._ledger.handed_over(reservation)
        if part is not None:
            fleet.discharge(part, now_s)
        if reservation.copies:
            self._books.copies_end(reservation)
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

    def finished(self, state: ModelState, reservation: Reservation, event: PlacementEvent, now_s: float) -> None:
        """It was answered: how long that is and took is learned, and what it holds is given back."""
        first_token_at_s = reservation.first_token_at_s
        if first_token_at_s is None and (event.ttft_ms is not None or event.cached_tokens is not None):
            self.first_token(state, reservation, event, now_s)
        output_tokens = event.output_tokens
        if output_tokens is not None and output_tokens <= state.answer_max_tokens(reservation.demand):
            # What cannot be is neither learned nor charged: one figure could lock a tenant out for hours.
            if first_token_at_s is not None and output_tokens >= _ANSWER_TOKENS_MIN and now_s > first_token_at_s:
                tpot_ms = (now_s - first_token_at_s) * _MS_PER_S / (output_tokens - 1)
                state.fleet.learn_decode(reservation.worker, tpot_ms=tpot_ms)
            if reservation.demand.phase is not Phase.PREFILL:  # its one token is no answer
                self._lengths.observe(reservation.model, reservation.tenant, output_tokens)
            if reservation.charge is not None:
                reservation.charge.settle(actual_tokens=reservation.input_tokens + output_tokens, now_s=now_s)
        self._ledger.settle(reservation, now_s)
        self._books.ended(reservation, now_s, keep=True)

    def refused(
        self, state: ModelState, reservation: Reservation, event: PlacementEvent, now_s: float
    ) -> tuple[EventVerdict, Placement | PlacementRefusal | None]:
        """The worker says no: the next best one, as often as is tried."""
        worker, demand = reservation.worker, reservation.demand
        if event.worker is not None and event.worker not in {part.worker for part in reservation.parts}:
            if event.worker not in reservation.refused_by and event.worker not in state.fleet.slot_of:
                return EventVerdict.UNKNOWN_WORKER, None
            return EventVerdict.REPEATED, reservation.placement  # it is at the next one already
        worker = event.worker or worker
        state.fleet.refused(worker, now_s)
        self._books.let_go(state, reservation, now_s, keep=False)
        refused_by = reservation.refused_by | {worker}
        following: Reservation | PlacementRefusal
        if reservation.attempt >= self._attempts_max:
            following = PlacementRefusal(
                demand=demand,
                reason=PlacementReason.TOO_MANY_REFUSALS,
                message=f"expected one of {reservation.attempt} workers to take the request, all refused it",
                retryable=True,
                details={"attempts": reservation.attempt},
            )
        else:
            expected = reservation.placement.expected_output_tokens
            following = self._attempts.decide(state, demand, expected, now_s, after=reservation, refused_by=refused_by)
        if isinstance(following, PlacementRefusal):
            self._ledger.release(reservation, now_s)
            self._limits.undo(demand.tenant, reservation.charge)
            return EventVerdict.TAKEN, following
        # Its id is the next attempt's, and so is the demand: with its end the hashes must not go. Nobody can ask for
        # what it saw any more.
        reservation.demand, reservation.snapshot = replace(demand, block_hashes=()), None
        self._ledger.release(reservation, now_s)
        following.charge = reservation.charge
        self._ledger.reserve(following)
        return EventVerdict.TAKEN, following.placement

    def move(self, state: ModelState, reservation: Reservation, worker: str, now_s: float) -> bool:
        """It runs on another worker than decided. Returns: False where the model has no such worker."""
        slot = state.fleet.slot_of.get(worker)
        facts = None if slot is None else state.fleet.facts[slot]
        if slot is None or facts is None:
            return False
        demand = reservation.demand
        self._books.let_go(state, reservation, now_s, keep=False)
        candidates, match = self._attempts.seen(
            state, demand, NOBODY, now_s, reservation.placement.expected_output_tokens
        )
        # What had to be commanded was so for another worker: here it does what it does by itself.
        option = next(each for each in state.policy.options(candidates, slot) if each.mode is Mode.EXPECTED)
        self._ledger.move(reservation, slot=slot, worker=worker, incarnation=facts.incarnation)
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
        self._books.charge_transfers(reservation, now_s)
        state.assume(reservation, match)
        return True
