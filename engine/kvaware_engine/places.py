"""Where a model already is: its pods, its weights and its KV block groups, seen from every node.

For one model the answer is a set of columns over the fleet's rows. It is kept until something about that model or the
fleet's layout changes, since most state changes concern other models.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvaware_engine.block_groups import BlockGroups
from kvaware_engine.fleet import Fleet
from kvaware_engine.nearness import BoolArray, FloatArray, IntArray, nowhere, reach_of
from kvaware_engine.observations import (
    BlockGroupObservation,
    ModelObservation,
    ObjectKey,
    PodObservation,
)
from kvaware_engine.settings import EngineSettings

__all__ = ["PlaceColumns", "Places", "weights_id"]


def weights_id(model_id: str, revision: str) -> str:
    """How weights are named in ``kvaware.io/weights``."""
    return f"{model_id}@{revision}" if revision else model_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceColumns:
    """One model seen from every row of the fleet, each of shape (rows,)."""

    weights_at: IntArray
    """ON_NODE, NEAR or FAR."""
    fetch_ms_per_byte: FloatArray
    """To bring weights to the node; 0 where they are."""
    kv_at: IntArray
    """ON_NODE, NEAR, FAR or NONE: the nearest copy of any of the model's block groups."""
    kv_bytes: IntArray
    """Block-group bytes on the node."""
    kv_local_ms: FloatArray
    """To bring the node's own copies into HBM, and to recompute what is cheaper recomputed than moved."""
    kv_move_ms: FloatArray
    """To copy groups that are elsewhere."""
    pods: IntArray
    """The model's pods on the node."""
    gain_ms: FloatArray
    """For being near the model's pods."""


