"""How long to wait after the n-th failure in a row."""

import random
from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """Doubling waits with jitter, from ``first_s`` to ``max_s``.

    Half of each wait is fixed and half is drawn: five watches that broke together do not come back together, and none
    comes back at once.
    """

    first_s: float
    max_s: float
    rng: random.Random
    failures: int = 0

    def next_s(self) -> float:
        """Count one more failure and say how long to wait."""
        # 2**10 of the smallest sensible first wait is past any cap; the bound keeps the power small
        ceiling = min(self.max_s, self.first_s * float(1 << min(self.failures, 10)))
        self.failures += 1
        return ceiling * (0.5 + 0.5 * self.rng.random())

    def reset(self) -> None:
        """It works again."""
        self.failures = 0
