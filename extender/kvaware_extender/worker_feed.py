"""What the API server and the workers tell of workers goes into ``Workers``, with the GPUs that they run on added."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from kvaware_cluster import Change, Kind, WorkerMembership, split_worker
from kvaware_engine import (
    ModelObservation,
    NodeObservation,
    NodeUse,
    ObjectKey,
    PodObservation,
    ReportVerdict,
    WorkerPlace,
    WorkerReport,
    Workers,
)
from kvaware_extender.metrics import Metrics

__all__ = ["WorkerFeed"]

FORGOTTEN_AFTER_TIMEOUTS: Final = 3.0
"""Report time-outs for which a data-parallel rank may be silent until it is expected no more. Long enough for a server
that restarts in its container to be heard again; a wrong rank in one heartbeat must not hold up scaling for ever."""


class Observed(Protocol):
    """The store, as far as a worker's GPUs are concerned."""

    def objects(self, kind: Kind) -> Mapping[ObjectKey, Any]:
        """All observations of one kind."""
        ...

    def pod(self, namespace: str, name: str) -> PodObservation | None:
        """The pod as last seen."""
        ...


class WorkerFeed:
    """A listener of the store. Nothing here reaches the engine that places pods: reports are no input of it."""

    def __init__(self, workers: Workers, *, view: Observed, metrics: Metrics, report_timeout_s: float) -> None:
        """Know nothing yet; ``report_timeout_s`` is that of the workers' settings."""
        self._forgotten_after_s = FORGOTTEN_AFTER_TIMEOUTS * report_timeout_s
        self._workers = workers
        self._view = view
        self._metrics = metrics
        self.membership = WorkerMembership(placed=self._placed)
        self._places: dict[str, WorkerPlace] = {}
        """As the membership tells them, without GPUs."""
        self._ranks: dict[ObjectKey, set[str]] = {}
        """Pod to its workers."""
        self._on_node: dict[str, set[str]] = {}
        self._of_model: dict[ObjectKey, set[str]] = {}
        self._heard_at_s: OrderedDict[str, float] = OrderedDict()
        """When each worker beat last, who has been silent for longest first."""

    def changed(self, change: Change[Any]) -> None:
        """A model or a node changed: so may have what its workers are and what they run on."""
        if change.kind == Kind.INFERENCE_MODEL:
            self.membership.changed(change)
            self._expect_again(self._of_model.get(change.key, ()))
        elif change.kind == Kind.NODE and _pools(change.old) != _pools(change.new):
            self._expect_again(self._on_node.get(change.key.name, ()))

    def listed(self, kind: Kind, *, began_at_s: float) -> None:
        """See ``Listener``: every change was told one by one."""

    def used(self, node: str, use: NodeUse | None) -> None:
        """See ``Listener``: not asked."""

    def scraped(self, report: WorkerReport, *, now_s: float) -> None:
        """A worker's ``/metrics`` were read."""
        self._forget_silent(now_s)
        self._metrics.scrapes[self._workers.observe(report, now_s=now_s)].inc()

    def beat(self, report: WorkerReport, *, now_s: float) -> ReportVerdict:
        """A worker sent a heartbeat. A data-parallel rank that was not known is expected until it is silent."""
        self._forget_silent(now_s)
        place = self.membership.heard(report.worker)
        if place is None:
            return ReportVerdict.UNKNOWN_WORKER
        self._heard_at_s[report.worker] = now_s
        self._heard_at_s.move_to_end(report.worker)
        return self._workers.observe(replace(report, incarnation=place.incarnation), now_s=now_s)

    def model_of(self, pod: ObjectKey) -> ObjectKey | None:
        """Whose workers the pod runs; None: it runs none."""
        worker = next(iter(self._ranks.get(pod, ())), None)
        return self._places[worker].model if worker is not None else None

    def _forget_silent(self, now_s: float) -> None:
        """Expect no more the ranks that have been silent for long. Where nobody reports nothing is known anyway."""
        while self._heard_at_s:
            worker, heard_at_s = next(iter(self._heard_at_s.items()))
            if now_s - heard_at_s <= self._forgotten_after_s:
                return
            if self.membership.silent(worker):
                self._heard_at_s.pop(worker, None)
            else:  # perhaps another rank is the lowest by then
                self._heard_at_s[worker] = now_s
                self._heard_at_s.move_to_end(worker)

    def _placed(self, worker: str, place: WorkerPlace | None) -> None:
        before = self._places.pop(worker, None)
        split = split_worker(worker)
        pod = split[0] if split is not None else ObjectKey("", worker)
        if before is not None:
            _leave(self._ranks, pod, worker)
            _leave(self._of_model, before.model, worker)
            if before.node is not None:
                _leave(self._on_node, before.node, worker)
        if place is not None:
            self._places[worker] = place
            self._ranks.setdefault(pod, set()).add(worker)
            self._of_model.setdefault(place.model, set()).add(worker)
            if place.node is not None:
                self._on_node.setdefault(place.node, set()).add(worker)
        else:
            self._heard_at_s.pop(worker, None)
            self._workers.expect(worker, None)
        # Another rank of the pod takes its share of the GPUs.
        self._expect_again(self._ranks.get(pod, ()))

    def _expect_again(self, workers: Any) -> None:
        for worker in tuple(workers):
            self._workers.expect(worker, self._with_gpus(worker, self._places[worker]))

    def _with_gpus(self, worker: str, place: WorkerPlace) -> WorkerPlace:
        """The place with what it takes to know the worker's speed: product, model and number of GPUs."""
        model: ModelObservation | None = self._view.objects(Kind.INFERENCE_MODEL).get(place.model)
        split = split_worker(worker)
        pod = self._view.pod(*split[0]) if split is not None else None
        if model is None or pod is None or not pod.gpu_requests:
            return replace(place, model_id=model.model_id if model is not None else "")
        resource, gpus = pod.gpu_requests[0]
        role = next((role for role in model.roles if role.name == place.role), None)
        pods = role.pods_per_replica if role is not None else 1  # the leader speaks for its replica
        ranks = len(self._ranks.get(split[0], ())) if split is not None else 1
        node: NodeObservation | None = self._view.objects(Kind.NODE).get(ObjectKey("", place.node or ""))
        product = next((pool.product for pool in _pools(node) if pool.resource == resource and pool.product), None)
        return replace(place, model_id=model.model_id, product=product, gpus=max(1, gpus * pods // max(1, ranks)))


def _pools(node: NodeObservation | None) -> tuple[Any, ...]:
    return node.pools if node is not None else ()


def _leave(sets: dict[Any, set[str]], key: Any, worker: str) -> None:
    sets[key].discard(worker)
    if not sets[key]:
        del sets[key]
