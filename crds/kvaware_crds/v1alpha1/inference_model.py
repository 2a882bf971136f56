"""InferenceModel: one model that is served, what its pods need, and how kvaware may treat it."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from kvaware_crds.base import ApiModel, StatusModel, immutable, rule
from kvaware_crds.fields import (
    Bytes,
    Count,
    DnsLabel,
    DurationBounds,
    Integer,
    PositiveBytes,
    UniqueItems,
)
from kvaware_crds.meta import Conditions, LabelSelector, Resource
from kvaware_crds.names import ACCEPTED_COLUMN, AGE_COLUMN, GROUP, VERSION, PrinterColumn, ResourceKind

__all__ = [
    "Architecture",
    "Capability",
    "DrawnFrom",
    "Footprint",
    "InferenceModel",
    "InferenceModelSpec",
    "InferenceModelStatus",
    "KVCache",
    "LoadMeasure",
    "ModelServer",
    "Objectives",
    "Policy",
    "PolicyName",
    "Replicas",
    "Replication",
    "Role",
    "RoleStatus",
    "ScaleTargetReference",
    "Scaling",
    "ScalingMode",
    "ScalingWindows",
    "StepLimit",
    "Weights",
    "WorkerPorts",
    "Workers",
]

MAX_REPLICAS: Final = 10_000
MAX_ROLES: Final = 8

Port = Annotated[Integer, Field(ge=1, le=65_535)]
ServedName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\s]+$")]
LatencyObjective = Annotated[timedelta, DurationBounds(above_zero=True, at_most="10m")]
Window = Annotated[timedelta, DurationBounds(above_zero=False, at_most="24h")]


class ModelServer(StrEnum):
    """The program that runs the model."""

    VLLM = "vLLM"
    SGLANG = "SGLang"


class Capability(StrEnum):
    """What a model server, as it was started, can do with KV cache beyond its own HBM."""

    TIERS = "tiers"
    PIN = "pin"
    PULL_FROM_PEER = "pull_from_peer"
    PULL_BY_PREFILL = "pull_by_prefill"
    SHARED_STORE = "shared_store"
    MIGRATE = "migrate"


class PolicyName(StrEnum):
    """How a worker is chosen for a request."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    POWER_OF_TWO = "power_of_two"
    LOCALITY = "locality"
    COST = "cost"


class LoadMeasure(StrEnum):
    """What least_loaded counts as load."""

    REQUESTS = "requests"
    QUEUE = "queue"
    GPU_UTILIZATION = "gpu_utilization"
    HBM = "hbm"
    DECODING = "decoding"
    REMAINING_TOKENS = "remaining_tokens"


class DrawnFrom(StrEnum):
    """Among whom power_of_two draws."""

    WORKERS = "workers"
    HOLDERS = "holders"


class ScalingMode(StrEnum):
    """What kvaware does about the number of replicas."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


class WorkerPorts(ApiModel):
    """Where a model server listens, in each of the model's pods."""

    http: Port | None = None
    """Port of the OpenAI-compatible API. Unset: 8000 for vLLM, 30000 for SGLang."""
    metrics: Port | None = None
    """Port of /metrics. Unset: the same as http."""
    kv_events: Port | None = None
    """ZeroMQ port on which data-parallel rank 0 publishes KV cache events; rank r uses this port + r. Unset: no events
    are read, and which blocks a worker holds is estimated from the requests that it got."""
    kv_events_replay: Port | None = None
    """ZeroMQ port on which rank 0 repeats lost KV cache events; rank r uses this port + r. Unset: after a gap the
    worker's blocks are forgotten and learned again."""

    @rule("!has(self.kvEventsReplay) || has(self.kvEvents)", "kvEventsReplay needs kvEvents")
    def _replay_needs_events(self) -> bool:
        return self.kv_events_replay is None or self.kv_events is not None


