"""Why a node or a pod was refused, and why a node was chosen: a closed list, with one constant text each.

kube-scheduler brings a refused pod back at once when a refusal's text changes, so a text holds no number, age or name:
the same state gives the same bytes. Details belong to the explanation.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["CODE_OF_REASON", "PASSING", "REASON_OF_CODE", "REFUSAL_TEXTS", "Reason", "main_reason"]


class Reason(StrEnum):
    """A CamelCase word that fits a condition, a metric label and an extender reply."""

    # refusals of one node
    NODE_UNKNOWN = "NodeUnknown"
    NODE_UNHEALTHY = "NodeUnhealthy"
    NODE_CORDONED = "NodeCordoned"
    NODE_RESERVED = "NodeReserved"
    NO_SUCH_GPU = "NoSuchGPU"
    GPU_COUNT = "NotEnoughGPUs"
    HBM_UNKNOWN = "HBMUnknown"
    HBM_SHORT = "NotEnoughHBM"
    PARTITION_TOO_SMALL = "PartitionTooSmall"
    # refusals of the pod, whatever the node
    MODEL_NOT_FOUND = "ModelNotFound"
    ROLE_NOT_FOUND = "RoleNotFound"
    INVALID_HBM_ANNOTATION = "InvalidHBMAnnotation"
    INVALID_GPU_REQUEST = "InvalidGPURequest"
    TENANT_GPU_LIMIT = "TenantGPULimit"
    TENANT_HBM_LIMIT = "TenantHBMLimit"
    GUARANTEED_TO_OTHERS = "GuaranteedToOthers"
    STALE_VIEW = "StaleView"
    ALREADY_BOUND = "AlreadyBound"
    BINDING_UNDECIDED = "BindingUndecided"
    VICTIMS_LEAVING = "VictimsLeaving"
    GROUP_INCOMPLETE = "GroupIncomplete"
    GROUP_ELSEWHERE = "GroupElsewhere"
    # choices
    WEIGHTS_ON_NODE = "WeightsOnNode"
    CACHE_ON_NODE = "CacheOnNode"
    NEAR_WEIGHTS = "NearWeights"
    NEAR_PEERS = "NearPeers"
    LEAST_FRAGMENTATION = "LeastFragmentation"
    LEAST_COST = "LeastCost"
    ONLY_CANDIDATE = "OnlyCandidate"


REFUSAL_TEXTS: Final[dict[Reason, str]] = {
    Reason.NODE_UNKNOWN: "kvaware: this node is not in kvaware's view of the cluster",
    Reason.NODE_UNHEALTHY: "kvaware: the node is not Ready",
    Reason.NODE_CORDONED: "kvaware: the node is cordoned",
    Reason.NODE_RESERVED: "kvaware: the node is reserved for another tenant",
    Reason.NO_SUCH_GPU: "kvaware: the node has no GPU of the requested resource",
    Reason.GPU_COUNT: "kvaware: not enough free GPUs",
    Reason.HBM_UNKNOWN: "kvaware: the HBM size of the node's GPUs is unknown",
    Reason.HBM_SHORT: "kvaware: not enough free HBM on a GPU that the pod could get",
    Reason.PARTITION_TOO_SMALL: "kvaware: the GPU partition's memory is smaller than the pod's HBM",
    Reason.MODEL_NOT_FOUND: "kvaware: no InferenceModel has the name in the label kvaware.io/model",
    Reason.ROLE_NOT_FOUND: "kvaware: the label kvaware.io/role must name a role of the InferenceModel",
    Reason.INVALID_HBM_ANNOTATION: "kvaware: the annotation kvaware.io/hbm-per-gpu must be a quantity above zero",
    Reason.INVALID_GPU_REQUEST: "kvaware: the pod must ask for one kind of GPU, as a whole number",
    Reason.TENANT_GPU_LIMIT: "kvaware: the tenant's GPU limit is reached",
    Reason.TENANT_HBM_LIMIT: "kvaware: the tenant's HBM limit is reached",
    Reason.GUARANTEED_TO_OTHERS: "kvaware: what is left is guaranteed to other tenants",
    Reason.STALE_VIEW: "kvaware: the view of the cluster is stale",
    Reason.ALREADY_BOUND: "kvaware: the pod is bound to another node",
    Reason.BINDING_UNDECIDED: "kvaware: an earlier binding of the pod to another node is not decided yet",
    Reason.VICTIMS_LEAVING: "kvaware: the pods that make room for this pod on its nominated node are not gone yet",
    Reason.GROUP_INCOMPLETE: "kvaware: the pods of the group cannot all be reserved, so none is bound",
    Reason.GROUP_ELSEWHERE: "kvaware: the pod's group is placed as one, and this pod's place is on another node",
}

REASON_OF_CODE: Final[tuple[Reason | None, ...]] = (
    None,
    Reason.NODE_UNKNOWN,
    Reason.NODE_UNHEALTHY,
    Reason.NODE_CORDONED,
    Reason.NODE_RESERVED,
    Reason.NO_SUCH_GPU,
    Reason.GPU_COUNT,
    Reason.HBM_UNKNOWN,
    Reason.PARTITION_TOO_SMALL,
    Reason.HBM_SHORT,
    Reason.TENANT_HBM_LIMIT,
    Reason.GUARANTEED_TO_OTHERS,
    Reason.BINDING_UNDECIDED,
    Reason.VICTIMS_LEAVING,
    Reason.GROUP_ELSEWHERE,
    Reason.TENANT_GPU_LIMIT,
)
"""Verdicts on nodes as small numbers, 0 for admitted. Of several reasons the first is given: what only time or people
can mend before what a freed GPU mends."""

CODE_OF_REASON: Final = {reason: code for code, reason in enumerate(REASON_OF_CODE) if reason is not None}

PASSING: Final = frozenset({Reason.VICTIMS_LEAVING})
"""Refusals of a node that time alone ends. kube-scheduler must not take them for unresolvable: it would drop the
nomination and preempt somewhere else."""

_BESIDE_THE_POINT: Final = frozenset(
    {Reason.NO_SUCH_GPU, Reason.NODE_UNKNOWN, Reason.NODE_UNHEALTHY, Reason.NODE_CORDONED, Reason.NODE_RESERVED}
)
"""Reasons that say something of a node, not of what the pod would need there."""


def main_reason(counts: Mapping[Reason, int]) -> Reason:
    """The reason to give for a pod that was refused everywhere: of those that concern the pod the commonest.

    Args:
        counts: Nodes refused per reason; without any, the nodes are unknown.
    Returns: One reason, ties by name.
    """
    telling = {reason: count for reason, count in counts.items() if reason not in _BESIDE_THE_POINT and count}
    ranked = telling or {reason: count for reason, count in counts.items() if count}
    return min(ranked, key=lambda reason: (-ranked[reason], reason), default=Reason.NODE_UNKNOWN)
