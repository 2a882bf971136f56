"""The least time between two events of one name."""

from collections.abc import Callable
from typing import Final

from cachetools import TTLCache

__all__ = ["Intervals"]

MOST: Final = 20_000
"""Names that are remembered, for one interval; beyond it the oldest is forgotten and may come sooner. 4 MB."""


class Intervals:
    """Remembers who had a turn less than ``least_s`` ago, and nobody else."""

    def __init__(self, least_s: float, *, clock: Callable[[], float]) -> None:
        self._least_s = least_s
        self._clock = clock
        self._last_s: TTLCache[str, float] = TTLCache(MOST, least_s, timer=clock)

    def wait_s(self, name: str) -> float | None:
        """How long it has to wait; None: it may come now."""
        last_s = self._last_s.get(name)
        return None if last_s is None else max(0.0, last_s + self._least_s - self._clock())

    def take(self, name: str) -> None:
        """It has its turn now."""
        self._last_s[name] = self._clock()
