"""What asks for replicas: each signal reads a role's load and answers with a real number of replicas and a reason."""

from dataclasses import dataclass
from typing import Final

from kvaware_engine.capacity import DECODE, PREFILL
from kvaware_engine.reports import RoleLoad
from kvaware_engine.scaling_words import ScalingReason, ScalingRules
from kvaware_engine.settings import ScalingSettings

__all__ = ["Signal", "everyone", "is_comfortable", "kv_signal", "objective_signal", "queue_signal", "within_kv"]

_MS_PER_S: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What one figure asks for."""

    reason: ScalingReason
    replicas: float
    text: str
    """The figures, as a clause."""


def everyone(load: RoleLoad) -> float:
    """Sums over reporting workers times this are sums over all workers."""
    return load.workers / load.reporting if load.reporting else 1.0


def queue_signal(
    load: RoleLoad, *, serving: float, rules: ScalingRules, drains: bool, settings: ScalingSettings
) -> Signal | None:
    """A queue that takes too long, whatever runs: running requests stop growing at the server's slots.

    By Little's law a queue of W at λ finished requests a second takes W/λ; so many replicas are asked for as do the
    present rate and empty the queue in ``queue_drain_s``. One waiting request per replica is no queue: servers take
    it in at their next step.

    Args:
        load: Of the role.
        serving: Ready replicas, above 0.
        rules: With the TTFT objective.
        drains: The queue is getting shorter fast enough already.
        settings: Waits and shares.
    Returns: None: there is no such queue, or nobody tells.
    """
    if load.waiting is None or load.waiting * everyone(load) <= serving or drains:
        return None
    waiting = load.waiting * everyone(load)
    rate = (load.requests_per_s or 0.0) * everyone(load)
    if rate <= 0:
        replicas = serving + waiting / settings.queue_per_replica
        finish = "how many finish is not told" if load.requests_per_s is None else "none finishes"
        text = f"{waiting:.0f} requests wait, and {finish}"
        return Signal(reason=ScalingReason.QUEUE_GROWS, replicas=replicas, text=text)
    wait_s = waiting / rate
    allowed_s = settings.queue_wait_s
    if rules.ttft_ms is not None:
        allowed_s = rules.ttft_ms * settings.queue_wait_objective_ratio / _MS_PER_S
    if wait_s <= allowed_s:
        return None
    return Signal(
        reason=ScalingReason.QUEUE_GROWS,
        replicas=serving * (1 + waiting / (rate * settings.queue_drain_s)),
        text=f"{waiting:.0f} requests wait about {wait_s:.2g} s, {allowed_s:.2g} s is allowed",
    )


def kv_signal(load: RoleLoad, *, serving: float, settings: ScalingSettings) -> Signal | None:
    """KV pools in use as a share of what may be in use, and preemptions. None: nobody tells."""
    usage = load.kv_usage_ratio
    preemptions = (load.preemptions_per_s or 0.0) * everyone(load)
    if preemptions > settings.preemptions_per_s * serving:
        replicas = max(serving + 1, serving * (usage or 0.0) / settings.kv_usage_max_ratio)
        text = f"{preemptions:.2g} requests a second are preempted for room in the KV pools"
        return Signal(reason=ScalingReason.KV_PRESSURE, replicas=replicas, text=text)
    if usage is None:
        return None
    return Signal(
        reason=ScalingReason.KV_PRESSURE,
        replicas=serving * usage / settings.kv_usage_max_ratio,
        text=f"{usage:.0%} of the KV pools are in use, {settings.kv_usage_max_ratio:.0%} may be",
    )


def objective_signal(
    load: RoleLoad, *, serving: float, rules: ScalingRules, settings: ScalingSettings
) -> Signal | None:
    """A latency above its objective while replicas are busy. None: met, not promised, not told, or not for load.

    Where few requests run on each replica it is the prompt or the GPU that takes long, and more replicas would not
    change it: without this rule an objective that cannot be met would go to the maximum.
    """
    running = load.running is not None and load.running * everyone(load) >= settings.busy_running * serving
    queueing = load.waiting is not None and load.waiting * everyone(load) > serving
    if not (running or queueing):
        return None
    worst: Signal | None = None
    for name, observed_ms, objective_ms in _objectives(load, rules):
        if observed_ms is None or observed_ms <= objective_ms:
            continue
        replicas = serving * (1 + min(settings.objective_step_ratio, observed_ms / objective_ms - 1))
        if worst is None or replicas > worst.replicas:
            worst = Signal(
                reason=ScalingReason.OBJECTIVE_MISSED,
                replicas=replicas,
                text=f"{name} is {observed_ms:.3g} ms at the 99th percentile, the objective is {objective_ms:.3g} ms",
            )
    return worst


def is_comfortable(load: RoleLoad, *, serving: float, rules: ScalingRules, settings: ScalingSettings) -> bool | None:
    """Whether latencies and queue prove that the replicas suffice for the present load.

    Returns: None: there is no objective, so only the queue says that nothing is wrong; False: they do not suffice, or
        it is not known.
    """
    if load.waiting is None or load.waiting * everyone(load) > serving or not within_kv(load, settings):
        return False
    told = [(observed, objective) for _, observed, objective in _objectives(load, rules)]
    if not told:
        return None
    return all(observed is not None and observed <= objective * settings.comfort_ratio for observed, objective in told)


def within_kv(load: RoleLoad, settings: ScalingSettings) -> bool:
    """Whether the KV pools, as far as is known, are not full."""
    return load.kv_usage_ratio is None or load.kv_usage_ratio <= settings.kv_usage_max_ratio


def _objectives(load: RoleLoad, rules: ScalingRules) -> list[tuple[str, float | None, float]]:
    """The objectives that a role answers for: a prefill worker gives first tokens, a decode worker the others."""
    told: list[tuple[str, float | None, float]] = []
    if rules.ttft_ms is not None and load.role != DECODE:
        told.append(("TTFT", load.ttft_p99_ms, rules.ttft_ms))
    if rules.tpot_ms is not None and load.role != PREFILL:
        told.append(("TPOT", load.tpot_p99_ms, rules.tpot_ms))
    return told
