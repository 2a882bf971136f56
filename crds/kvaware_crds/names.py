"""The names under which kvaware appears in Kubernetes: group, kinds, labels, annotations, condition types."""

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = [
    "ACCEPTED_COLUMN",
    "AGE_COLUMN",
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
    "LABEL_MODEL",
    "LABEL_ROLE",
    "VERSION",
    "ConditionType",
    "PrinterColumn",
    "ResourceKind",
]

GROUP: Final = "kvaware.io"
VERSION: Final = "v1alpha1"
CATEGORY: Final = "kvaware"
"""``kubectl get kvaware`` lists every namespaced and cluster-scoped object of ours."""

LABEL_MODEL: Final = "kvaware.io/model"
"""On a pod: the name of an InferenceModel in the pod's namespace."""
LABEL_ROLE: Final = "kvaware.io/role"
"""On a pod: the name of one of that model's roles."""
ANNOTATION_HBM_PER_GPU: Final = "kvaware.io/hbm-per-gpu"
"""On a pod: the HBM it needs on each of its GPUs, a quantity of at least one byte."""
ANNOTATION_RESERVATION: Final = "kvaware.io/reservation"
"""On a bound pod: what it holds, one versioned JSON value, written by kvaware alone."""
ANNOTATION_WEIGHTS: Final = "kvaware.io/weights"
"""On a node: the model weights that lie on its disk, ``modelId`` or ``modelId@revision``, separated by commas."""
CONDITION_PLACEABLE: Final = "kvaware.io/Placeable"
"""On a pod: whether kvaware sees room for it. Changing it wakes a pod that kube-scheduler gave up for now."""

CONDITION_HBM_OVERRUN: Final = "kvaware.io/HBMOverrun"
"""On a pod: whether it uses more HBM than it reserved."""
CONDITION_FOREIGN_USE_UNKNOWN: Final = "kvaware.io/ForeignUseUnknown"
"""On a pod: whether nobody tells how much HBM other programs use on its node."""
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""On a pod: Kubernetes' own; a ReplicaSet that shrinks deletes its pods of the least cost first."""
FIELD_MANAGER_OPERATOR: Final = "kvaware-operator"
"""Who wrote a field, in ``metadata.managedFields``."""


class ConditionType(StrEnum):
    """Condition types in the status of kvaware's kinds, and on pods where that is said."""

    ACCEPTED = "Accepted"
    """The spec can be used as it is."""
    READY = "Ready"
    """The state that the spec asks for is reached."""
    SCALABLE = "Scalable"
    """InferenceModel: the workload of every role that names one can be read and, where scaling.mode is Auto, scaled.
    False says which cannot and why: it does not exist, its kind is unknown, cluster-scoped or without scale
    subresource, or the operator lacks the right."""
    NAME_CONFLICT = "NameConflict"
    """InferenceModel: an older one in the namespace already owns a served name."""
    NAMESPACE_CONFLICT = "NamespaceConflict"
    """TenantQuota: an older one already owns a namespace."""
    LIMIT_EXCEEDED = "LimitExceeded"
    """TenantQuota: more is in use than the limits allow, since they were lowered; or there are more KVCacheBlockGroups.
    Nothing is stopped, and nothing more is admitted."""
    FOOTPRINT_MISMATCH = "FootprintMismatch"
    """InferenceModel: a pod asks for something other than its role's footprint, and counts by what it asks for."""
    NOT_ENFORCED = "NotEnforced"
    """A field is set that the installed version does not act on; the message names it."""
    HBM_CONSTRAINED = "HBMConstrained"
    """InferenceModel: one more replica would be wanted and there is no HBM for it."""
    SCALING_CONFLICT = "ScalingConflict"
    """InferenceModel: something else scales the same workload."""
    SCALE_TO_ZERO_NOT_YET = "ScaleToZeroNotYet"
    """InferenceModel: scaling to zero is asked for and cannot be done now."""
    HBM_OVERRUN = "HBMOverrun"
    """InferenceModel, pod: a pod uses more HBM than it reserved."""
    FOREIGN_USE_UNKNOWN = "ForeignUseUnknown"
    """Nobody tells how much HBM other programs use; a margin is kept instead."""


class ResourceKind(NamedTuple):
    """How one kind is addressed in the Kubernetes API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """``kvaware.io/v1alpha1``."""
        return f"{self.group}/{self.version}"

    @property
    def crd_name(self) -> str:
        """``inferencemodels.kvaware.io``."""
        return f"{self.plural}.{self.group}"


class PrinterColumn(NamedTuple):
    """One column of ``kubectl get``."""

    name: str
    type: str
    """string, integer, boolean or date."""
    json_path: str
    description: str
    wide_only: bool = False
    """Shown by ``kubectl get -o wide`` alone."""

    def to_raw(self) -> dict[str, str | int]:
        """As ``additionalPrinterColumns`` has it."""
        raw: dict[str, str | int] = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.json_path,
            "description": self.description,
        }
        return {**raw, "priority": 1} if self.wide_only else raw


AGE_COLUMN: Final = PrinterColumn("Age", "date", ".metadata.creationTimestamp", "How long the object exists.")
ACCEPTED_COLUMN: Final = PrinterColumn(
    "Accepted",
    "string",
    '.status.conditions[?(@.type=="Accepted")].status',
    "Whether the spec can be used as it is.",
)
