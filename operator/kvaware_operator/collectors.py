"""Metrics that are read when somebody asks: they follow what is there now."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric

from kvaware_cluster import Kind
from kvaware_cluster.process_metrics import counter, gauge, gauges
from kvaware_engine.observations import ObjectKey
from kvaware_operator.metrics import Metrics
from kvaware_operator.statuses import StatusWriter
from kvaware_operator.work_queue import WorkQueue

__all__ = ["register"]


def register(
    metrics: Metrics,
    *,
    leading: Callable[[], bool],
    ready: Callable[[], bool],
    ages_s: Callable[[], Mapping[Kind, float | None]],
    queues: Mapping[Kind, WorkQueue[ObjectKey]],
    statuses: StatusWriter,
    kopf_restarts: Callable[[], int],
) -> None:
    """Add the collectors."""

    def read() -> Iterator[Metric]:
        yield gauge("kvaware_operator_leading", "1 while this process acts.", float(leading()))
        yield gauge("kvaware_operator_ready", "1 while it can do its work.", float(ready()))
        ages = {str(kind): age_s for kind, age_s in ages_s().items() if age_s is not None}
        yield gauges("kvaware_operator_view_age_seconds", "Age of the view; absent: unknown.", "kind", ages.items())
        waiting = {str(kind): float(len(queue)) for kind, queue in queues.items()}
        yield gauges("kvaware_operator_queue_length", "Objects to be looked at, now or later.", "kind", waiting.items())
        failing = {str(kind): float(queue.failing) for kind, queue in queues.items()}
        yield gauges("kvaware_operator_failing", "Objects whose last look failed.", "kind", failing.items())
        older = {str(kind): float(kind in statuses.lost_fields()) for kind in queues}
        yield gauges(
            "kvaware_operator_crd_older", "1 where the installed CRD drops status fields.", "kind", older.items()
        )
        yield counter("kvaware_operator_kopf_restarts", "Times kopf gave up.", kopf_restarts())

    metrics.collect_from(read)
