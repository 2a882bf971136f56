"""Groups of pods that are placed all or none (``spec.schedulingGroup``): who belongs to them, and what filter answered.

kube-scheduler filters every member before it binds any, binds them all at once, and has no way back: one refused bind
leaves half a group bound, and that pod retries some 650 times a second. So filter gives a member one node only, which
makes its answer the place and not a guess, and the first bind reserves the places of all members or refuses.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvaware_engine.decisions import PodDemand
from kvaware_engine.observations import ObjectKey, PodObservation

__all__ = ["MOST_MEMBERS", "Answer", "Groups"]

MOST_MEMBERS: Final = 256
"""Of one group that are tried together before it is woken: some 1 s of work at 5,000 nodes. Filter judges them all."""
MOST_PASSES: Final = 32
"""Of one group that are remembered: kube-scheduler tries one placement per rack or zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The one node that filter gave a member."""

    demand: PodDemand
    node: str
    at_s: float


class Groups:
    """Members by group. One owner; every method is synchronous.

    kube-scheduler may go through a group several times before it binds it (placements by topology, preemption tried in
    thought): each time is a *pass*, and the nodes that it binds to are those of one pass.

    Args:
        pass_s: Answers that are further apart than this belong to two attempts, not to one pass.
        forget_after_s: A pod that is not bound this long after its answer is not bound by it any more.
    """

    def __init__(self, *, pass_s: float, forget_after_s: float) -> None:
        self._pass_s = pass_s
        self._forget_after_s = forget_after_s
        self._members: dict[ObjectKey, dict[str, PodObservation]] = {}
        """Group to pod UID to the pod, as the API server shows it."""
        self._passes: dict[ObjectKey, list[dict[str, Answer | None]]] = {}
        """Group to its passes, the latest last: pod UID to what filter answered, None where it admitted no node."""
        self._refused: dict[ObjectKey, tuple[set[str], float]] = {}
        """Group to the pods of an attempt that was refused at bind, and since when."""

    def observe(self, before: PodObservation | None, after: PodObservation | None, uid: str) -> None:
        """A pod came, changed or went."""
        if before is not None and before.group is not None:
            key = ObjectKey(before.namespace, before.group)
            members = self._members.get(key, {})
            members.pop(uid, None)
            if not members:
                self._members.pop(key, None)
            if after is None:
                for each in self._passes.get(key, ()):
                    each.pop(uid, None)
                if key in self._refused:
                    self._refused[key][0].discard(uid)
        if after is not None and after.group is not None:
            self._members.setdefault(ObjectKey(after.namespace, after.group), {})[uid] = after

    def answer(self, key: ObjectKey, demand: PodDemand, node: str | None, *, now_s: float) -> None:
        """Filter gave the member this node alone, or (None) no node."""
        passes = self._passes.setdefault(key, [])
        # A member comes again when a new pass begins, or at once: its nominated node is offered alone at first.
        if not passes or (demand.uid in passes[-1] and next(reversed(passes[-1])) != demand.uid):
            passes.append({})
            del passes[:-MOST_PASSES]
        passes[-1][demand.uid] = Answer(demand=demand, node=node, at_s=now_s) if node is not None else None

    def places(self, key: ObjectKey, uid: str, node: str) -> list[Answer]:
        """Where the members go together with this one on this node, itself first; empty when filter never said so.

        Or when the pass lacks pods whose binds have just been refused: kube-scheduler takes its binds back one by one,
        and a pod that it tries in between would be bound on the strength of others that are not.
        """
        lacking, since_s = self._refused.get(key, (set(), 0.0))
        for each in reversed(self._passes.get(key, [])):
            mine = each.get(uid)
            if mine is not None and mine.node == node:
                if mine.at_s < since_s + self._pass_s and not lacking <= each.keys():
                    return []
                others = [a for a in each.values() if a is not None and abs(a.at_s - mine.at_s) <= self._pass_s]
                return [mine, *(answer for answer in others if answer is not mine)]
        return []

    def latest(self, key: ObjectKey) -> list[Answer]:
        """The answers of the last pass."""
        answers = [answer for answer in self._passes.get(key, [{}])[-1].values() if answer is not None]
        newest_s = max((answer.at_s for answer in answers), default=0.0)
        return [answer for answer in answers if newest_s - answer.at_s <= self._pass_s]

    def refuse(self, key: ObjectKey, uids: Iterable[str], *, now_s: float) -> None:
        """The places of these members cannot all be had: what was answered does not hold, none of them is bound."""
        self._passes.pop(key, None)
        self._refused[key] = (set(uids), now_s)

    def started(self, key: ObjectKey, placed: Callable[[str], bool]) -> bool:
        """Whether some member is bound, or about to be for good.

        Args:
            key: The group.
            placed: Whether a pod that is not seen bound has a booking that stays.
        """
        members = self._members.get(key, {})
        if any(pod.node is not None and not pod.finished and not pod.terminating for pod in members.values()):
            return True
        return any(placed(uid) for uid in {*members, *(uid for each in self._passes.get(key, ()) for uid in each)})

    def pending(self, key: ObjectKey) -> list[PodObservation]:
        """The members that wait for a node, by name."""
        waiting = [p for p in self._members.get(key, {}).values() if not (p.node or p.finished or p.terminating)]
        return sorted(waiting, key=lambda pod: pod.name)

    def expire(self, now_s: float) -> None:
        """Forget passes whose pods were bound by now, or given up."""
        for key, passes in list(self._passes.items()):
            answers = [answer for answer in passes[-1].values() if answer is not None]
            if not any(answer.at_s + self._forget_after_s > now_s for answer in answers):
                del self._passes[key]
        for key in [key for key, (_, since_s) in self._refused.items() if since_s + self._pass_s <= now_s]:
            del self._refused[key]
