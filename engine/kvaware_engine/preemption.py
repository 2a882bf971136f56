"""Preemption: which of the victims that kube-scheduler found would really make room, and who must go on top.

kube-scheduler plans: it counts CPU, memory and devices, and offers nodes with victims. What it cannot count is HBM and
quota, so an offer may kill in vain; and where only HBM is short it sees no need for victims at all. Here an offer is
kept, extended, or dropped; nothing is added that does not serve the pod's HBM.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from kvaware_engine.decisions import PodDemand, VictimOffer, VictimsVerdict
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.ledger import Hold, Ledger
from kvaware_engine.observations import GpuClass, GpuUse, NodeUse, ObjectKey, PodObservation
from kvaware_engine.pools import Booking, BookingKind, DeviceState, uses_by_device
from kvaware_engine.reasons import Reason, main_reason

__all__ = ["Budget", "Killable", "Preemption", "killable", "more_victims"]

MOST_TRIALS: Final = 400
"""Sets of victims that are tried for one pod, over all offered nodes: each takes some 0.2 ms of everybody's time."""
MOST_EXACT: Final = 2
"""Up to so many added victims the fewest and cheapest are found; more are found by giving back what is not needed."""

Refusal = Callable[[frozenset[str]], Reason | None]
"""Why the pod would be refused on one node once these pods are gone from it."""

WAITING: Final = frozenset(
    {
        Reason.HBM_SHORT,
        Reason.GPU_COUNT,
        Reason.TENANT_GPU_LIMIT,
        Reason.TENANT_HBM_LIMIT,
        Reason.GUARANTEED_TO_OTHERS,
    }
)
"""What victims that leave may end."""


