"""KVCacheBlockGroup: a prompt prefix whose KV cache people pin, or that is hot enough to show."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from kvaware_crds.base import ApiModel, StatusModel, immutable, rule
from kvaware_crds.fields import Bytes, DnsSubdomain, DurationBounds, Flag, Integer, UniqueItems
from kvaware_crds.meta import Conditions, LocalReference, Resource
from kvaware_crds.names import ACCEPTED_COLUMN, AGE_COLUMN, GROUP, VERSION, PrinterColumn, ResourceKind

__all__ = [
    "BlockGroupCopy",
    "ConfigMapKeySelector",
    "Copies",
    "CopyState",
    "KVCacheBlockGroup",
    "KVCacheBlockGroupSpec",
    "KVCacheBlockGroupStatus",
    "Prefix",
    "Tier",
    "TokenIds",
]

MAX_COPIES: Final = 64
MAX_TEXT_CHARACTERS: Final = 65_536


class Tier(StrEnum):
    """Where a copy of KV blocks lies."""

    HBM = "hbm"
    CPU = "cpu"
    SSD = "ssd"


class CopyState(StrEnum):
    """The life of a copy. Resident serves, Migrating serves at the source, the others do not."""

    LOADING = "Loading"
    RESIDENT = "Resident"
    MIGRATING = "Migrating"
    EVICTING = "Evicting"
    EVICTED = "Evicted"
    LOST = "Lost"


class ConfigMapKeySelector(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: DnsSubdomain
    """Name of the ConfigMap, in this object's namespace."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
    """Key in the ConfigMap's data."""


class TokenIds(ApiModel):
    """Token ids that are kept elsewhere, since a long prefix does not belong into every read of this object."""

    config_map_key_ref: ConfigMapKeySelector
    """The ConfigMap key that holds the token ids, as a JSON array of integers."""


class Prefix(ApiModel):
    """The beginning of a prompt, said in one of three ways. Only its whole blocks are cached."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARACTERS)] | None = None
    """The prefix as text, exactly as it stands in prompts (the chat template included); a worker turns it into
    tokens."""
    token_ids: TokenIds | None = None
    """The prefix as token ids, in a ConfigMap."""
    hash: Annotated[str, Field(min_length=16, max_length=16, pattern=r"^[0-9a-f]{16}$")] | None = None
    """The 64-bit hash of the prefix's last block, as 16 hexadecimal digits, such as kvaware shows in /v1/block-groups.
    Such a group can be kept and copied, not computed anew."""

    @rule(
        "[has(self.text), has(self.tokenIds), has(self.hash)].exists_one(given, given)",
        "prefix must have exactly one of text, tokenIds and hash",
    )
    def _one_source(self) -> bool:
        return [self.text, self.token_ids, self.hash].count(None) == 2


class Copies(ApiModel):
    """How many workers hold the group."""

    min: Annotated[Integer, Field(ge=0, le=MAX_COPIES)] = 1
    """The fewest copies that kvaware keeps, by warming up further workers where it must. 0: none are made for its
    sake."""
    max: Annotated[Integer, Field(ge=1, le=MAX_COPIES)] = 1
    """The most copies that kvaware makes. Copies that traffic makes by itself are not removed."""

    @rule("self.min <= self.max", "copies.min must be at most copies.max")
    def _ordered(self) -> bool:
        return self.min <= self.max


class KVCacheBlockGroupSpec(ApiModel):
    """What is wanted."""

    model_ref: Annotated[
        LocalReference, Field(json_schema_extra=immutable("modelRef is immutable: KV cache belongs to one model"))
    ]
    """The InferenceModel whose KV cache this is. Immutable."""
    prefix: Annotated[
        Prefix, Field(json_schema_extra=immutable("prefix is immutable: another prefix is another KVCacheBlockGroup"))
    ]
    """The prompt prefix whose blocks the group holds, without LoRA adapter and cache salt. Immutable."""
    pinned: Flag = False
    """Whether kvaware keeps the group against eviction: told to servers that have the capability pin; elsewhere the
    group is loaded again when it was lost."""
    copies: Copies | None = None
    """How many workers hold the group. Unset: one."""
    tier: Tier = Tier.HBM
    """The slowest tier in which a copy counts as kept: hbm, cpu or ssd."""
    ttl: Annotated[timedelta, DurationBounds(above_zero=True, at_most="8760h")] | None = None
    """How long after its last hit the group is let go, pinned or not, such as 24h. Unset: kept until this object is
    deleted."""

    @rule(
        "!self.pinned || !has(self.copies) || self.copies.min >= 1",
        "a pinned group must have copies.min of at least 1",
    )
    def _pinned_means_a_copy(self) -> bool:
        return not self.pinned or self.copies is None or self.copies.min >= 1


class BlockGroupCopy(StatusModel):
    """The group on one worker, in one tier."""

    worker: Annotated[str, Field(min_length=1, max_length=323, pattern=r"^[^:\s]+:[^:\s]+:[0-9]+$")]
    """The worker that holds it: namespace:pod:rank."""
    tier: Tier
    """The tier that it is in: hbm, cpu or ssd."""
    bytes: Bytes
    """The copy's size."""
    state: CopyState
    """Resident and Migrating copies serve requests; Loading, Evicting, Evicted and Lost ones do not."""


class KVCacheBlockGroupStatus(StatusModel):
    """What is."""

    copies: Annotated[tuple[BlockGroupCopy, ...], Field(max_length=MAX_COPIES), UniqueItems(("worker", "tier"))] = ()
    """Copies by worker and tier, the 64 largest where there are more. How often they are hit is shown by
    /v1/block-groups."""
    conditions: Conditions = ()
    """Accepted, NotEnforced: each with its reason."""


class KVCacheBlockGroup(Resource):
    """A prompt prefix whose KV cache is kept or copied on purpose, or is hot enough to show."""

    resource: ClassVar[ResourceKind] = ResourceKind(
        GROUP, VERSION, "kvcacheblockgroups", "KVCacheBlockGroup", namespaced=True
    )
    short_names: ClassVar[tuple[str, ...]] = ("kvbg",)
    columns: ClassVar[tuple[PrinterColumn, ...]] = (
        PrinterColumn("Model", "string", ".spec.modelRef.name", "The InferenceModel whose KV cache this is."),
        PrinterColumn("Pinned", "boolean", ".spec.pinned", "Whether the group is kept against eviction."),
        PrinterColumn("Tier", "string", ".spec.tier", "The slowest tier in which a copy counts as kept."),
        PrinterColumn("Min", "integer", ".spec.copies.min", "The fewest copies that are kept.", wide_only=True),
        PrinterColumn("Max", "integer", ".spec.copies.max", "The most copies that are made.", wide_only=True),
        ACCEPTED_COLUMN,
        AGE_COLUMN,
    )

    api_version: Literal["kvaware.io/v1alpha1"] = "kvaware.io/v1alpha1"
    """kvaware.io/v1alpha1."""
    kind: Literal["KVCacheBlockGroup"] = "KVCacheBlockGroup"
    """KVCacheBlockGroup."""
    spec: KVCacheBlockGroupSpec
    """What is wanted: which prefix of which model, and how it is kept."""
    status: KVCacheBlockGroupStatus | None = None
    """What is: where the copies are, and conditions. Written by kvaware."""
