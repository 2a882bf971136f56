"""What the extender asks of the store: how fresh it is, and single pods. All else goes from the store to the engine."""

from collections.abc import Mapping
from typing import Any, Protocol

from kvaware_cluster import Kind
from kvaware_engine import ObjectKey, PodObservation

__all__ = ["View"]


class View(Protocol):
    """The store, read only."""

    def synced(self) -> bool:
        """Every kind was listed once."""
        ...

    def ages(self) -> dict[Kind, float | None]:
        """Seconds since each kind was proven fresh; None: unknown."""
        ...

    def pod(self, namespace: str, name: str) -> PodObservation | None:
        """The pod as last seen; None: not seen, or none that asks for GPUs or names a model."""
        ...

    def objects(self, kind: Kind) -> Mapping[ObjectKey, Any]:
        """All observations of one kind."""
        ...
