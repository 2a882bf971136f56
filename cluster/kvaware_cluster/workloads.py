"""The words of what the operator reads and writes: our objects with their status, worker pods, workloads, scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kvaware_cluster.source import Kind
from kvaware_crds import InferenceModel, KVCacheBlockGroup, TenantQuota
from kvaware_engine.observations import ObjectKey

__all__ = [
    "Autoscaler",
    "ClusterApi",
    "CustomResource",
    "Owner",
    "Scale",
    "ScaleTarget",
    "WorkerPod",
    "WorkloadKind",
]


class Owner(NamedTuple):
    """The controller of a pod."""

    api_version: str
    kind: str
    name: str
    uid: str


class WorkloadKind(NamedTuple):
    """A kind of workloads, as ``scaleTargetRef`` names it."""

    api_version: str
    kind: str


class ScaleTarget(NamedTuple):
    """A workload that can be scaled, as ``scaleTargetRef`` names it."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def workload_kind(self) -> WorkloadKind:
        """Its kind."""
        return WorkloadKind(self.api_version, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A workload's scale subresource."""

    uid: str
    replicas: int
    """``spec.replicas``: what is asked for."""
    current_replicas: int
    """``status.replicas``: what exists."""
    selector: str
    """``status.selector``, as text; empty where the workload has none."""
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """A HorizontalPodAutoscaler, as far as it matters who scales what."""

    uid: str
    key: ObjectKey
    target: ScaleTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPod:
    """A pod that may run workers: it names a model, or asks for GPUs. What the engine's PodObservation leaves out."""

    uid: str
    key: ObjectKey
    model: str | None
    """Label ``kvaware.io/model``."""
    role: str | None
    """Label ``kvaware.io/role``."""
    node: str | None
    ip: str | None
    ready: bool
    finished: bool
    terminating: bool
    unschedulable: bool
    """kube-scheduler found no node: PodScheduled is False with reason Unschedulable."""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    deletion_cost: int | None = None
    """Annotation ``controller.kubernetes.io/pod-deletion-cost``."""
    deletion_cost_by: str | None = None
    """Field manager that wrote it."""
    created_at: str = ""
    started_at: str = ""
    """Start of the youngest running container, RFC 3339; empty before: with the UID it tells incarnations apart."""
    hbm_overrun: bool = False
    """Condition ``kvaware.io/HBMOverrun``, which the extender writes."""
    foreign_use_unknown: bool = False
    """Condition ``kvaware.io/ForeignUseUnknown``, which the extender writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResource:
    """One object of a kind of ours with its whole spec and its status, for the operator."""

    kind: Kind
    key: ObjectKey
    uid: str
    generation: int
    created_at: str
    """creationTimestamp, RFC 3339 in UTC: sorts as text."""
    terminating: bool
    resource: InferenceModel | KVCacheBlockGroup | TenantQuota | None
    """Without status and resource version. None: its spec cannot be used; ``problem`` says why."""
    problem: str | None
    """Names the field, what was expected and what came."""
    status: Mapping[str, Any]
    """As the API server has it."""


class ClusterApi(Protocol):
    """What the operator asks and writes, beside watching. Every call is bounded in time.

    Errors: those of ``kvaware_cluster.errors``; NotFoundError and ConflictError where said.
    """

    async def read_scale(self, target: ScaleTarget) -> Scale:
        """NotFoundError: no such object; ScaleTargetError: the kind is unknown, cluster-scoped, or has no scale."""
        ...

    async def write_scale(self, target: ScaleTarget, *, replicas: int, seen: Scale) -> Scale:
        """Set ``spec.replicas`` if the object is still as ``seen``. ConflictError: it is not, or another UID."""
        ...

    async def write_status(self, kind: Kind, key: ObjectKey, *, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the status, so that what is not in ``status`` is gone; None in it counts as left out.

        Returns: the status as the API server stored it: an older CRD drops fields. ConflictError: another UID.
        """
        ...

    async def write_deletion_cost(self, pod: ObjectKey, *, uid: str, cost: int | None) -> None:
        """Set or (None) remove a pod's deletion cost, under the field manager ``kvaware-operator``."""
        ...