class Workers(ApiModel):
    """The running model servers of this model, to which requests are sent."""

    selector: LabelSelector | None = None
    """Which pods in this namespace are the model's workers. Unset: those whose label kvaware.io/model has this object's
    name."""
    server: ModelServer = ModelServer.VLLM
    """The model server that they run: vLLM or SGLang."""
    ports: WorkerPorts | None = None
    """The ports on which they listen, where these are not the server's usual ones."""
    capabilities: Annotated[tuple[Capability, ...], Field(max_length=16), UniqueItems()] = ()
    """What the servers, as they were started, can do with KV cache beyond their own HBM. kvaware never orders what is
    not listed here or in a worker's heartbeat. tiers: offload to their own CPU memory or SSD; pin: keep blocks on
    request; pull_from_peer: read blocks from another worker's offload tier; pull_by_prefill: take over the blocks of a
    prefill made elsewhere (NIXL); shared_store: load from a store that all share (Mooncake, LMCache, HiCache);
    migrate: move blocks to another worker (LMCache controller)."""


class ScaleTargetReference(ApiModel):
    """A workload with a scale subresource, such as a Deployment or a LeaderWorkerSet."""

    api_version: Annotated[str, Field(min_length=1, max_length=317)] = "apps/v1"
    """API group and version of the workload, such as apps/v1 or leaderworkerset.x-k8s.io/v1."""
    kind: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Kind of the workload, such as Deployment or LeaderWorkerSet."""
    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the workload, in this object's namespace."""


class Replicas(ApiModel):
    """Between how many replicas a role may be scaled."""

    min: Annotated[Integer, Field(ge=0, le=MAX_REPLICAS)] = 1
    """The fewest replicas that are kept. 0 allows scaling to zero, which also needs scaling.scaleToZeroAfter."""
    max: Annotated[Integer, Field(ge=1, le=MAX_REPLICAS)]
    """The most replicas that are started, whatever the load."""

    @rule(
        "self.min <= self.max",
        "replicas.min must be at most replicas.max",
        came=lambda replicas: f"{replicas.min} and {replicas.max}",
    )
    def _ordered(self) -> bool:
        return self.min <= self.max


class Footprint(ApiModel):
    """What one pod of a role needs."""

    gpus_per_pod: Annotated[Integer, Field(ge=1, le=128)]
    """GPUs (or MIG slices) that one pod asks for. A pod that asks for another number counts by what it asks for."""
    hbm_per_gpu: Annotated[PositiveBytes | None, Field(alias="hbmPerGPU")] = None
    """HBM that one pod needs on each of its GPUs, such as 40Gi: weights, KV cache and activations, which is what the
    model server is told to use. Unset: whole GPUs. A pod's annotation kvaware.io/hbm-per-gpu goes before it."""
    pods_per_replica: Annotated[Integer, Field(ge=1, le=1_024)] = 1
    """Pods that form one replica, for models that span several nodes. Above 1 the role is scaled only through a
    LeaderWorkerSet or another workload whose replicas are such groups: those of a Deployment, ReplicaSet or StatefulSet
    are single pods."""


class Role(ApiModel):
    """Pods of one kind among the model's pods: those that prefill, those that decode, or those that do both."""

    name: DnsLabel
    """The role's name, which pods carry in the label kvaware.io/role. both, prefill and decode say what such a worker
    does; any other name is free, and the worker itself says what it does (both, unless its heartbeat tells)."""
    scale_target_ref: ScaleTargetReference | None = None
    """The workload that runs this role's pods, whose replicas may be scaled. Unset: kvaware does not scale this
    role."""
    replicas: Replicas | None = None
    """Between how many replicas the role may be scaled. Unset: kvaware leaves the number as it is."""
    footprint: Footprint
    """What one pod of this role needs."""


class Weights(ApiModel):
    """The model's weights, as files."""

    size: PositiveBytes
    """Bytes that a pod loads before it is ready, such as 140Gi. Without it the estimate is the footprint: HBM of all
    of the pod's GPUs."""