@dataclass(slots=True)
class Budget:
    """How many sets of victims may still be tried for this pod."""

    left: int = MOST_TRIALS

    def take(self) -> bool:
        """Take one, if there is one."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killable:
    """A pod of lower priority that could be added to the victims."""

    uid: str
    priority: int
    hbm_bytes: int
    leaving: bool
    """It terminates already: to wait for it kills nobody."""


def killable(
    row: NodeRow, resource: str, *, below: int, pods: Mapping[str, PodObservation], but_not: Iterable[str]
) -> list[Killable]:
    """The pods on a node that may be added to the victims of a pod, the cheapest first.

    Only pods that the API server shows bound: kube-scheduler takes the whole answer for an error when it does not know
    a victim. Never a pod of equal or higher priority, and none of a group: the rest of the group would be left behind.

    Args:
        row: The node.
        resource: The GPU resource that is short.
        below: The priority of the pod that needs room.
        pods: All pods by UID.
        but_not: UIDs that are victims already.
    """
    named = set(but_not)
    found = []
    for uid, bookings in row.bookings.items():
        pod = pods.get(uid)
        if uid in named or pod is None or pod.group is not None or pod.priority >= below:
            continue
        held = [b for b in bookings if b.resource == resource and b.kind is BookingKind.OBSERVED]
        if held:
            hbm = sum((booking.hbm_per_gpu_bytes or 0) * booking.gpus for booking in held)
            found.append(Killable(uid=uid, priority=pod.priority, hbm_bytes=hbm, leaving=pod.terminating))
    return sorted(found, key=lambda k: (not k.leaving, k.priority, k.hbm_bytes, k.uid))


def more_victims(
    offered: frozenset[str], candidates: Sequence[Killable], refusal: Refusal, budget: Budget
) -> list[Killable] | None:
    """Who must go on top of the offered victims so that the pod has room: the fewest, of those the cheapest.

    Pods that terminate anyway come before all others. Dearer means a higher priority, then a higher sum of priorities,
    then more HBM.

    Args:
        offered: UIDs of kube-scheduler's victims; without more of them the pod is refused.
        candidates: Who may be added, see ``killable``.
        refusal: Asked for sets that hold ``offered``.
        budget: Shared by the nodes that were offered for one pod.
    Returns: None where nothing helps, or nothing was found within the budget.
    """

    def fits(added: Iterable[Killable]) -> bool:
        return budget.take() and refusal(offered | {k.uid for k in added}) is None

    if not candidates or not fits(candidates):
        return None
    leaving = [k for k in candidates if k.leaving]
    staying = [k for k in candidates if not k.leaving]
    chosen: list[Killable] | None = list(leaving) if leaving and fits(leaving) else None
    for size in range(1, MOST_EXACT + 1):
        if chosen is None:
            chosen = _cheapest_of_size(size, leaving, staying, fits)
    if chosen is None:
        chosen = list(candidates)
        for dear in sorted(staying, key=lambda k: (-k.priority, -k.hbm_bytes, k.uid)):
            rest = [k for k in chosen if k is not dear]
            if fits(rest):
                chosen = rest
    for one in leaving:
        rest = [k for k in chosen if k is not one]
        if (rest or offered) and fits(rest):
            chosen = rest
    return chosen


def _cheapest_of_size(
    size: int, leaving: list[Killable], staying: list[Killable], fits: Callable[[Iterable[Killable]], bool]
) -> list[Killable] | None:
    """The cheapest set of so many pods that makes room together with those that leave anyway."""
    sets = sorted(
        combinations(staying, size),
        key=lambda s: (max(k.priority for k in s), sum(k.priority for k in s), sum(k.hbm_bytes for k in s)),
    )
    for each in sets:
        if fits([*leaving, *each]):
            return [*leaving, *each]
    return None


def use_without(fleet: Fleet, row: NodeRow, gone: Mapping[str, tuple[Booking, ...]]) -> NodeUse | None:
    """The exporter's figures as they would be without some pods: what their reservations explain is free again.

    What a pod uses beyond its reservation stays counted as somebody else's: room that is not certain kills nobody.

    Args:
        fleet: Of the row.
        row: With the pods still on it.
        gone: UID to what those pods hold there.
    """
    if row.use is None or row.node is None or not gone:
        return row.use
    changed: dict[int, GpuUse] = {}
    for pool in row.node.pools:
        mine = [b for bookings in gone.values() for b in bookings if b.resource == pool.resource and b.ready]
        if not mine:
            continue
        states = fleet.devices(row, pool, intents=True)
        for state, use in zip(states, uses_by_device(pool, row.use.gpus), strict=True):
            if use is not None:
                freed = sum(_explained(b, state, pool.gpu_class) for b in mine if b.pod in state.pods)
                changed[id(use)] = _less(use, freed)
    return replace(row.use, gpus=tuple(changed.get(id(use), use) for use in row.use.gpus))


def _explained(booking: Booking, state: DeviceState, gpu_class: GpuClass) -> int:
    whole = state.capacity_bytes or 0
    return whole if gpu_class is not GpuClass.SHARED or booking.hbm_per_gpu_bytes is None else booking.hbm_per_gpu_bytes


def _less(use: GpuUse, freed_bytes: int) -> GpuUse:
    if use.used_bytes is None or use.free_bytes is None:
        return use
    freed = min(use.used_bytes, freed_bytes)
    return replace(use, used_bytes=use.used_bytes - freed, free_bytes=use.free_bytes + freed)


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What was answered to one preempt call: it is not known yet which of the nodes kube-scheduler takes."""

    victims: Mapping[str, tuple[str, ...]]
    """By node."""
    at_s: float


