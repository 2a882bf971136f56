"""Counters and histograms that only grow → what they grew by in a window of time.

A counter that falls was started again: what it shows then is its growth since. Observations come in the order of
their time; the caller drops what is older.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple, TypeVar

from kvaware_engine.reports import LatencyHistogram

__all__ = ["BucketGrowth", "CounterWindow", "HistogramWindow", "quantile_s"]

_SAMPLES: Final = 6
"""A window is met within a sixth of its length, and seven or eight samples are kept, however often somebody reports."""
_KINDS: Final = 8
"""Sets of bounds that are joined; servers of one model and version share one. Each is a worker's own word, and 400
workers with bounds of their own took a minute."""
_Grown = TypeVar("_Grown")


class BucketGrowth(NamedTuple):
    """What a histogram counted in a window."""

    bounds_s: tuple[float, ...]
    """Upper bounds, ascending, the last is infinity. Shape (buckets,)."""
    counts: tuple[float, ...]
    """Observations at or below each bound. Shape (buckets,)."""


class CounterWindow:
    """One counter."""

    __slots__ = ("_grown", "_samples", "_window_s", "latest")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._grown = 0.0
        self._samples: deque[tuple[float, float]] = deque()
        """Time, and growth since the first observation."""
        self.latest = 0.0
        """As it stood at the last observation."""

    @property
    def at_s(self) -> float:
        """When it was observed last; minus infinity before."""
        return self._samples[-1][0] if self._samples else -inf

    def observe(self, value: float, *, at_s: float) -> None:
        """Take one observation, later than those before."""
        if self._samples:
            self._grown += value - self.latest if value >= self.latest else value
        self.latest = value
        _keep(self._samples, at_s, self._grown, window_s=self._window_s)

    def increase(self) -> float | None:
        """Growth over the window that ends with the last observation; None: seen only once."""
        return None if len(self._samples) < 2 else self._samples[-1][1] - self._samples[0][1]

    def rate_per_s(self) -> float | None:
        """The same, per second."""
        increase = self.increase()
        return None if increase is None else increase / (self._samples[-1][0] - self._samples[0][0])


class HistogramWindow:
    """One histogram of latencies."""

    __slots__ = ("_bounds_s", "_samples", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._bounds_s: tuple[float, ...] = ()
        self._samples: deque[tuple[float, array[float]]] = deque()
        """Time, and counts as they would be had the server's last start been its first: negative before it."""

    @property
    def at_s(self) -> float:
        """When it was observed last; minus infinity before."""
        return self._samples[-1][0] if self._samples else -inf

    def observe(self, histogram: LatencyHistogram, *, at_s: float) -> None:
        """Take one observation, later than those before. Other bounds than before start over.

        Raises: ValueError when bounds and counts are not of one length, or there are none.
        """
        counts = array("d", histogram.counts)
        if not counts or len(histogram.bounds_s) != len(counts):
            raise ValueError(f"expected as many counts as bounds, got {len(counts)} and {len(histogram.bounds_s)}")
        if histogram.bounds_s != self._bounds_s:
            self._bounds_s = histogram.bounds_s
            self._samples.clear()
        elif counts[-1] < self._samples[-1][1][-1]:
            # Started again. What was seen before is moved below 0 once, so that every other observation only has to
            # be kept: adding up the growth of 20 buckets each time took more than half of taking in a report.
            last = self._samples[-1][1]
            moved = [
                (then_s, array("d", [count - end for count, end in zip(then, last, strict=True)]))
                for then_s, then in self._samples
            ]
            self._samples = deque(moved)
        _keep(self._samples, at_s, counts, window_s=self._window_s)

    def increase(self) -> BucketGrowth | None:
        """Growth of each bucket over the window that ends with the last observation; None: seen only once."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0][1], self._samples[-1][1]
        return BucketGrowth(
            self._bounds_s, tuple([max(0.0, now - then) for now, then in zip(last, first, strict=True)])
        )


def quantile_s(growths: Sequence[BucketGrowth], share: float) -> float | None:
    """The latency that ``share`` of all observations stay at or below, linear inside its bucket.

    An observation beyond the last finite bound counts as that bound, as in Prometheus' ``histogram_quantile``: the
    true value is at least so much. Histograms of different bounds are joined over all their bounds, up to ``_KINDS`` of
    them, those that observed most.

    Args:
        growths: One per worker; their bounds may differ.
        share: 0..1.
    Returns: Seconds; None where nothing was observed.
    """
    growths = _joined(growths)
    bounds = sorted({bound for growth in growths for bound in growth.bounds_s if bound < inf})
    total = sum(growth.counts[-1] for growth in growths)
    if total <= 0 or not bounds:
        return None
    rank = share * total
    below, lower = 0.0, 0.0
    for bound in bounds:
        count = sum(_count_at(growth, bound) for growth in growths)
        if count >= rank and count > below:
            return lower + (bound - lower) * max(0.0, rank - below) / (count - below)
        below, lower = max(below, count), bound
    return lower


def _joined(growths: Sequence[BucketGrowth]) -> list[BucketGrowth]:
    """One for each set of bounds: what was counted with the same bounds adds up."""
    alike: dict[tuple[float, ...], list[tuple[float, ...]]] = {}
    for growth in growths:
        alike.setdefault(growth.bounds_s, []).append(growth.counts)
    sums = [
        BucketGrowth(bounds, tuple([sum(each) for each in zip(*counts, strict=True)]))
        for bounds, counts in alike.items()
    ]
    return sorted(sums, key=lambda growth: -growth.counts[-1])[:_KINDS]


def _count_at(growth: BucketGrowth, bound_s: float) -> float:
    """Observations at or below any bound, linear between the histogram's own."""
    at = bisect_left(growth.bounds_s, bound_s)
    if at == len(growth.bounds_s):
        return growth.counts[-1]
    upper = growth.bounds_s[at]
    below = growth.counts[at - 1] if at else 0.0
    if upper == bound_s:
        return growth.counts[at]
    if upper == inf:
        return below
    lower = growth.bounds_s[at - 1] if at else 0.0
    return below + (growth.counts[at] - below) * (bound_s - lower) / (upper - lower)


def _keep(samples: deque[tuple[float, _Grown]], at_s: float, grown: _Grown, *, window_s: float) -> None:
    """Add the newest sample; keep one at or before the window's start, and a bounded number inside."""
    if len(samples) >= 2 and samples[-1][0] - samples[-2][0] < window_s / _SAMPLES:
        samples.pop()
    samples.append((at_s, grown))
    while len(samples) > 2 and samples[1][0] <= at_s - window_s:
        samples.popleft()