class Architecture(ApiModel):
    """The numbers from which the KV cache's bytes per token follow: 2 x layers x kvHeads x headDim x dtypeBytes."""

    layers: Annotated[Integer, Field(ge=1, le=10_000)]
    """Attention layers that keep KV cache (num_hidden_layers in the model's config.json)."""
    kv_heads: Annotated[Integer, Field(ge=1, le=10_000)]
    """KV heads per layer, over all GPUs (num_key_value_heads)."""
    head_dim: Annotated[Integer, Field(ge=1, le=100_000)]
    """Numbers per head (head_dim, or hidden_size / num_attention_heads)."""
    dtype_bytes: Annotated[Integer, Field(ge=1, le=8)] = 2
    """Bytes per number in the KV cache: 2 for float16 and bfloat16, 1 for fp8."""


class KVCache(ApiModel):
    """How large the model's KV cache is."""

    bytes_per_token: PositiveBytes | None = None
    """Bytes of KV cache that one token takes, over all layers and GPUs of a replica, such as 320Ki. For models that the
    architecture numbers do not describe (MLA, sliding windows, 4-bit caches)."""
    architecture: Architecture | None = None
    """The numbers from which the bytes per token follow, for models with plain or grouped-query attention."""
    block_size_tokens: Annotated[Integer, Field(ge=1, le=65_536)] = 16
    """Tokens per KV cache block. Where a worker's events show another size, that one holds."""
    max_context_tokens: Annotated[Integer, Field(ge=1, le=100_000_000)] | None = None
    """The longest prompt plus answer that the model takes; a longer prompt is refused with 400. Unset: only the size
    of the workers' KV pools limits it."""

    @rule(
        "has(self.bytesPerToken) != has(self.architecture)",
        "kvCache must have exactly one of bytesPerToken and architecture",
    )
    def _one_size(self) -> bool:
        return (self.bytes_per_token is None) != (self.architecture is None)

    def token_bytes(self) -> int:
        """Bytes that one token takes, over all layers and GPUs of a replica."""
        if self.architecture is None:
            return self.bytes_per_token or 0  # the rule above: there is one
        numbers = self.architecture
        return 2 * numbers.layers * numbers.kv_heads * numbers.head_dim * numbers.dtype_bytes


class Objectives(ApiModel):
    """The latencies that users of the model should see, each as the 99th percentile over all requests."""

    ttft: LatencyObjective | None = None
    """Time to first token, such as 500ms."""
    tpot: LatencyObjective | None = None
    """Time per output token after the first, such as 50ms."""

    @rule("has(self.ttft) || has(self.tpot)", "objectives must have ttft, tpot or both")
    def _something(self) -> bool:
        return self.ttft is not None or self.tpot is not None


class ScalingWindows(ApiModel):
    """How long the load must ask for a change before it is made."""

    scale_up: Window = timedelta()
    """Replicas are added once the load has asked for them this long. 0s: at once."""
    scale_down: Window = timedelta(minutes=5)
    """Replicas are removed once the load has not needed them this long. 0s: at once."""


