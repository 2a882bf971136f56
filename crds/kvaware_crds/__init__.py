"""The three kinds of ``kvaware.io``: their fields, bounds and defaults, their names, and the errors of kvaware.

``read(InferenceModel, raw)`` takes one raw object; ``render_crds()`` gives the CRDs' YAML.
"""

from collections.abc import Mapping
from typing import Final

from kvaware_crds.base import read
from kvaware_crds.crd import render_crds
from kvaware_crds.duration import format_duration, parse_duration
from kvaware_crds.errors import ConfigError, KvawareError, StaleViewError, UpstreamError, WireError
from kvaware_crds.meta import Condition, ConditionStatus, LabelSelector, ObjectMeta, Resource, SelectorRequirement
from kvaware_crds.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_HBM_PER_GPU,
    ANNOTATION_RESERVATION,
    ANNOTATION_WEIGHTS,
    CATEGORY,
    CONDITION_FOREIGN_USE_UNKNOWN,
    CONDITION_HBM_OVERRUN,
    CONDITION_PLACEABLE,
    FIELD_MANAGER_OPERATOR,
    GROUP,
    LABEL_MODEL,
    LABEL_ROLE,
    VERSION,
    ConditionType,
    ResourceKind,
)
from kvaware_crds.quantity import MAX_QUANTITY, format_quantity, parse_count, parse_quantity
from kvaware_crds.v1alpha1 import InferenceModel, KVCacheBlockGroup, TenantQuota

__all__ = [
    "ANNOTATION_DELETION_COST",
    "ANNOTATION_HBM_PER_GPU",
    "ANNOTATION_RESERVATION",
    "ANNOTATION_WEIGHTS",
    "CATEGORY",
    "CONDITION_FOREIGN_USE_UNKNOWN",
    "CONDITION_HBM_OVERRUN",
    "CONDITION_PLACEABLE",
    "FIELD_MANAGER_OPERATOR",
    "GROUP",
    "KINDS",
    "LABEL_MODEL",
    "LABEL_ROLE",
    "MAX_QUANTITY",
    "VERSION",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "ConfigError",
    "InferenceModel",
    "KVCacheBlockGroup",
    "KvawareError",
    "LabelSelector",
    "ObjectMeta",
    "Resource",
    "ResourceKind",
    "SelectorRequirement",
    "StaleViewError",
    "TenantQuota",
    "UpstreamError",
    "WireError",
    "format_duration",
    "format_quantity",
    "parse_count",
    "parse_duration",
    "parse_quantity",
    "read",
    "render_crds",
]

KINDS: Final[Mapping[str, ResourceKind]] = {
    model.resource.kind: model.resource for model in (InferenceModel, KVCacheBlockGroup, TenantQuota)
}
"""Kind to its group, version, plural and scope."""
