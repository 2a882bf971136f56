"""Figures of workers and models as metrics: read in slices before each scrape, so that none outlives its object."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from kvaware_cluster import Kind, WorkerScraper
from kvaware_engine import RoleLoad, Workers, WorkerView
from kvaware_extender.view import View

__all__ = ["WorkerFigures"]

MODELS_AT_A_TIME: Final = 4
"""Looked at together, some 3 ms with five workers each; 5,000 workers are 0.7 s."""
WORKER: Final = ["worker", "model"]
ROLE: Final = ["model", "role"]


class WorkerFigures:
    """What ``/metrics`` says of workers: of those that there are and report, and only what they tell."""

    def __init__(self, workers: Workers, *, view: View, scraper: WorkerScraper, clock: Callable[[], float]) -> None:
        self._workers = workers
        self._view = view
        self._scraper = scraper
        self._clock = clock
        self._views: list[WorkerView] = []
        self._roles: list[tuple[str, RoleLoad]] = []

    async def read(self) -> None:
        """Look at every model and its workers; calls of kube-scheduler come between."""
        views: list[WorkerView] = []
        roles: list[tuple[str, RoleLoad]] = []
        for number, (key, model) in enumerate(sorted(self._view.objects(Kind.INFERENCE_MODEL).items())):
            if number % MODELS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            now_s = self._clock()
            views += self._workers.views(key, now_s=now_s)
            load = self._workers.load(key, [role.name for role in model.roles], now_s=now_s)
            roles += [(f"{key.namespace}/{key.name}", role) for role in load.roles]
        self._views, self._roles = views, roles

    def metrics(self) -> Iterator[Metric]:
        """As of the last ``read``."""
        queue = GaugeMetricFamily("worker_queue_length", "Requests that wait in a worker's queue.", labels=WORKER)
        batch = GaugeMetricFamily("batch_size", "Requests in a worker's batch.", labels=WORKER)
        for view in self._views:
            if not view.reporting:
                continue
            labels = [view.worker, f"{view.model.namespace}/{view.model.name}"]
            if view.waiting is not None:
                queue.add_metric(labels, view.waiting)
            size = view.batch_size if view.batch_size is not None else view.running
            if size is not None:
                batch.add_metric(labels, size)
        latency = GaugeMetricFamily(
            "p99_decode_latency", "Time per output token that 99 % stay below, in seconds, over a minute.", labels=ROLE
        )
        ready = GaugeMetricFamily("kvaware_workers_ready", "Workers that are Ready and take requests.", labels=ROLE)
        reporting = GaugeMetricFamily("kvaware_workers_reporting", "Those of them that report.", labels=ROLE)
        for model, role in self._roles:
            if role.tpot_p99_ms is not None:
                latency.add_metric([model, role.role], role.tpot_p99_ms / 1000)
            ready.add_metric([model, role.role], role.workers)
            reporting.add_metric([model, role.role], role.reporting)
        yield from (queue, batch, latency, ready, reporting)
        failing = len(self._scraper.troubles())
        yield GaugeMetricFamily("kvaware_workers_unscraped", "Pods whose last scrape failed.", value=failing)
