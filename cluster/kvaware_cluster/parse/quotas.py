"""A TenantQuota as the API server has it → what the tenant's pods and requests may have.

A quota that cannot be read must never read as "no limit": what cannot be read is 0, "nothing".
"""

from collections.abc import Mapping
from typing import Any, Final

from kvaware_cluster.parse.reports import Report, silent
from kvaware_cluster.parse.selectors import selector_of
from kvaware_cluster.parse.wire import mapping, metadata_of, string, uid_of
from kvaware_crds.base import read
from kvaware_crds.errors import WireError
from kvaware_crds.meta import LabelSelector
from kvaware_crds.v1alpha1.tenant_quota import Priority, QuotaAmounts, TenantQuota
from kvaware_engine.observations import Amounts, TenantQuotaObservation

__all__ = ["parse_quota"]

FIELDS: Final[Mapping[str, str]] = {
    "gpus": "gpus",
    "hbm_bytes": "hbm",
    "cpu_memory_bytes": "cpu_memory",
    "ssd_bytes": "ssd",
    "block_groups": "block_groups",
    "requests_per_s": "requests_per_second",
    "tokens_per_s": "tokens_per_second",
    "concurrent_requests": "concurrent_requests",
    "remote_read_bytes_per_s": "remote_read_bytes_per_second",
    "migration_bytes_per_s": "migration_bytes_per_second",
    "concurrent_migrations": "concurrent_migrations",
    "control_requests_per_s": "control_requests_per_second",
}
"""The engine's name of an amount to the attribute of ``QuotaAmounts``."""


def parse_quota(raw: dict[str, Any], *, report: Report = silent) -> TenantQuotaObservation:
    """Read one TenantQuota.

    An object that does not validate (an older or newer CRD is installed) is read field by field, and ``report`` gets a
    sentence: an amount under ``limits`` that is there and cannot be read is 0, one under ``guaranteed`` is not
    guaranteed, weight and priorities are 0, a tenant without a name is called as the object, a selector that cannot be
    read reserves nothing.
    Raises: WireError when the object names neither tenant nor namespaces.
    """
    metadata = metadata_of(raw, "tenantquota")
    name = metadata["name"]
    uid = uid_of(metadata, "tenantquota")
    created_at = string(metadata, "creationTimestamp", "tenantquota.metadata")
    try:
        spec = read(TenantQuota, raw).spec
    except WireError as error:
        report(f"read in part, what limits cannot say is 0: {error}")
        return _in_part(raw, name=name, uid=uid, created_at=created_at)
    return TenantQuotaObservation(
        name=name,
        uid=uid,
        created_at=created_at,
        tenant=spec.tenant,
        namespaces=spec.namespaces,
        limits=_amounts(spec.limits),
        guaranteed=_amounts(spec.guaranteed),
        weight=spec.weight,
        priority_default=None if spec.priority is None else spec.priority.default,
        priority_max=None if spec.priority is None else spec.priority.max,
        reserved_pool=None if spec.reserved_pool is None else selector_of(spec.reserved_pool),
    )


def _amounts(amounts: QuotaAmounts | None) -> Amounts:
    if amounts is None:
        return Amounts()
    return Amounts(**{name: getattr(amounts, attribute) for name, attribute in FIELDS.items()})


def _in_part(raw: dict[str, Any], *, name: str, uid: str, created_at: str) -> TenantQuotaObservation:
    spec = mapping(raw, "spec", "tenantquota")
    tenant, listed = spec.get("tenant"), spec.get("namespaces")
    named = tenant if type(tenant) is str and tenant else None
    namespaces = tuple(each for each in listed if type(each) is str) if type(listed) is list else ()
    if named is None and not namespaces:
        raise WireError(f"tenantquota {name}: expected a tenant and its namespaces, got neither")
    try:
        pool = None if spec.get("reservedPool") is None else selector_of(read(LabelSelector, spec["reservedPool"]))
    except WireError:
        pool = None
    default, most = _priority_in_part(spec.get("priority"))
    return TenantQuotaObservation(
        name=name,
        uid=uid,
        created_at=created_at,
        tenant=named or name,
        namespaces=namespaces,
        limits=_limits_in_part(spec.get("limits"), unreadable=0),
        guaranteed=_limits_in_part(spec.get("guaranteed"), unreadable=None),
        weight=_weight_in_part(spec.get("weight")),
        priority_default=default,
        priority_max=most,
        reserved_pool=pool,
    )


def _limits_in_part(amounts: Any, *, unreadable: int | None) -> Amounts:
    """Each amount by itself; ``unreadable`` stands for one that is set and cannot be read."""
    if amounts is None:
        return Amounts()
    if type(amounts) is not dict:
        return Amounts(**dict.fromkeys(FIELDS, unreadable))

    def one(attribute: str) -> int | None:
        key = QuotaAmounts.model_fields[attribute].alias or attribute
        if amounts.get(key) is None:
            return None
        try:
            value: int | None = getattr(read(QuotaAmounts, {key: amounts[key]}), attribute)
        except WireError:
            return unreadable
        return value

    return Amounts(**{name: one(attribute) for name, attribute in FIELDS.items()})


def _priority_in_part(priority: Any) -> tuple[int | None, int | None]:
    """Default and maximum, each by itself; one that is set and cannot be read is 0, which raises nobody."""
    if priority is None:
        return None, None
    if type(priority) is not dict:
        return 0, 0

    def one(key: str) -> int | None:
        if priority.get(key) is None:
            return None
        try:
            value: int | None = getattr(read(Priority, {key: priority[key]}), key)
        except WireError:
            return 0
        return value

    return one("default"), one("max")


def _weight_in_part(weight: Any) -> int:
    """One that cannot be read is 0: the tenant comes after the others."""
    if weight is None:
        return 1
    return weight if type(weight) is int and weight >= 0 else 0
