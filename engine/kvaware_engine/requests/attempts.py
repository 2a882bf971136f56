"""One attempt at placing a request: what is seen is weighed, and what is chosen is reserved at once."""

from collections import deque
from typing import Final

from kvaware_engine.blocks.index import Match
from kvaware_engine.requests.books import Books
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.decide import decide, reserve, too_late
from kvaware_engine.requests.ledger import RequestLedger, Reservation
from kvaware_engine.requests.lengths import OutputLengths
from kvaware_engine.requests.limits import RequestLimits
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.words import PlacementRefusal, RequestDemand

__all__ = ["NOBODY", "Attempts"]

NOBODY: Final[frozenset[str]] = frozenset()


class Attempts:
    """Of all models."""

    __slots__ = ("_books", "_explained", "_kept_explained", "_ledger", "_lengths", "_limits")

    def __init__(
        self, ledger: RequestLedger, limits: RequestLimits, lengths: OutputLengths, books: Books, *, kept_explained: int
    ) -> None:
        """Begin without any.

        Args:
            ledger: Gives ids.
            limits: Of tenants, for what may be brought from elsewhere.
            lengths: Of answers.
            books: Where transfers are charged.
            kept_explained: Of so many decisions, the latest, what was seen is kept.
        """
        self._ledger = ledger
        self._limits = limits
        self._lengths = lengths
        self._books = books
        self._kept_explained = kept_explained
        self._explained: deque[Reservation] = deque()
        """Those whose snapshots are kept, the oldest first."""

    def expected(self, state: ModelState, demand: RequestDemand) -> int:
        """Output tokens: as the client says, else as was seen lately; never more than can be.

        Whoever says more would make a worker look full for as long as the request runs.
        """
        told = demand.expected_output_tokens
        expected = self._lengths.expected(demand.model, demand.tenant) if told is None else told
        return int(min(expected, state.answer_max_tokens(demand)))

    def seen(
        self, state: ModelState, demand: RequestDemand, refused_by: frozenset[str], now_s: float, expected: int
    ) -> tuple[Candidates, Match]:
        """What the model's policy sees of a demand, see ``ModelState.candidates``."""
        limits, tenant = self._limits, demand.tenant
        return state.candidates(
            demand,
            expected_output_tokens=expected,
            refused=refused_by,
            remote_bytes=limits.remote_bytes(tenant, now_s),
            migration_bytes=limits.migration_bytes(tenant, now_s),
            now_s=now_s,
        )

    def decide(
        self,
        state: ModelState,
        demand: RequestDemand,
        expected: int,
        now_s: float,
        *,
        after: Reservation | None = None,
        refused_by: frozenset[str] = NOBODY,
    ) -> Reservation | PlacementRefusal:
        """Choose, and charge what is chosen to its worker's figures. What is returned is not in the ledger yet."""
        candidates, match = self.seen(state, demand, refused_by, now_s, expected)
        decision = decide(state, candidates)
        if decision is None:
            return state.nobody(candidates, refused_by)
        saturated = too_late(candidates, decision)
        if saturated is not None:
            return saturated
        placement_id = self._ledger.new_id() if after is None else after.placement_id
        attempt = 1 if after is None else after.attempt + 1
        reservation = reserve(state, candidates, decision, placement_id=placement_id, attempt=attempt)
        reservation.refused_by = refused_by
        fleet = state.fleet
        fleet.charge(reservation, now_s)
        if reservation.prefill is not None:
            fleet.charge(reservation.prefill, now_s)
        if decision.option.transfer_bytes or decision.prefill is not None:
            self._books.charge_transfers(reservation, now_s)
        state.assume(reservation, match)
        explained = self._explained
        explained.append(reservation)
        if len(explained) > self._kept_explained:
            explained.popleft().forget_snapshot()
        return reservation
