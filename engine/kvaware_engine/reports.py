"""What workers say of themselves, and what a model's traffic is: the words between scrapes, heartbeats and scaling.

``None`` is unknown, 0 is measured zero. A worker is one model-server process (one data-parallel rank) with its own KV
pool; its id is ``<namespace>:<pod>:<rank>``.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvaware_engine.observations import ObjectKey
from kvaware_engine.reasons import Reason

__all__ = [
    "LatencyHistogram",
    "ModelHeadroom",
    "ModelLoad",
    "ReportSource",
    "ReportTimes",
    "RoleHeadroom",
    "RoleLoad",
    "WorkerCounters",
    "WorkerPlace",
    "WorkerReport",
    "WorkerView",
]


class ReportSource(StrEnum):
    """Who told."""

    SCRAPE = "scrape"
    HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """A worker as the API server shows it: it is expected to report."""

    worker: str
    """``<namespace>:<pod>:<rank>``."""
    model: ObjectKey
    role: str
    """Name of one of the model's roles."""
    incarnation: str
    """Pod UID and start of the server's container: another one has another KV pool."""
    ready: bool
    node: str | None = None
    address: str | None = None
    """``ip:port`` of its API, IPv6 in brackets."""
    product: str | None = None
    """GPU product of its node, as the node's label says; None: unknown. For the hardware profile."""
    model_id: str = ""
    """The model's ``spec.modelId``: its name tells its size."""
    gpus: int = 1
    """GPUs that this worker uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyHistogram:
    """A Prometheus histogram as it stands: counts since the server's start."""

    bounds_s: tuple[float, ...]
    """Upper bounds, ascending, the last is infinity. Shape (buckets,)."""
    counts: tuple[float, ...]
    """Observations at or below each bound. Shape (buckets,)."""
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounters:
    """What only grows while the server lives."""

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    finished_requests: float | None = None
    preemptions: float | None = None
    prefix_queried_tokens: float | None = None
    prefix_hit_tokens: float | None = None
    ttft: LatencyHistogram | None = None
    tpot: LatencyHistogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """One observation of one worker. What is left out is unknown and leaves what was known."""

    worker: str
    model: ObjectKey
    incarnation: str
    source: ReportSource
    observed_at_s: float
    """Monotonic, the engine's ``now_s``: when it was taken, not when it arrived."""
    seq: int | None = None
    """Of heartbeats: one that goes back is a new incarnation, or an old message."""
    role: str | None = None
    """``both``, ``prefill`` or ``decode``, where the worker says what it does."""
    address: str | None = None
    waiting: int | None = None
    """Requests in its queue."""
    running: int | None = None
    """Requests in its batch."""
    queued_tokens: int | None = None
    batch_size: int | None = None
    kv_blocks_total: int | None = None
    kv_blocks_free: int | None = None
    kv_usage_ratio: float | None = None
    """Share of the KV pool in use, where the server tells only that."""
    block_size_tokens: int | None = None
    gpu_utilization_ratio: float | None = None
    hbm_used_bytes: int | None = None
    capabilities: tuple[str, ...] | None = None
    draining: bool | None = None
    asleep: bool | None = None
    adapters: tuple[str, ...] | None = None
    """Names of the adapters that it serves."""
    cpu_tier_free_bytes: int | None = None
    """Of its offload tier in CPU memory."""
    ssd_tier_free_bytes: int | None = None
    transfer_domain: str | None = None
    """Its parallel layout, connector and version, in words of its own: equal words mean that KV can move."""
    counters: WorkerCounters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTimes:
    """When what is believed of a worker was observed, in the engine's ``now_s``. Minus infinity: it is not known."""

    load_at_s: float
    """Of its waiting and running requests: of the older one, where they came apart."""
    waiting_at_s: float
    """Of its waiting requests alone."""
    queued_tokens_at_s: float
    """Of their prompts' tokens."""
    kv_at_s: float
    """Of the room in its KV pool."""
    any_at_s: float
    """Of its last report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker as it is believed to be now, for ``/v1/workers``."""

    worker: str
    model: ObjectKey
    role: str
    node: str | None
    address: str | None
    ready: bool
    reporting: bool
    """Whether its last report is young enough to count."""
    age_s: float | None
    """Of its last report; None: it never reported."""
    confidence_ratio: float
    waiting: int | None
    running: int | None
    queued_tokens: int | None
    batch_size: int | None
    kv_blocks_total: int | None
    kv_blocks_free: int | None
    kv_usage_ratio: float | None
    block_size_tokens: int | None
    gpu_utilization_ratio: float | None
    hbm_used_bytes: int | None
    prefix_hit_ratio: float | None
    requests_per_s: float | None
    draining: bool
    asleep: bool
    capabilities: tuple[str, ...]
    cache_value_ms: float | None
    """What losing it would cost: prefill time of the tokens that it holds, times the chance that they are asked for
    again, and the work that runs there. None: unknown."""
    incarnation: str = ""
    """Pod UID and start of the server's container, and how often the process itself started again."""
    adapters: tuple[str, ...] | None = None
    cpu_tier_free_bytes: int | None = None
    ssd_tier_free_bytes: int | None = None
    transfer_domain: str | None = None
    """As it tells: parallel layout, connector and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLoad:
    """What the workers of one role have to do now.

    Sums are over reporting workers: where some of them leave a figure out, it is stretched over these, but for those
    that were heard first within a report's time-out. A figure that fewer than half of them tell is unknown.
    """

    role: str
    workers: int
    """Ready workers that are expected to report; one that has just come and was not heard yet is left out where others
    report."""
    reporting: int
    waiting: int | None
    running: int | None
    queued_tokens: int | None
    kv_usage_ratio: float | None
    """Mean share of the KV pools in use."""
    requests_per_s: float | None
    """Finished. All rates and latencies are over the settings' window. Counters that stand still give 0, no answer
    gives None (ai-dynamo/dynamo#6985)."""
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    preemptions_per_s: float | None
    prefix_hit_ratio: float | None
    ttft_p99_ms: float | None
    """Of the window; None: no request had its first token in it, or nobody tells."""
    tpot_p99_ms: float | None
    age_s: float | None
    """Of the oldest report that counts; None: nobody reports."""
    product: str | None = None
    """GPU product of most of its workers, as their nodes' labels say; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """A model's traffic now: ``GET /v1/models/{ns}/{name}/load``."""

    model: ObjectKey
    roles: tuple[RoleLoad, ...]
    """In the order of the spec, one for each of its roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHeadroom:
    """Whether more replicas of one role would fit now, and where."""

    role: str
    asked_replicas: int
    fits_replicas: int
    """Of those asked for."""
    nodes: tuple[str, ...]
    """One per pod that fits, in the order in which they would be placed."""
    reason: Reason | None
    """Why no more fit; None where all do."""
    text: str
    """The reason's constant text; empty where all fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeadroom:
    """``GET /v1/models/{ns}/{name}/headroom``."""

    model: ObjectKey
    roles: tuple[RoleHeadroom, ...]
