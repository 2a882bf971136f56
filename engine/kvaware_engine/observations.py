"""What the engine is told about the cluster: frozen values, in bytes and seconds, made by the room above.

``None`` is "not set" (a limit: unlimited) or "unknown" (a measurement). ``0`` is zero. Nothing here is a default for
either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kvaware_engine.reasons import Reason

__all__ = [
    "Amounts",
    "BlockGroupObservation",
    "CopyObservation",
    "CopyState",
    "GpuClass",
    "GpuPool",
    "GpuUse",
    "ModelObservation",
    "ModelWorkers",
    "NodeObservation",
    "NodeSelector",
    "NodeUse",
    "ObjectKey",
    "PodObservation",
    "Reservation",
    "RoleFootprint",
    "SelectorRequirement",
    "TenantQuotaObservation",
    "Tier",
]


class ObjectKey(NamedTuple):
    """Namespace and name; the namespace is empty for cluster-scoped kinds."""

    namespace: str
    name: str


class GpuClass(StrEnum):
    """How a node hands out its GPUs; ``claim``, for DRA, joins when claims are read."""

    EXCLUSIVE = "exclusive"
    PARTITION = "partition"
    SHARED = "shared"


class Tier(StrEnum):
    """Where a copy of KV blocks lies."""

    HBM = "hbm"
    CPU = "cpu"
    SSD = "ssd"


class CopyState(StrEnum):
    """The life of a copy. Resident serves, Migrating serves at the source, the others do not."""

    LOADING = "Loading"
    RESIDENT = "Resident"
    MIGRATING = "Migrating"
    EVICTING = "Evicting"
    EVICTED = "Evicted"
    LOST = "Lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPool:
    """The identical devices that one node offers under one resource name."""

    resource: str
    """``nvidia.com/gpu``, ``nvidia.com/gpu.shared``, ``nvidia.com/mig-1g.5gb``, ``amd.com/gpu``."""
    gpu_class: GpuClass
    devices: int
    """GPUs, or MIG slices of this profile, >= 0."""
    replicas: int = 1
    """Pods that the device plugin lets share one device; above 1 only for SHARED."""
    allocatable: int
    """What the kubelet offers now; at most devices * replicas, less when a device is unhealthy."""
    hbm_bytes: int | None
    """Memory of one device by its label; None when no label tells."""
    product: str = ""
    mig_profile: str | None = None
    """None: whole GPUs. Else the slices' profile, as ``1g.10gb`` or ``1g.10gb.me``; empty: an unknown profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObservation:
    """One Kubernetes node."""

    name: str
    uid: str
    pools: tuple[GpuPool, ...] = ()
    ready: bool = True
    unschedulable: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    clique: str | None = None
    """NVLink fabric, ``nvidia.com/gpu.clique``."""
    rack: str | None = None
    zone: str | None = None
    weights: tuple[str, ...] = ()
    """Weights that the annotation ``kvaware.io/weights`` lists, each ``modelId`` or ``modelId@revision``."""
    problems: tuple[str, ...] = ()
    """Labels that could not be read, as sentences for the node's explanation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU or MIG slice as the DCGM exporter shows it."""

    index: int
    uuid: str
    used_bytes: int | None
    free_bytes: int | None
    mig_profile: str | None = None
    pod: ObjectKey | None = None
    """The pod that holds it, where the exporter tells."""
    utilization_ratio: float | None = None
    """Share of time in which it works, 0..1; no decision depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """One scrape of one node's DCGM exporter."""

    node: str
    gpus: tuple[GpuUse, ...]
    observed_at_s: float
    """Monotonic, the same clock as the engine's ``now_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What a pod holds, as written in its annotation ``kvaware.io/reservation`` together with its binding."""

    model: str | None
    """Name of the InferenceModel, in the pod's namespace."""
    tenant: str
    resource: str
    gpus: int
    hbm_per_gpu_bytes: int | None
    """None: whole GPUs."""
    gpu_class: GpuClass
    devices: tuple[int, ...] = ()
    """Device indexes where known, else empty."""
    decision_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """One pod that asks for GPUs or names a model; other pods are not observed."""

    uid: str
    namespace: str
    name: str
    node: str | None = None
    finished: bool = False
    """Phase Succeeded or Failed: it holds nothing."""
    terminating: bool = False
    ready: bool = False
    scheduler_name: str = ""
    model: str | None = None
    """Label ``kvaware.io/model``."""
    role: str | None = None
    """Label ``kvaware.io/role``."""
    gpu_requests: tuple[tuple[str, int], ...] = ()
    """Effective request per GPU resource, sorted by resource, zero amounts left out."""
    hbm_per_gpu_bytes: int | None = None
    """Annotation ``kvaware.io/hbm-per-gpu``; None when it is absent."""
    problem: Reason | None = None
    """INVALID_HBM_ANNOTATION or INVALID_GPU_REQUEST: why this pod's request cannot be used."""
    reservation: Reservation | None = None
    priority: int = 0
    nominated_node: str | None = None
    """``status.nominatedNodeName``: where kube-scheduler makes room for it by preemption."""
    group: str | None = None
    """``spec.schedulingGroup.podGroupName``: the pods of one group are placed all or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFootprint:
    """What one pod of a role needs."""

    name: str
    gpus_per_pod: int
    hbm_per_gpu_bytes: int | None
    """None: whole GPUs."""
    pods_per_replica: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorkers:
    """Which pods of its namespace run an InferenceModel's workers, and where these listen."""

    selector: "NodeSelector | None" = None
    """None: the pods whose label ``kvaware.io/model`` has the model's name."""
    http_port: int = 8000
    """Of the OpenAI-compatible API; 8000 is vLLM's own default."""
    metrics_port: int = 8000
    """Of ``/metrics``."""
    kv_events_port: int | None = None
    """On which rank 0 publishes KV events; rank r on this + r. None: no events are read."""
    kv_events_replay_port: int | None = None
    """On which rank 0 repeats lost ones; rank r on this + r. None: after a gap nothing is known of its blocks."""
    capabilities: frozenset[str] = frozenset()
    """What the servers can do with KV cache, as the spec says; a worker's heartbeat may say more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObservation:
    """One InferenceModel, as far as pods and requests are concerned."""

    key: ObjectKey
    uid: str
    model_id: str
    revision: str
    roles: tuple[RoleFootprint, ...]
    weights_bytes: int | None = None
    """Bytes that a pod loads before it is ready; None: estimated from the footprint."""
    kv_bytes_per_token: int | None = None
    workers: ModelWorkers = ModelWorkers()
    created_at: str = ""
    """creationTimestamp, RFC 3339 in UTC: sorts as text. Of two that claim a served name the older has it."""
    served_names: tuple[str, ...] = ()
    """By which requests ask for it; the spec's, or its ``modelId``. Empty: by the object's name alone."""
    policy: str = "cost"
    """Name of the policy that chooses workers."""
    policy_fields: tuple[tuple[str, str], ...] = ()
    """Those of the policy's fields that the spec sets, by their names in the engine, and their values."""
    block_size_tokens: int = 16
    """Tokens per KV block, until a worker tells another size."""
    max_context_tokens: int | None = None
    """The longest prompt plus answer; None: the workers' KV pools alone limit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Amounts of everything that a tenant can be limited in, or promised; None: not set."""

    gpus: int | None = None
    hbm_bytes: int | None = None
    cpu_memory_bytes: int | None = None
    """Of offloaded KV cache, as the next."""
    ssd_bytes: int | None = None
    block_groups: int | None = None
    """KVCacheBlockGroups in the tenant's namespaces."""
    requests_per_s: int | None = None
    tokens_per_s: int | None = None
    """Prompts and answers together."""
    concurrent_requests: int | None = None
    remote_read_bytes_per_s: int | None = None
    migration_bytes_per_s: int | None = None
    concurrent_migrations: int | None = None
    control_requests_per_s: int | None = None
    """Calls that place nothing, such as explanations and lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorRequirement:
    """One expression of a label selector."""

    key: str
    operator: str
    """In, NotIn, Exists, DoesNotExist."""
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSelector:
    """A Kubernetes label selector; all of it must hold."""

    match_labels: tuple[tuple[str, str], ...] = ()
    match_expressions: tuple[SelectorRequirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuotaObservation:
    """One TenantQuota."""

    name: str
    uid: str
    created_at: str
    """creationTimestamp, RFC 3339 in UTC: sorts as text."""
    tenant: str
    namespaces: tuple[str, ...]
    limits: Amounts = Amounts()
    guaranteed: Amounts = Amounts()
    weight: int = 1
    """Share of what nobody is guaranteed; 0: only after the others."""
    priority_default: int | None = None
    """Of requests that name none; None: not set."""
    priority_max: int | None = None
    """A higher one that a request names is lowered to it; None: any."""
    reserved_pool: NodeSelector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyObservation:
    """One copy of a block group."""

    worker: str
    """``<namespace>:<pod>:<rank>``."""
    tier: Tier
    size_bytes: int
    state: CopyState


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroupObservation:
    """One KVCacheBlockGroup."""

    key: ObjectKey
    model: ObjectKey
    pinned: bool
    copies: tuple[CopyObservation, ...]
