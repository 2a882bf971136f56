"""Metrics that are read when somebody asks: they follow the objects of the cluster, so none outlives its object."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from kvaware_cluster.process_metrics import count, counter, gauge, gauges
from kvaware_engine import Engine, TenantView
from kvaware_extender.binding import Binder
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.feed import Feed
from kvaware_extender.findings import FindingsWriter
from kvaware_extender.metrics import Metrics
from kvaware_extender.request_metrics import RequestMetrics
from kvaware_extender.view import View
from kvaware_extender.wakeups import WakeUps
from kvaware_extender.worker_figures import WorkerFigures

__all__ = ["register"]


def register(
    metrics: Metrics,
    *,
    engine: Engine,
    view: View,
    feed: Feed,
    wakeups: WakeUps,
    binder: Binder,
    decisions: DecisionLog,
    figures: WorkerFigures,
    findings: FindingsWriter,
    requests: RequestMetrics,
    ready: Callable[[], bool],
) -> None:
    """Add the collectors. Labels: node and tenant names of the cluster, kinds."""

    def read() -> Iterator[Metric]:
        text = "Calls of kube-scheduler answered, and requests decided about, per second, over 30 s."
        yield gauge("scheduler_qps", text, metrics.qps())
        yield gauge("scheduler_queue_length", "Pods that were refused and not admitted since.", len(wakeups))
        text = "Refusals of pods, by filter or bind, and of requests."
        yield count("schedule_reject_count", text, metrics.rejected + requests.refused)
        yield gauges("gpu_hbm_used_bytes", "HBM in use, as DCGM shows it.", "node", feed.used_bytes().items())
        yield gauge("kvaware_ready", "1 when decisions can be made.", float(ready()))
        ages = ((str(kind), age_s) for kind, age_s in view.ages().items() if age_s is not None)
        yield gauges("kvaware_view_age_seconds", "Age of the view; absent: unknown.", "kind", ages)
        yield gauge("kvaware_bindings_in_doubt", "Bindings that the API server has not confirmed.", len(binder.doubts))
        yield counter("kvaware_decision_log_dropped", "Records that found the queue full.", decisions.dropped)
        yield counter("kvaware_decision_log_failed", "Records that could not be written.", decisions.failed)
        yield gauges(
            "gpu_utilization", "Share of time in which the node's GPUs work.", "node", feed.utilization().items()
        )
        waiting = len(findings)
        yield gauge("kvaware_findings_waiting", "Pods whose findings are to be looked at or written.", waiting)
        yield from figures.metrics()
        yield from tenants(engine.tenants())

    metrics.collect_from(read)


def tenants(views: Iterable[TenantView]) -> Iterator[Metric]:
    """Use and limits per tenant; a limit that is not set has no sample."""
    rows = list(views)
    figures: list[tuple[str, str, Callable[[TenantView], int | None]]] = [
        ("kvaware_tenant_used_gpus", "GPUs that the tenant's pods hold.", lambda v: v.used_gpus),
        ("kvaware_tenant_used_hbm_bytes", "HBM that the tenant's pods are charged.", lambda v: v.used_hbm_bytes),
        ("kvaware_tenant_limit_gpus", "Limit of the tenant.", lambda v: v.limit_gpus),
        ("kvaware_tenant_limit_hbm_bytes", "Limit of the tenant.", lambda v: v.limit_hbm_bytes),
        ("kvaware_tenant_guaranteed_gpus", "Kept for the tenant.", lambda v: v.guaranteed_gpus),
        ("kvaware_tenant_guaranteed_hbm_bytes", "Kept for the tenant.", lambda v: v.guaranteed_hbm_bytes),
    ]
    for name, text, figure in figures:
        values = [(view.tenant, float(value)) for view in rows if (value := figure(view)) is not None]
        yield gauges(name, text, "tenant", values)
