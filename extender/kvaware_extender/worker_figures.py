"""Figures of workers and models as metrics: read in slices before each scrape, so that none outlives its object."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from kvaware_cluster import Kind, WorkerScraper
from kvaware_engine import ModelLoad, ModelObservation, ObjectKey, RoleLoad, Workers
from kvaware_extender.view import View

__all__ = ["WorkerFigures"]

WORKERS_AT_A_TIME: Final = 20
"""Looked at together, some 2 ms; 5,000 workers are 0.6 s."""
WORKER: Final = ["worker", "model"]
ROLE: Final = ["model", "role"]


class WorkerFigures:
    """What ``/metrics`` says of workers: of those that there are and report, and only what they tell."""

    def __init__(self, workers: Workers, *, view: View, scraper: WorkerScraper, clock: Callable[[], float]) -> None:
        self._workers = workers
        self._view = view
        self._scraper = scraper
        self._clock = clock
        self._families: tuple[Metric, ...] = ()

    async def read(self) -> None:
        """Look at every model and its workers; calls of kube-scheduler and requests come between."""
        queue = GaugeMetricFamily("worker_queue_length", "Requests that wait in a worker's queue.", labels=WORKER)
        batch = GaugeMetricFamily("batch_size", "Requests in a worker's batch.", labels=WORKER)
        latency = GaugeMetricFamily(
            "p99_decode_latency", "Time per output token that 99 % stay below, in seconds, over a minute.", labels=ROLE
        )
        ready = GaugeMetricFamily("kvaware_workers_ready", "Workers that are Ready and take requests.", labels=ROLE)
        reporting = GaugeMetricFamily("kvaware_workers_reporting", "Those of them that report.", labels=ROLE)
        looked_at = 0
        for key in sorted(self._view.objects(Kind.INFERENCE_MODEL)):
            model = f"{key.namespace}/{key.name}"
            for worker in self._workers.of_model(key):
                looked_at += 1
                if looked_at % WORKERS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
                self._worker(worker, model, queue=queue, batch=batch)
            for role in await self._loads(key):
                if role.tpot_p99_ms is not None:
                    latency.add_metric([model, role.role], role.tpot_p99_ms / 1000)
                ready.add_metric([model, role.role], role.workers)
                reporting.add_metric([model, role.role], role.reporting)
        self._families = (queue, batch, latency, ready, reporting)

    def _worker(self, worker: str, model: str, *, queue: GaugeMetricFamily, batch: GaugeMetricFamily) -> None:
        view = self._workers.view(worker, self._clock())
        if view is None or not view.reporting:
            return
        if view.waiting is not None:
            queue.add_metric([worker, model], view.waiting)
        size = view.batch_size if view.batch_size is not None else view.running
        if size is not None:
            batch.add_metric([worker, model], size)

    async def _loads(self, key: ObjectKey) -> tuple[RoleLoad, ...]:
        """Of one model's roles; none where the model has gone meanwhile."""
        model: ModelObservation | None = self._view.objects(Kind.INFERENCE_MODEL).get(key)
        if model is None:
            return ()
        roles = [role.name for role in model.roles]
        slices = self._workers.load_in_slices(key, roles, now_s=self._clock(), at_a_time=WORKERS_AT_A_TIME)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                load: ModelLoad = end.value
                return load.roles
            await asyncio.sleep(0)

    def metrics(self) -> Iterator[Metric]:
        """As of the last ``read``."""
        yield from self._families
        failing = len(self._scraper.troubles())
        yield GaugeMetricFamily("kvaware_workers_unscraped", "Pods whose last scrape failed.", value=failing)
