"""What the metrics of all kvaware processes share: a registry of their own, and figures read at each scrape."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Metric, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.registry import Collector

__all__ = ["ProcessMetrics", "count", "counter", "counters", "gauge", "gauges"]

# A ``…_created`` gauge beside each counter doubles the series and tells nothing here.
disable_created_metrics()  # type: ignore[no-untyped-call] # the library left this one out


class ProcessMetrics:
    """One registry per process that is wired: two in one interpreter (tests) do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def collect_from(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Add a collector that is asked at each scrape: what is gone by then has no series any more."""
        self.registry.register(_Reader(read))

    def render(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)


class _Reader(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: registering must not read what is not there yet."""
        return ()


def gauge(name: str, text: str, value: float) -> Metric:
    """One gauge without labels."""
    return GaugeMetricFamily(name, text, value=value)


def gauges(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """One gauge with one label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def count(name: str, text: str, value: float) -> Metric:
    """A count under exactly this name: a counter would be renamed to ``…_total``."""
    return UnknownMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """A counter that is kept elsewhere; ``_total`` is appended."""
    return CounterMetricFamily(name, text, value=value)


def counters(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """One counter with one label, kept elsewhere; ``_total`` is appended."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family
