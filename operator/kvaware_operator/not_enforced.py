"""Fields that users may set and that this version does not act on: each is named, so that none is silently ignored.

A field that carries its default counts as not set: the API server fills defaults in.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvaware_crds import ConditionType
from kvaware_crds.base import ApiModel
from kvaware_crds.v1alpha1.inference_model import InferenceModelSpec
from kvaware_crds.v1alpha1.kv_cache_block_group import KVCacheBlockGroupSpec
from kvaware_crds.v1alpha1.tenant_quota import TenantQuotaSpec
from kvaware_operator.conditions import Finding

__all__ = ["not_enforced", "passive_fields"]

LIMITS: Final = ("cpu_memory", "ssd")
GUARANTEED: Final = (
    "requests_per_second",
    "tokens_per_second",
    "concurrent_requests",
    "cpu_memory",
    "ssd",
    "block_groups",
    "remote_read_bytes_per_second",
    "migration_bytes_per_second",
    "concurrent_migrations",
    "control_requests_per_second",
)
"""Rates are limited and not kept free for anybody: what others may take while one does not is for queues to decide."""
PASSIVE: Final[dict[type[ApiModel], tuple[str, ...]]] = {
    InferenceModelSpec: ("replication",),
    KVCacheBlockGroupSpec: ("prefix", "pinned", "copies", "tier", "ttl"),
    TenantQuotaSpec: (
        *(f"limits.{amount}" for amount in LIMITS),
        *(f"guaranteed.{amount}" for amount in GUARANTEED),
        "weight",
    ),
}
"""By kind, attribute paths. ``scaling.scaleToZeroAfter`` has a condition of its own."""


def passive_fields(spec: ApiModel) -> list[str]:
    """The fields of a spec that are set and not acted upon, as users write them: ``spec.workers.capabilities``."""
    return [".".join(("spec", *names)) for path in PASSIVE[type(spec)] if (names := _set(spec, path.split(".")))]


def not_enforced(spec: ApiModel) -> Finding:
    """The condition that names them."""
    fields = passive_fields(spec)
    if not fields:
        return Finding.false(ConditionType.NOT_ENFORCED, "AllFieldsActedUpon")
    return Finding.true(
        ConditionType.NOT_ENFORCED, "FieldsNotActedUpon", f"this version does not act on {_listed(fields)}"
    )


def _set(value: Any, path: Sequence[str]) -> list[str]:
    """The names of the path as in YAML, where it leads to a value other than the default; else nothing."""
    names: list[str] = []
    for attribute in path:
        if value is None:
            return []
        field = type(value).model_fields[attribute]
        default = field.get_default(call_default_factory=True) if not field.is_required() else None
        value = getattr(value, attribute)
        names.append(field.alias or attribute)
        if value is None or value == default:
            return []
    return names


def _listed(fields: Iterable[str]) -> str:
    *first, last = fields
    return f"{', '.join(first)} and {last}" if first else last
