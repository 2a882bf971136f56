"""Can this node take this pod: one function, asked with columns by filter and with one row by bind.

What bind refuses, filter refuses too: filter counts intents on top, nothing else differs.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import CLASS_CODES, NO_CODE, Columns
from kvaware_engine.observations import GpuClass
from kvaware_engine.pools import UNKNOWN
from kvaware_engine.reasons import CODE_OF_REASON, Reason
from kvaware_engine.tenants import Headroom

__all__ = ["ADMITTED", "charged_bytes", "needed_bytes", "node_codes", "pod_refusal"]

IntArray = npt.NDArray[np.int64]

ADMITTED: Final = 0

_MOST_BYTES: Final = 2**62
"""Above every GPU's memory and inside int64: an absurd request compares as too large, it does not wrap around."""
_SHARED: Final = CLASS_CODES[GpuClass.SHARED]
_PARTITION: Final = CLASS_CODES[GpuClass.PARTITION]


def needed_bytes(columns: Columns, demand: PodDemand, *, whole_gpu_free_ratio: float) -> IntArray:
    """HBM that must be free on the worst device, per node.

    Several replicas of a shared GPU may all land on the same GPU, so there the pod's whole HBM must fit on each.
    """
    if demand.hbm_per_gpu_bytes is None:
        each = (np.maximum(columns.capacity_bytes, 0) * whole_gpu_free_ratio).astype(np.int64)
        together = each * demand.gpus
    else:
        each = np.full(len(columns.free), min(demand.hbm_per_gpu_bytes, _MOST_BYTES), dtype=np.int64)
        if demand.gpus <= 1:
            return each
        together = np.full(len(columns.free), min(demand.hbm_per_gpu_bytes * demand.gpus, _MOST_BYTES), dtype=np.int64)
    return np.where(columns.gpu_class == _SHARED, together, each)


def charged_bytes(columns: Columns, demand: PodDemand) -> IntArray:
    """HBM that the pod would cost its tenant, per node: whole devices at full size, shared ones at the reservation."""
    full = np.maximum(columns.full_bytes, 0)
    if demand.hbm_per_gpu_bytes is None:
        return full * demand.gpus
    together = min(demand.hbm_per_gpu_bytes * demand.gpus, _MOST_BYTES)
    return np.where(columns.gpu_class == _SHARED, together, full * demand.gpus)


def pod_refusal(demand: PodDemand, headroom: Headroom | None) -> Reason | None:
    """The reason that holds on every node, if there is one."""
    if demand.problem is not None:
        return demand.problem
    if headroom is None or demand.gpus == 0:
        return None
    if headroom.gpus_left is not None and demand.gpus > headroom.gpus_left:
        return Reason.TENANT_GPU_LIMIT
    return None


def node_codes(
    columns: Columns, demand: PodDemand, *, headroom: Headroom | None, tenant_code: int, whole_gpu_free_ratio: float
) -> npt.NDArray[np.int8]:
    """Judge each node for a pod that no pod-level reason refuses.

    Args:
        columns: Figures of the nodes, shape (nodes,).
        demand: What the pod needs; one without GPUs only needs a healthy node that is not another tenant's.
        headroom: What its tenant may still take; None: nothing limits it.
        tenant_code: The fleet's code of its tenant.
        whole_gpu_free_ratio: Share of a GPU that must be free for a pod that wants it whole, 0..1.
    Returns: A code of ``REASON_OF_CODE`` per node, shape (nodes,).
    """
    codes = np.zeros(len(columns.known), dtype=np.int8)

    def refuse(reason: Reason, where: npt.NDArray[np.bool_]) -> None:
        np.copyto(codes, CODE_OF_REASON[reason], where=where)

    # The last that holds is written last: in reverse order of REASON_OF_CODE.
    if demand.resource is not None:
        if headroom is not None:
            charged = charged_bytes(columns, demand)
            # A tenant's own pool cannot be taken by others, so nothing has to be kept free there.
            is_open = columns.owner == NO_CODE
            if headroom.spare_gpus is not None and demand.gpus > max(headroom.own_gpus, headroom.spare_gpus):
                refuse(Reason.GUARANTEED_TO_OTHERS, is_open & (columns.gpu_class != _PARTITION))
            if headroom.spare_hbm_bytes is not None:
                within = max(headroom.own_hbm_bytes, headroom.spare_hbm_bytes)
                refuse(Reason.GUARANTEED_TO_OTHERS, is_open & (charged > within))
            if headroom.hbm_left_bytes is not None:
                refuse(Reason.TENANT_HBM_LIMIT, charged > headroom.hbm_left_bytes)
        needed = needed_bytes(columns, demand, whole_gpu_free_ratio=whole_gpu_free_ratio)
        refuse(Reason.HBM_SHORT, columns.fit_bytes < needed)
        refuse(Reason.PARTITION_TOO_SMALL, (columns.gpu_class == _PARTITION) & (columns.capacity_bytes < needed))
        refuse(Reason.HBM_UNKNOWN, (columns.capacity_bytes == UNKNOWN) | (columns.fit_bytes == UNKNOWN))
        refuse(Reason.GPU_COUNT, columns.free < demand.gpus)
        refuse(Reason.NO_SUCH_GPU, columns.gpu_class == NO_CODE)
    refuse(Reason.NODE_RESERVED, (columns.owner != NO_CODE) & (columns.owner != tenant_code))
    refuse(Reason.NODE_UNHEALTHY, ~columns.ready)
    refuse(Reason.NODE_UNKNOWN, ~columns.known)
    return codes