class Preemption:
    """What was agreed with kube-scheduler, and whether its offers would help. One owner; every method is synchronous.

    Args:
        fleet: The nodes.
        ledger: Where nominations stand, as holds.
        pods: All pods by UID, as the API server shows them.
        verdict: Why one node cannot take a pod as things are booked now; None: it can.
        nomination_ttl_s: See the settings.
        agreed_ttl_s: How long an answer is remembered that kube-scheduler has not acted upon.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        ledger: Ledger,
        pods: Mapping[str, PodObservation],
        verdict: Callable[[NodeRow, PodDemand], Reason | None],
        nomination_ttl_s: float,
        agreed_ttl_s: float,
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._pods = pods
        self._verdict = verdict
        self._nomination_ttl_s = nomination_ttl_s
        self._agreed_ttl_s = agreed_ttl_s
        self._agreed: dict[str, _Agreed] = {}
        self._left_at_s: dict[str, float] = {}
        """Node to when a pod last left it, of nodes on which a place is kept."""
        self._nominated: set[str] = set()
        """UIDs of pods that wait and say that they are nominated."""

    # -- offers ------------------------------------------------------------------------------------------------------

    def keep(self, demand: PodDemand, offers: Sequence[VictimOffer]) -> VictimsVerdict:
        """Judge the offers as things are booked now, the pod's own hold not counted."""
        budget = Budget()
        kept: list[VictimOffer] = []
        refusals: Counter[Reason] = Counter()
        added = 0
        for offer in offers:
            answer = self._judge(demand, offer, budget)
            if isinstance(answer, Reason):
                refusals[answer] += 1
            elif answer is not None:
                kept.append(answer)
                added += len(answer.victims) - len(offer.victims)
        reason = None if kept or not refusals else main_reason(refusals)
        return VictimsVerdict(kept=tuple(kept), added=added, reason=reason)

    def _judge(self, demand: PodDemand, offer: VictimOffer, budget: Budget) -> VictimOffer | Reason | None:
        """The offer as it is kept, why it is dropped, or None: it names no victim, and none is needed."""
        row = self._fleet.get(offer.node)
        if row is None or row.node is None:
            return Reason.NODE_UNKNOWN
        # kube-scheduler takes their nomination back when it preempts for somebody of higher priority.
        lesser = frozenset(
            hold.demand.uid
            for hold in self._ledger.holds()
            if hold.node == offer.node and not hold.promised and hold.demand.priority < demand.priority
        )

        def refusal(gone: frozenset[str]) -> Reason | None:
            with self._gone(row, gone | lesser):
                return self._verdict(row, demand)

        offered = frozenset(offer.victims)
        reason = refusal(offered)
        if reason is None:
            return offer if offered else None
        pool = row.pool(demand.resource) if demand.resource is not None else None
        # Where a pod gets GPUs of its own, another victim frees another GPU and leaves the worst one as it is.
        if reason is not Reason.HBM_SHORT or pool is None or pool.gpu_class is not GpuClass.SHARED:
            return reason
        candidates = killable(row, pool.resource, below=demand.priority, pods=self._pods, but_not=offered)
        added = more_victims(offered, candidates, refusal, budget)
        if added is None:
            return reason
        return VictimOffer(
            node=offer.node,
            # The dearest first, as kube-scheduler has them.
            victims=(*offer.victims, *(k.uid for k in sorted(added, key=lambda k: (-k.priority, k.uid)))),
            # PodDisruptionBudgets are not watched: each death that is added counts as if it violated one, so that of
            # several nodes kube-scheduler prefers one where its own victims are enough.
            pdb_violations=offer.pdb_violations + sum(not k.leaving for k in added),
        )

    @contextmanager
    def _gone(self, row: NodeRow, uids: Iterable[str]) -> Iterator[None]:
        """Inside, the row is as it will be without these pods; their owner sees to the version afterwards."""
        bookings, use = dict(row.bookings), row.use
        gone = {uid: bookings[uid] for uid in uids if uid in bookings}
        if not gone:
            yield
            return
        row.use = use_without(self._fleet, row, gone)
        for uid in gone:
            del row.bookings[uid]
        self._fleet.mark((row.name,))
        self._ledger.flush()
        try:
            yield
        finally:
            row.bookings.clear()
            row.bookings.update(bookings)
            row.use = use
            self._fleet.mark((row.name,))
            self._ledger.flush()

    # -- nominations -------------------------------------------------------------------------------------------------

    def agreed(self, demand: PodDemand, kept: Sequence[VictimOffer], *, now_s: float) -> None:
        """Remember what was answered. A single node is kept for the pod at once, else the one it gets nominated to."""
        self._agreed[demand.uid] = _Agreed({offer.node: offer.victims for offer in kept}, now_s)
        if len(kept) == 1:
            self._nominate(demand, kept[0].node, now_s=now_s, ttl_s=self._agreed_ttl_s)

    def observe(self, before: PodObservation | None, after: PodObservation | None, uid: str) -> bool:
        """Hear of a pod. Returns: whether it has just been nominated: ``nominated`` wants its demand."""
        if after is None or after.node is not None or after.finished or after.terminating:
            self._agreed.pop(uid, None)
            self._nominated.discard(uid)
            if after is not None:
                self._end_nomination(uid)
            return False
        was = before.nominated_node if before is not None else None
        if after.nominated_node is not None:
            self._nominated.add(uid)
            return after.nominated_node != was
        self._nominated.discard(uid)
        if was is not None:
            self._end_nomination(uid)
        return False

    def waiting(self, model: ObjectKey) -> list[PodObservation]:
        """The nominated pods of a model: what they need has just become known, or has changed."""
        pods = [self._pods[uid] for uid in self._nominated if uid in self._pods]
        return [pod for pod in pods if pod.model == model.name and pod.namespace == model.namespace]

    def nominated(self, demand: PodDemand, *, now_s: float) -> None:
        """The pod, which waits, is nominated. Its node is kept for it."""
        if demand.nominated_node is not None:
            self._nominate(demand, demand.nominated_node, now_s=now_s, ttl_s=self._nomination_ttl_s)

    def offered(self, demand: PodDemand, *, now_s: float) -> None:
        """Filter was asked: kube-scheduler may have taken one of the agreed nodes before our view has the pod's."""
        agreed = self._agreed.get(demand.uid)
        if agreed is not None and demand.nominated_node in agreed.victims and self._ledger.held(demand.uid) is None:
            self.nominated(demand, now_s=now_s)

    def _end_nomination(self, uid: str) -> None:
        hold = self._ledger.held(uid)
        if hold is not None and not hold.promised:
            self._ledger.end_hold(uid)

    def _nominate(self, demand: PodDemand, node: str, *, now_s: float, ttl_s: float) -> None:
        hold = self._ledger.held(demand.uid)
        if demand.problem is not None or demand.resource is None or (hold is not None and hold.promised):
            return
        agreed = self._agreed.get(demand.uid)
        victims = agreed.victims.get(node, ()) if agreed is not None else ()
        self._ledger.hold(demand, node, promised=False, now_s=now_s, ttl_s=ttl_s, victims=victims)

    def pod_left(self, node: str, *, now_s: float) -> None:
        """A pod holds nothing on this node any more."""
        if any(hold.node == node for hold in self._ledger.holds()):
            self._left_at_s[node] = now_s

    def opens(self, hold: Hold) -> bool:
        """Whether the nominated node will take its pod by itself: victims leave, or the exporter has not seen it yet.

        The pod's hold must not be counted.
        """
        row = self._fleet.get(hold.node)
        if hold.promised or row is None or row.node is None:
            return False
        refusal = self._verdict(row, hold.demand)
        if refusal not in WAITING:
            return False
        leaving = self._leaving(row, hold)
        if leaving:
            with self._gone(row, leaving):
                refusal = self._verdict(row, hold.demand)
            if refusal is None:
                return True
        left_at_s = self._left_at_s.get(hold.node)
        unseen = row.use is not None and left_at_s is not None and row.use.observed_at_s < left_at_s
        return unseen and refusal is Reason.HBM_SHORT

    def _leaving(self, row: NodeRow, hold: Hold) -> frozenset[str]:
        """The pods that make room on the node and are still there: agreed victims, and whoever terminates there."""
        below = hold.demand.priority
        found = set()
        for uid in row.bookings:
            pod = self._pods.get(uid)
            if uid in hold.victims or (pod is not None and pod.terminating and pod.priority < below):
                found.add(uid)
        return frozenset(found)

    def expire(self, now_s: float) -> None:
        """End the holds whose time is up, but for nominations whose victims have not left yet."""
        for hold in self._ledger.ended_holds(now_s):
            row = self._fleet.get(hold.node)
            if not hold.promised and row is not None and self._terminating(row, hold):
                self._ledger.renew(hold, expires_at_s=now_s + self._nomination_ttl_s)
            else:
                self._ledger.end_hold(hold.demand.uid)
                self._agreed.pop(hold.demand.uid, None)

    def _terminating(self, row: NodeRow, hold: Hold) -> bool:
        leaving = (self._pods.get(uid) for uid in self._leaving(row, hold))
        return any(pod is not None and pod.terminating for pod in leaving)

    def tick(self, now_s: float) -> None:
        """Forget answers that came to nothing, and departures that nobody waits for."""
        for uid in [uid for uid, each in self._agreed.items() if each.at_s + self._nomination_ttl_s <= now_s]:
            del self._agreed[uid]
        kept_on = {hold.node for hold in self._ledger.holds()}
        for node in self._left_at_s.keys() - kept_on:
            del self._left_at_s[node]
