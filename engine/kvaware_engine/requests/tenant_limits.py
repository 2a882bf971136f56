"""The limits of one tenant's requests: which of its quotas sets each, what is left, and who is shed first.

Of each limit the least decides alone: a bucket of a lower rate is never fuller. Unset is no limit; 0 is nothing, and
waiting does not help (Project-HAMi/HAMi#2312).

**Priorities share a tenant's limits** by one rule: while a higher priority was asked for within the last
``PRIORITY_WINDOW_S``, lower ones leave a quarter of each limit untouched. So a flood of low priority cannot take what
the next request of the highest one needs; when only one priority is in use, nothing is kept from it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from kvaware_engine.observations import Amounts, TenantQuotaObservation
from kvaware_engine.requests.buckets import Bucket

__all__ = ["Charge", "Limit", "LimitRefusal", "LimitView", "TenantLimits"]

KEPT_RATIO: Final = 0.25
"""Of each limit, that lower priorities leave to the highest one in use."""
PRIORITY_WINDOW_S: Final = 10.0
"""How long a priority counts as in use after it was asked for."""


class Limit(StrEnum):
    """The limits that are kept here, as a TenantQuota spells them."""

    REQUESTS = "requestsPerSecond"
    TOKENS = "tokensPerSecond"
    CONCURRENT = "concurrentRequests"
    REMOTE_READ = "remoteReadBytesPerSecond"
    MIGRATION = "migrationBytesPerSecond"
    CONCURRENT_MIGRATIONS = "concurrentMigrations"
    CONTROL = "controlRequestsPerSecond"


_AMOUNT: Final[Mapping[Limit, Callable[[Amounts], int | None]]] = {
    Limit.REQUESTS: lambda amounts: amounts.requests_per_s,
    Limit.TOKENS: lambda amounts: amounts.tokens_per_s,
    Limit.CONCURRENT: lambda amounts: amounts.concurrent_requests,
    Limit.REMOTE_READ: lambda amounts: amounts.remote_read_bytes_per_s,
    Limit.MIGRATION: lambda amounts: amounts.migration_bytes_per_s,
    Limit.CONCURRENT_MIGRATIONS: lambda amounts: amounts.concurrent_migrations,
    Limit.CONTROL: lambda amounts: amounts.control_requests_per_s,
}
_OF_REQUESTS: Final = (Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENT)
"""Those that every request has to fit."""
_COUNTS: Final = frozenset({Limit.CONCURRENT, Limit.CONCURRENT_MIGRATIONS})
"""Of things at the same time; the others are rates."""


@dataclass(slots=True, kw_only=True)
class LimitRefusal:
    """Which limit said no, and when it would not. Plain, since a flood of requests meets it."""

    tenant: str
    limit: Limit
    quota: str
    """Name of the TenantQuota that sets it."""
    at_most: int
    came: float
    """What was asked for; of requests in flight, how many there would be."""
    left: float
    """What the limit had left for a request of this priority; below 0: debt."""
    retry_after_s: float | None
    """When the same is admitted if nobody else comes; None: waiting does not help, or nobody knows."""

    @property
    def retryable(self) -> bool:
        """Whether waiting can help."""
        return self.at_most > 0

    @property
    def message(self) -> str:
        """A sentence for people."""
        limit = f"limits.{self.limit} of TenantQuota {self.quota}"
        if not self.retryable:
            return f"tenant {self.tenant} may have nothing: {limit} is 0"
        expected = f"tenant {self.tenant}: expected at most {self.at_most} by {limit}"
        if self.limit in _COUNTS:
            return f"{expected}, {max(0, self.left):.0f} of them left at this priority, and one more came"
        return f"{expected}, {max(0, self.left):.0f} of them left now at this priority, got {self.came:.0f}"

    @property
    def details(self) -> dict[str, int | float | str]:
        """The same for programs."""
        return {
            "tenant": self.tenant,
            "quota": self.quota,
            "limit": str(self.limit),
            "expected_at_most": self.at_most,
            "left": self.left,
            "came": self.came,
        }


@dataclass(slots=True)
class Charge:
    """What an admitted request took of its tenant's rates: only that can be given back, and only there.

    A limit that came, or came again, after the request has a bucket that it never took anything of.
    """

    requests: Bucket | None
    """One was taken of it; None: requests had no rate."""
    tokens: Bucket | None
    """None: tokens had no rate."""
    tokens_taken: float

    def settle(self, *, actual_tokens: float, now_s: float) -> None:
        """The request used other tokens than expected: give the difference back, or take more."""
        bucket = self.tokens
        if bucket is None:
            return
        more = actual_tokens - self.tokens_taken
        if more > 0:
            bucket.latest.charge(more, now_s)
        else:
            bucket.refund(-more)

    def undo(self) -> None:
        """The request cost nothing."""
        if self.requests is not None:
            self.requests.refund(1)
        if self.tokens is not None:
            self.tokens.refund(self.tokens_taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """One limit for ``/v1/tenants``."""

    limit: Limit
    quota: str
    at_most: int
    left: float
    """Below 0: debt."""


class TenantLimits:
    """The limits of one tenant that a quota names."""

    __slots__ = (
        "_highest",
        "_highest_at_s",
        "_nothing",
        "_quota_of",
        "at_most",
        "concurrent",
        "concurrent_migrations",
        "control",
        "migration",
        "priority_default",
        "priority_max",
        "remote_read",
        "requests",
        "tokens",
    )

    def __init__(self) -> None:
        self.at_most: dict[Limit, int] = {}
        """Those that are set."""
        # The same by name: a look-up by a StrEnum costs 0.2 µs, and an admission would do six.
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.remote_read: Bucket | None = None
        self.migration: Bucket | None = None
        self.control: Bucket | None = None
        self.concurrent: int | None = None
        self.concurrent_migrations: int | None = None
        self.priority_default = 0
        self.priority_max: int | None = None
        self._nothing: Limit | None = None
        """One of 0 that refuses every request."""
        self._quota_of: dict[Limit, str] = {}
        self._highest = 0
        self._highest_at_s = -inf

    def observe(self, quotas: Iterable[TenantQuotaObservation], *, bucket_s: float) -> None:
        """Take over the tenant's quotas; what was taken of rates that stay stays taken."""
        by_age = sorted(quotas, key=lambda quota: (quota.created_at, quota.name))
        self.at_most.clear()
        self._quota_of.clear()
        for limit, amount_of in _AMOUNT.items():
            for quota in by_age:
                amount = amount_of(quota.limits)
                if amount is not None and amount < self.at_most.get(limit, inf):
                    self.at_most[limit], self._quota_of[limit] = amount, quota.name
        of = self.at_most.get
        self.requests = _bucket(self.requests, of(Limit.REQUESTS), bucket_s)
        self.tokens = _bucket(self.tokens, of(Limit.TOKENS), bucket_s)
        self.remote_read = _bucket(self.remote_read, of(Limit.REMOTE_READ), bucket_s)
        self.migration = _bucket(self.migration, of(Limit.MIGRATION), bucket_s)
        self.control = _bucket(self.control, of(Limit.CONTROL), bucket_s)
        self.concurrent, self.concurrent_migrations = of(Limit.CONCURRENT), of(Limit.CONCURRENT_MIGRATIONS)
        self._nothing = next((limit for limit in _OF_REQUESTS if of(limit) == 0), None)
        self.priority_default = next((q.priority_default for q in by_age if q.priority_default is not None), 0)
        self.priority_max = min((q.priority_max for q in by_age if q.priority_max is not None), default=None)

    # -- requests ----------------------------------------------------------------------------------------------------

    def admit(
        self, tenant: str, *, tokens: float, in_flight: int, priority: int, now_s: float
    ) -> LimitRefusal | Charge | None:
        """Check all limits, then charge the rates, or charge nothing.

        Returns: What was charged, None where no rate is limited; or the limit that it does not fit: of several rates
            the one that it would wait for longest, and a count before rates: when a request ends nobody knows.
        """
        lower = self._is_lower(priority, now_s)
        if self._nothing is not None:
            return self._refused(tenant, self._nothing, came=1, left=0, wait_s=None)
        most = self.concurrent
        if most is not None:
            if lower:
                most -= int(most * KEPT_RATIO)
            if in_flight >= most:
                return self._refused(tenant, Limit.CONCURRENT, came=1, left=most - in_flight, wait_s=None)
        requests, by_tokens = self.requests, self.tokens
        kept_ratio = KEPT_RATIO if lower else 0.0
        requests_wait_s = 0.0 if requests is None else requests.wait_s(1, now_s, kept=kept_ratio * requests.depth)
        tokens_wait_s = 0.0 if by_tokens is None else by_tokens.wait_s(tokens, now_s, kept=kept_ratio * by_tokens.depth)
        if requests is not None and requests_wait_s > tokens_wait_s:
            left = requests.level(now_s) - kept_ratio * requests.depth
            return self._refused(tenant, Limit.REQUESTS, came=1, left=left, wait_s=requests_wait_s)
        if by_tokens is not None and tokens_wait_s > 0:
            left = by_tokens.level(now_s) - kept_ratio * by_tokens.depth
            return self._refused(tenant, Limit.TOKENS, came=tokens, left=left, wait_s=tokens_wait_s)
        if requests is not None:
            requests.charge(1, now_s)
        if by_tokens is not None:
            by_tokens.charge(tokens, now_s)
        return None if requests is None and by_tokens is None else Charge(requests, by_tokens, tokens)

    def control_call(self, tenant: str, now_s: float) -> LimitRefusal | None:
        """Take one call out of the control rate, or say why not."""
        bucket = self.control
        if bucket is None:
            if self.at_most.get(Limit.CONTROL) is None:
                return None
            return self._refused(tenant, Limit.CONTROL, came=1, left=0, wait_s=None)
        wait_s = bucket.wait_s(1, now_s)
        if wait_s > 0:
            return self._refused(tenant, Limit.CONTROL, came=1, left=bucket.level(now_s), wait_s=wait_s)
        bucket.charge(1, now_s)
        return None

    def _is_lower(self, priority: int, now_s: float) -> bool:
        """Whether a higher priority is in use; remembers that this one is."""
        if priority >= self._highest or now_s - self._highest_at_s > PRIORITY_WINDOW_S:
            self._highest, self._highest_at_s = priority, now_s
            return False
        return True

    # -- bytes -------------------------------------------------------------------------------------------------------

    def remote_bytes(self, now_s: float) -> float | None:
        """See ``RequestLimits``."""
        bucket = self.remote_read
        return self._zero_or_none(Limit.REMOTE_READ) if bucket is None else _bytes_left(bucket, now_s)

    def migration_bytes(self, now_s: float, *, migrations: int) -> float | None:
        """See ``RequestLimits``."""
        if self.concurrent_migrations is not None and migrations >= self.concurrent_migrations:
            return 0.0
        bucket = self.migration
        return self._zero_or_none(Limit.MIGRATION) if bucket is None else _bytes_left(bucket, now_s)

    def _zero_or_none(self, limit: Limit) -> float | None:
        return None if self.at_most.get(limit) is None else 0.0

    # -- views -------------------------------------------------------------------------------------------------------

    def views(self, *, in_flight: int, migrations: int, now_s: float) -> tuple[LimitView, ...]:
        """All limits that are set, in the order of ``Limit``."""
        buckets = {
            Limit.REQUESTS: self.requests,
            Limit.TOKENS: self.tokens,
            Limit.REMOTE_READ: self.remote_read,
            Limit.MIGRATION: self.migration,
            Limit.CONTROL: self.control,
        }
        held = {Limit.CONCURRENT: in_flight, Limit.CONCURRENT_MIGRATIONS: migrations}
        views = []
        for limit, most in self.at_most.items():
            bucket = buckets.get(limit)
            left = float(most - held.get(limit, 0)) if bucket is None else bucket.level(now_s)
            views.append(LimitView(limit=limit, quota=self._quota_of[limit], at_most=most, left=left))
        return tuple(views)

    def _refused(self, tenant: str, limit: Limit, *, came: float, left: float, wait_s: float | None) -> LimitRefusal:
        return LimitRefusal(
            tenant=tenant,
            limit=limit,
            quota=self._quota_of[limit],
            at_most=self.at_most[limit],
            came=came,
            left=left,
            retry_after_s=wait_s,
        )


def _bucket(bucket: Bucket | None, rate_per_s: int | None, depth_s: float) -> Bucket | None:
    """The bucket of a limit that is set and not 0; it goes on from the one before, if there was one."""
    if not rate_per_s:
        return None
    return Bucket(rate_per_s, depth_s=depth_s) if bucket is None else bucket.at_rate(rate_per_s)


def _bytes_left(bucket: Bucket, now_s: float) -> float:
    """The most that one transfer may move; a full bucket may go into debt."""
    return max(0.0, bucket.level(now_s)) if bucket.wait_s(bucket.depth, now_s) > 0 else inf
