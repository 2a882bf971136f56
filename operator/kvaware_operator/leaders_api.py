"""The API server for who leads: nothing is written once the lease may be another's.

A process that was stopped for a while (a suspended node, a loop that hung) goes on where it was, before it learns that
another leads. So it is asked right before each write, here and nowhere else, by the lease's own clock.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvaware_cluster import Kind
from kvaware_cluster.workloads import ClusterApi, Scale, ScaleTarget
from kvaware_engine.observations import ObjectKey
from kvaware_operator.errors import NotLeadingError

__all__ = ["LeadersApi"]


class LeadersApi:
    """A ``ClusterApi`` around another one. Its writes also raise NotLeadingError."""

    def __init__(self, api: ClusterApi, *, leads: Callable[[], bool]) -> None:
        """Take the parts.

        Args:
            api: Carries out what is allowed.
            leads: Whether this process leads at this moment.
        """
        self._api = api
        self._leads = leads

    async def read_scale(self, target: ScaleTarget) -> Scale:
        """See ``ClusterApi``."""
        return await self._api.read_scale(target)

    async def write_scale(self, target: ScaleTarget, *, replicas: int, seen: Scale) -> Scale:
        """See ``ClusterApi``."""
        self._check(f"scaling of {target.kind} {target.namespace}/{target.name}")
        return await self._api.write_scale(target, replicas=replicas, seen=seen)

    async def write_status(self, kind: Kind, key: ObjectKey, *, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """See ``ClusterApi``."""
        self._check(f"status of {kind} {'/'.join(part for part in key if part)}")
        return await self._api.write_status(kind, key, uid=uid, status=status)

    async def write_deletion_cost(self, pod: ObjectKey, *, uid: str, cost: int | None) -> None:
        """See ``ClusterApi``."""
        self._check(f"deletion cost of pod {pod.namespace}/{pod.name}")
        await self._api.write_deletion_cost(pod, uid=uid, cost=cost)

    def _check(self, what: str) -> None:
        if not self._leads():
            raise NotLeadingError(f"{what}: not written, expected to hold the lease, it has run out or is another's")
