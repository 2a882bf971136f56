"""The congestion price λ: what a millisecond of prefill that is taken now costs those who come next (design §4).

    u = prefill milliseconds reserved in the window / (window * workers that prefill)        λ = u / (1 - u)

At a single server with utilisation u, each unit of work delays those who arrive while it is busy: in M/G/1 the mean
wait grows with u / (1 - u) (Pollaczek and Khinchine).
"""

from typing import Final

from kvaware_engine.requests.settings import RequestCostSettings

__all__ = ["Congestion"]

_PARTS: Final = 20
"""The window moves in so many steps."""
_US: Final = 1000.0
"""Sums are kept in whole microseconds: what is added and taken back leaves nothing."""


class Congestion:
    """The prefill that one model's workers were given lately. Each method takes constant time."""

    __slots__ = ("_at", "_max_ratio", "_parts", "_sum", "_width_s", "_window_s")

    def __init__(self, settings: RequestCostSettings) -> None:
        self._window_s = settings.congestion_window_s
        self._max_ratio = settings.congestion_max_ratio
        self._width_s = settings.congestion_window_s / _PARTS
        self._parts = [0] * _PARTS
        self._sum = 0
        self._at = 0
        """Number of the part that is being filled, counted from time 0."""

    def reserved(self, prefill_ms: float, now_s: float) -> None:
        """So much prefill was given to a worker."""
        part = int(now_s / self._width_s)
        if part != self._at:
            self._move(part)
        amount = int(prefill_ms * _US)
        self._parts[self._at % _PARTS] += amount
        self._sum += amount

    def returned(self, prefill_ms: float, reserved_at_s: float, now_s: float) -> None:
        """It was not done after all: refused, or withdrawn while it waited."""
        self._move(int(now_s / self._width_s))
        part = int(reserved_at_s / self._width_s)
        if self._at - _PARTS < part <= self._at:
            amount = min(int(prefill_ms * _US), self._parts[part % _PARTS])
            self._parts[part % _PARTS] -= amount
            self._sum -= amount

    def utilisation(self, workers: int, now_s: float) -> float:
        """Share of their time that the prefill takes, 0 or more; above 1 more is given than they can do.

        Args:
            workers: Those that may be given prefill now; where there is none, one is taken.
            now_s: Now.
        """
        part = int(now_s / self._width_s)
        if part != self._at:
            self._move(part)
        return self._sum / _US / (self._window_s * _US * max(1, workers))

    def price(self, workers: int, now_s: float) -> float:
        """λ, 0 or more, bounded by the settings' ``congestion_max_ratio``."""
        u = min(self.utilisation(workers, now_s), self._max_ratio)
        return u / (1 - u)

    def _move(self, part: int) -> None:
        """Leave behind what is older than the window. A clock that goes back moves nothing."""
        for old in range(self._at + 1, min(part, self._at + _PARTS) + 1):
            self._sum -= self._parts[old % _PARTS]
            self._parts[old % _PARTS] = 0
        self._at = max(self._at, part)
