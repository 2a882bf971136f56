"""What tenants' requests may have at most: rates, requests in flight, bytes moved. All is checked, then all is charged.

Several TenantQuotas of one tenant all apply; see ``tenant_limits`` for what they mean. A tenant that no quota names has
no state here but the number of its requests in flight, while there are any.
"""

from dataclasses import dataclass

from kvaware_engine.observations import TenantQuotaObservation
from kvaware_engine.requests.settings import RequestLedgerSettings
from kvaware_engine.requests.tenant_limits import Charge, Limit, LimitRefusal, LimitView, TenantLimits

__all__ = ["Charge", "Limit", "LimitRefusal", "LimitView", "RequestLimits", "RequestUse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUse:
    """One tenant that a quota names."""

    tenant: str
    concurrent_requests: int
    concurrent_migrations: int
    limits: tuple[LimitView, ...]
    priority_default: int
    priority_max: int | None


class RequestLimits:
    """The limits of all tenants' requests, and what they take of them. One owner; ``now_s`` never goes back."""

    def __init__(self, settings: RequestLedgerSettings) -> None:
        self._bucket_s = settings.bucket_s
        self._quotas: dict[str, TenantQuotaObservation] = {}
        self._quotas_of: dict[str, dict[str, TenantQuotaObservation]] = {}
        """Tenant to quota name to quota."""
        self._limits: dict[str, TenantLimits] = {}
        """By tenant."""
        self._in_flight: dict[str, int] = {}
        """Requests by tenant, those above 0: names that somebody makes up are gone with their last request."""
        self._migrations: dict[str, int] = {}

    # -- quotas ------------------------------------------------------------------------------------------------------

    def observe_quota(self, name: str, quota: TenantQuotaObservation | None) -> None:
        """Take over one TenantQuota; None: it is gone."""
        before = self._quotas.pop(name, None)
        if quota is not None:
            self._quotas[name] = quota
        if before == quota:
            return
        if before is not None:
            of_tenant = self._quotas_of[before.tenant]
            del of_tenant[name]
            if not of_tenant:
                del self._quotas_of[before.tenant]
        if quota is not None:
            self._quotas_of.setdefault(quota.tenant, {})[name] = quota
        for tenant in {each.tenant for each in (before, quota) if each is not None}:
            quotas = self._quotas_of.get(tenant)
            if quotas is None:
                del self._limits[tenant]
            else:
                self._limits.setdefault(tenant, TenantLimits()).observe(quotas.values(), bucket_s=self._bucket_s)

    def priority(self, tenant: str, asked: int | None) -> int:
        """The priority that a request gets: as it asks, at most its tenant's; the tenant's default if it names none.

        Of several quotas the least maximum holds, and the default of the oldest that sets one.
        """
        limits = self._limits.get(tenant)
        if limits is None:
            return 0 if asked is None else asked
        wanted = limits.priority_default if asked is None else asked
        return wanted if limits.priority_max is None else min(wanted, limits.priority_max)

    # -- requests ----------------------------------------------------------------------------------------------------

    def admit(self, tenant: str, *, tokens: float, priority: int, now_s: float) -> LimitRefusal | Charge | None:
        """Check all limits, then charge all, or none (BerriAI/litellm#39309).

        Args:
            tenant: Who pays.
            tokens: Prompt and expected output, above 0.
            priority: See the module.
            now_s: Now.
        Returns: A refusal; or what was charged, None where no rate is limited: it is admitted and counts as in flight
            until ``release`` or ``undo``.
        """
        limits, charge = self._limits.get(tenant), None
        if limits is not None:
            in_flight = self._in_flight.get(tenant, 0)
            charge = limits.admit(tenant, tokens=tokens, in_flight=in_flight, priority=priority, now_s=now_s)
            if isinstance(charge, LimitRefusal):
                return charge
        self._in_flight[tenant] = self._in_flight.get(tenant, 0) + 1
        return charge

    def release(self, tenant: str) -> None:
        """A request of it is no longer in flight."""
        self._in_flight[tenant] -= 1
        if not self._in_flight[tenant]:
            del self._in_flight[tenant]

    def undo(self, tenant: str, charge: Charge | None) -> None:
        """A request that was admitted could not be placed: it cost nothing."""
        self.release(tenant)
        if charge is not None:
            charge.undo()

    def control(self, tenant: str, now_s: float) -> LimitRefusal | None:
        """Admit and charge one call that places nothing."""
        limits = self._limits.get(tenant)
        return None if limits is None else limits.control_call(tenant, now_s)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def remote_bytes(self, tenant: str, now_s: float) -> float | None:
        """The most that one remote read may move now; infinite: its bucket is full. None: not limited."""
        limits = self._limits.get(tenant)
        return None if limits is None else limits.remote_bytes(now_s)

    def migration_bytes(self, tenant: str, now_s: float) -> float | None:
        """The same for copies that stay; 0 as well while as many as allowed are under way."""
        limits = self._limits.get(tenant)
        if limits is None:
            return None
        return limits.migration_bytes(now_s, migrations=self._migrations.get(tenant, 0))

    def charge_remote_read(self, tenant: str, size_bytes: float, now_s: float) -> None:
        """A remote read was decided."""
        limits = self._limits.get(tenant)
        if limits is not None and limits.remote_read is not None:
            limits.remote_read.charge(size_bytes, now_s)

    def charge_migration(self, tenant: str, size_bytes: float, now_s: float) -> None:
        """A copy was decided; it is under way until ``end_migration``."""
        self._migrations[tenant] = self._migrations.get(tenant, 0) + 1
        limits = self._limits.get(tenant)
        if limits is not None and limits.migration is not None:
            limits.migration.charge(size_bytes, now_s)

    def end_migration(self, tenant: str) -> None:
        """A copy is done, or failed."""
        self._migrations[tenant] -= 1
        if not self._migrations[tenant]:
            del self._migrations[tenant]

    # -- views -------------------------------------------------------------------------------------------------------

    def in_flight(self, tenant: str) -> int:
        """How many of its requests are in flight."""
        return self._in_flight.get(tenant, 0)

    def views(self, now_s: float) -> list[RequestUse]:
        """All tenants that a quota names, by name."""
        views = []
        for tenant in sorted(self._limits):
            limits = self._limits[tenant]
            in_flight, migrations = self._in_flight.get(tenant, 0), self._migrations.get(tenant, 0)
            views.append(
                RequestUse(
                    tenant=tenant,
                    concurrent_requests=in_flight,
                    concurrent_migrations=migrations,
                    limits=limits.views(in_flight=in_flight, migrations=migrations, now_s=now_s),
                    priority_default=limits.priority_default,
                    priority_max=limits.priority_max,
                )
            )
        return views
