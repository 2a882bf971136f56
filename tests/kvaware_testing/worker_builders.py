"""Builders of workers, their reports and loads, and of scaling requests. Every argument has a harmless default."""

from math import inf
from typing import Any

from kvaware_engine import (
    GpuProduct,
    HardwareProfile,
    LatencyHistogram,
    ObjectKey,
    ProfileOrigin,
    Reason,
    ReportSource,
    RoleHeadroom,
    RoleLoad,
    ScalingRequest,
    ScalingRules,
    WorkerCounters,
    WorkerPlace,
    WorkerReport,
)

MODEL = ObjectKey("ml", "llama")
WORKER = "ml:llama-0:0"
UNKNOWN_LOAD = None


def place(
    worker: str = WORKER,
    *,
    model: ObjectKey = MODEL,
    role: str = "both",
    incarnation: str = "uid-1/start-1",
    ready: bool = True,
    node: str | None = "n1",
    address: str | None = "10.0.0.1:8000",
    product: str | None = None,
    model_id: str = "",
    gpus: int = 1,
) -> WorkerPlace:
    """A Ready worker."""
    return WorkerPlace(
        worker=worker,
        model=model,
        role=role,
        incarnation=incarnation,
        ready=ready,
        node=node,
        address=address,
        product=product,
        model_id=model_id,
        gpus=gpus,
    )


def scrape(
    worker: str = WORKER, *, at_s: float = 0.0, counters: WorkerCounters | None = None, **told: Any
) -> WorkerReport:
    """A scrape; figures by their names, ``model`` and ``incarnation`` too."""
    defaults: dict[str, Any] = {"model": MODEL, "incarnation": "uid-1/start-1", "source": ReportSource.SCRAPE}
    return WorkerReport(worker=worker, observed_at_s=at_s, counters=counters, **(defaults | told))


def heartbeat(worker: str = WORKER, *, seq: int | None, at_s: float = 0.0, **told: Any) -> WorkerReport:
    """A heartbeat."""
    return scrape(worker, at_s=at_s, seq=seq, source=ReportSource.HEARTBEAT, **told)


def counted(
    *, prompt: float | None = None, answer: float | None = None, requests: float | None = None, **others: Any
) -> WorkerCounters:
    """Counters of prompt and answer tokens and finished requests."""
    return WorkerCounters(prompt_tokens=prompt, generation_tokens=answer, finished_requests=requests, **others)


def latencies(*counts: float, bounds_s: tuple[float, ...] = (0.1, 0.5, 1.0), sum_s: float = 0.0) -> LatencyHistogram:
    """A histogram of counts at or below 0.1, 0.5, 1 s and infinity."""
    return LatencyHistogram(bounds_s=(*bounds_s, inf), counts=counts, sum_s=sum_s)


def hardware(
    *,
    product: str = "test",
    words: tuple[str, ...] = ("test",),
    tflops: float = 100,
    hbm_bytes_per_s: float = 1e12,
    model: str = "seven",
    parameters: float = 7e9,
    gpus: int = 1,
    prefill: tuple[float, float, float] = (0.0, 0.5, 0.0),
    decode: tuple[tuple[int, float], ...] = ((1, 20.0), (10, 20.0), (20, 30.0)),
    origin: ProfileOrigin = ProfileOrigin.MEASURED,
) -> HardwareProfile:
    """2,000 prompt tokens a second; batches to 10 in 20 ms: 500 answer tokens a second."""
    return HardwareProfile(
        product=GpuProduct(name=product, words=words, tflops=tflops, hbm_bytes_per_s=hbm_bytes_per_s),
        model=model,
        parameters=parameters,
        gpus=gpus,
        prefill_base_ms=prefill[0],
        prefill_ms_per_token=prefill[1],
        prefill_ms_per_token_squared=prefill[2],
        decode_steps=decode,
        origin=origin,
    )


def role_load(role: str = "both", *, workers: int = 1, reporting: int | None = None, **told: Any) -> RoleLoad:
    """An idle role whose counters stand still."""
    figures: dict[str, Any] = {
        "waiting": 0,
        "running": 0,
        "queued_tokens": None,
        "kv_usage_ratio": 0.0,
        "requests_per_s": 0.0,
        "prompt_tokens_per_s": 0.0,
        "generation_tokens_per_s": 0.0,
        "preemptions_per_s": 0.0,
        "prefix_hit_ratio": None,
        "ttft_p99_ms": None,
        "tpot_p99_ms": None,
        "age_s": 1.0,
    }
    return RoleLoad(
        role=role, workers=workers, reporting=workers if reporting is None else reporting, **(figures | told)
    )


def silent_load(role: str = "both", *, workers: int = 1) -> RoleLoad:
    """Nobody answers."""
    nothing = dict.fromkeys(
        (
            "waiting",
            "running",
            "queued_tokens",
            "kv_usage_ratio",
            "requests_per_s",
            "prompt_tokens_per_s",
            "generation_tokens_per_s",
            "preemptions_per_s",
            "prefix_hit_ratio",
            "ttft_p99_ms",
            "tpot_p99_ms",
            "age_s",
        )
    )
    return RoleLoad(role=role, workers=workers, reporting=0, **nothing)


def wanting(
    load: RoleLoad | None,
    *,
    replicas: int = 1,
    ready: int | None = None,
    at_least: int = 1,
    at_most: int = 8,
    rules: ScalingRules | None = None,
    headroom: RoleHeadroom | None = None,
    **others: Any,
) -> ScalingRequest:
    """A role of 1 to 8 replicas, all Ready, on the hardware of ``hardware()``."""
    defaults: dict[str, Any] = {"model": MODEL, "role": "both", "product": "test", "model_id": "seven-7b"}
    return ScalingRequest(
        min_replicas=at_least,
        max_replicas=at_most,
        rules=rules or ScalingRules(),
        replicas=replicas,
        ready_replicas=replicas if ready is None else ready,
        load=load,
        headroom=headroom,
        **(defaults | others),
    )


def room(
    fits: int, *, asked: int | None = None, reason: Reason = Reason.HBM_SHORT, text: str = "no room"
) -> RoleHeadroom:
    """Room for so many of those asked for; all of 100 unless told."""
    asked = 100 if asked is None else asked
    short = fits < asked
    return RoleHeadroom(
        role="both",
        asked_replicas=asked,
        fits_replicas=fits,
        nodes=tuple(f"n{number}" for number in range(fits)),
        reason=reason if short else None,
        text=text if short else "",
    )


ROOMY = room(100)