class Places:
    """Pods, weights and block groups by model. One owner; every method is synchronous."""

    def __init__(self, settings: EngineSettings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._block_groups = BlockGroups(settings, fleet)
        self._models: dict[ObjectKey, ModelObservation] = {}
        self._sharing: dict[str, set[ObjectKey]] = defaultdict(set)
        """Weights to the models that are made of them."""
        self._pods: dict[ObjectKey, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """Model to node to how many of its pods are there."""
        self._node_of_pod: dict[ObjectKey, str] = {}
        self._left: dict[str, dict[str, float]] = defaultdict(dict)
        """Weights to node to when they are believed gone, in seconds, where the last pod has left."""
        self._listed: dict[str, set[str]] = defaultdict(set)
        """Weights to the nodes whose annotation lists them."""
        self._hidden: list[tuple[ObjectKey, str]] = []
        self._imagined: list[tuple[ObjectKey, str]] = []
        self._kept: dict[ObjectKey | None, PlaceColumns] = {}
        # Columns, each valid for one layout of the fleet's rows.
        self._layout = (-1, -1)
        self._cache: dict[ObjectKey | None, PlaceColumns] = {}
        self._pod_columns: dict[ObjectKey, IntArray] = {}
        self._disk_columns: dict[tuple[str, str], BoolArray] = {}
        """Model id and revision to the rows that have the weights without running a pod of them."""

    # -- observations ------------------------------------------------------------------------------------------------

    def model(self, key: ObjectKey, model: ModelObservation | None) -> None:
        """An InferenceModel came, changed or went."""
        before = self._models.pop(key, None)
        if before is not None:
            named = weights_id(before.model_id, before.revision)
            self._sharing[named].discard(key)
            if not self._sharing[named]:
                del self._sharing[named]
        if model is not None:
            self._models[key] = model
            self._sharing[weights_id(model.model_id, model.revision)].add(key)
        self._cache.clear()
        if model is None:
            self._pod_columns.pop(key, None)

    def pod_bound(self, pod: PodObservation, node: str) -> None:
        """A pod is bound to a node."""
        self._node_of_pod[ObjectKey(pod.namespace, pod.name)] = node
        if pod.model is not None:
            self._count(ObjectKey(pod.namespace, pod.model), node, 1)
        self._forget_columns(pod)

    def pod_gone(self, pod: PodObservation, node: str, *, now_s: float) -> None:
        """It is not any more; what it loaded stays on the node's disk for a while."""
        self._node_of_pod.pop(ObjectKey(pod.namespace, pod.name), None)
        if pod.model is not None:
            model_key = ObjectKey(pod.namespace, pod.model)
            model = self._models.get(model_key)
            if self._count(model_key, node, -1) == 0 and model is not None:
                named = weights_id(model.model_id, model.revision)
                self._left[named][node] = now_s + self._settings.weights_ttl_s
                self._disk_columns.pop((model.model_id, model.revision), None)
        self._forget_columns(pod)

    def _count(self, model_key: ObjectKey, node: str, change: int) -> int:
        """Count a model's pods on one node, in the table and in its column. Returns: how many there are now."""
        pods = self._pods[model_key]
        pods[node] += change
        count = pods[node]
        column = self._pod_columns.get(model_key)
        row = self._fleet.get(node)
        if column is not None and row is not None and self._layout == self._fleet.layout:
            column[row.index] = count
        if count <= 0:
            del pods[node]
            if not pods:
                del self._pods[model_key]
        return count

    def _forget_columns(self, pod: PodObservation) -> None:
        """Drop what was computed for the pod's model, for those with the same weights, and for those it holds KV of."""
        if pod.model is not None:
            model_key = ObjectKey(pod.namespace, pod.model)
            self._cache.pop(model_key, None)
            model = self._models.get(model_key)
            if model is not None:
                for key in self._sharing[weights_id(model.model_id, model.revision)]:
                    self._cache.pop(key, None)
        for model_key in self._block_groups.models_held_by(ObjectKey(pod.namespace, pod.name)):
            self._cache.pop(model_key, None)

    def node_gone(self, node: str) -> None:
        """A node went: what its disk held is gone with it."""
        for weights in [weights for weights, nodes in self._left.items() if node in nodes]:
            del self._left[weights][node]
            if not self._left[weights]:
                del self._left[weights]
        self._forget_disks()

    def hide(self, model_key: ObjectKey | None, node: str) -> None:
        """Leave one pod out of its model's pods until ``show_again``; the weights that it loaded stay there."""
        if model_key is None or self._pods.get(model_key, {}).get(node, 0) <= 0:
            return
        self._fit_layout()
        model = self._models.get(model_key)
        if model is not None:
            key = (model.model_id, model.revision)
            self._disk_columns[key] = column = self._disk_column(model).copy()
            row = self._fleet.get(node)
            if row is not None:
                column[row.index] = True
        self._count(model_key, node, -1)
        self._hidden.append((model_key, node))
        self._cache.clear()

    def show_again(self) -> None:
        """Undo every ``hide``."""
        for model_key, node in self._hidden:
            self._count(model_key, node, 1)
        if self._hidden:
            self._hidden.clear()
            self._forget_disks()

    def imagine(self, model_key: ObjectKey, nodes: Iterable[str]) -> None:
        """Count more pods of a model, one on each of these nodes, until ``forget_imagined``."""
        self._fit_layout()
        model = self._models.get(model_key)
        sharing = self._sharing[weights_id(model.model_id, model.revision)] if model is not None else {model_key}
        # Put aside, not dropped: what was computed for filter holds again in a moment.
        self._kept = {key: self._cache.pop(key) for key in sharing if key in self._cache}
        self._imagined = [(model_key, node) for node in nodes]
        for key, node in self._imagined:
            self._count(key, node, 1)

    def forget_imagined(self) -> None:
        """Undo ``imagine``."""
        for key, node in self._imagined:
            self._count(key, node, -1)
            self._cache.pop(key, None)
        self._imagined = []
        self._cache.update(self._kept)
        self._kept = {}

    def node_lists(self, node: str, weights: Iterable[str], *, before: Iterable[str]) -> None:
        """The annotation ``kvaware.io/weights`` of a node changed."""
        for name in before:
            self._listed[name].discard(node)
            if not self._listed[name]:
                del self._listed[name]
        for name in weights:
            self._listed[name].add(node)
        self._forget_disks()

    def group(self, key: ObjectKey, group: BlockGroupObservation | None) -> None:
        """A KVCacheBlockGroup came, changed or went."""
        for model in self._block_groups.observe(key, group):
            self._cache.pop(model, None)

    def expire(self, now_s: float) -> bool:
        """Stop believing in weights whose time is up; tell whether any were."""
        gone = [
            (weights, node)
            for weights, nodes in self._left.items()
            for node, expires_at_s in nodes.items()
            if expires_at_s <= now_s
        ]
        for weights, node in gone:
            del self._left[weights][node]
            if not self._left[weights]:
                del self._left[weights]
        if gone:
            self._forget_disks()
        return bool(gone)

    def _forget_disks(self) -> None:
        self._disk_columns.clear()
        self._cache.clear()

    # -- questions ---------------------------------------------------------------------------------------------------

    def columns(self, key: ObjectKey | None) -> PlaceColumns:
        """See one model from every row; without a model nothing is anywhere."""
        self._fit_layout()
        if key not in self._models:
            key = None  # names that people make up must not fill the memory
        columns = self._cache.get(key)
        if columns is None:
            columns = self._cache[key] = self._compute(key)
        return columns

    def _fit_layout(self) -> None:
        if self._layout != self._fleet.layout:
            self._layout = self._fleet.layout
            self._cache.clear()
            self._pod_columns.clear()
            self._disk_columns.clear()

    def _pod_column(self, key: ObjectKey) -> IntArray:
        """How many pods of a model are on each row; kept and counted on, because a roll-out binds pod after pod."""
        column = self._pod_columns.get(key)
        if column is None:
            column = self._pod_columns[key] = np.zeros(self._fleet.size, dtype=np.int64)
            for node, count in self._pods.get(key, {}).items():
                row = self._fleet.get(node)
                if row is not None:
                    column[row.index] = count
        return column

    def _disk_column(self, model: ModelObservation) -> BoolArray:
        """Rows that have the weights though no pod of them runs there: it left lately, or the annotation says so."""
        key = (model.model_id, model.revision)
        column = self._disk_columns.get(key)
        if column is None:
            named = weights_id(model.model_id, model.revision)
            column = self._disk_columns[key] = nowhere(self._fleet.size)
            # An annotation without a revision speaks for all revisions.
            for nodes in (self._left.get(named, ()), self._listed.get(named, ()), self._listed.get(model.model_id, ())):
                for node in nodes:
                    row = self._fleet.get(node)
                    if row is not None:
                        column[row.index] = True
        return column

    def _with_weights(self, model: ModelObservation) -> BoolArray:
        marked = self._disk_column(model).copy()
        for key in self._sharing[weights_id(model.model_id, model.revision)]:
            marked |= self._pod_column(key) > 0
        return marked

    def _compute(self, key: ObjectKey | None) -> PlaceColumns:
        fleet, links, costs = self._fleet, self._settings.links, self._settings.pod_costs
        size = fleet.size
        model = self._models.get(key) if key is not None else None
        pods = self._pod_column(key) if key is not None else np.zeros(size, dtype=np.int64)
        peers = reach_of(fleet, pods > 0)
        gain_ms = np.zeros(size)
        gain_ms[peers.rack] = costs.rack_gain_ms
        gain_ms[peers.clique] = costs.clique_gain_ms

        with_weights = self._with_weights(model) if model is not None else nowhere(size)
        reach = reach_of(fleet, with_weights)
        weights_at = reach.locations(with_weights)
        fetch_ms_per_byte = 1000.0 / reach.bytes_per_s(links)
        fetch_ms_per_byte[with_weights] = 0

        kv = self._block_groups.columns(model, node_of_pod=self._node_of_pod)
        return PlaceColumns(
            weights_at=weights_at,
            fetch_ms_per_byte=fetch_ms_per_byte,
            kv_at=kv.kv_at,
            kv_bytes=kv.kv_bytes,
            kv_local_ms=kv.kv_local_ms,
            kv_move_ms=kv.kv_move_ms,
            pods=pods,
            gain_ms=gain_ms,
        )
