"""What a fleet's requests bring over its nodes' network links: LINK_BYTES_IN_FLIGHT of a fleet."""

from typing import Any

from kvaware_engine.requests.charges import Charged
from kvaware_engine.requests.links import NodeLinks

__all__ = ["FleetLinks"]


class FleetLinks:
    """One fleet's transfers, and its workers by node; what fleets of other models bring there counts as well."""

    __slots__ = ("_bytes", "_links", "_node_of", "_on_node")

    def __init__(self, links: NodeLinks) -> None:
        self._links = links
        self._bytes: Any = memoryview(b"")
        """The row LINK_BYTES_IN_FLIGHT. (mypy does not know that it holds floats.)"""
        self._node_of: dict[Charged, str] = {}
        """Reservation → node over whose link its blocks are on their way."""
        self._on_node: dict[str, set[int]] = {}
        """Node → slots of its workers."""
        links.subscribe(self._changed)

    def close(self) -> None:
        """The fleet is gone, and its transfers with it."""
        for reservation in list(self._node_of):
            self.end(reservation)
        self._links.unsubscribe(self._changed)

    def grow(self, row: Any) -> None:
        """The row is another one, with more slots."""
        self._bytes = row

    def moved(self, slot: int, before: str | None, node: str | None) -> None:
        """A slot's worker is on another node; None: on none that is known, or there is none any more."""
        if before is not None:
            self._on_node[before].discard(slot)
            if not self._on_node[before]:
                del self._on_node[before]
        if node is not None:
            self._on_node.setdefault(node, set()).add(slot)
        self._bytes[slot] = self._links.in_flight_bytes(node)

    def begin(self, reservation: Charged, node: str) -> None:
        """Its blocks are on their way there."""
        self._node_of[reservation] = node
        self._links.add(node, reservation.transfer_bytes)

    def end(self, reservation: Charged) -> None:
        """They are there, or will not come. Told again, or of one that brings none: nothing."""
        node = self._node_of.pop(reservation, None)
        if node is not None:
            self._links.add(node, -reservation.transfer_bytes)

    def _changed(self, node: str, in_flight_bytes: int) -> None:
        for slot in self._on_node.get(node, ()):
            self._bytes[slot] = in_flight_bytes
