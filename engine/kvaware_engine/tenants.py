"""Who may have how much: namespaces to tenants, what each uses, limits, and what is kept free for others.

Use is counted per namespace, so that a quota that gains or loses a namespace needs no recount. Limits: unset is no
limit, 0 is nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvaware_engine.decisions import TenantView
from kvaware_engine.observations import Amounts, NodeSelector, TenantQuotaObservation

__all__ = ["DEFAULT_TENANT", "Charge", "Headroom", "Tenants", "selects"]

DEFAULT_TENANT = "default"
"""Shown for pods of namespaces that no TenantQuota names; they have no limits."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one pod on one node costs its tenant."""

    namespace: str
    gpus: int
    hbm_bytes: int
    intent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What one tenant may still take."""

    gpus_left: int | None
    """Up to its limit; None: no limit."""
    hbm_left_bytes: int | None
    own_gpus: int
    """Of nodes that are nobody's, what it gets whatever others were promised: its own guarantee less what it uses and
    what its own pool has free, >= 0."""
    own_hbm_bytes: int
    spare_gpus: int | None
    """Free on nodes that are nobody's, less what others were promised, have not taken and do not have free in their own
    pools; None: nobody else was promised any."""
    spare_hbm_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Tenant:
    quotas: tuple[str, ...]
    namespaces: tuple[str, ...]
    limits: Amounts
    guaranteed: Amounts
    conflicts: tuple[str, ...]


_NO_AMOUNTS = Amounts()


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def selects(selector: NodeSelector, labels: Mapping[str, str]) -> bool:
    """Whether a label selector holds for a node's labels, as Kubernetes defines it (an empty one holds for all)."""
    if any(labels.get(key) != value for key, value in selector.match_labels):
        return False
    for requirement in selector.match_expressions:
        present = requirement.key in labels
        match requirement.operator:
            case "In":
                holds = present and labels[requirement.key] in requirement.values
            case "NotIn":
                holds = not present or labels[requirement.key] not in requirement.values
            case "Exists":
                holds = present
            case "DoesNotExist":
                holds = not present
            case _:
                raise ValueError(
                    f"selector operator: expected In, NotIn, Exists or DoesNotExist, got {requirement.operator!r}"
                )
        if not holds:
            return False
    return True


