"""A worker's heartbeat, as its body came → what it reports."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from kvaware_crds.base import ApiModel, read, rule
from kvaware_crds.errors import WireError
from kvaware_crds.fields import Flag, Integer
from kvaware_crds.v1alpha1.inference_model import Capability
from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import ReportSource, WorkerReport

__all__ = ["Heartbeat", "parse_heartbeat"]

MAX_THINGS: Final = 1_000_000_000
"""Requests or blocks of one worker: 100 times what the largest pools have."""
MAX_SEQ: Final = 2**63 - 1
MAX_HBM_BYTES: Final = 2**47
"""On all GPUs of one worker: 128 TiB, more than a rack has."""

MAX_NAME_LENGTH: Final = 253
MAX_ADAPTERS: Final = 1024
MAX_TIER_BYTES: Final = 2**50
"""Of one tier: 1 PiB."""

Things = Annotated[Integer, Field(ge=0, le=MAX_THINGS)]


class Heartbeat(ApiModel):
    """The body of ``PUT /v1/workers/{id}/heartbeat``. What is left out is unknown."""

    model_config = ConfigDict(alias_generator=None)

    seq: Annotated[Integer, Field(ge=0, le=MAX_SEQ)] | None = None
    """Grows with each heartbeat. Taken from a clock it also grows over a restart of the server inside its container; a
    lower one is refused until the report time-out has passed."""
    model: Annotated[str, Field(max_length=317, pattern=r"^[^/]+/[^/]+$")]
    """Namespace and name of its InferenceModel, such as ml/llama-70b."""
    role: Literal["both", "prefill", "decode"] | None = None
    """What it does."""
    address: (
        Annotated[str, Field(max_length=261, pattern=r"^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}$")] | None
    ) = None
    """Where it takes requests, such as 10.0.0.7:8000, IPv6 in brackets."""
    block_size: Annotated[Integer, Field(ge=1, le=65_536)] | None = None
    """Tokens per KV cache block."""
    kv_blocks_total: Things | None = None
    """Blocks of its KV pool."""
    kv_blocks_free: Things | None = None
    """Of these, blocks that no running request holds."""
    waiting: Things | None = None
    """Requests in its queue."""
    running: Things | None = None
    """Requests in its batch."""
    queued_tokens: Annotated[Integer, Field(ge=0, le=2**53)] | None = None
    """Prompt tokens of the waiting requests."""
    batch_size: Things | None = None
    """Sequences in its last step."""
    gpu_utilization_ratio: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] | None = None
    """Share of time in which its GPUs work."""
    hbm_used_bytes: Annotated[Integer, Field(ge=0, le=MAX_HBM_BYTES)] | None = None
    """On all of its GPUs together."""
    capabilities: Annotated[tuple[Capability, ...], Field(max_length=16)] | None = None
    """What it can do with KV cache beyond its own HBM."""
    draining: Flag | None = None
    """Whether it takes no new requests."""
    adapters: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)], ...],
            Field(max_length=MAX_ADAPTERS),
        ]
        | None
    ) = None
    """Names of the adapters that it serves; an empty list: none. Left out: requests for any may come."""
    cpu_tier_free_bytes: Annotated[Integer, Field(ge=0, le=MAX_TIER_BYTES)] | None = None
    """Free in its offload tier in CPU memory."""
    ssd_tier_free_bytes: Annotated[Integer, Field(ge=0, le=MAX_TIER_BYTES)] | None = None
    """Free in its offload tier on SSD."""
    transfer_domain: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)] | None = None
    """Parallel layout, KV connector and its version, such as tp4-nixl-0.3: between workers of one model that say the
    same words KV blocks can move."""

    @rule(
        "!has(self.kv_blocks_free) || !has(self.kv_blocks_total) || self.kv_blocks_free <= self.kv_blocks_total",
        "expected kv_blocks_free to be at most kv_blocks_total",
    )
    def _free_is_a_part(self) -> bool:
        return (
            self.kv_blocks_free is None or self.kv_blocks_total is None or self.kv_blocks_free <= self.kv_blocks_total
        )


def parse_heartbeat(
    body: Mapping[str, Any], *, worker: str, incarnation: str, observed_at_s: float, model: ObjectKey | None = None
) -> WorkerReport:
    """Read one heartbeat.

    Args:
        body: The JSON object; a null counts as left out.
        worker: The worker's id, from the path.
        incarnation: Of the worker as the API server shows it.
        observed_at_s: Monotonic: when the request came.
        model: Whose worker it is as the API server shows it: the body must name the same. None: whatever it names.
    Raises: WireError that names the field, what was expected and what came.
    """
    heartbeat = read(Heartbeat, body)
    named = ObjectKey(*heartbeat.model.split("/"))
    if model is not None and named != model:
        expected = f"{model.namespace}/{model.name}"
        raise WireError(f"Heartbeat: model: expected {expected!r}, whose worker {worker} is, got {heartbeat.model!r}")
    return WorkerReport(
        worker=worker,
        model=named,
        incarnation=incarnation,
        source=ReportSource.HEARTBEAT,
        observed_at_s=observed_at_s,
        seq=heartbeat.seq,
        role=heartbeat.role,
        address=heartbeat.address,
        waiting=heartbeat.waiting,
        running=heartbeat.running,
        queued_tokens=heartbeat.queued_tokens,
        batch_size=heartbeat.batch_size,
        kv_blocks_total=heartbeat.kv_blocks_total,
        kv_blocks_free=heartbeat.kv_blocks_free,
        block_size_tokens=heartbeat.block_size,
        gpu_utilization_ratio=heartbeat.gpu_utilization_ratio,
        hbm_used_bytes=heartbeat.hbm_used_bytes,
        capabilities=None if heartbeat.capabilities is None else tuple(each.value for each in heartbeat.capabilities),
        draining=heartbeat.draining,
        adapters=heartbeat.adapters,
        cpu_tier_free_bytes=heartbeat.cpu_tier_free_bytes,
        ssd_tier_free_bytes=heartbeat.ssd_tier_free_bytes,
        transfer_domain=heartbeat.transfer_domain,
    )
