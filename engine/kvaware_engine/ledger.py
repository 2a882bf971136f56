"""The ledger: who holds what on which node, from the first guess to the pod's end, and what tenants pay for it.

intent (a guess) -> own (we write the binding; in doubt until it is settled) -> observed (the API server shows it)

Beside these a pod that is not bound may have one *hold*, a place that is kept for longer than a guess: a nomination
(room that victims leave, counted as an intent is) or a promise (a place in its group, counted as if it were bound). A
hold steps back while the pod has an intent or a booking of ours.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from kvaware_engine.bookings import bookings_of, node_held, observed_bookings
from kvaware_engine.charges import Charges
from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import Fleet
from kvaware_engine.observations import PodObservation, Reservation
from kvaware_engine.pools import Booking, BookingKind
from kvaware_engine.tenants import Tenants

__all__ = ["Hold", "Ledger"]


@dataclass(slots=True)
class _Own:
    """A booking that we made and the API server has not shown yet."""

    reservation: Reservation
    at_s: float
    settled: bool


@dataclass(slots=True)
class _Intent:
    node: str
    expires_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A place kept for a pod that is not bound yet."""

    demand: PodDemand
    node: str
    bookings: tuple[Booking, ...]
    promised: bool
    """Whether binds count it as well as filters: a place in a group, not only a nomination."""
    victims: frozenset[str]
    """UIDs of the pods that are to make room, as far as known."""
    at_s: float
    expires_at_s: float


