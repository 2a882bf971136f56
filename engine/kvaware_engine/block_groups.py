"""KVCacheBlockGroups by model: where their copies are, and what those save or cost a pod on every node."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvaware_engine.fleet import Fleet
from kvaware_engine.nearness import NONE, FloatArray, IntArray, nowhere, reach_of
from kvaware_engine.observations import BlockGroupObservation, CopyState, ModelObservation, ObjectKey, Tier
from kvaware_engine.settings import EngineSettings

__all__ = ["BlockGroups", "KvColumns"]

_SERVING_STATES = frozenset({CopyState.RESIDENT, CopyState.MIGRATING})
_BLOCK_GROUPS_PRICED = 64
"""At most so many groups of a model are priced, the largest first: a guard for the hot path, not a meaning."""


@dataclass(slots=True, kw_only=True)
class KvColumns:
    """The block groups of one model seen from every row of the fleet, see ``places.PlaceColumns``."""

    kv_at: IntArray
    kv_bytes: IntArray
    kv_local_ms: FloatArray
    kv_move_ms: FloatArray


class BlockGroups:
    """All block groups. One owner; every method is synchronous."""

    def __init__(self, settings: EngineSettings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._groups: dict[ObjectKey, dict[ObjectKey, BlockGroupObservation]] = defaultdict(dict)
        """Model to its groups."""
        self._group_model: dict[ObjectKey, ObjectKey] = {}
        self._held_by: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        """Pod to the block groups that name it as a worker."""

    def observe(self, key: ObjectKey, group: BlockGroupObservation | None) -> list[ObjectKey]:
        """A KVCacheBlockGroup came, changed or went. Returns: the models of which something else holds now."""
        models = []
        old_model = self._group_model.pop(key, None)
        if old_model is not None:
            for worker in {_worker_pod(copy.worker) for copy in self._groups[old_model][key].copies}:
                self._held_by[worker].discard(key)
                if not self._held_by[worker]:
                    del self._held_by[worker]
            del self._groups[old_model][key]
            if not self._groups[old_model]:
                del self._groups[old_model]
            models.append(old_model)
        if group is not None:
            self._group_model[key] = group.model
            self._groups[group.model][key] = group
            for copy in group.copies:
                self._held_by[_worker_pod(copy.worker)].add(key)
            models.append(group.model)
        return models

    def models_held_by(self, pod: ObjectKey) -> list[ObjectKey]:
        """The models of the groups that name this pod as a worker."""
        return [self._group_model[key] for key in self._held_by.get(pod, ())]

    def columns(self, model: ModelObservation | None, *, node_of_pod: Mapping[ObjectKey, str]) -> KvColumns:
        """See a model's groups from every row; without a model nothing is anywhere.

        Args:
            model: The InferenceModel.
            node_of_pod: Where the pods are that hold copies.
        """
        size = self._fleet.size
        columns = KvColumns(
            kv_at=np.full(size, NONE, dtype=np.int64),
            kv_bytes=np.zeros(size, dtype=np.int64),
            kv_local_ms=np.zeros(size),
            kv_move_ms=np.zeros(size),
        )
        if model is not None:
            groups = sorted(self._groups.get(model.key, {}).values(), key=lambda g: (-_largest(g), g.key))
            for group in groups[:_BLOCK_GROUPS_PRICED]:
                self._add_group(group, model, node_of_pod, columns)
        return columns

    def _add_group(
        self,
        group: BlockGroupObservation,
        model: ModelObservation,
        node_of_pod: Mapping[ObjectKey, str],
        columns: KvColumns,
    ) -> None:
        fleet, links, costs = self._fleet, self._settings.links, self._settings.pod_costs
        holders = nowhere(fleet.size)
        load_ms = np.full(fleet.size, math.inf)
        size_bytes = 0
        for copy in group.copies:
            if copy.state not in _SERVING_STATES:
                continue
            node = node_of_pod.get(_worker_pod(copy.worker))
            row = fleet.get(node) if node is not None else None
            if row is None:
                continue
            size_bytes = max(size_bytes, copy.size_bytes)
            holders[row.index] = True
            bytes_per_s = links.disk_bytes_per_s if copy.tier is Tier.SSD else links.host_bytes_per_s
            load_ms[row.index] = min(load_ms[row.index], copy.size_bytes / bytes_per_s * 1000)
        if size_bytes == 0:
            return
        reach = reach_of(fleet, holders)
        move_ms = size_bytes * 1000.0 / reach.bytes_per_s(links)
        recompute_ms = math.inf
        if model.kv_bytes_per_token:
            recompute_ms = size_bytes / model.kv_bytes_per_token / costs.prefill_tokens_per_s * 1000
        moved = ~holders & (move_ms <= recompute_ms)
        columns.kv_local_ms += np.where(holders, np.where(holders, load_ms, 0), np.where(moved, 0, recompute_ms))
        columns.kv_move_ms += np.where(moved, move_ms, 0)
        columns.kv_bytes += np.where(holders, size_bytes, 0)
        np.minimum(columns.kv_at, reach.locations(holders), out=columns.kv_at)


def _worker_pod(worker: str) -> ObjectKey:
    """The pod in ``<namespace>:<pod>:<rank>``."""
    namespace, _, rest = worker.partition(":")
    return ObjectKey(namespace, rest.rpartition(":")[0])


def _largest(group: BlockGroupObservation) -> int:
    return max((copy.size_bytes for copy in group.copies), default=0)
