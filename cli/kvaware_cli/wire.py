"""What the extender's ``/v1`` answers hold, as far as the command line shows it.

Lenient on purpose: unknown fields are ignored and reasons are plain words, so that this program can talk to an
extender of another version. The fields are those of ``kvaware_engine.decisions``.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from kvaware_cli.errors import ServerError

__all__ = [
    "Candidate",
    "Cost",
    "Demand",
    "Explanation",
    "Gpu",
    "Model",
    "ModelList",
    "Node",
    "NodeList",
    "PlacementAnswer",
    "PlacementCandidate",
    "PlacementExplanation",
    "PlacementFlip",
    "PlacementOption",
    "PlacementRequest",
    "Pool",
    "RoleLoad",
    "Tenant",
    "TenantList",
    "Worker",
    "WorkerList",
    "read",
]


def _key_text(value: Any) -> Any:
    """``namespace/name`` from any of the shapes that an object key takes in JSON."""
    match value:
        case {"namespace": namespace, "name": name}:
            return f"{namespace}/{name}"
        case [namespace, name]:
            return f"{namespace}/{name}"
        case _:
            return value


KeyText = Annotated[str, BeforeValidator(_key_text)]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Demand(_Wire):
    """What the pod needs. ``problem`` is the reason why that cannot be told."""

    namespace: str
    name: str
    tenant: str
    model: KeyText | None = None
    model_id: str = ""
    role: str | None = None
    resource: str | None = None
    gpus: int
    hbm_per_gpu_bytes: int | None = None
    problem: str | None = None


class Cost(_Wire):
    """Milliseconds; the total is the sum of the terms less ``locality_gain``."""

    total: float
    compute_wait: float = 0.0
    cache_access: float = 0.0
    migration: float = 0.0
    memory_pressure: float = 0.0
    network: float = 0.0
    risk: float = 0.0
    locality_gain: float = 0.0

    def terms(self) -> dict[str, float]:
        """What each term adds to the total, in the cost model's order; the gain is negative."""
        return {
            "compute_wait": self.compute_wait,
            "cache_access": self.cache_access,
            "migration": self.migration,
            "memory_pressure": self.memory_pressure,
            "network": self.network,
            "risk": self.risk,
            "locality_gain": -self.locality_gain,
        }


class Candidate(_Wire):
    """One node as a place for the pod."""

    node: str
    refusal: str | None = None
    text: str = ""
    cost: Cost | None = None
    score: int | None = None
    gpu_class: str | None = None
    free_gpus: int = 0
    hbm_free_bytes: int | None = None
    hbm_capacity_bytes: int | None = None
    foreign_bytes: int | None = None
    cache_location: str = ""
    weights_location: str = ""
    confidence_ratio: float = 1.0
    problems: tuple[str, ...] = ()


class Explanation(_Wire):
    """One pod on all nodes."""

    demand: Demand
    verdict: str
    reason: str
    text: str = ""
    candidates: tuple[Candidate, ...] = ()
    chosen: str | None = None
    runner_up: str | None = None
    emptiest: str | None = None
    answers: dict[str, str] = {}
    reservation: dict[str, Any] | None = None

    def candidate(self, node: str | None) -> Candidate | None:
        """The candidate of that name."""
        return next((c for c in self.candidates if c.node == node), None)


class Gpu(_Wire):
    """One device."""

    index: int
    capacity_bytes: int | None = None
    reserved_bytes: int = 0
    foreign_bytes: int | None = None


class Pool(_Wire):
    """The devices of one resource name on a node."""

    resource: str
    gpu_class: str
    product: str = ""
    devices: int
    replicas: int = 1
    allocatable: int
    free: int
    hbm_free_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()


class Node(_Wire):
    """One node."""

    name: str
    ready: bool
    reserved_for: str | None = None
    pools: tuple[Pool, ...] = ()
    use_age_s: float | None = None
    problems: tuple[str, ...] = ()


class NodeList(_Wire):
    """``/v1/nodes``."""

    items: tuple[Node, ...]


class RequestLimit(_Wire):
    """One limit of a tenant's requests, as a TenantQuota spells it."""

    limit: str
    quota: str
    at_most: int
    left: float


