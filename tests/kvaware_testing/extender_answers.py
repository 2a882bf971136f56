"""Bodies of the extender's ``/v1`` answers, every field with a harmless default; sizes in GiB for handiness."""

from collections.abc import Sequence
from typing import Any

__all__ = ["candidate", "cost", "explanation", "model_load", "node", "pool", "refused", "role_load", "tenant", "worker"]

GIB = 1 << 30


def cost(**terms: float) -> dict[str, float]:
    """Cost terms with their total: the sum less the gain."""
    gain = terms.get("locality_gain", 0.0)
    return {**terms, "total": sum(terms.values()) - 2 * gain}


def candidate(
    name: str,
    *,
    hbm_free_gib: float = 80,
    free_gpus: int = 8,
    terms: dict[str, float] | None = None,
    cache: str = "none",
    weights: str = "far",
) -> dict[str, Any]:
    """A node that can take the pod."""
    return {
        "node": name,
        "refusal": None,
        "text": "",
        "cost": cost(**(terms or {"network": 100.0})),
        "score": 5,
        "gpu_class": "exclusive",
        "free_gpus": free_gpus,
        "hbm_free_bytes": int(hbm_free_gib * GIB),
        "hbm_capacity_bytes": 80 * GIB,
        "foreign_bytes": 0,
        "cache_location": cache,
        "weights_location": weights,
        "kv_bytes_on_node": 0,
        "confidence_ratio": 1.0,
        "problems": [],
    }


def refused(name: str, *, reason: str = "NotEnoughGPUs", text: str = "kvaware: not enough free GPUs") -> dict[str, Any]:
    """A node that cannot."""
    return {**candidate(name), "refusal": reason, "text": text, "cost": None, "score": None, "free_gpus": 0}


def explanation(
    candidates: Sequence[dict[str, Any]],
    *,
    namespace: str = "ml",
    name: str = "llama-0",
    tenant: str = "ml",
    reason: str | None = None,
) -> dict[str, Any]:
    """A pod's explanation; the first admitted candidate is the choice, the second the runner-up."""
    admitted = [c for c in candidates if c["refusal"] is None]
    by_hbm = sorted(admitted, key=lambda c: (-(c["hbm_free_bytes"] or 0), -c["free_gpus"], c["node"]))
    first_refusal = next((c for c in candidates if c["refusal"] is not None), None)
    why = reason or ("LeastCost" if admitted else first_refusal["refusal"] if first_refusal else "ModelNotFound")
    return {
        "demand": {
            "uid": "u-1",
            "namespace": namespace,
            "name": name,
            "tenant": tenant,
            "model": {"namespace": namespace, "name": "llama"},
            "model_id": "meta-llama/Llama-3.1-8B-Instruct",
            "role": None,
            "resource": "nvidia.com/gpu",
            "gpus": 1,
            "hbm_per_gpu_bytes": 24 * GIB,
            "priority": 0,
            "problem": None,
        },
        "verdict": "admitted" if admitted else "refused",
        "reason": why,
        "text": "" if admitted else first_refusal["text"] if first_refusal else "kvaware: no such model",
        "candidates": list(candidates),
        "chosen": admitted[0]["node"] if admitted else None,
        "runner_up": admitted[1]["node"] if len(admitted) > 1 else None,
        "emptiest": by_hbm[0]["node"] if by_hbm else None,
        "answers": {"Where should it go?": "To the first."},
        "reservation": None,
    }


def pool(*, devices: int = 8, free: int = 8, foreign_gib: float | None = 0) -> dict[str, Any]:
    """Whole H100s."""
    gpu: dict[str, Any] = {
        "capacity_bytes": 80 * GIB,
        "reserved_bytes": 0,
        "foreign_bytes": None if foreign_gib is None else int(foreign_gib * GIB),
        "pods": [],
    }
    return {
        "resource": "nvidia.com/gpu",
        "gpu_class": "exclusive",
        "product": "NVIDIA-H100-80GB-HBM3",
        "devices": devices,
        "replicas": 1,
        "allocatable": devices,
        "free": free,
        "hbm_free_bytes": 80 * GIB,
        "gpus": [{"index": index, **gpu} for index in range(devices)],
    }


def node(name: str, *, ready: bool = True, pools: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """One node of ``/v1/nodes``."""
    return {
        "name": name,
        "ready": ready,
        "reserved_for": None,
        "clique": None,
        "rack": None,
        "zone": None,
        "weights": [],
        "pools": [pool()] if pools is None else list(pools),
        "confidence_ratio": 1.0,
        "use_age_s": 2.0,
        "problems": [],
    }


def tenant(
    name: str, *, used_gpus: int = 0, limit_gpus: int | None = None, conflicts: Sequence[str] = ()
) -> dict[str, Any]:
    """One tenant of ``/v1/tenants``."""
    return {
        "tenant": name,
        "quotas": [name],
        "namespaces": [name],
        "used_gpus": used_gpus,
        "used_hbm_bytes": used_gpus * 80 * GIB,
        "limit_gpus": limit_gpus,
        "limit_hbm_bytes": None,
        "guaranteed_gpus": None,
        "guaranteed_hbm_bytes": None,
        "conflicts": list(conflicts),
    }


def worker(worker_id: str = "ml:llama-0:0", **figures: Any) -> dict[str, Any]:
    """One worker of ``/v1/workers`` that is Ready and was heard, and told nothing."""
    return {
        "worker": worker_id,
        "model": {"namespace": worker_id.partition(":")[0], "name": "llama"},
        "role": "both",
        "node": "n1",
        "address": "10.0.0.7:8000",
        "ready": True,
        "reporting": True,
        "age_s": 1.0,
        "confidence_ratio": 1.0,
        "waiting": None,
        "running": None,
        "kv_usage_ratio": None,
        "gpu_utilization_ratio": None,
        "prefix_hit_ratio": None,
        "draining": False,
        "asleep": False,
        "capabilities": [],
        "cache_value_ms": None,
        **figures,
    }


def role_load(role: str = "both", **figures: Any) -> dict[str, Any]:
    """One role's load, of two workers that tell nothing."""
    return {"role": role, "workers": 2, "reporting": 2, **figures}


def model_load(name: str, *roles: dict[str, Any]) -> dict[str, Any]:
    """One model of ``/v1/models``."""
    return {"model": {"namespace": "ml", "name": name}, "roles": list(roles or (role_load(),))}
