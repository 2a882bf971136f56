"""Requests in flight: who holds a place where, until when, and what is still known of those that ended.

    reserve ─► live ──event: renew──┐      settle (finished), release (refused, withdrawn), expire (nothing heard),
                ▲ └─────────────────┘─────► lose (its worker is gone or another incarnation) ─► ended, remembered

It keeps books only: what a reservation adds to its worker's columns is the fleet's, what it costs its tenant the
limits'. Every operation takes constant time.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.settings import RequestLedgerSettings
from kvaware_engine.requests.tenant_limits import Charge
from kvaware_engine.requests.words import Placement, RequestDemand

__all__ = ["Ending", "RequestLedger", "Reservation", "same_demand"]


class Ending(StrEnum):
    """How a reservation ended."""

    SETTLED = "settled"
    """Its request finished."""
    RELEASED = "released"
    """It was refused to the last, or withdrawn."""
    EXPIRED = "expired"
    """Nothing was heard of it for the time to live."""
    LOST = "lost"
    """A worker of it is gone, or started again."""


@dataclass(slots=True, eq=False)
class Reservation:
    """What one request holds on one worker.

    Plain, since it is made on the path of every request (0.9 µs; frozen it would be 3 µs). What it is charged as stays
    as it is between ``WorkerFleet.charge`` and ``discharge``; the marks at its end are the ledger's and the placer's.
    """

    placement_id: str
    demand: RequestDemand
    slot: int
    """The worker's column in its model's fleet."""
    worker: str
    incarnation: str
    reserved_at_s: float
    placement: Placement
    """As it was made, or moved; of both parts the same."""
    prefill_ms: float = 0.0
    """How long it keeps the worker's prefill; 0 for the decode part of a pair."""
    uncached_tokens: int = 0
    """Of the prompt, that are computed there."""
    expected_output_tokens: float = 0
    """0 for the prefill part of a pair."""
    kv_tokens: float = 0
    """Of its KV pool: prompt and expected output."""
    transfer_bytes: int = 0
    """That it brings over the worker's network link."""
    attempt: int = 1
    prefill: "Reservation | None" = None
    """Where the prompt is computed, when that is another worker; then this one is where it is decoded."""
    snapshot: Any = None
    """What the decision saw; kept for explanations, never looked at here."""
    assumed: Any = None
    """The blocks that are assumed to be with its worker since then; what they are the placer knows."""
    refused_by: frozenset[str] = frozenset()
    """Workers that refused it."""
    decided: Placement | None = None
    """The placement as it was decided, which is explained; None: ``placement``, it has not moved."""
    copies: int = 0
    """Under way for it, and counted for its tenant."""
    charge: Charge | None = None
    """What its tenant's rates were charged; None: nothing."""
    # marks
    expires_at_s: float = 0.0
    prefilled: bool = False
    """Whether its prompt is computed: it keeps no prefill any more."""
    started_at_s: float | None = None
    first_token_at_s: float | None = None
    ended_at_s: float | None = None
    ending: Ending | None = None
    """None: it is live."""

    def forget_snapshot(self) -> None:
        """It is explained no more. With its end its hashes go as well: 27 KB of a prompt of 750 blocks."""
        self.snapshot = None
        if self.ending is not None:
            self.demand.block_hashes, self.demand.sent = (), None

    @property
    def request_id(self) -> str:
        """The client's key."""
        return self.demand.request_id

    @property
    def tenant(self) -> str:
        """Who pays."""
        return self.demand.tenant

    @property
    def model(self) -> ObjectKey:
        """Whose workers it is on."""
        return self.demand.model

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.demand.priority

    @property
    def input_tokens(self) -> int:
        """Of the whole prompt."""
        return self.demand.input_tokens

    @property
    def parts(self) -> "tuple[Reservation, ...]":
        """Itself, and where the prompt is computed: all that its placement holds."""
        return (self,) if self.prefill is None else (self, self.prefill)


_PLAIN_FIELDS: Final = tuple(
    each.name for each in fields(RequestDemand) if each.compare and each.name != "block_hashes"
)


