"""How likely a worker is to refuse what it is given, and what that costs: RISK_MS of a fleet."""

from typing import Any, Final

__all__ = ["Risk"]

_SHARE: Final = 0.1
"""Weight of one assignment in the chance that the next is refused."""
_LEAST: Final = 0.01
"""A smaller chance is none."""


class Risk:
    """By slot: the cost of a refused assignment times its chance, a running mean of assignments."""

    __slots__ = ("_refused_ms", "ms")

    def __init__(self, refused_ms: float) -> None:
        self.ms: Any = memoryview(b"")
        """The row RISK_MS; read by others, written here. (mypy does not know that it holds floats.)"""
        self._refused_ms = refused_ms

    def begin(self, slot: int) -> None:
        """Nothing is known of whoever is there now."""
        self.ms[slot] = 0.0

    def refused(self, slot: int) -> None:
        """It refused an assignment."""
        self._learn(slot, 1.0)

    def served(self, slot: int) -> None:
        """It served one, or lives: else one that nobody chooses for its risk would never be served by again."""
        self._learn(slot, 0.0)

    def _learn(self, slot: int, refused: float) -> None:
        refused_ms = self._refused_ms
        chance = self.ms[slot] / refused_ms if refused_ms else 0.0
        chance += _SHARE * (refused - chance)
        self.ms[slot] = refused_ms * chance if chance >= _LEAST else 0.0