class RequestUse(_Wire):
    """What a tenant has of requests."""

    concurrent_requests: int = 0
    limits: tuple[RequestLimit, ...] = ()


class Tenant(_Wire):
    """One tenant. Limits and guarantees: None is not set."""

    tenant: str
    namespaces: tuple[str, ...] = ()
    used_gpus: int
    used_hbm_bytes: int
    limit_gpus: int | None = None
    limit_hbm_bytes: int | None = None
    guaranteed_gpus: int | None = None
    guaranteed_hbm_bytes: int | None = None
    conflicts: tuple[str, ...] = ()
    requests: RequestUse | None = None


class TenantList(_Wire):
    """``/v1/tenants``."""

    items: tuple[Tenant, ...]


class Worker(_Wire):
    """One worker. None: unknown."""

    worker: str
    model: KeyText
    role: str
    node: str | None = None
    ready: bool
    reporting: bool
    age_s: float | None = None
    waiting: int | None = None
    running: int | None = None
    kv_usage_ratio: float | None = None
    gpu_utilization_ratio: float | None = None
    prefix_hit_ratio: float | None = None
    draining: bool = False
    asleep: bool = False
    cache_value_ms: float | None = None


class WorkerList(_Wire):
    """``/v1/workers``."""

    items: tuple[Worker, ...]


class RoleLoad(_Wire):
    """What the workers of one role have to do. None: unknown."""

    role: str
    workers: int
    reporting: int
    waiting: int | None = None
    running: int | None = None
    kv_usage_ratio: float | None = None
    requests_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None


class Model(_Wire):
    """One model's load."""

    model: KeyText
    roles: tuple[RoleLoad, ...] = ()


class ModelList(_Wire):
    """``/v1/models``."""

    items: tuple[Model, ...]


class PlacementRequest(_Wire):
    """What a request asked for."""

    request_id: str
    model: KeyText
    tenant: str = ""
    input_tokens: int
    expected_output_tokens: float = 0.0
    told_output_tokens: float | None = None
    priority: int = 0
    phase: str | None = None
    adapter: str | None = None


class PlacementOption(_Wire):
    """One worker with one action."""

    phase: str | None = None
    action: str
    mode: str = ""
    source: str | None = None
    tier: str | None = None
    matched_tokens: int = 0
    transfer_bytes: int = 0
    terms: Cost


class PlacementCandidate(_Wire):
    """One worker as it was believed to be."""

    worker: str
    filtered: str | None = None
    policy_cost: float | None = None
    options: tuple[PlacementOption, ...] = ()
    matched_tokens: int = 0
    requests: int = 0
    wait_ms: float = 0.0
    kv_free_tokens: int | None = None
    kv_total_tokens: int | None = None
    confidence_ratio: float = 1.0
    age_s: float | None = None


class PlacementAnswer(_Wire):
    """One of the questions that every decision answers."""

    question: str
    answer: str


class PlacementFlip(_Wire):
    """A change with which another worker would have been chosen."""

    text: str


class PlacementExplanation(_Wire):
    """Everything about one placement of a request."""

    placement_id: str
    request: PlacementRequest
    policy: str
    reason: str
    precision: str = ""
    attempt: int = 1
    chosen: str
    prefill: str | None = None
    runner_up: str | None = None
    runner_up_behind: float | None = None
    emptiest: str | None = None
    in_the_running: int
    candidates: tuple[PlacementCandidate, ...] = ()
    filtered: dict[str, int] = {}
    approximations: tuple[str, ...] = ()
    answers: tuple[PlacementAnswer, ...] = ()
    flip: PlacementFlip | None = None
    flips: tuple[PlacementFlip, ...] = ()
    no_flip: str = ""

    def candidate(self, worker: str | None) -> PlacementCandidate | None:
        """The candidate of that id."""
        return next((c for c in self.candidates if c.worker == worker), None)


W = TypeVar("W", bound=_Wire)


def read(kind: type[W], body: Any) -> W:
    """Convert an answer; one that cannot be read is the server's fault, and the message names the field."""
    try:
        return kind.model_validate(body)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise ServerError(
            f"cannot read the extender's answer: {where}: {first['msg']} "
            "(is the extender older or newer than this program?)"
        ) from e
