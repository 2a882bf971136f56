"""What the store sees goes into the engine: one synchronous call per change, in the event loop that owns both."""

from collections.abc import Callable
from typing import Any, assert_never

from kvaware_cluster import Change, Kind
from kvaware_engine import Engine, NodeUse, ObjectKey, PodObservation
from kvaware_extender.view import View

__all__ = ["Feed"]


class Feed:
    """A listener of the store. Tells the engine first, then those who wait for pods or for any change."""

    def __init__(
        self,
        engine: Engine,
        *,
        view: View,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        on_pod_placed: Callable[[str], None],
        on_pod_gone: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._view = view
        self._clock = clock
        self._on_change = on_change
        self._on_pod_placed = on_pod_placed
        self._on_pod_gone = on_pod_gone
        self._used_bytes: dict[str, int] = {}
        """Node to HBM in use on it, as its exporter last showed; absent: unknown."""
        self._utilization: dict[str, float] = {}

    def used_bytes(self) -> dict[str, int]:
        """HBM in use per node of the cluster, where known. An exporter may outlive its Node object for a while."""
        nodes = self._view.objects(Kind.NODE)
        return {node: used for node, used in self._used_bytes.items() if ObjectKey("", node) in nodes}

    def utilization(self) -> dict[str, float]:
        """Mean share of time in which a node's GPUs work, 0..1, where known."""
        nodes = self._view.objects(Kind.NODE)
        return {node: ratio for node, ratio in self._utilization.items() if ObjectKey("", node) in nodes}

    def changed(self, change: Change[Any]) -> None:
        """Pass one change on. May be told twice: the engine ignores what it knows."""
        kind = Kind(change.kind)
        match kind:
            case Kind.NODE:
                self._engine.observe_node(change.key.name, change.new)
                if change.new is None:
                    self._used_bytes.pop(change.key.name, None)
                    self._utilization.pop(change.key.name, None)
            case Kind.POD:
                self._pod(change.old, change.new)
            case Kind.INFERENCE_MODEL:
                self._engine.observe_model(change.key, change.new)
            case Kind.TENANT_QUOTA:
                self._engine.observe_quota(change.key.name, change.new)
            case Kind.KV_CACHE_BLOCK_GROUP:
                self._engine.observe_block_group(change.key, change.new)
            case Kind.AUTOSCALER:  # the operator's; not watched here
                pass
            case _:
                assert_never(kind)
        self._on_change()

    def listed(self, kind: Kind, *, began_at_s: float) -> None:
        """After a complete list, bookings whose pods are not in it end: their deletion was missed."""
        if kind is Kind.POD:
            uids = {pod.uid for pod in self._view.objects(Kind.POD).values()}
            self._engine.forget_unseen(listed_at_s=began_at_s, uids=uids)
            self._on_change()

    def used(self, node: str, use: NodeUse | None) -> None:
        """HBM in use on one node."""
        self._engine.observe_use(node, use)
        known = [gpu.used_bytes for gpu in use.gpus if gpu.used_bytes is not None] if use is not None else []
        if known:
            self._used_bytes[node] = sum(known)
        else:
            self._used_bytes.pop(node, None)
        gpus = use.gpus if use is not None else ()
        ratios = [gpu.utilization_ratio for gpu in gpus if gpu.utilization_ratio is not None]
        if ratios:
            self._utilization[node] = sum(ratios) / len(ratios)
        else:
            self._utilization.pop(node, None)
        self._on_change()

    def _pod(self, old: PodObservation | None, new: PodObservation | None) -> None:
        now_s = self._clock()
        if old is not None and (new is None or new.uid != old.uid):
            # A pod of the same name and another UID: the deletion of the first was not seen (HAMi#2923).
            self._engine.observe_pod(old.uid, None, now_s=now_s)
            self._on_pod_gone(old.uid)
        if new is not None:
            self._engine.observe_pod(new.uid, new, now_s=now_s)
            if new.node is not None or new.finished:
                self._on_pod_placed(new.uid)
