"""The congestion price λ: what a millisecond of prefill that is taken now costs those who come next (design §4).

    u = prefill milliseconds reserved in the window / (window * workers)        λ = u^(√(2 (workers + 1)) - 1) / (1 - u)

Work delays those who come next only where they find everybody busy. The mean wait at c servers grows with u by that
formula (Sakasegawa, 1977: within some percent of M/M/c); for one server it is u / (1 - u), as Pollaczek and Khinchine
have it. By the single server's price a burst at a large idle pool is packed onto a third of it.
"""

from math import sqrt
from typing import Final

from kvaware_engine.requests.settings import RequestCostSettings

__all__ = ["Congestion"]

_PARTS: Final = 20
"""The window moves in so many steps."""


class Congestion:
    """The prefill that one model's workers were given lately. Each method takes constant time."""

    __slots__ = (
        "_at",
        "_exponent",
        "_filling_ms",
        "_full_ms",
        "_max_ratio",
        "_next_s",
        "_parts_ms",
        "_width_s",
        "_window_ms",
        "_workers",
    )

    def __init__(self, settings: RequestCostSettings) -> None:
        self._max_ratio = settings.congestion_max_ratio
        self._window_ms = settings.congestion_window_s * 1000
        self._width_s = settings.congestion_window_s / _PARTS
        self._parts_ms = [0.0] * (_PARTS - 1)
        """What the parts before were given, the oldest first."""
        self._workers = 1
        self._exponent = 1.0
        """Of λ for so many workers."""
        self._full_ms = 0.0
        """Their sum."""
        self._filling_ms = 0.0
        """What the part that is now was given."""
        self._at = 0
        """Number of the part that is now, counted from time 0."""
        self._next_s = 0.0
        """When the next one begins."""

    def reserved(self, prefill_ms: float, now_s: float) -> None:
        """So much prefill was given to a worker."""
        if now_s >= self._next_s:
            self._move(now_s)
        self._filling_ms += prefill_ms

    def returned(self, prefill_ms: float, reserved_at_s: float, now_s: float) -> None:
        """It was not done after all: refused, or withdrawn while it waited."""
        if now_s >= self._next_s:
            self._move(now_s)
        ago = self._at - int(reserved_at_s / self._width_s)
        if ago <= 0:
            self._filling_ms = max(0.0, self._filling_ms - prefill_ms)
        elif ago < _PARTS:
            self._parts_ms[-ago] = max(0.0, self._parts_ms[-ago] - prefill_ms)
            self._full_ms = sum(self._parts_ms)

    def utilisation(self, workers: int, now_s: float) -> float:
        """Share of their time that the prefill takes, 0 or more; above 1 more is given than they can do.

        Args:
            workers: Those that may be given prefill now; where there is none, one is taken.
            now_s: Now.
        """
        if now_s >= self._next_s:
            self._move(now_s)
        return (self._full_ms + self._filling_ms) / (self._window_ms * (workers or 1))

    def price(self, workers: int, now_s: float) -> float:
        """λ, 0 or more, bounded by the settings' ``congestion_max_ratio``."""
        u = min(self.utilisation(workers, now_s), self._max_ratio)
        if workers != self._workers:
            self._workers, self._exponent = workers, sqrt(2 * ((workers or 1) + 1)) - 1
        return float(u**self._exponent) / (1 - u)

    def _move(self, now_s: float) -> None:
        """Begin the part that is now, and leave behind what is older than the window."""
        at = int(now_s / self._width_s)
        if at > self._at:
            moved = [*self._parts_ms, self._filling_ms, *[0.0] * min(at - self._at - 1, _PARTS)]
            self._parts_ms = moved[1 - _PARTS :]
            self._full_ms = sum(self._parts_ms)
            self._filling_ms = 0.0
            self._at = at
        self._next_s = (self._at + 1) * self._width_s
