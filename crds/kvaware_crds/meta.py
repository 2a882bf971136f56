"""The parts that kvaware's kinds take over from Kubernetes: metadata, conditions, label selectors, references."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AwareDatetime, Field

from kvaware_crds.base import ApiModel, StatusModel, rule
from kvaware_crds.fields import DnsSubdomain, Integer, LabelValue, UniqueItems
from kvaware_crds.names import PrinterColumn, ResourceKind

__all__ = [
    "Condition",
    "ConditionStatus",
    "Conditions",
    "LabelSelector",
    "LocalReference",
    "ObjectMeta",
    "Resource",
    "SelectorOperator",
    "SelectorRequirement",
]

LabelKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=317,  # a DNS subdomain, a slash, a name
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]


class ObjectMeta(StatusModel):
    """The part of Kubernetes' metadata that kvaware reads."""

    name: str
    """The object's name, unique in its namespace."""
    namespace: str | None = None
    """None for cluster-scoped kinds."""
    uid: str | None = None
    """None before the API server has seen the object."""
    creation_timestamp: str | None = None
    """RFC 3339 in UTC: sorts as text."""
    deletion_timestamp: str | None = None
    """Set while the object is being deleted."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels, which selectors match."""
    annotations: Mapping[str, str] = Field(default_factory=dict)
    """Annotations."""
    generation: int | None = None
    """Grows with every change of the spec."""
    resource_version: str | None = None
    """Changes with every write; opaque."""


class Resource(ApiModel):
    """One object of a kind of ours."""

    resource: ClassVar[ResourceKind]
    short_names: ClassVar[tuple[str, ...]]
    """For ``kubectl get``."""
    columns: ClassVar[tuple[PrinterColumn, ...]]
    """Of ``kubectl get``."""

    metadata: ObjectMeta
    """Standard object metadata."""


class LocalReference(ApiModel):
    """An object in the same namespace."""

    name: DnsSubdomain
    """Name of the object, in this object's namespace."""


class ConditionStatus(StrEnum):
    """Whether what the condition's type says is so."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One thing that is true, false or unknown about an object; the same shape as Kubernetes' own conditions."""

    type: Annotated[
        str,
        Field(
            min_length=1,
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ]
    """What the condition is about, such as Accepted, NotEnforced or NamespaceConflict."""
    status: ConditionStatus
    """Whether it is so: True, False or Unknown."""
    observed_generation: Annotated[Integer, Field(ge=0, le=2**53 - 1)] | None = None
    """The metadata.generation that the condition was set for; an older one says nothing about the present spec."""
    last_transition_time: AwareDatetime
    """When the status changed last. It does not move while the status stays the same."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word for programs."""
    message: Annotated[str, Field(max_length=32768)]
    """Why, in a sentence for people; may be empty."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=32), UniqueItems(("type",))]
"""A map by condition type."""


class SelectorOperator(StrEnum):
    """How a label's value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(ApiModel):
    """One expression of a label selector."""

    key: LabelKey
    """The label that is looked at."""
    operator: SelectorOperator
    """In and NotIn compare with values, Exists and DoesNotExist only look whether the label is there."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64)] = ()
    """What In and NotIn compare with; left out for Exists and DoesNotExist."""

    @rule(
        "self.operator in ['In', 'NotIn'] ? (has(self.values) && size(self.values) > 0)"
        " : (!has(self.values) || size(self.values) == 0)",
        "values must be given for In and NotIn, and left out for Exists and DoesNotExist",
    )
    def _values_fit_operator(self) -> bool:
        return bool(self.values) == (self.operator in {SelectorOperator.IN, SelectorOperator.NOT_IN})


class LabelSelector(ApiModel):
    """A Kubernetes label selector that selects something: every label and every expression must hold."""

    match_labels: Annotated[Mapping[str, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels and the values that they must have."""
    match_expressions: Annotated[tuple[SelectorRequirement, ...], Field(max_length=32)] = ()
    """Further requirements that labels must meet."""

    @rule(
        "(has(self.matchLabels) && size(self.matchLabels) > 0)"
        " || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
        "a selector must have matchLabels or matchExpressions; an empty one would select everything",
    )
    def _selects_something(self) -> bool:
        return bool(self.match_labels or self.match_expressions)

    @rule(
        "!has(self.matchLabels) || self.matchLabels.all(key, size(key) >= 1 && size(key) <= 317)",
        "each key of matchLabels must have 1 to 317 characters",
    )
    def _keys_are_bounded(self) -> bool:
        return all(1 <= len(key) <= 317 for key in self.match_labels)
