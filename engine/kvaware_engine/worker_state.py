"""What is known of one worker: each figure with the time of its observation, and its counters."""

from dataclasses import dataclass
from math import inf
from typing import Any, Final, cast

from kvaware_engine.counters import BucketGrowth, CounterWindow, HistogramWindow
from kvaware_engine.reports import LatencyHistogram, ReportSource, ReportTimes, WorkerPlace, WorkerReport

__all__ = ["WorkerState"]

PASSING: Final = (
    "waiting",
    "running",
    "queued_tokens",
    "batch_size",
    "gpu_utilization_ratio",
    "hbm_used_bytes",
    "kv_blocks_free",
    "kv_usage_ratio",
    "cpu_tier_free_bytes",
    "ssd_tier_free_bytes",
)
"""Figures that say nothing any more once they are older than the time-out."""
LASTING: Final = (
    "kv_blocks_total",
    "block_size_tokens",
    "capabilities",
    "draining",
    "asleep",
    "address",
    "adapters",
    "transfer_domain",
)
"""Figures that hold until told otherwise."""
COUNTERS: Final = (
    "prompt_tokens",
    "generation_tokens",
    "finished_requests",
    "preemptions",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
)
HISTOGRAMS: Final = ("ttft", "tpot")


@dataclass(slots=True)
class _Figure:
    value: Any
    at_s: float


