"""Preemption: which of the victims that kube-scheduler found would really make room, and who must go on top.

kube-scheduler plans: it counts CPU, memory and devices, and offers nodes with victims. What it cannot count is HBM and
quota, so an offer may kill in vain; and where only HBM is short it sees no need for victims at all. Here an offer is
kept, extended, or dropped; nothing is added that does not serve the pod's HBM.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kvaware_engine.decisions import PodDemand, VictimOffer, VictimsVerdict
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.ledger import Hold, Ledger
from kvaware_engine.observations import GpuClass, ObjectKey, PodObservation
from kvaware_engine.reasons import Reason, main_reason
from kvaware_engine.victims import Budget, killable, more_victims, use_without
from kvaware_engine.what_if import WhatIf

__all__ = ["Preemption"]

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
        what_if: Sets aside what is kept for the pod itself.
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
        what_if: WhatIf,
        pods: Mapping[str, PodObservation],
        verdict: Callable[[NodeRow, PodDemand], Reason | None],
        nomination_ttl_s: float,
        agreed_ttl_s: float,
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._what_if = what_if
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

    def keep_victims(self, demand: PodDemand, offers: Sequence[VictimOffer], *, now_s: float) -> VictimsVerdict:
        """Tell which offers would really make room for the pod, and keep what was agreed for it."""
        if demand.problem is not None:
            return VictimsVerdict(kept=(), added=0, reason=demand.problem)
        if self._ledger.own_nodes(demand.uid):
            return VictimsVerdict(kept=(), added=0, reason=Reason.BINDING_UNDECIDED)
        hold = self._ledger.held(demand.uid)
        with self._what_if.aside((demand.uid,), changed=True):
            if hold is not None and self.opens(hold):
                return VictimsVerdict(kept=(), added=0, reason=Reason.VICTIMS_LEAVING)
            verdict = self._judge_all(demand, offers)
        if hold is not None and not hold.promised:
            self._ledger.end_hold(demand.uid)  # nothing will open there, or kube-scheduler goes elsewhere
        if verdict.kept and demand.group is None:
            self._agree(demand, verdict.kept, now_s=now_s)
        return verdict

    def _judge_all(self, demand: PodDemand, offers: Sequence[VictimOffer]) -> VictimsVerdict:
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

    def _agree(self, demand: PodDemand, kept: Sequence[VictimOffer], *, now_s: float) -> None:
        """Remember what was answered. A single node is kept for the pod at once, else the one it gets nominated to."""
        self._agreed[demand.uid] = _Agreed({offer.node: offer.victims for offer in kept}, now_s)
        if len(kept) == 1:
            self._nominate(demand, kept[0].node, now_s=now_s, ttl_s=self._agreed_ttl_s)

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