def same_demand(one: RequestDemand, other: RequestDemand) -> bool:
    """Whether two demands of one tenant and request id ask for the same.

    What the client sent is compared, where that is known: priority, adapter, block size and ids of workers are made of
    it by quotas and reports, and these change while a client waits to send again. So does what its hashes are made
    with. While that is the same, the prompts are compared by their hashes; else by their length alone, since prompts
    are not kept.

    Where it is not known the demand itself is compared, whatever kind of sequence its hashes come in.
    """
    if one is other:
        return True
    if one.sent is not None and other.sent is not None:
        if one.sent != other.sent or one.precision is not other.precision:
            return False
        if one.root != other.root or one.block_tokens != other.block_tokens:
            return True
    elif any(getattr(one, name) != getattr(other, name) for name in _PLAIN_FIELDS):
        return False
    return len(one.block_hashes) == len(other.block_hashes) and all(
        a == b for a, b in zip(one.block_hashes, other.block_hashes, strict=True)
    )


class RequestLedger:
    """All reservations of requests. One owner; ``now_s`` never goes back."""

    def __init__(self, settings: RequestLedgerSettings, *, seed: str) -> None:
        """Hold nothing yet.

        Args:
            settings: Time to live, and how many ended ones are remembered.
            seed: Begins every placement id. Another one after each start keeps ids of before from being taken for ours.
        """
        self._ttl_s = settings.ttl_s
        self._kept = settings.kept_finished
        self._seed = seed
        self._made = 0
        self._secret: bytes | None = None
        self._endings: list[str] = []
        """Of the next ids, in hexadecimal."""
        self._live: OrderedDict[str, Reservation] = OrderedDict()
        """By placement id. The time to live is one constant, so the order of the last events is that of expiry. (The
        front of a plain dict is found in O(1) only until many were taken from there.)"""
        self._of_request: dict[tuple[str, str], Reservation] = {}
        """By tenant and request id."""
        self._on_worker: dict[str, dict[str, Reservation]] = {}
        """Worker to placement id to the whole placement's reservation."""
        self._ended: OrderedDict[str, Reservation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Reservation]:
        """The live ones, the longest unheard first."""
        return iter(self._live.values())

    def keep_ids_secret(self, secret: bytes) -> None:
        """From now on ids end in 64 bits that nobody can tell without the secret, of 16 bytes or more.

        Events carry no token: workers post them as well. Whoever could guess an id could end another's request, and run
        up the bill of its tenant.
        """
        self._secret = secret

    def new_id(self) -> str:
        """A placement id that this ledger never gave before."""
        self._made += 1
        if self._secret is not None:
            if not self._endings:  # one hash for eight ids: 0.4 µs for each
                drawn = blake2b(self._made.to_bytes(8, "little"), key=self._secret).hexdigest()
                self._endings = [drawn[start : start + 16] for start in range(0, len(drawn), 16)]
            return f"{self._seed}{self._made:x}-{self._endings.pop()}"
        return f"{self._seed}{self._made:x}"  # hexadecimal: base 36 would be a character shorter and take 0.4 µs more

    # -- questions ---------------------------------------------------------------------------------------------------

    def find(self, placement_id: str) -> Reservation | None:
        """Live, or ended and still remembered (see ``ending``); None: unknown."""
        return self._live.get(placement_id) or self._ended.get(placement_id)

    def in_flight(self, tenant: str, request_id: str) -> Reservation | None:
        """What a client's key stands for now. One that ended stands for nothing: its id may be used again."""
        return self._of_request.get((tenant, request_id))

    def on_worker(self, worker: str) -> list[Reservation]:
        """The placements that hold something there, in either part."""
        return list(self._on_worker.get(worker, {}).values())

    # -- the life of a reservation -----------------------------------------------------------------------------------

    def reserve(self, reservation: Reservation) -> None:
        """Take over a placement's reservation, with its prefill part; its time to live begins when it was reserved.

        Raises: ValueError when its client's key stands for another that is in flight, or its placement id is live: ask
            ``in_flight`` before.
        """
        placement_id, demand = reservation.placement_id, reservation.demand
        key = (demand.tenant, demand.request_id)
        if key in self._of_request or placement_id in self._live:
            raise ValueError(f"request {key[1]!r}: expected one that is not in flight, as placement {placement_id}")
        reservation.expires_at_s = reservation.reserved_at_s + self._ttl_s
        self._live[placement_id] = self._of_request[key] = reservation
        self._enter(placement_id, reservation)

    def renew(self, reservation: Reservation, now_s: float) -> None:
        """Something was heard of a live one: its time to live starts again."""
        reservation.expires_at_s = now_s + self._ttl_s
        self._live.move_to_end(reservation.placement_id)

    def move(
        self, reservation: Reservation, *, slot: int, worker: str, incarnation: str, prefill: Reservation | None = None
    ) -> None:
        """A live one is on another worker, with another prefill part or none; the fleet discharged it before."""
        self._leave(reservation.placement_id, reservation)
        reservation.slot, reservation.worker, reservation.incarnation = slot, worker, incarnation
        reservation.prefill = prefill
        self._enter(reservation.placement_id, reservation)

    def handed_over(self, reservation: Reservation) -> Reservation | None:
        """The prompt of a live one is computed. Returns: its prefill part, which holds nothing any more."""
        reservation.prefilled = True
        part = reservation.prefill
        if part is not None:
            reservation.prefill = None
            part.prefilled = True
            if part.worker != reservation.worker:
                self._forget(part.worker, reservation.placement_id)
        return part

    def settle(self, reservation: Reservation, now_s: float) -> bool:
        """Its request finished. Returns: whether it was live; else nothing changes."""
        return self._end(reservation, now_s, Ending.SETTLED)

    def release(self, reservation: Reservation, now_s: float) -> bool:
        """It was refused to the last, or withdrawn. Returns: whether it was live; else nothing changes."""
        return self._end(reservation, now_s, Ending.RELEASED)

    def expire(self, now_s: float) -> list[Reservation]:
        """End those of which nothing was heard for the time to live. Returns: them, the longest unheard first."""
        expired: list[Reservation] = []
        while self._live:
            reservation = next(iter(self._live.values()))
            if reservation.expires_at_s > now_s:
                break
            self._end(reservation, now_s, Ending.EXPIRED)
            expired.append(reservation)
        return expired

    def lose(self, worker: str, now_s: float, *, incarnation: str | None = None) -> list[Reservation]:
        """End what a worker held that is gone.

        Args:
            worker: Its id.
            now_s: Now.
            incarnation: Which one is there now: its own are kept (ai-dynamo/dynamo#13513). None: none is.
        Returns: Those that ended. Of a pair the loss of either part ends both.
        """
        lost = [
            each
            for each in self.on_worker(worker)
            if any(part.worker == worker and part.incarnation != incarnation for part in each.parts)
        ]
        for each in lost:
            self._end(each, now_s, Ending.LOST)
        return lost

    # -- the books ---------------------------------------------------------------------------------------------------

    def _end(self, reservation: Reservation, now_s: float, ending: Ending) -> bool:
        if reservation.ending is not None:
            return False
        placement_id, demand = reservation.placement_id, reservation.demand
        del self._live[placement_id], self._of_request[demand.tenant, demand.request_id]
        self._leave(placement_id, reservation)
        reservation.ending, reservation.ended_at_s = ending, now_s
        if reservation.snapshot is None:
            reservation.forget_snapshot()
        ended = self._ended
        ended[placement_id] = reservation
        ended.move_to_end(placement_id)  # an attempt that was refused before has a place already
        if len(ended) > self._kept:
            ended.popitem(last=False)
        return True

    def _enter(self, placement_id: str, reservation: Reservation) -> None:
        on_worker = self._on_worker
        there = on_worker.get(reservation.worker)
        if there is None:
            there = on_worker[reservation.worker] = {}
        there[placement_id] = reservation
        if reservation.prefill is not None:
            on_worker.setdefault(reservation.prefill.worker, {})[placement_id] = reservation

    def _leave(self, placement_id: str, reservation: Reservation) -> None:
        self._forget(reservation.worker, placement_id)
        part = reservation.prefill
        if part is not None and part.worker != reservation.worker:
            self._forget(part.worker, placement_id)

    def _forget(self, worker: str, placement_id: str) -> None:
        there = self._on_worker[worker]
        del there[placement_id]
        if not there:
            del self._on_worker[worker]
