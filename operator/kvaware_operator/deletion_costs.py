"""Which pods should go when a ReplicaSet shrinks, and which deletion costs say so.

Of two Ready pods a ReplicaSet deletes the one of the lower ``controller.kubernetes.io/pod-deletion-cost`` (unset is 0),
and pods that are not Ready before those that are. So only those that are to go get a cost, below 0, and only while
they are to go. Killed half-way, the next operator finds the costs and goes on with the same pods.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvaware_cluster.workloads import WorkerPod
from kvaware_crds.names import FIELD_MANAGER_OPERATOR
from kvaware_engine.observations import ObjectKey

__all__ = ["COST_OF_LEAVING", "CostPlan", "CostsWritten", "plan_costs", "steerable"]

COST_OF_LEAVING: Final = -1000
"""Below 0, and below what people write by hand (-1, -100)."""


WRITE_AGAIN_S: Final = 10.0
"""A cost that the store does not show for so long is written once more."""


class _Written(NamedTuple):
    uid: str
    cost: int | None
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """What to write, and whether the pods are as they should be."""

    writes: Mapping[ObjectKey, int | None]
    """Pod to its cost; None removes it."""
    leaving: tuple[ObjectKey, ...]
    """The pods that go first, in order of preference."""

    @property
    def in_place(self) -> bool:
        """Whether nothing is left to write."""
        return not self.writes


def steerable(pods: Sequence[WorkerPod]) -> bool:
    """Whether deletion costs of ours decide which of the pods goes: ReplicaSets own them, and nobody else sets costs.

    A StatefulSet or LeaderWorkerSet takes the highest ordinal whatever the costs are.
    """
    owned = all(pod.owner is not None and pod.owner.kind == "ReplicaSet" for pod in pods)
    return bool(pods) and owned and not any(_foreign(pod) for pod in pods)


def plan_costs(
    pods: Sequence[WorkerPod], *, leaving: int, choose: bool, cache_value_ms: Mapping[ObjectKey, float | None]
) -> CostPlan:
    """Plan the deletion costs of one role's pods.

    Args:
        pods: All of the role's pods.
        leaving: How many of them are to go, >= 0.
        choose: Whether pods may be chosen; False: those chosen before are kept as long as they are needed.
        cache_value_ms: What losing the pod's KV cache would cost. A pod that is missing or None is worth the most: what
            is unknown is not thrown away first.
    Returns: Pods that carry our cost already stay chosen, so that values which move while the store catches up do not
        start it over. Further ones are those that are not Ready, then those of the least value.
    """
    alive = [pod for pod in pods if not pod.terminating and not pod.finished]

    def preference(pod: WorkerPod) -> tuple[bool, bool, bool, float, ObjectKey]:
        value = cache_value_ms.get(pod.key)
        return (not _ours(pod), pod.ready, value is None, value or 0.0, pod.key)

    order = sorted((pod for pod in alive if choose or _ours(pod)), key=preference)
    chosen = order[:leaving]
    if not steerable(alive):
        chosen = []
    keys = {pod.key for pod in chosen}
    writes: dict[ObjectKey, int | None] = {
        pod.key: COST_OF_LEAVING for pod in chosen if not (_ours(pod) and pod.deletion_cost == COST_OF_LEAVING)
    }
    writes |= {pod.key: None for pod in alive if _ours(pod) and pod.key not in keys}
    return CostPlan(writes=writes, leaving=tuple(pod.key for pod in chosen))


class CostsWritten:
    """What was written a short time ago and need not be written again, although the store does not show it yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._written: dict[ObjectKey, _Written] = {}

    def due(self, pod: WorkerPod, cost: int | None) -> bool:
        """Whether to write: it was not written to this pod, or so long ago that it may have been lost."""
        last = self._written.get(pod.key)
        return last is None or (last.uid, last.cost) != (pod.uid, cost) or self._clock() - last.at_s >= WRITE_AGAIN_S

    def note(self, pod: WorkerPod, cost: int | None) -> None:
        """It was written. What is too old to matter is forgotten."""
        now_s = self._clock()
        for key in [key for key, last in self._written.items() if now_s - last.at_s >= WRITE_AGAIN_S]:
            del self._written[key]
        self._written[pod.key] = _Written(pod.uid, cost, now_s)

    def longest_s(self, pods: Iterable[ObjectKey]) -> float:
        """How long the store has not shown what was written to the first of these pods."""
        now_s = self._clock()
        return max((now_s - last.at_s for key in pods if (last := self._written.get(key)) is not None), default=0.0)


def _ours(pod: WorkerPod) -> bool:
    return pod.deletion_cost is not None and pod.deletion_cost_by == FIELD_MANAGER_OPERATOR


def _foreign(pod: WorkerPod) -> bool:
    return pod.deletion_cost is not None and pod.deletion_cost_by != FIELD_MANAGER_OPERATOR
