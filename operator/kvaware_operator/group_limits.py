"""Which block groups are beyond their tenant's ``limits.blockGroups``: the youngest of those in its namespaces.

The older group stays whatever comes after it, ties by name; so an object that is accepted does not lose its place to a
new one.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from kvaware_engine.observations import ObjectKey

__all__ = ["GroupLimit", "GroupLimits"]


class GroupLimit(NamedTuple):
    """How many block groups a tenant may have."""

    at_most: int
    quota: str
    """Name of the TenantQuota that says so; of several the least holds."""


class _Group(NamedTuple):
    created_at: str
    key: ObjectKey


class GroupLimits:
    """Kept in step by the view. Each ``put`` returns the groups that may be accepted or not other than before."""

    def __init__(self) -> None:
        self._created_at: dict[ObjectKey, str] = {}
        self._in: dict[str, set[ObjectKey]] = defaultdict(set)
        """Namespace to groups."""
        self._tenant_of: dict[str, str] = {}
        """By namespace."""
        self._of: dict[str, list[_Group]] = defaultdict(list)
        """Tenant to groups, the oldest first."""
        self._limits: dict[str, dict[str, int | None]] = defaultdict(dict)
        """Tenant to quota name to limit."""

    # -- questions ---------------------------------------------------------------------------------------------------

    def count(self, tenant: str) -> int:
        """Groups in the tenant's namespaces."""
        return len(self._of.get(tenant, ()))

    def limit(self, tenant: str) -> GroupLimit | None:
        """None: not limited."""
        set_ = [GroupLimit(most, name) for name, most in self._limits.get(tenant, {}).items() if most is not None]
        return min(set_, default=None)

    def beyond(self, key: ObjectKey) -> GroupLimit | None:
        """The limit that a group is beyond; None: it is within, or nothing limits it, or there is no such group."""
        tenant, created_at = self._tenant_of.get(key.namespace), self._created_at.get(key)
        limit = None if tenant is None or created_at is None else self.limit(tenant)
        if limit is None or tenant is None or created_at is None:
            return None
        return limit if bisect_left(self._of[tenant], _Group(created_at, key)) >= limit.at_most else None

    def quotas_for(self, namespace: str) -> list[str]:
        """The quotas of the tenant that owns a namespace, by name."""
        return sorted(self._limits.get(self._tenant_of.get(namespace, ""), ()))

    # -- what is so --------------------------------------------------------------------------------------------------

    def put_group(self, key: ObjectKey, created_at: str | None) -> set[ObjectKey]:
        """A group is there, or (None) is gone."""
        before = self._created_at.pop(key, None)
        touched: set[ObjectKey] = set()
        if before is not None:
            self._in[key.namespace].discard(key)
            touched |= self._drop(key, before)
        if created_at is not None:
            self._created_at[key] = created_at
            self._in[key.namespace].add(key)
            touched |= self._add(key, created_at)
        if not self._in[key.namespace]:
            del self._in[key.namespace]
        return touched

    def put_quota(self, name: str, tenant: str, at_most: int | None, *, gone: bool = False) -> set[ObjectKey]:
        """A quota limits its tenant's groups (None: it does not), or is gone."""
        before = self.limit(tenant)
        if gone:
            self._limits[tenant].pop(name, None)
        else:
            self._limits[tenant][name] = at_most
        if not self._limits[tenant]:
            del self._limits[tenant]
        now = self.limit(tenant)
        return set() if before == now else {group.key for group in self._of.get(tenant, ())}

    def put_namespaces(self, namespaces: Iterable[tuple[str, str | None]]) -> set[ObjectKey]:
        """Which tenant owns each of some namespaces; None: no quota lists it."""
        touched: set[ObjectKey] = set()
        for namespace, tenant in namespaces:
            before = self._tenant_of.get(namespace)
            if before == tenant:
                continue
            moved = list(self._in.get(namespace, ()))
            for key in moved:
                touched |= self._drop(key, self._created_at[key])
            if tenant is None:
                del self._tenant_of[namespace]
            else:
                self._tenant_of[namespace] = tenant
            for key in moved:
                touched |= self._add(key, self._created_at[key])
            touched.update(moved)
        return touched

    def _add(self, key: ObjectKey, created_at: str) -> set[ObjectKey]:
        tenant = self._tenant_of.get(key.namespace)
        if tenant is None:
            return {key}
        groups = self._of[tenant]
        insort(groups, _Group(created_at, key))
        limit = self.limit(tenant)
        pushed_out = groups[limit.at_most : limit.at_most + 1] if limit is not None else []
        return {key, *(group.key for group in pushed_out)}

    def _drop(self, key: ObjectKey, created_at: str) -> set[ObjectKey]:
        tenant = self._tenant_of.get(key.namespace)
        if tenant is None:
            return set()
        groups = self._of[tenant]
        del groups[bisect_left(groups, _Group(created_at, key))]
        limit = self.limit(tenant)
        moved_up = groups[max(0, limit.at_most - 1) : limit.at_most] if limit is not None else []
        if not groups:
            del self._of[tenant]
        return {group.key for group in moved_up}