class Ledger:
    """Bookings on the fleet's rows, keyed by (pod UID, node). One owner; every method is synchronous.

    Args:
        fleet: The nodes.
        tenants: Who pays.
        pods: All pods by UID, as the API server shows them.
        intent_ttl_s: How long a guess stands.
    """

    def __init__(
        self, fleet: Fleet, tenants: Tenants, *, pods: Mapping[str, PodObservation], intent_ttl_s: float
    ) -> None:
        self._fleet = fleet
        self._charges = Charges(fleet, tenants)
        self._pods = pods
        self._intent_ttl_s = intent_ttl_s
        self._own: dict[str, dict[str, _Own]] = {}
        """Pod UID to node to booking."""
        self._intents: dict[str, _Intent] = {}
        """Pod UID to intent, oldest first (their time to live is one constant)."""
        self._holds: dict[str, Hold] = {}
        self._next_hold_ends_at_s = inf
        """When the first of them ends, or before."""
        self._aside: frozenset[str] = frozenset()
        """The pods whose holds are not counted just now."""
        self.changes = 0
        """Grows with every booking that comes or goes, and with every column that changes for it."""

    # -- what stands -------------------------------------------------------------------------------------------------

    def own_nodes(self, uid: str) -> Collection[str]:
        """Nodes on which the pod is booked by us and not observed yet."""
        return self._own.get(uid, {}).keys()

    def standing(self, uid: str, node: str) -> Reservation | None:
        """Our reservation for the pod on this node."""
        own = self._own.get(uid, {}).get(node)
        return own.reservation if own is not None else None

    def intended_node(self, uid: str) -> str | None:
        """Where the pod is guessed to go."""
        intent = self._intents.get(uid)
        return intent.node if intent is not None else None

    def observed_node(self, uid: str) -> str | None:
        """Where the API server shows that the pod holds something."""
        return node_held(self._pods.get(uid))

    def holder(self, uid: str) -> tuple[str, ...]:
        """The nodes on which the pod holds something, observed or own, sorted."""
        observed = self.observed_node(uid)
        return tuple(sorted({*self.own_nodes(uid), *((observed,) if observed is not None else ())}))

    def booked_nodes(self, uid: str) -> list[str]:
        """The same, and where the pod is guessed to go or a place is kept for it."""
        hold = self._holds.get(uid)
        guesses = (self.intended_node(uid), hold.node if hold is not None else None)
        return sorted({*self.holder(uid), *(node for node in guesses if node is not None)})

    def intended_nodes(self) -> set[str]:
        """Every node on which some intent or nomination stands."""
        return {intent.node for intent in self._intents.values()} | {
            hold.node for hold in self._holds.values() if not hold.promised
        }

    def held(self, uid: str) -> Hold | None:
        """The place that is kept for the pod."""
        return self._holds.get(uid)

    def holds(self) -> list[Hold]:
        """All places that are kept."""
        return list(self._holds.values())

    def own_amounts(self, uid: str) -> tuple[int, int]:
        """GPUs and HBM bytes that the pod's own bookings cost its tenant already."""
        gpus = hbm = 0
        for node in self._own.get(uid, {}):
            row = self._fleet.get(node)
            if row is not None:
                gpus += sum(booking.gpus for booking in row.bookings.get(uid, ()))
                hbm += sum(self._charges.charged_bytes(row, booking) for booking in row.bookings.get(uid, ()))
        return gpus, hbm

    # -- the life of a booking ---------------------------------------------------------------------------------------

    def intend(self, demand: PodDemand, node: str, *, now_s: float) -> None:
        """Guess that the pod goes there; nothing where it holds more than a guess already."""
        pod = self._pods.get(demand.uid)
        hold = self._holds.get(demand.uid)
        if (
            demand.uid in self._own
            or (pod is not None and pod.node is not None)
            or (hold is not None and hold.promised)
        ):
            return
        if hold is not None:
            self._unbook(hold.node, demand.uid)
        self._intents[demand.uid] = _Intent(node, now_s + self._intent_ttl_s)
        self._book(node, demand.uid, bookings_of(demand, self._fleet.row(node), BookingKind.INTENT, fleet=self._fleet))

    def end_intent(self, uid: str) -> None:
        """The guess is over."""
        intent = self._intents.pop(uid, None)
        if intent is not None:
            self._unbook(intent.node, uid)
            self._count_hold(uid)

    def lift_intents(self, uids: Iterable[str]) -> list[tuple[str, _Intent, tuple[Booking, ...]]]:
        """Take the intents of these pods off the nodes. Returns: what ``restore_intents`` needs."""
        lifted = []
        for uid in uids:
            intent = self._intents.get(uid)
            row = self._fleet.get(intent.node) if intent is not None else None
            if intent is not None and row is not None:
                lifted.append((uid, intent, row.bookings.get(uid, ())))
                self.end_intent(uid)
        return lifted

    def restore_intents(self, lifted: Iterable[tuple[str, _Intent, tuple[Booking, ...]]]) -> None:
        """Put them back as they were."""
        for uid, intent, bookings in lifted:
            self._intents[uid] = intent
            self._book(intent.node, uid, bookings)
        self._intents = dict(sorted(self._intents.items(), key=lambda item: item[1].expires_at_s))

    def hold(
        self,
        demand: PodDemand,
        node: str,
        *,
        promised: bool,
        now_s: float,
        ttl_s: float,
        victims: Iterable[str] = (),
    ) -> None:
        """Keep a place for the pod, instead of any that was kept before. See ``Hold``."""
        self.end_hold(demand.uid)
        kind = BookingKind.OWN if promised else BookingKind.INTENT
        bookings = bookings_of(demand, self._fleet.row(node), kind, fleet=self._fleet)
        if not promised:  # its devices are not free yet: which they will be shows when the victims are gone
            bookings = tuple(replace(booking, devices=()) for booking in bookings)
        self._holds[demand.uid] = Hold(
            demand=demand,
            node=node,
            bookings=bookings,
            promised=promised,
            victims=frozenset(victims),
            at_s=now_s,
            expires_at_s=now_s + ttl_s,
        )
        self._next_hold_ends_at_s = min(self._next_hold_ends_at_s, now_s + ttl_s)
        self._count_hold(demand.uid)
        self.changes += 1

    def end_hold(self, uid: str) -> None:
        """The place is kept no longer."""
        hold = self._holds.pop(uid, None)
        if hold is not None:
            if self._hold_counts(uid):
                self._unbook(hold.node, uid)
            self.changes += 1

    def put_aside(self, uids: Iterable[str]) -> None:
        """Do not count the holds of these pods until ``put_back``: a pod is not in its own way."""
        aside = frozenset(uids)
        for uid in aside:
            hold = self._holds.get(uid)
            if hold is not None and self._hold_counts(uid):
                self._unbook(hold.node, uid)
        self._aside = aside

    def put_back(self) -> None:
        """Count them again, where they still stand."""
        aside, self._aside = self._aside, frozenset()
        for uid in aside:
            self._count_hold(uid)

    def ended_holds(self, now_s: float) -> list[Hold]:
        """The holds whose time is up; their owner ends or renews each."""
        if now_s < self._next_hold_ends_at_s:
            return []
        ended = [hold for hold in self._holds.values() if hold.expires_at_s <= now_s]
        running = (hold.expires_at_s for hold in self._holds.values() if hold.expires_at_s > now_s)
        self._next_hold_ends_at_s = min(running, default=inf)
        return ended

    def renew(self, hold: Hold, *, expires_at_s: float) -> None:
        """Keep a place for longer."""
        self._holds[hold.demand.uid] = replace(hold, expires_at_s=expires_at_s)
        self._next_hold_ends_at_s = min(self._next_hold_ends_at_s, expires_at_s)

    def _hold_counts(self, uid: str) -> bool:
        """Whether a hold of the pod stands on its row now."""
        return uid not in self._own and uid not in self._intents and uid not in self._aside

    def _count_hold(self, uid: str) -> None:
        hold = self._holds.get(uid)
        if hold is not None and self._hold_counts(uid):
            self._book(hold.node, uid, hold.bookings)

    def expire(self, now_s: float) -> None:
        """End the guesses whose time is up."""
        while self._intents:
            uid, intent = next(iter(self._intents.items()))
            if intent.expires_at_s > now_s:
                break
            self.end_intent(uid)

    def assume(self, demand: PodDemand, node: str) -> tuple[int, ...]:
        """Book what was checked. Returns: the devices that the pod is assumed to get, empty where nobody can tell."""
        hold = self._holds.get(demand.uid)
        if hold is not None and self._hold_counts(demand.uid):
            self._unbook(hold.node, demand.uid)
        bookings = bookings_of(demand, self._fleet.row(node), BookingKind.OWN, fleet=self._fleet)
        self._book(node, demand.uid, bookings)
        return bookings[0].devices if bookings else ()

    def take_back(self, uid: str, node: str) -> None:
        """Undo ``assume``."""
        self._unbook(node, uid)

    def reserved(self, uid: str, node: str, reservation: Reservation, *, now_s: float) -> None:
        """Keep the reservation of what ``assume`` booked."""
        self._own.setdefault(uid, {})[node] = _Own(reservation, now_s, settled=False)
        self.changes += 1

    def settle(self, uid: str, node: str, *, now_s: float) -> None:
        """The binding was accepted: what stands on this node is real, what the UID held elsewhere in doubt is not."""
        own = self._own.get(uid)
        if own is None:
            return  # the store was faster: the pod is observed, or gone already
        for other in [name for name in own if name != node]:
            self.release(uid, other)
        if node in own:
            own[node].settled = True
            own[node].at_s = now_s

    def release(self, uid: str, node: str) -> None:
        """The binding was refused or never happened: give back what stands on this node."""
        own = self._own.get(uid)
        if own is None or node not in own:
            return
        del own[node]
        if not own:
            del self._own[uid]
        self._unbook(node, uid)
        self._count_hold(uid)
        self.changes += 1

    def forget_unseen(self, *, listed_at_s: float, uids: Collection[str]) -> None:
        """Drop own settled bookings and holds, older than a complete list of pods, of pods that are not in it."""
        gone = [
            uid
            for uid, by_node in self._own.items()
            if uid not in uids and all(own.settled and own.at_s < listed_at_s for own in by_node.values())
        ]
        gone += [
            uid
            for uid, hold in self._holds.items()
            if uid not in uids and uid not in self._own and hold.at_s < listed_at_s
        ]
        for uid in gone:
            self.end(uid)
            self.changes += 1

    def observe(self, before: PodObservation | None, after: PodObservation | None, uid: str) -> None:
        """Replace what the pod held by what it holds, as the API server shows it."""
        held_on, holds_on = node_held(before), node_held(after)
        if held_on is not None:
            self._unbook(held_on, uid)
        if after is None or after.finished or after.node is not None:
            self.end(uid)
        if after is not None and holds_on is not None:
            self._book(holds_on, uid, observed_bookings(after))

    def end(self, uid: str) -> bool:
        """Drop the pod's intent, hold and own bookings; tell whether there were any."""
        stood = uid in self._own or uid in self._intents or uid in self._holds
        self.end_hold(uid)
        self.end_intent(uid)
        for node in self._own.pop(uid, {}):
            self._unbook(node, uid)
        self.changes += stood
        return stood

    # -- the rows and what they cost ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Add up dirty rows, then what their pods cost their tenants (that depends on the devices' sizes)."""
        if not self._fleet.dirty:
            return
        while self._fleet.dirty:
            row = self._fleet.get(self._fleet.dirty.pop())
            if row is not None:
                if self._fleet.flush_row(row):
                    self.changes += 1
                self._charges.charge(row)

    def _book(self, node: str, uid: str, bookings: tuple[Booking, ...]) -> None:
        row = self._fleet.row(node)
        row.bookings[uid] = bookings
        self._fleet.mark((node,))

    def _unbook(self, node: str, uid: str) -> None:
        row = self._fleet.get(node)
        if row is None or row.bookings.pop(uid, None) is None:
            return
        self._fleet.mark((node,))
        if row.node is None and not row.bookings and row.use is None:
            self.flush()
            self._fleet.drop_if_empty(row)
