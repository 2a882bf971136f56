"""What every line of the decision log begins with, as the design promises (§8)."""

from typing import Final

__all__ = ["PROMISED"]

PROMISED: Final = [
    "request_id",
    "model_id",
    "tenant_id",
    "selected_worker",
    "candidate_workers",
    "schedule_reason",
    "estimated_compute_cost",
    "estimated_cache_cost",
    "estimated_migration_cost",
    "cache_location",
    "cache_state",
    "gpu_hbm_available",
    "queue_length",
    "priority",
]
