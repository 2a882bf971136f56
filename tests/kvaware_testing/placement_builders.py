"""Builders of demands, placements and refusals. Every argument has a harmless default."""

from typing import Any

from kvaware_engine import CostTerms, ObjectKey
from kvaware_engine.requests.words import (
    Action,
    Mode,
    Option,
    Placement,
    PlacementReason,
    PlacementRefusal,
    Precision,
    RequestDemand,
)

__all__ = ["LLAMA", "demand", "option", "placement", "refusal"]

LLAMA = ObjectKey("ml", "llama")


def demand(request_id: str = "r-1", **fields: Any) -> RequestDemand:
    """1,000 tokens for ``ml/llama``."""
    given: dict[str, Any] = {"model": LLAMA, "tenant": "acme", "input_tokens": 1000, **fields}
    return RequestDemand(request_id=request_id, **given)


def option(worker: str = "ml:llama-0:0", **fields: Any) -> Option:
    """Local, 100 ms."""
    given: dict[str, Any] = {
        "slot": 0,
        "action": Action.LOCAL,
        "mode": Mode.EXPECTED,
        "terms": CostTerms(compute_wait=60.0, cache_access=40.0),
        **fields,
    }
    return Option(worker=worker, **given)


def placement(placement_id: str = "p-1", **fields: Any) -> Placement:
    """Of ``demand()`` to ``option()``, decided at 100 s."""
    given: dict[str, Any] = {
        "demand": demand(),
        "option": option(),
        "address": "10.0.0.1:8000",
        "reason": PlacementReason.COLD,
        "policy": "cost",
        "precision": Precision.PRECISE,
        "expected_output_tokens": 256,
        "candidates": 2,
        "confidence_ratio": 1.0,
        "queue_length": 3,
        "hbm_free_bytes": 2**30,
        "decided_at_s": 100.0,
        "expires_in_s": 30.0,
        **fields,
    }
    return Placement(placement_id=placement_id, **given)


def refusal(reason: PlacementReason = PlacementReason.NO_WORKER, **fields: Any) -> PlacementRefusal:
    """Of ``demand()``."""
    given: dict[str, Any] = {"demand": demand(), "message": "nobody can", **fields}
    return PlacementRefusal(reason=reason, **given)
