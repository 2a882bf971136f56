"""Bytes that kvaware has put on the nodes' network links and that are still on their way."""

from collections.abc import Callable

__all__ = ["NodeLinks"]


class NodeLinks:
    """One for all models: workers of several may share a node's link."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._listeners: list[Callable[[str, int], None]] = []

    def subscribe(self, listener: Callable[[str, int], None]) -> None:
        """Have it told the node and its bytes in flight after each change."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[str, int], None]) -> None:
        """Tell it nothing any more."""
        self._listeners.remove(listener)

    def add(self, node: str, transfer_bytes: int) -> None:
        """A transfer begins, or, with a negative number, has ended."""
        left = self._in_flight.get(node, 0) + transfer_bytes
        if left > 0:
            self._in_flight[node] = left
        else:
            self._in_flight.pop(node, None)
        for listener in self._listeners:
            listener(node, max(0, left))

    def in_flight_bytes(self, node: str | None) -> int:
        """0 where nothing is on its way, or the node is unknown."""
        return 0 if node is None else self._in_flight.get(node, 0)
