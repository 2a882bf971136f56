"""What each node costs a pod, in milliseconds: the time until it is ready there, and what that takes from others.

The terms are those of every decision (``decisions.CostTerms``); here they are columns.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvaware_engine.decisions import CostTerms, PodDemand
from kvaware_engine.fleet import CLASS_CODES, Fleet
from kvaware_engine.observations import GpuClass, ModelObservation
from kvaware_engine.places import PlaceColumns
from kvaware_engine.settings import EngineSettings
from kvaware_engine.verdict import needed_bytes

__all__ = ["CostColumns", "pod_costs", "scores", "weights_bytes"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_OVERSIZE_UNIT_BYTES = 80e9
_SHARED = CLASS_CODES[GpuClass.SHARED]
_TOP_SCORE, _OTHERS_SCORE = 10, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CostColumns:
    """Cost terms in milliseconds, each of shape (nodes,)."""

    compute_wait: FloatArray
    cache_access: FloatArray
    migration: FloatArray
    memory_pressure: FloatArray
    network: FloatArray
    risk: FloatArray
    locality_gain: FloatArray
    total: FloatArray

    def at(self, position: int) -> CostTerms:
        """The terms of one node."""
        return CostTerms(
            compute_wait=float(self.compute_wait[position]),
            cache_access=float(self.cache_access[position]),
            migration=float(self.migration[position]),
            memory_pressure=float(self.memory_pressure[position]),
            network=float(self.network[position]),
            risk=float(self.risk[position]),
            locality_gain=float(self.locality_gain[position]),
        )


def weights_bytes(demand: PodDemand, model: ModelObservation | None, settings: EngineSettings) -> int:
    """Bytes of weights that the pod loads: as the model says, else a share of its HBM, else 0 (nobody knows)."""
    if model is None or demand.gpus == 0:
        return 0
    if model.weights_bytes is not None:
        return model.weights_bytes
    return int((demand.hbm_per_gpu_bytes or 0) * demand.gpus * settings.pod_costs.weights_share_of_footprint_ratio)


def pod_costs(
    indexes: IntArray,
    demand: PodDemand,
    model: ModelObservation | None,
    *,
    fleet: Fleet,
    places: PlaceColumns,
    settings: EngineSettings,
) -> CostColumns:
    """Price one pod on each of the given nodes.

    Args:
        indexes: Rows of the fleet that can take the pod, shape (nodes,).
        demand: What it needs.
        model: Its InferenceModel, if it names one.
        fleet: Columns of the nodes.
        places: The model seen from every row.
        settings: Bandwidths and prices.
    Returns: Terms and total, each of shape (nodes,), finite.
    Source: design.md §4; per term, ``decisions.CostTerms``.
    """
    links, prices = settings.links, settings.pod_costs
    weights = weights_bytes(demand, model, settings)
    compute_wait = prices.crowding_ms * places.pods[indexes].astype(np.float64)
    cache_access = places.kv_local_ms[indexes] + weights / links.disk_bytes_per_s * 1000
    migration = places.kv_move_ms[indexes]
    network = weights * places.fetch_ms_per_byte[indexes]
    memory_pressure = _memory_pressure_ms(indexes, demand, fleet=fleet, settings=settings)
    risk = prices.doubt_ms * (1 - fleet.confidence[indexes])
    locality_gain = places.gain_ms[indexes]
    return CostColumns(
        compute_wait=compute_wait,
        cache_access=cache_access,
        migration=migration,
        memory_pressure=memory_pressure,
        network=network,
        risk=risk,
        locality_gain=locality_gain,
        total=compute_wait + cache_access + migration + memory_pressure + network + risk - locality_gain,
    )


def _memory_pressure_ms(indexes: IntArray, demand: PodDemand, *, fleet: Fleet, settings: EngineSettings) -> FloatArray:
    """What the placement takes from large models: a whole rest broken open, and HBM given that is not needed.

    The rest is the share of the node's devices (shared: of the device's HBM) that stays free: 0 for the tightest fit.
    """
    if demand.resource is None or demand.resource not in fleet.lanes:
        return np.zeros(len(indexes))
    columns = fleet.columns(demand.resource).take(indexes)
    shared = columns.gpu_class == _SHARED
    needed = np.maximum(needed_bytes(columns, demand, whole_gpu_free_ratio=1.0), 0)
    capacity = np.maximum(columns.capacity_bytes, 1)
    free_devices_ratio = (columns.free - demand.gpus) / np.maximum(columns.devices, 1)
    free_bytes_ratio = (columns.fit_bytes - needed) / capacity
    rest_ratio = np.clip(np.where(shared, free_bytes_ratio, free_devices_ratio), 0, 1)
    unneeded = np.where(shared, 0, np.maximum(columns.capacity_bytes - needed, 0)) * demand.gpus
    prices = settings.pod_costs
    pressure: FloatArray = prices.fragmentation_ms * rest_ratio + prices.oversize_ms * unneeded / _OVERSIZE_UNIT_BYTES
    return pressure


def scores(total_ms: FloatArray, best: int, *, scale_ms: float) -> IntArray:
    """kube-scheduler's integers: the first choice alone 10, the others at most 9 and lower with every ``scale_ms``."""
    surplus_ms = np.maximum(total_ms - total_ms[best], 0)
    values: IntArray = np.floor(_OTHERS_SCORE * scale_ms / (scale_ms + surplus_ms)).astype(np.int64)
    values[best] = _TOP_SCORE
    return values
