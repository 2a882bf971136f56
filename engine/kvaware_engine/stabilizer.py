"""From what the load asks for to a number that stays: windows of time, and a margin at the edges."""

from collections import deque
from math import ceil, inf
from typing import Final

__all__ = ["AskedWindow", "settled_replicas"]

_PARTS: Final = 30
"""Parts in which a window remembers: its length is exact to one of them, its memory is bounded."""
_ROUNDING: Final = 1e-6


class AskedWindow:
    """The least and the most that was asked for in a window of time."""

    __slots__ = ("_parts", "window_s")

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._parts: deque[tuple[float, float, float, float]] = deque()
        """First time, last time, least, most."""

    def ask(self, replicas: float, *, now_s: float) -> None:
        """Remember what is asked for now. The same at the same time changes nothing."""
        if self._parts and now_s - self._parts[-1][0] < self.window_s / _PARTS:
            first_s, _, least, most = self._parts.pop()
            self._parts.append((first_s, now_s, min(least, replicas), max(most, replicas)))
        else:
            if self._parts and self._parts[-1][1] >= now_s:
                self._parts.pop()  # a window of 0 s holds the last only
            self._parts.append((now_s, now_s, replicas, replicas))
        while self._parts and self._parts[0][1] < now_s - self.window_s:
            self._parts.popleft()

    @property
    def least(self) -> float:
        """Infinity where nothing was asked."""
        return min((part[2] for part in self._parts), default=inf)

    @property
    def most(self) -> float:
        """0 where nothing was asked."""
        return max((part[3] for part in self._parts), default=0.0)


def settled_replicas(present: int, *, least_up: float, most_down: float, margin_ratio: float) -> int:
    """The number to go to: up where more is asked for, down only where a margin is left over, else the present one.

    A load that moves within ±m around any edge asks for numbers in the ratio (1+m)/(1-m). Up needs more than n, down
    to n needs at most n·(1-margin): both happen only beyond a ratio of 1/(1-margin), which for 15 % is ±8 %.

    Args:
        present: Replicas now.
        least_up: The least that was asked for in the up window.
        most_down: The most that was asked for in the down window, at least ``least_up`` of the same time.
        margin_ratio: 0..1.
    """
    if least_up > present + _ROUNDING:
        return ceil(least_up - _ROUNDING)
    lower = ceil(most_down / (1 - margin_ratio) - _ROUNDING)
    return min(present, max(0, lower))
