"""TenantQuota: what a tenant may have at most, and what is kept for it."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from kvaware_crds.base import ApiModel, Rule, StatusModel, immutable, rule
from kvaware_crds.fields import Amount, Bytes, Count, DnsLabel, Integer, UniqueItems
from kvaware_crds.meta import Conditions, LabelSelector, Resource
from kvaware_crds.names import ACCEPTED_COLUMN, AGE_COLUMN, GROUP, VERSION, PrinterColumn, ResourceKind

__all__ = [
    "Priority",
    "QuotaAmounts",
    "QuotaUse",
    "TenantQuota",
    "TenantQuotaSpec",
    "TenantQuotaStatus",
]

PriorityValue = Annotated[Integer, Field(ge=-1_000_000_000, le=1_000_000_000)]


class QuotaAmounts(ApiModel):
    """Amounts of everything that a tenant can be limited in. Unset: not limited, or nothing guaranteed. 0: nothing."""

    requests_per_second: Amount | None = None
    """Requests placed per second."""
    tokens_per_second: Amount | None = None
    """Tokens per second, prompts and answers together; what was expected and not generated is given back."""
    concurrent_requests: Count | None = None
    """Requests in flight at the same time."""
    gpus: Count | None = None
    """GPUs that the tenant's pods hold, whoever bound them; a MIG slice or a share of a GPU counts as one. Leave it
    unset where Kueue counts GPUs."""
    hbm: Bytes | None = None
    """HBM that the tenant's pods hold, such as 640Gi: whole GPUs at full size, shared ones at what is reserved. Leave
    it unset where Kueue counts GPUs."""
    cpu_memory: Bytes | None = None
    """CPU memory that the tenant's offloaded KV cache takes, such as 1Ti."""
    ssd: Bytes | None = None
    """SSD space that the tenant's offloaded KV cache takes, such as 4Ti."""
    block_groups: Count | None = None
    """KVCacheBlockGroups in the tenant's namespaces."""
    remote_read_bytes_per_second: Bytes | None = None
    """Bytes per second that the tenant's requests read from other workers' KV cache, such as 5Gi."""
    migration_bytes_per_second: Bytes | None = None
    """Bytes per second by which the tenant's KV cache is moved or copied, such as 1Gi."""
    concurrent_migrations: Count | None = None
    """Moves and copies of the tenant's KV cache at the same time."""
    control_requests_per_second: Amount | None = None
    """Calls per second to kvaware's API that place nothing, such as explanations and lists."""


class QuotaUse(QuotaAmounts, StatusModel):
    """What the tenant uses. Unset: not measured."""


class Priority(ApiModel):
    """Which priorities the tenant's requests may have; higher goes first."""

    default: PriorityValue = 0
    """Priority of requests that name none."""
    max: PriorityValue | None = None
    """The highest priority that a request may name; a higher one is lowered to it. Unset: any."""

    @rule("!has(self.max) || self.default <= self.max", "priority.default must be at most priority.max")
    def _ordered(self) -> bool:
        return self.max is None or self.default <= self.max


_QUANTITIES: Final = frozenset({"hbm", "cpuMemory", "ssd", "remoteReadBytesPerSecond", "migrationBytesPerSecond"})
"""Amounts that CEL must compare as quantities. (An integer would do so too, but ``string(integer)`` has no length that
the API server knows, and the rule's estimated cost would exceed the budget a hundred times.)"""


def _limit_covers_guarantee(attribute: str, name: str) -> Rule:
    """One rule per amount, so that the message names it."""
    limit, kept = f"self.limits.{name}", f"self.guaranteed.{name}"
    covers = f"{limit} >= {kept}"
    if name in _QUANTITIES:
        covers = f"quantity(string({limit})).compareTo(quantity(string({kept}))) >= 0"

    def holds(spec: "TenantQuotaSpec") -> bool:
        limit = getattr(spec.limits, attribute, None)
        kept = getattr(spec.guaranteed, attribute, None)
        return limit is None or kept is None or limit >= kept

    return Rule(
        f"!has(self.limits) || !has({limit}) || !has(self.guaranteed) || !has({kept}) || {covers}",
        f"limits.{name} must be at least guaranteed.{name}",
        holds,
    )


