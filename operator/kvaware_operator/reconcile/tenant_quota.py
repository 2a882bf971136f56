"""TenantQuotas: what is used, and whether the spec holds. Limits themselves are kept by the extender."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from kvaware_cluster import Kind
from kvaware_cluster.workloads import CustomResource
from kvaware_crds import ConditionType, TenantQuota, format_quantity
from kvaware_crds.v1alpha1.tenant_quota import QuotaUse, TenantQuotaSpec
from kvaware_engine import TenantView
from kvaware_engine.observations import ObjectKey, TenantQuotaObservation
from kvaware_operator.conditions import Finding, named, settle
from kvaware_operator.not_enforced import not_enforced
from kvaware_operator.statuses import StatusWriter
from kvaware_operator.tenants import Tenants
from kvaware_operator.view import View

__all__ = ["QuotaReconciler", "quota_findings", "quota_status"]


def quota_findings(
    resource: CustomResource,
    *,
    quota: TenantQuotaObservation | None,
    owners: Mapping[str, TenantQuotaObservation],
    use: TenantView | None,
    block_groups: int | None,
) -> list[Finding]:
    """What there is to say.

    Args:
        resource: The object.
        quota: What of it is in force; None: nothing.
        owners: The quota that owns each of its namespaces.
        use: Of its tenant; None: unknown, then what was said about it before stays.
        block_groups: KVCacheBlockGroups of its tenant; None: unknown, the same.
    """
    findings = []
    if not isinstance(resource.resource, TenantQuota):
        told = resource.problem or "the spec cannot be read"
        findings.append(Finding.false(ConditionType.ACCEPTED, "Invalid", f"{told}; what limits cannot say is 0"))
    else:
        findings.append(Finding.true(ConditionType.ACCEPTED, "Valid"))
        findings.append(not_enforced(resource.resource.spec))
        exceeded = _limit_exceeded(resource.resource.spec, use, block_groups)
        if exceeded is not None:
            findings.append(exceeded)
    findings.append(_namespace_conflict(quota, owners))
    return findings


def quota_status(
    before: Mapping[str, Any],
    findings: list[Finding],
    *,
    use: TenantView | None,
    block_groups: int | None,
    generation: int,
    now: datetime,
) -> dict[str, Any]:
    """The whole status. Unknown use leaves the figures, and whether they exceed a limit, as they were."""
    listed = before.get("conditions")
    conditions = listed if isinstance(listed, list) else []
    kept = (ConditionType.LIMIT_EXCEEDED,) if use is None or block_groups is None else ()
    status: dict[str, Any] = {
        "conditions": settle(conditions, findings, generation=generation, now=now, kept=kept),
    }
    used = _used(before.get("used", {}), use, block_groups)
    return {**({"used": used} if used else {}), **status}


def _used(before: Mapping[str, Any], use: TenantView | None, block_groups: int | None) -> dict[str, Any]:
    """What is known now, beside what was known last of the rest."""
    known = QuotaUse(
        gpus=None if use is None else use.used_gpus + use.intended_gpus,
        hbm=None if use is None else use.used_hbm_bytes + use.intended_hbm_bytes,
        block_groups=block_groups,
    ).to_raw()
    unknown = {*(("gpus", "hbm") if use is None else ()), *(("blockGroups",) if block_groups is None else ())}
    return {**{name: value for name, value in before.items() if name in unknown}, **known}


class QuotaReconciler:
    """Looks at one quota at a time."""

    def __init__(self, *, view: View, tenants: Tenants, statuses: StatusWriter, wall: Callable[[], datetime]) -> None:
        self._view = view
        self._tenants = tenants
        self._statuses = statuses
        self._wall = wall

    async def look(self, key: ObjectKey) -> float | None:
        """Bring one quota's status up to date. Returns: seconds after which to look again, or None."""
        if not self._view.known(Kind.TENANT_QUOTA):
            return None  # unknown is not gone: when the kind is listed again, every object of it is looked at
        resource = self._view.resource(Kind.TENANT_QUOTA, key)
        if resource is None:
            self._statuses.forget(Kind.TENANT_QUOTA, key)
            return None
        quota = self._view.quota(key.name)
        use = None if quota is None else self._tenants.of(quota.tenant)
        owners = {} if quota is None else self._owners(quota)
        groups = None
        if quota is not None and self._view.known(Kind.KV_CACHE_BLOCK_GROUP):
            groups = self._view.group_limits.count(quota.tenant)
        findings = quota_findings(resource, quota=quota, owners=owners, use=use, block_groups=groups)
        before = self._statuses.present(resource)
        status = quota_status(
            before, findings, use=use, block_groups=groups, generation=resource.generation, now=self._wall()
        )
        return await self._statuses.write(resource, status)

    def _owners(self, quota: TenantQuotaObservation) -> dict[str, TenantQuotaObservation]:
        found = {}
        for namespace in quota.namespaces:
            key = self._view.namespaces.owner(namespace)
            owner = None if key is None else self._view.quota(key.name)
            if owner is not None:
                found[namespace] = owner
        return found


def _namespace_conflict(quota: TenantQuotaObservation | None, owners: Mapping[str, TenantQuotaObservation]) -> Finding:
    """Quotas of one tenant may share namespaces: all of their limits apply."""
    type_ = ConditionType.NAMESPACE_CONFLICT
    lost = [
        f"{namespace} (TenantQuota {owner.name})"
        for namespace, owner in owners.items()
        if quota is not None and owner.tenant != quota.tenant
    ]
    if not lost:
        return Finding.false(type_, "NamespacesAreItsOwn")
    return Finding.true(type_, "OwnedByOlder", f"namespaces that an older one owns: {named(lost)}")


def _limit_exceeded(spec: TenantQuotaSpec, use: TenantView | None, block_groups: int | None) -> Finding | None:
    """More in use than a limit allows; None: unknown."""
    type_ = ConditionType.LIMIT_EXCEEDED
    limits = spec.limits
    told = []
    if limits is not None and use is not None:
        if limits.gpus is not None and use.used_gpus > limits.gpus:
            told.append(f"limits.gpus is {limits.gpus}, {use.used_gpus} are in use")
        if limits.hbm is not None and use.used_hbm_bytes > limits.hbm:
            told.append(f"limits.hbm is {format_quantity(limits.hbm)}, {format_quantity(use.used_hbm_bytes)} is in use")
    if told:
        told[-1] += ": nothing is stopped, and nothing more is admitted until it fits"
    if limits is not None and limits.block_groups is not None and (block_groups or 0) > limits.block_groups:
        told.append(
            f"limits.blockGroups is {limits.block_groups}, there are {block_groups}: the youngest are not accepted"
        )
    if told:
        return Finding.true(type_, "UseAboveLimit", "; ".join(told))
    if use is None or block_groups is None:
        return None
    return Finding.false(type_, "WithinLimits")
