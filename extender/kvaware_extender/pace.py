"""A token bucket on an injected clock."""

from collections.abc import Callable

__all__ = ["Pace"]


class Pace:
    """Allows ``per_s`` events a second on average and ``burst`` at once after a quiet time."""

    def __init__(self, *, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at_s = clock()

    def take(self, *, leave: int = 0) -> bool:
        """Take one, if there is one and so many are left for others."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._tokens < 1 + leave:
            return False
        self._tokens -= 1
        return True
