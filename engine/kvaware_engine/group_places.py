"""The places of a group's pods: filter gives each one node, the first bind has all of them promised, or none.

Why it is done so is told in ``groups``, which remembers the answers; here they are made and kept.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvaware_engine.admission import Admission
from kvaware_engine.decisions import FilterVerdict, PodDemand
from kvaware_engine.fleet import Fleet
from kvaware_engine.groups import MOST_MEMBERS, Answer, Groups
from kvaware_engine.judge import Judge
from kvaware_engine.ledger import Ledger
from kvaware_engine.observations import ObjectKey, PodObservation
from kvaware_engine.reasons import Reason
from kvaware_engine.verdict import ADMITTED
from kvaware_engine.what_if import WhatIf

__all__ = ["GroupPlaces"]


class GroupPlaces:
    """Where groups go. One owner; every method is synchronous.

    Args:
        groups: Members, and what filter answered.
        fleet: The nodes.
        ledger: Where promises stand, as holds.
        admission: Bind's question.
        judge: Filter's.
        what_if: Sets aside what is kept for a pod itself.
        demand: What a pod needs.
        promise_ttl_s: How long a place is kept for a pod whose group has begun to bind.
    """

    def __init__(
        self,
        *,
        groups: Groups,
        fleet: Fleet,
        ledger: Ledger,
        admission: Admission,
        judge: Judge,
        what_if: WhatIf,
        demand: Callable[[PodObservation], PodDemand],
        promise_ttl_s: float,
    ) -> None:
        self._groups = groups
        self._fleet = fleet
        self._ledger = ledger
        self._admission = admission
        self._judge = judge
        self._what_if = what_if
        self._demand = demand
        self._promise_ttl_s = promise_ttl_s

    # -- filter ------------------------------------------------------------------------------------------------------

    def choose(self, demand: PodDemand, verdict: FilterVerdict) -> int | None:
        """Position of the one admitted node that a member gets: where a place is kept for it, else the cheapest.

        Its own hold must not be counted. None: no node is admitted.
        """
        if verdict.admits <= 1:
            return verdict.only_admitted
        hold = self._ledger.held(demand.uid)
        row = self._fleet.get(hold.node) if hold is not None else None
        if row is not None:
            kept = np.flatnonzero((self._fleet.indexes(verdict.nodes) == row.index) & (verdict.codes == ADMITTED))
            if len(kept):
                return int(kept[0])
        judged = self._judge.judge(demand, verdict.nodes)
        return int(judged.admitted[judged.cheapest(1)[0]])

    def give(self, group: ObjectKey, demand: PodDemand, node: str | None, *, now_s: float) -> None:
        """Filter gave the member this node, a guess, and a promise once its group has begun to bind; or (None) none."""
        if node is None:
            self._groups.answer(group, demand, None, now_s=now_s)
            return
        if self._ledger.own_nodes(demand.uid):
            return
        self._groups.answer(group, demand, node, now_s=now_s)
        hold = self._ledger.held(demand.uid)
        if hold is not None and hold.promised and hold.node == node:
            return
        if self._groups.started(group, self._placed):
            self._promise(demand, node, now_s=now_s)
        else:
            self._ledger.intend(demand, node, now_s=now_s)

    def would_admit(
        self, group: ObjectKey, demand: PodDemand, nodes: Sequence[str] | None, *, now_s: float
    ) -> Reason | None:
        """Whether all pods of the group that wait would find a place together, on the nodes that one was offered."""
        waiting = [self._demand(pod) for pod in self._groups.pending(group) if not self._placed(pod.uid)]
        names = nodes if nodes is not None else self._fleet.names()
        members = (waiting or [demand])[:MOST_MEMBERS]
        uids = [each.uid for each in waiting or [demand]]
        with self._what_if.aside(uids, changed=True):
            lifted = self._ledger.lift_intents(uids)
            try:
                for each in members:
                    judged = self._judge.judge(each, names, cordoned=nodes is not None)
                    cheapest = judged.cheapest(1)
                    if not cheapest:
                        return judged.main_refusal()
                    self._ledger.intend(each, judged.nodes[int(judged.admitted[cheapest[0]])], now_s=now_s)
                return None
            finally:
                for each in members:
                    self._ledger.end_intent(each.uid)
                self._ledger.restore_intents(lifted)

    # -- bind --------------------------------------------------------------------------------------------------------

    def bind_refusal(self, group: ObjectKey, demand: PodDemand, node: str, *, now_s: float) -> Reason | None:
        """Why a member may not be bound; None: it may. The first bind settles the places of all its pods."""
        hold = self._ledger.held(demand.uid)
        if hold is not None and hold.promised and hold.node == node:
            row = self._fleet.get(node)
            return Reason.NODE_UNKNOWN if row is None or row.node is None else None
        if self._groups.started(group, self._placed):
            with self._what_if.aside((demand.uid,)):
                return self._admission.bind_refusal(demand, node)
        answers = self._groups.places(group, demand.uid, node)
        if not answers:
            return Reason.GROUP_INCOMPLETE
        lost = self._promise_all(group, answers, now_s=now_s)
        if lost is None:
            return None
        return lost[1] if lost[0] == demand.uid else Reason.GROUP_INCOMPLETE

    def begin(self, group: ObjectKey, *, now_s: float) -> Reason | None:
        """A pod that is not ours is bound as one of the group. Returns: None when it may be."""
        if self._groups.started(group, self._placed):
            return None
        lost = self._promise_all(group, self._groups.latest(group), now_s=now_s)
        return Reason.GROUP_INCOMPLETE if lost is not None else None

    def _promise_all(self, group: ObjectKey, answers: Sequence[Answer], *, now_s: float) -> tuple[str, Reason] | None:
        """Keep the places of all these members, or of none. Returns: the first that is lost, by UID, and why."""
        for answer in answers:
            self._ledger.end_intent(answer.demand.uid)
        for answer in answers:
            reason = self._admission.bind_refusal(answer.demand, answer.node)
            if reason is None:
                self._promise(answer.demand, answer.node, now_s=now_s)
                continue
            for other in answers:
                self._ledger.end_hold(other.demand.uid)
            self._groups.refuse(group, [other.demand.uid for other in answers], now_s=now_s)
            return answer.demand.uid, reason
        return None

    def _promise(self, demand: PodDemand, node: str, *, now_s: float) -> None:
        if demand.resource is not None:
            self._ledger.hold(demand, node, promised=True, now_s=now_s, ttl_s=self._promise_ttl_s)

    def _placed(self, uid: str) -> bool:
        """Whether a pod that is not seen bound holds a place for good."""
        hold = self._ledger.held(uid)
        return bool(self._ledger.own_nodes(uid)) or (hold is not None and hold.promised)