class StepLimit(ApiModel):
    """By how many replicas one step may change a role."""

    scale_up: Annotated[Integer, Field(ge=1, le=MAX_REPLICAS)] = 4
    """Replicas added in one step, at most."""
    scale_down: Annotated[Integer, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Replicas removed in one step, at most."""


class Scaling(ApiModel):
    """How the number of replicas follows the load."""

    mode: ScalingMode = ScalingMode.RECOMMEND
    """Auto: kvaware scales the roles' workloads; Recommend: it only writes what it would do into the status; Off:
    neither. Write "Off" with quotes: YAML reads a bare Off as false. Without scaling the mode is Off."""
    windows: ScalingWindows | None = None
    """How long the load must ask for a change before it is made. Unset: 0s up, 5m down."""
    step_limit: StepLimit | None = None
    """By how many replicas one step may change a role. Unset: 4 up, 1 down."""
    scale_to_zero_after: Annotated[timedelta, DurationBounds(above_zero=True, at_most="168h")] | None = None
    """After this long without a request, roles whose replicas.min is 0 are scaled to zero. Unset: one replica is
    kept."""


class Replication(ApiModel):
    """How far a hot block group's KV cache may be copied to further workers."""

    max_copies: Annotated[Integer, Field(ge=1, le=64)] = 1
    """The most workers that hold a copy of one block group on kvaware's order. 1: no further copies are made."""
    hbm_budget: Bytes | None = None
    """HBM that all further copies may take together, over all of the model's workers, such as 20Gi. 0: none. Unset:
    only maxCopies limits them."""


class Policy(ApiModel):
    """How a worker is chosen for each request."""

    name: PolicyName = PolicyName.COST
    """cost: the least estimated delay, KV cache, queues, HBM and transfers weighed together; locality: nearest to the
    request's KV cache; least_loaded: the worker with the least to do; power_of_two: the less loaded of two drawn at
    random; round_robin: in turn."""
    measure: LoadMeasure | None = None
    """What least_loaded counts. requests: those that wait and run; queue: the time until a prompt begins to be
    computed; gpu_utilization and hbm: as the last report told; decoding: sequences that decode; remaining_tokens:
    output still expected of what runs. Unset: requests."""
    drawn_from: DrawnFrom | None = None
    """Among whom power_of_two draws. workers: two of all, and the one with fewer requests is chosen; holders: one of
    those that hold some of the prompt, one of all and one of those whose state is fully believed, and the one with the
    least estimated delay is chosen. Unset: workers."""

    @rule("!has(self.measure) || self.name == 'least_loaded'", "policy.measure needs the policy least_loaded")
    def _measure_is_of_least_loaded(self) -> bool:
        return self.measure is None or self.name is PolicyName.LEAST_LOADED

    @rule("!has(self.drawnFrom) || self.name == 'power_of_two'", "policy.drawnFrom needs the policy power_of_two")
    def _lots_are_of_power_of_two(self) -> bool:
        return self.drawn_from is None or self.name is PolicyName.POWER_OF_TWO


class InferenceModelSpec(ApiModel):
    """What is wanted."""

    model_id: Annotated[
        str,
        Field(
            min_length=1,
            max_length=256,
            pattern=r"^[A-Za-z0-9._/:@+-]+$",
            json_schema_extra=immutable("modelId is immutable: another model is another InferenceModel"),
        ),
    ]
    """The model that the servers load, as they are told, such as meta-llama/Llama-3.3-70B-Instruct. Immutable."""
    revision: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._/+-]+$")] | None = None
    """Commit, tag or branch of the weights. KV cache is never shared between revisions, and weights on a node count
    only for theirs. Unset: one unnamed revision."""
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=64), UniqueItems()] = ()
    """Names by which requests ask for the model, LoRA adapters included. Unset: modelId. A name that two
    InferenceModels of the namespace claim belongs to the older one; the other gets the condition NameConflict. Where
    several namespaces have the name, it is the oldest model's of all; namespace/name asks for one of them."""
    workers: Workers | None = None
    """The running model servers of this model. Unset: vLLM on its usual port, in the pods whose label kvaware.io/model
    has this object's name."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=MAX_ROLES), UniqueItems(("name",))]
    """What the model's pods need, by role. One role named both is the plain case; prefill and decode split the
    phases."""
    weights: Weights | None = None
    """The model's weights. Unset: their size is estimated from the footprint."""
    kv_cache: KVCache | None = None
    """How large the model's KV cache is. Unset: its transfer and recomputation are not priced."""
    objectives: Objectives | None = None
    """The latencies that users of the model should see. Unset: none are promised; lower is better."""
    scaling: Scaling | None = None
    """How the number of replicas follows the load. Unset: kvaware does not scale."""
    replication: Replication | None = None
    """How far hot KV cache may be copied to further workers. Unset: no further copies are made."""
    policy: Policy | None = None
    """How a worker is chosen for each request. Unset: by cost."""

    @rule(
        "self.roles.all(role, !has(role.scaleTargetRef) || self.roles.exists_one(other, has(other.scaleTargetRef)"
        " && other.scaleTargetRef.apiVersion == role.scaleTargetRef.apiVersion"
        " && other.scaleTargetRef.kind == role.scaleTargetRef.kind"
        " && other.scaleTargetRef.name == role.scaleTargetRef.name))",
        "two roles must not have the same scaleTargetRef",
    )
    def _targets_differ(self) -> bool:
        targets = [role.scale_target_ref for role in self.roles if role.scale_target_ref is not None]
        return len(targets) == len(set(targets))

    @rule(
        "!has(self.scaling) || !has(self.scaling.scaleToZeroAfter)"
        " || self.roles.exists(role, has(role.replicas) && role.replicas.min == 0)",
        "scaling.scaleToZeroAfter needs a role whose replicas.min is 0",
    )
    def _zero_is_allowed_somewhere(self) -> bool:
        if self.scaling is None or self.scaling.scale_to_zero_after is None:
            return True
        return any(role.replicas is not None and role.replicas.min == 0 for role in self.roles)


