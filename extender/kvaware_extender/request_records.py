"""The records of the decision log about requests: placed, or not.

On the path of every request one small object is made, 0.35 µs, that holds what was decided; the writing thread makes
the line of it.
"""

from datetime import UTC, datetime
from typing import Any

from kvaware_engine.requests.words import Option, Placement, PlacementRefusal, RequestDemand

__all__ = ["NotPlaced", "Placed"]


class Placed:
    """A request was placed."""

    __slots__ = ("_at_s", "_model_id", "_placement", "_trace_id")

    def __init__(self, placement: Placement, model_id: str, at_s: float, trace_id: str | None) -> None:
        """Keep what is never changed; ``at_s`` is of the wall clock."""
        self._model_id = model_id
        self._placement = placement
        self._at_s = at_s
        self._trace_id = trace_id

    def fields(self) -> dict[str, Any]:
        """What is written."""
        placement = self._placement
        demand, option, runner_up = placement.demand, placement.option, placement.runner_up
        prefill = placement.prefill
        cached = prefill or option  # with split roles the prompt, and what is reused of it, is the other worker's
        terms = option.terms
        named = [option.worker]
        for other in (prefill, runner_up):
            if other is not None and other.worker not in named:
                named.append(other.worker)
        return {
            "request_id": demand.request_id,
            "model_id": self._model_id,
            "tenant_id": demand.tenant,
            "selected_worker": option.worker,
            "candidate_workers": named,
            "schedule_reason": placement.reason,
            "estimated_compute_cost": terms.compute_wait + terms.memory_pressure,
            "estimated_cache_cost": terms.cache_access,
            "estimated_migration_cost": terms.migration + terms.network,
            "cache_location": _location(cached),
            "cache_state": "resident" if cached.matched_tokens else "absent",
            "gpu_hbm_available": placement.hbm_free_bytes,
            "queue_length": placement.queue_length,
            "priority": demand.priority,
            "event": "request_placed",
            "candidates": placement.candidates,
            "placement_id": placement.placement_id,
            "attempt": placement.attempt,
            "policy": placement.policy,
            "action": option.action,
            "mode": option.mode,
            "precision": placement.precision,
            "matched_tokens": cached.matched_tokens,
            "transfer_bytes": option.transfer_bytes,
            "expected_output_tokens": placement.expected_output_tokens,
            "confidence_ratio": placement.confidence_ratio,
            "terms_ms": _terms(option),
            "prefill_worker": prefill.worker if prefill is not None else None,
            "prefill_terms_ms": _terms(prefill),
            "runner_up": runner_up.worker if runner_up is not None else None,
            "runner_up_total_ms": runner_up.total_ms if runner_up is not None else None,
            **_ours(demand, at_s=self._at_s, trace_id=self._trace_id),
        }


class NotPlaced:
    """A request was refused."""

    __slots__ = ("_at_s", "_model_id", "_refusal", "_trace_id")

    def __init__(self, refusal: PlacementRefusal, model_id: str, at_s: float, trace_id: str | None) -> None:
        """Keep what is never changed; ``at_s`` is of the wall clock."""
        self._model_id = model_id
        self._refusal = refusal
        self._at_s = at_s
        self._trace_id = trace_id

    def fields(self) -> dict[str, Any]:
        """What is written."""
        refusal, demand = self._refusal, self._refusal.demand
        return {
            "request_id": demand.request_id,
            "model_id": self._model_id,
            "tenant_id": demand.tenant,
            "selected_worker": None,
            "candidate_workers": [],
            "schedule_reason": refusal.reason,
            "estimated_compute_cost": None,
            "estimated_cache_cost": None,
            "estimated_migration_cost": None,
            "cache_location": None,
            "cache_state": None,
            "gpu_hbm_available": None,
            "queue_length": None,
            "priority": demand.priority,
            "event": "request_refused",
            "candidates": 0,
            "error": refusal.message,
            "retryable": refusal.retryable,
            "retry_after_s": refusal.retry_after_s,
            **_ours(demand, at_s=self._at_s, trace_id=self._trace_id),
        }


def _ours(demand: RequestDemand, *, at_s: float, trace_id: str | None) -> dict[str, Any]:
    namespace, name = demand.model
    return {
        "time": datetime.fromtimestamp(at_s, UTC),
        "model": f"{namespace}/{name}" if namespace else name,  # the latter: no model has the name
        "input_tokens": demand.input_tokens or None,
        "trace_id": trace_id,
    }


def _location(option: Option) -> str:
    """Whose blocks are reused, and from which tier: ``local_hbm``, ``remote_cpu``, …; ``none`` where none are."""
    if not option.matched_tokens or option.tier is None:
        return "none"
    return f"{'local' if option.source is None else 'remote'}_{option.tier.value}"


def _terms(option: Option | None) -> dict[str, float] | None:
    if option is None:
        return None
    terms = option.terms
    return {
        "total": terms.total,
        "compute_wait": terms.compute_wait,
        "cache_access": terms.cache_access,
        "migration": terms.migration,
        "memory_pressure": terms.memory_pressure,
        "network": terms.network,
        "risk": terms.risk,
        "locality_gain": terms.locality_gain,
    }