class Tenants:
    """All quotas and all use. One owner; every method is synchronous."""

    def __init__(self) -> None:
        self._quotas: dict[str, TenantQuotaObservation] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._owner_of: dict[str, str] = {}
        self._pools: list[tuple[NodeSelector, str]] = []
        """Reserved pools and their tenants, the oldest quota's first."""
        self._charges: dict[tuple[str, str], Charge] = {}
        """By node and pod UID."""
        self._used: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._intended: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))

    def observe(self, name: str, quota: TenantQuotaObservation | None) -> bool:
        """Take over one quota; tell whether it differs from before."""
        if self._quotas.get(name) == quota:
            return False
        if quota is None:
            del self._quotas[name]
        else:
            self._quotas[name] = quota
        self._settle_namespaces()
        return True

    def _settle_namespaces(self) -> None:
        """The older quota owns a namespace, ties by name; several quotas of one tenant all apply."""
        owner_quota: dict[str, TenantQuotaObservation] = {}
        conflicts: dict[str, list[str]] = defaultdict(list)
        by_tenant: dict[str, list[TenantQuotaObservation]] = defaultdict(list)
        by_age = sorted(self._quotas.values(), key=lambda q: (q.created_at, q.name))
        self._pools = [(quota.reserved_pool, quota.tenant) for quota in by_age if quota.reserved_pool is not None]
        for quota in by_age:
            by_tenant[quota.tenant].append(quota)
            for namespace in quota.namespaces:
                owner = owner_quota.setdefault(namespace, quota)
                if owner.tenant != quota.tenant:
                    conflicts[quota.tenant].append(f"{namespace}: {owner.name}")
        self._owner_of = {namespace: quota.tenant for namespace, quota in owner_quota.items()}
        self._tenants = {
            tenant: _Tenant(
                quotas=tuple(q.name for q in quotas),
                namespaces=tuple(sorted(ns for ns, owner in self._owner_of.items() if owner == tenant)),
                limits=Amounts(
                    gpus=_least(q.limits.gpus for q in quotas), hbm_bytes=_least(q.limits.hbm_bytes for q in quotas)
                ),
                guaranteed=Amounts(
                    gpus=_greatest(q.guaranteed.gpus for q in quotas),
                    hbm_bytes=_greatest(q.guaranteed.hbm_bytes for q in quotas),
                ),
                conflicts=tuple(conflicts[tenant]),
            )
            for tenant, quotas in by_tenant.items()
        }

    def names(self) -> list[str]:
        """All tenants that a quota names, sorted."""
        return sorted(self._tenants)

    def named(self, namespace: str) -> str | None:
        """The tenant whose pods these are by a TenantQuota; None: no quota names the namespace."""
        return self._owner_of.get(namespace)

    def tenant_of(self, namespace: str) -> str:
        """The same for people; a quota may use the word "default" too, so never compare with it."""
        return self._owner_of.get(namespace, DEFAULT_TENANT)

    def owner_of_node(self, labels: Mapping[str, str]) -> str | None:
        """The tenant for which a node is reserved; of several that of the oldest quota, as with namespaces."""
        for pool, tenant in self._pools:
            if selects(pool, labels):
                return tenant
        return None

    def charge(self, node: str, uid: str, charge: Charge | None) -> None:
        """Set what one pod on one node costs its tenant; None: nothing any more."""
        key = (node, uid)
        before = self._charges.get(key)
        if before is not None:
            self._add(before, -1)
        if charge is not None:
            self._add(charge, 1)
            self._charges[key] = charge
        elif before is not None:
            del self._charges[key]

    def _add(self, charge: Charge, sign: int) -> None:
        table = self._intended if charge.intent else self._used
        gpus, hbm = table[charge.namespace]
        total = (gpus + sign * charge.gpus, hbm + sign * charge.hbm_bytes)
        if total == (0, 0):
            del table[charge.namespace]
        else:
            table[charge.namespace] = total

    def used(self, namespaces: Iterable[str], *, intents: bool) -> tuple[int, int]:
        """GPUs and HBM bytes that the pods of some namespaces hold."""
        gpus = hbm = 0
        for namespace in namespaces:
            for table in (self._used, self._intended) if intents else (self._used,):
                if namespace in table:
                    gpus += table[namespace][0]
                    hbm += table[namespace][1]
        return gpus, hbm

    def guarantees(self) -> bool:
        """Whether any tenant was promised anything."""
        return any(t.guaranteed != _NO_AMOUNTS for t in self._tenants.values())

    def headroom(
        self,
        namespace: str,
        *,
        intents: bool,
        less: tuple[int, int],
        free: Mapping[str | None, tuple[int, int]] | None,
    ) -> Headroom | None:
        """What the tenant of one namespace may still take; None: nothing limits it.

        Args:
            namespace: The pod's.
            intents: Whether intended pods count.
            less: GPUs and HBM bytes that the pod itself holds already, in doubt, elsewhere.
            free: Free GPUs and HBM bytes by the tenant that the nodes are reserved for (None: for nobody); None when no
                tenant was promised anything.
        """
        mine = self._tenants.get(self._owner_of.get(namespace, ""))
        if mine is None and free is None:
            return None
        limits, guaranteed = (mine.limits, mine.guaranteed) if mine is not None else (_NO_AMOUNTS, _NO_AMOUNTS)
        gpus, hbm = self.used(mine.namespaces, intents=intents) if mine is not None else (0, 0)
        gpus, hbm = gpus - less[0], hbm - less[1]
        me = self.named(namespace)
        pool_gpus, pool_hbm = free.get(me, (0, 0)) if free is not None and me is not None else (0, 0)
        spare_gpus, spare_hbm = self._spare(me, intents=intents, free=free) if free is not None else (None, None)
        return Headroom(
            gpus_left=None if limits.gpus is None else limits.gpus - gpus,
            hbm_left_bytes=None if limits.hbm_bytes is None else limits.hbm_bytes - hbm,
            own_gpus=max(0, (guaranteed.gpus or 0) - gpus - pool_gpus),
            own_hbm_bytes=max(0, (guaranteed.hbm_bytes or 0) - hbm - pool_hbm),
            spare_gpus=spare_gpus,
            spare_hbm_bytes=spare_hbm,
        )

    def _spare(
        self, me: str | None, *, intents: bool, free: Mapping[str | None, tuple[int, int]]
    ) -> tuple[int | None, int | None]:
        open_gpus, open_hbm = free.get(None, (0, 0))
        promised_gpus = promised_hbm = False
        for name, tenant in self._tenants.items():
            if name == me or tenant.guaranteed == _NO_AMOUNTS:
                continue
            used_gpus, used_hbm = self.used(tenant.namespaces, intents=intents)
            pool_gpus, pool_hbm = free.get(name, (0, 0))
            if tenant.guaranteed.gpus is not None:
                promised_gpus = True
                open_gpus -= max(0, tenant.guaranteed.gpus - used_gpus - pool_gpus)
            if tenant.guaranteed.hbm_bytes is not None:
                promised_hbm = True
                open_hbm -= max(0, tenant.guaranteed.hbm_bytes - used_hbm - pool_hbm)
        return (open_gpus if promised_gpus else None, open_hbm if promised_hbm else None)

    def views(self) -> list[TenantView]:
        """All tenants that a quota names, by name."""
        views = []
        for name in sorted(self._tenants):
            tenant = self._tenants[name]
            gpus, hbm = self.used(tenant.namespaces, intents=False)
            with_intents = self.used(tenant.namespaces, intents=True)
            views.append(
                TenantView(
                    tenant=name,
                    quotas=tenant.quotas,
                    namespaces=tenant.namespaces,
                    used_gpus=gpus,
                    used_hbm_bytes=hbm,
                    intended_gpus=with_intents[0] - gpus,
                    intended_hbm_bytes=with_intents[1] - hbm,
                    limit_gpus=tenant.limits.gpus,
                    limit_hbm_bytes=tenant.limits.hbm_bytes,
                    guaranteed_gpus=tenant.guaranteed.gpus,
                    guaranteed_hbm_bytes=tenant.guaranteed.hbm_bytes,
                    conflicts=tenant.conflicts,
                )
            )
        return views