class RoleStatus(StatusModel):
    """One role as kvaware sees it."""

    name: DnsLabel
    """The role's name."""
    replicas: Count
    """Replicas that exist."""
    ready_replicas: Count = 0
    """Replicas whose pods are all Ready."""
    desired_replicas: Count | None = None
    """Replicas that the load asks for; kvaware brings them about where scaling.mode is Auto."""
    reason: Annotated[str, Field(max_length=64, pattern=r"^[A-Z][A-Za-z]*$")] | None = None
    """Why the role gets the replicas that it gets, in one CamelCase word, such as QueueGrows, AtMaximum or
    LoadUnknown."""
    message: Annotated[str, Field(max_length=1024)] | None = None
    """Why, in a sentence with the figures at the time when reason or desiredReplicas changed last."""


class InferenceModelStatus(StatusModel):
    """What is."""

    replicas: Count | None = None
    """Replicas that exist, over all roles."""
    ready_replicas: Count | None = None
    """Replicas whose pods are all Ready, over all roles."""
    desired_replicas: Count | None = None
    """Replicas that the load asks for, over all roles; a role that is not scaled counts with those that exist. Unset:
    no role is scaled, or the load is unknown."""
    roles: Annotated[tuple[RoleStatus, ...], Field(max_length=MAX_ROLES), UniqueItems(("name",))] = ()
    """Replicas per role."""
    conditions: Conditions = ()
    """Accepted, Ready, Scalable, NameConflict, FootprintMismatch, NotEnforced, HBMConstrained, ScalingConflict,
    ScaleToZeroNotYet, HBMOverrun, ForeignUseUnknown: each with its reason."""


class InferenceModel(Resource):
    """A model that is served: what its pods need, how requests name it, and how kvaware may scale and copy it."""

    resource: ClassVar[ResourceKind] = ResourceKind(
        GROUP, VERSION, "inferencemodels", "InferenceModel", namespaced=True
    )
    short_names: ClassVar[tuple[str, ...]] = ("im",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("Model", "string", ".spec.modelId", "The model that the servers load."),
        PrinterColumn("Desired", "integer", ".status.desiredReplicas", "Replicas that the load asks for."),
        PrinterColumn("Replicas", "integer", ".status.replicas", "Replicas that exist."),
        PrinterColumn("Ready", "integer", ".status.readyReplicas", "Replicas whose pods are all Ready."),
        PrinterColumn("Policy", "string", ".spec.policy.name", "How a worker is chosen.", wide_only=True),
        PrinterColumn("Scaling", "string", ".spec.scaling.mode", "How replicas follow the load.", wide_only=True),
        PrinterColumn("Why", "string", ".status.roles[0].reason", "Why the first role gets its replicas."),
        ACCEPTED_COLUMN,
        AGE_COLUMN,
    )

    api_version: Literal["kvaware.io/v1alpha1"] = "kvaware.io/v1alpha1"
    """kvaware.io/v1alpha1."""
    kind: Literal["InferenceModel"] = "InferenceModel"
    """InferenceModel."""
    spec: InferenceModelSpec
    """What is wanted: the model, its pods' needs, and how kvaware may treat it."""
    status: InferenceModelStatus | None = None
    """What is: replicas per role, and conditions. Written by kvaware."""

    @rule(
        "size(self.metadata.name) <= 63",
        "metadata.name must have at most 63 characters, because pods name it in the label kvaware.io/model",
    )
    def _name_fits_a_label(self) -> bool:
        return len(self.metadata.name) <= 63
