"""What the store sees goes into the engine's ``Placer``: models, nodes and quotas. Workers it hears of by itself."""

from typing import Any, Protocol

from kvaware_cluster import Change, Kind
from kvaware_engine import ModelObservation, NodeObservation, NodeUse, ObjectKey, TenantQuotaObservation
from kvaware_extender.placing import Placing

__all__ = ["RequestFeed"]


class Observing(Protocol):
    """The engine's ``Placer``, as far as the cluster is concerned."""

    def observe_model(self, key: ObjectKey, model: ModelObservation | None) -> None:
        """An InferenceModel; None: it is gone."""
        ...

    def observe_node(self, name: str, node: NodeObservation | None) -> None:
        """A node; None: it is gone."""
        ...

    def observe_quota(self, name: str, quota: TenantQuotaObservation | None) -> None:
        """A TenantQuota; None: it is gone."""
        ...


class RequestFeed:
    """A listener of the store. It passes on what it is told, twice too: the engine ignores what it knows."""

    def __init__(self, placer: Observing, placing: Placing) -> None:
        self._placer = placer
        self._placing = placing

    def changed(self, change: Change[Any]) -> None:
        """Pass one change on."""
        if change.kind == Kind.INFERENCE_MODEL:
            self._placer.observe_model(change.key, change.new)
            self._placing.observe_model(change.key, change.new)
        elif change.kind == Kind.NODE:
            self._placer.observe_node(change.key.name, change.new)
        elif change.kind == Kind.TENANT_QUOTA:
            self._placer.observe_quota(change.key.name, change.new)

    def listed(self, kind: Kind, *, began_at_s: float) -> None:
        """See ``Listener``: every change was told one by one."""

    def used(self, node: str, use: NodeUse | None) -> None:
        """See ``Listener``: not asked."""