class TenantQuotaSpec(ApiModel):
    """What is wanted."""

    tenant: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            json_schema_extra=immutable("tenant is immutable: what is in use was charged to it"),
        ),
    ]
    """Who pays. Several TenantQuotas may name the same tenant: all of their limits apply. Immutable."""
    namespaces: Annotated[tuple[DnsLabel, ...], Field(max_length=256), UniqueItems()] = ()
    """Namespaces whose pods are this tenant's. One that two TenantQuotas list belongs to the older (then to the first
    by name); the other gets the condition NamespaceConflict. Pods of a namespace that none lists are not limited."""
    limits: QuotaAmounts | None = None
    """What the tenant may have at most. An amount that is unset is not limited; 0 is nothing."""
    guaranteed: QuotaAmounts | None = None
    """What is kept free for the tenant while it does not use it: others get only what leaves that. An amount that is
    unset is not guaranteed."""
    weight: Annotated[Integer, Field(ge=0, le=1_000_000)] = 1
    """The tenant's share of what nobody is guaranteed, against the weights of the others. 0: only after them."""
    priority: Priority | None = None
    """Which priorities the tenant's requests may have. Unset: any, 0 where none is named."""
    reserved_pool: LabelSelector | None = None
    """Nodes, by their labels, that only this tenant's pods may use. They may use others as well. Unset: none are
    reserved."""

    rules: ClassVar[tuple[Rule, ...]] = tuple(
        _limit_covers_guarantee(attribute, field.alias or attribute)
        for attribute, field in QuotaAmounts.model_fields.items()
    )


class TenantQuotaStatus(StatusModel):
    """What is."""

    used: QuotaUse | None = None
    """What the tenant uses, counted as limits are: pods that are bound, terminating or about to be bound."""
    conditions: Conditions = ()
    """Accepted, NamespaceConflict, LimitExceeded, NotEnforced: each with its reason."""


class TenantQuota(Resource):
    """What a tenant may have at most and what is kept for it: GPUs, HBM, KV cache, request and transfer rates."""

    resource: ClassVar[ResourceKind] = ResourceKind(GROUP, VERSION, "tenantquotas", "TenantQuota", namespaced=False)
    short_names: ClassVar[tuple[str, ...]] = ("tq",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("Tenant", "string", ".spec.tenant", "Who pays."),
        PrinterColumn("GPUs", "integer", ".status.used.gpus", "GPUs in use."),
        PrinterColumn("GPU limit", "integer", ".spec.limits.gpus", "GPUs at most; empty is not limited."),
        PrinterColumn("HBM", "string", ".status.used.hbm", "HBM in use."),
        PrinterColumn("HBM limit", "string", ".spec.limits.hbm", "HBM at most; empty is not limited."),
        PrinterColumn(
            "Exceeded",
            "string",
            '.status.conditions[?(@.type=="LimitExceeded")].status',
            "Whether more is in use than the limits allow.",
            wide_only=True,
        ),
        PrinterColumn("Weight", "integer", ".spec.weight", "Share of what nobody is guaranteed.", wide_only=True),
        ACCEPTED_COLUMN,
        AGE_COLUMN,
    )

    api_version: Literal["kvaware.io/v1alpha1"] = "kvaware.io/v1alpha1"
    """kvaware.io/v1alpha1."""
    kind: Literal["TenantQuota"] = "TenantQuota"
    """TenantQuota."""
    spec: TenantQuotaSpec
    """What is wanted: who the tenant is, which pods are its own, and how much it may have."""
    status: TenantQuotaStatus | None = None
    """What is: what the tenant uses, and conditions. Written by kvaware."""