class WorkerState:
    """One worker. Changed by its owner, ``Workers``, alone."""

    __slots__ = (
        "_counters",
        "_figures",
        "_histograms",
        "_restarts",
        "_seq",
        "_seq_at_s",
        "_window_s",
        "absent_since_s",
        "at_s",
        "awaited_since_s",
        "gone",
        "heard_since_s",
        "place",
    )

    def __init__(self, place: WorkerPlace, *, window_s: float) -> None:
        self.place = place
        self.gone = False
        """The API server does not show it at present."""
        self.absent_since_s: float | None = None
        self._window_s = window_s
        self._restarts = 0
        self._start_over()

    @property
    def incarnation(self) -> str:
        """Of its process: a container may start it again without the API server's telling."""
        return f"{self.place.incarnation}#{self._restarts}" if self._restarts else self.place.incarnation

    def _start_over(self) -> None:
        """Another incarnation: its KV pool is empty and its counters begin at 0."""
        self.at_s = -inf
        """Of the youngest observation."""
        self.heard_since_s = inf
        """Of the oldest observation; infinity before."""
        self.awaited_since_s: float | None = None
        """Since when it was Ready and nothing was heard of it, as far as somebody looked."""
        self._seq: int | None = None
        self._seq_at_s = -inf
        self._figures: dict[str, _Figure] = {}
        self._counters: dict[str, CounterWindow] = {}
        self._histograms: dict[str, HistogramWindow] = {}

    def move(self, place: WorkerPlace) -> None:
        """It is where the API server shows it now."""
        if place.incarnation != self.place.incarnation:
            self._restarts = 0
            self._start_over()
        self.place = place
        self.gone = False
        self.absent_since_s = None

    def take(self, report: WorkerReport, *, at_s: float, timeout_s: float) -> bool:
        """Take over what is later than what is known.

        Args:
            report: Of this incarnation.
            at_s: When it was observed, not in the future.
            timeout_s: A heartbeat whose number goes back after so long a silence is a new process, not an old message.
        Returns: Whether anything was taken.
        """
        if report.source is ReportSource.HEARTBEAT and report.seq is not None:
            if self._seq is not None and report.seq <= self._seq:
                if at_s - self._seq_at_s <= timeout_s:
                    return False
                self._restarts += 1
                self._start_over()
            self._seq, self._seq_at_s = report.seq, at_s
        taken = at_s > self.at_s
        for name in PASSING + LASTING:
            value = getattr(report, name)
            if value is None:
                continue
            known = self._figures.get(name)
            if known is None:
                self._figures[name] = _Figure(value, at_s)
                taken = True
            elif at_s > known.at_s:
                known.value, known.at_s = value, at_s
                taken = True
        if report.counters is not None:
            for name in COUNTERS:
                count: float | None = getattr(report.counters, name)
                if count is not None:
                    taken |= self._count(name, count, at_s)
            for name in HISTOGRAMS:
                histogram: LatencyHistogram | None = getattr(report.counters, name)
                if histogram is not None:
                    taken |= self._observe(name, histogram, at_s)
        self.at_s = max(self.at_s, at_s)
        self.heard_since_s = min(self.heard_since_s, at_s)
        return taken

    def _count(self, name: str, count: float, at_s: float) -> bool:
        window = self._counters.get(name)
        if window is None:
            window = self._counters[name] = CounterWindow(self._window_s)
        if at_s <= window.at_s:
            return False
        window.observe(count, at_s=at_s)
        return True

    def _observe(self, name: str, histogram: LatencyHistogram, at_s: float) -> bool:
        window = self._histograms.get(name)
        if window is None:
            window = self._histograms[name] = HistogramWindow(self._window_s)
        if at_s <= window.at_s:
            return False
        window.observe(histogram, at_s=at_s)
        return True

    def lasting(self, name: str) -> Any:
        """A figure that holds until told otherwise; None: never told."""
        figure = self._figures.get(name)
        return None if figure is None else figure.value

    def passing(self, name: str, *, since_s: float) -> Any:
        """A figure that must not be older than ``since_s``; None: unknown."""
        figure = self._figures.get(name)
        return None if figure is None or figure.at_s < since_s else figure.value

    def kv_pool(self, *, since_s: float) -> tuple[int | None, float | None]:
        """Free blocks and the share in use: one figure in two forms, of which the one observed later holds.

        A heartbeat counts blocks, a scrape tells a share (ai-dynamo/dynamo#7753: two sources, one number).
        """
        total = cast("int | None", self.lasting("kv_blocks_total"))
        free = cast("int | None", self.passing("kv_blocks_free", since_s=since_s))
        usage = cast("float | None", self.passing("kv_usage_ratio", since_s=since_s))
        if free is not None and usage is not None:
            if self._figures["kv_blocks_free"].at_s >= self._figures["kv_usage_ratio"].at_s:
                usage = None
            else:
                free = None
        if total and free is not None:
            usage = min(1.0, max(0.0, 1 - free / total))
        elif total and usage is not None:
            free = round(total * (1 - usage))
        return free, usage

    def times(self, *, since_s: float) -> ReportTimes:
        """When its figures were observed that are not older than ``since_s``."""

        def at_s(*names: str) -> list[float]:
            figures = (self._figures.get(name) for name in names)
            return [figure.at_s for figure in figures if figure is not None and figure.at_s >= since_s]

        return ReportTimes(
            # Of the two the older: a request that is in neither, nor in what was reserved, would be lost.
            load_at_s=min(at_s("waiting", "running"), default=-inf),
            waiting_at_s=max(at_s("waiting"), default=-inf),
            queued_tokens_at_s=max(at_s("queued_tokens"), default=-inf),
            kv_at_s=max(at_s("kv_blocks_free", "kv_usage_ratio"), default=-inf),
            any_at_s=self.at_s,
        )

    def counter(self, name: str, *, since_s: float) -> CounterWindow | None:
        """A counter that was observed at ``since_s`` or later."""
        window = self._counters.get(name)
        return None if window is None or window.at_s < since_s else window

    def rate_per_s(self, name: str, *, since_s: float) -> float | None:
        """0: it stands still. None: not told, or only once."""
        window = self.counter(name, since_s=since_s)
        return None if window is None else window.rate_per_s()

    def increase(self, name: str, *, since_s: float) -> float | None:
        """Growth in the window."""
        window = self.counter(name, since_s=since_s)
        return None if window is None else window.increase()

    def buckets(self, name: str, *, since_s: float) -> BucketGrowth | None:
        """What a histogram counted in the window."""
        window = self._histograms.get(name)
        return None if window is None or window.at_s < since_s else window.increase()
