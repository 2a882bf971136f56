"""A rate as a bucket that fills by itself, can be asked without being charged, and may be charged into debt.

It is kept as the time at which it is full (GCRA, the generic cell rate algorithm of ITU-T I.371): no refilling, and
"when is this admitted" is one sum, the same one that "is it admitted" compares with. Waiting for exactly as long as one
was told is therefore enough, whatever the rounding.
"""

from math import inf
from typing import Final

__all__ = ["Bucket"]

SLACK_S: Final = 1e-6
"""So much too early is in time, since sums are rounded. It is not given away: what is charged is accounted in full."""
SLACK_RATIO: Final = 1e-15
"""Of the clock, the same: a few of its floating-point steps, where it shows more than decades."""


class Bucket:
    """Amounts per second, of which ``depth_s`` seconds' worth may come at once. ``now_s`` never goes back."""

    __slots__ = ("_at_s", "_depth_s", "_full_at_s", "_later", "_left_ratio", "rate_per_s")

    def __init__(self, rate_per_s: float, *, depth_s: float) -> None:
        """A full one.

        Args:
            rate_per_s: Above 0. (A rate of 0 admits nothing ever, and that is no question of time.)
            depth_s: Above 0.
        Raises: ValueError.
        """
        if not (0 < rate_per_s < inf and 0 < depth_s < inf):
            raise ValueError(f"expected a finite rate and depth above 0, got {rate_per_s} and {depth_s}")
        self.rate_per_s = rate_per_s
        self._depth_s = depth_s
        self._full_at_s = -inf
        self._at_s = -inf
        """When it was charged last: until then the present rate is not known to have held."""
        self._later: Bucket | None = None
        """The one of the next rate, which goes on from here."""
        self._left_ratio = 1.0
        """How much of a time that was taken here it takes there."""

    @property
    def depth(self) -> float:
        """What it holds when it is full."""
        return self.rate_per_s * self._depth_s

    def level(self, now_s: float) -> float:
        """What is in it; below 0: debt."""
        return self.rate_per_s * (self._depth_s - max(0.0, self._full_at_s - now_s))

    def wait_s(self, amount: float, now_s: float, *, kept: float = 0.0) -> float:
        """How long until an amount is admitted if nobody else comes; 0: it is admitted now.

        What is more than the bucket holds is admitted when it is full, into debt: a prompt of 2,000 tokens passes a
        limit of 1,000 a second, once every two seconds.

        Args:
            amount: 0 or more.
            now_s: Now.
            kept: What has to be left after it, for others; of a larger bucket a smaller part.
        """
        needed_s = min((amount + kept) / self.rate_per_s, self._depth_s)
        wait_s = self._full_at_s - self._depth_s + needed_s - now_s
        return wait_s if wait_s > SLACK_S + SLACK_RATIO * now_s else 0.0

    def charge(self, amount: float, now_s: float) -> None:
        """Take an amount out, whether it is there or not."""
        self._full_at_s = max(self._full_at_s, now_s) + amount / self.rate_per_s
        self._at_s = now_s

    @property
    def latest(self) -> "Bucket":
        """The one that goes on from here: itself, unless the rate changed."""
        bucket = self
        while bucket._later is not None:
            bucket = bucket._later
        return bucket

    def refund(self, amount: float) -> None:
        """Give back what was charged here and not used; nothing overflows.

        The latest gets back as long as the amount takes there now. A second's worth of a high rate would fill one of a
        low rate for hours.
        """
        bucket, taken_s = self, amount / self.rate_per_s
        while bucket._later is not None:
            taken_s *= bucket._left_ratio
            bucket = bucket._later
        bucket._full_at_s -= taken_s  # noqa: SLF001 - of its own class

    def at_rate(self, rate_per_s: float) -> "Bucket":
        """Another limit: what was taken stays taken, and nobody waits longer for it than before.

        At a higher rate it comes back sooner. At a lower one the same amount would take longer: a tenant whose limit
        falls to a hundredth would be shut out for a hundred times as long for what it was allowed.

        Returns: What takes this one's place, and is known here: what was charged here can still be given back.
        """
        if rate_per_s == self.rate_per_s:
            return self
        later = Bucket(rate_per_s, depth_s=self._depth_s)
        self._left_ratio = min(1.0, self.rate_per_s / rate_per_s)
        later._at_s = self._at_s
        later._full_at_s = self._full_at_s
        if self._full_at_s > self._at_s:
            later._full_at_s = self._at_s + (self._full_at_s - self._at_s) * self._left_ratio
        self._later = later
        return later
