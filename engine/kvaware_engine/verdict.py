"""Can this node take this pod: one set of rules, asked with columns by filter and with one node's numbers by bind.

What bind refuses, filter refuses too: filter counts intents on top, nothing else differs. The rules use only operators
that columns and numbers share; on a single node numpy would take most of bind's time.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import CLASS_CODES, NO_CODE, Columns, Figure
from kvaware_engine.observations import GpuClass
from kvaware_engine.pools import UNKNOWN
from kvaware_engine.reasons import CODE_OF_REASON, Reason
from kvaware_engine.tenants import Headroom

__all__ = ["ADMITTED", "charged_bytes", "needed_bytes", "node_codes", "node_refusal", "pod_refusal"]

ADMITTED: Final = 0

_MOST_BYTES: Final = 2**62
"""Above every GPU's memory and inside int64: an absurd request compares as too large, it does not wrap around."""
_SHARED: Final = CLASS_CODES[GpuClass.SHARED]
_PARTITION: Final = CLASS_CODES[GpuClass.PARTITION]


def _pick(condition: Figure, then: Figure, otherwise: Figure) -> Figure:
    if isinstance(condition, bool):
        return then if condition else otherwise
    return np.where(condition, then, otherwise)


def needed_bytes(columns: Columns, demand: PodDemand, *, whole_gpu_free_ratio: float) -> Figure:
    """HBM that must be free on the worst device, per node.

    Several replicas of a shared GPU may all land on the same GPU, so there the pod's whole HBM must fit on each.
    """
    if demand.hbm_per_gpu_bytes is None:
        each = columns.capacity_bytes * whole_gpu_free_ratio  # below zero where unknown, which is judged apart
        together = each * demand.gpus
    else:
        each = min(demand.hbm_per_gpu_bytes, _MOST_BYTES)
        together = min(demand.hbm_per_gpu_bytes * demand.gpus, _MOST_BYTES)
    return _pick(columns.gpu_class == _SHARED, together, each)


def charged_bytes(columns: Columns, demand: PodDemand) -> Figure:
    """HBM that the pod would cost its tenant, per node: whole devices at full size, shared ones at the reservation."""
    whole = _pick(columns.full_bytes > 0, columns.full_bytes, 0) * demand.gpus
    if demand.hbm_per_gpu_bytes is None:
        return whole
    together = min(demand.hbm_per_gpu_bytes * demand.gpus, _MOST_BYTES)
    return _pick(columns.gpu_class == _SHARED, together, whole)


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
    """Judge many nodes for a pod that no pod-level reason refuses.

    Args:
        columns: Figures of the nodes, each of shape (nodes,).
        demand: What the pod needs; one without GPUs only needs a healthy node that is not another tenant's.
        headroom: What its tenant may still take; None: nothing limits it.
        tenant_code: The fleet's code of its tenant.
        whole_gpu_free_ratio: Share of a GPU that must be free for a pod that wants it whole, 0..1.
    Returns: A code of ``REASON_OF_CODE`` per node, shape (nodes,).
    """
    codes = np.zeros(len(columns.known), dtype=np.int8)
    for reason, where in _rules(columns, demand, headroom, tenant_code, whole_gpu_free_ratio):
        np.copyto(codes, CODE_OF_REASON[reason], where=where)
    return codes


def node_refusal(
    columns: Columns, demand: PodDemand, *, headroom: Headroom | None, tenant_code: int, whole_gpu_free_ratio: float
) -> Reason | None:
    """Judge one node, given by numbers. Arguments as for ``node_codes``; None: it can take the pod."""
    refusal = None
    for reason, holds in _rules(columns, demand, headroom, tenant_code, whole_gpu_free_ratio):
        if holds:
            refusal = reason
    return refusal


def _rules(
    columns: Columns, demand: PodDemand, headroom: Headroom | None, tenant_code: int, whole_gpu_free_ratio: float
) -> Iterator[tuple[Reason, Figure]]:
    """Each reason and where it holds. The last that holds is the one to give: in reverse order of REASON_OF_CODE."""
    if demand.resource is not None:
        if headroom is not None:
            charged = charged_bytes(columns, demand)
            # A tenant's own pool cannot be taken by others, so nothing has to be kept free there.
            is_open = columns.owner == NO_CODE
            if headroom.spare_gpus is not None and demand.gpus > max(headroom.own_gpus, headroom.spare_gpus):
                yield Reason.GUARANTEED_TO_OTHERS, is_open & (columns.gpu_class != _PARTITION)
            if headroom.spare_hbm_bytes is not None:
                within = max(headroom.own_hbm_bytes, headroom.spare_hbm_bytes)
                yield Reason.GUARANTEED_TO_OTHERS, is_open & (charged > within)
            if headroom.hbm_left_bytes is not None:
                yield Reason.TENANT_HBM_LIMIT, charged > headroom.hbm_left_bytes
        needed = needed_bytes(columns, demand, whole_gpu_free_ratio=whole_gpu_free_ratio)
        yield Reason.HBM_SHORT, columns.fit_bytes < needed
        yield Reason.PARTITION_TOO_SMALL, (columns.gpu_class == _PARTITION) & (columns.capacity_bytes < needed)
        yield Reason.HBM_UNKNOWN, (columns.capacity_bytes == UNKNOWN) | (columns.fit_bytes == UNKNOWN)
        yield Reason.GPU_COUNT, columns.free < demand.gpus
        yield Reason.NO_SUCH_GPU, columns.gpu_class == NO_CODE
    yield Reason.NODE_RESERVED, (columns.owner != NO_CODE) & (columns.owner != tenant_code)
    yield Reason.NODE_UNHEALTHY, columns.ready == False  # noqa: E712 - `~` of a plain True is -2
    yield Reason.NODE_UNKNOWN, columns.known == False  # noqa: E712
