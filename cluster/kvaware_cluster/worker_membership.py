"""Which pods run workers of which model, in which role, and where each is asked: kept in step with every change."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog
from cachetools import LRUCache

from kvaware_cluster.belonging import claims, owning_model, role_of
from kvaware_cluster.parse.bounds import MAX_RANK, MAX_RANKS
from kvaware_cluster.source import Kind
from kvaware_cluster.table import Change
from kvaware_cluster.workloads import WorkerPod
from kvaware_crds.names import LABEL_ROLE
from kvaware_engine.observations import ModelObservation, ModelWorkers, NodeSelector, NodeUse, ObjectKey
from kvaware_engine.reports import WorkerPlace

__all__ = ["KvEventTarget", "ScrapeTarget", "WorkerMembership", "split_worker"]

LABEL_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""Of a LeaderWorkerSet's pod in its group: the leader, which serves, is 0."""
MAX_PORT: Final = 65_535

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """A worker pod whose ``/metrics`` can be asked."""

    pod: ObjectKey
    model: ObjectKey
    incarnation: str
    """Of its workers."""
    address: str
    """``ip:port`` of its ``/metrics``, IPv6 in brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventTarget:
    """A worker whose KV events can be followed. Ready or not: while it is not for a moment, its events go on."""

    worker: str
    incarnation: str
    """Another one holds nothing of what this one told."""
    address: str
    """``ip:port`` of its events, IPv6 in brackets."""
    replay_address: str | None
    """The same of their replay; None: there is none."""


class _Part(NamedTuple):
    """What a pod with certain labels is."""

    model: ObjectKey
    role: str


@dataclass(slots=True)
class _Alike:
    """The pods of one namespace with the same labels: they are of the same model and role, or of none."""

    labels: Mapping[str, str]
    pods: dict[ObjectKey, WorkerPod] = field(default_factory=dict)
    part: _Part | None = None


@dataclass(slots=True)
class _Worker:
    """A pod that runs workers."""

    pod: WorkerPod
    part: _Part
    incarnation: str
    """Pod UID and start of its youngest container."""
    ports: ModelWorkers
    places: dict[int, WorkerPlace] = field(default_factory=dict)
    """By data-parallel rank."""
    target: ScrapeTarget | None = None
    streams: dict[int, KvEventTarget] = field(default_factory=dict)
    """By data-parallel rank."""
    scraped_ranks: frozenset[int] = frozenset()
    heard_ranks: frozenset[int] = frozenset()

    def ranks(self) -> frozenset[int]:
        """Those that somebody told of; before that, one."""
        return self.scraped_ranks | self.heard_ranks or frozenset({0})


class WorkerMembership:
    """Workers as the API server shows them. One owner; every method is synchronous.

    Which pods are a model's is said in ``belonging``; here they are those that ask for GPUs or carry the label. Of a
    replica of several pods only a LeaderWorkerSet's leader is a worker; other pods are told apart by a selector. A
    worker is expected once its pod is bound, and until it is finished or gone.

    It is a ``Listener`` of a store (for models), and ``pod_changed`` takes the changes of worker pods.
    """

    def __init__(self, *, placed: Callable[[str, WorkerPlace | None], None]) -> None:
        """Know nothing yet.

        Args:
            placed: Told of each worker that is expected, changed, or (None) gone.
        """
        self._placed = placed
        self._target_changed: Callable[[ObjectKey, ScrapeTarget | None], None] = lambda _pod, _target: None
        self._stream_changed: Callable[[str, KvEventTarget | None], None] = lambda _worker, _target: None
        self._models: dict[ObjectKey, ModelObservation] = {}
        self._selectors: dict[ObjectKey, NodeSelector | None] = {}
        """Of all models."""
        self._selecting: dict[str, dict[ObjectKey, NodeSelector]] = {}
        """Of models that have one, by namespace."""
        self._namespaces: dict[str, dict[int, _Alike]] = {}
        """By namespace, and by identity of the labels, which pods share in memory."""
        self._labelled: dict[ObjectKey, dict[int, _Alike]] = {}
        """By the model that the label names."""
        self._workers: dict[ObjectKey, _Worker] = {}
        self._told: LRUCache[tuple[ObjectKey, str], bool] = LRUCache(1024)

    def on_target(self, changed: Callable[[ObjectKey, ScrapeTarget | None], None]) -> None:
        """Tell of each pod that can be scraped, at another address or in another incarnation, or (None) no more."""
        self._target_changed = changed
        for pod, worker in self._workers.items():
            if worker.target is not None:
                changed(pod, worker.target)

    def on_stream(self, changed: Callable[[str, KvEventTarget | None], None]) -> None:
        """Tell of each worker whose KV events can be followed, elsewhere or in another incarnation, or (None) no more.

        It is told after ``placed``.
        """
        self._stream_changed = changed
        for worker in self._workers.values():
            for target in worker.streams.values():
                changed(target.worker, target)

    # -- what the API server shows -----------------------------------------------------------------------------------

    def changed(self, change: Change[Any]) -> None:
        """See ``Listener``: models are taken, the rest is none of our business."""
        if change.kind == Kind.INFERENCE_MODEL:
            self.model_changed(change)

    def listed(self, kind: Kind, *, began_at_s: float) -> None:
        """See ``Listener``: every change was told one by one."""

    def used(self, node: str, use: NodeUse | None) -> None:
        """See ``Listener``: not asked."""

    def pod_changed(self, change: Change[WorkerPod]) -> None:
        """A worker pod came, changed, or went."""
        old, new = change.old, change.new
        if old is not None and (new is None or new.labels is not old.labels):
            self._leave(old)
        if new is None:
            self._remove(change.key)
        else:
            self._settle(new, self._join(new))

    def model_changed(self, change: Change[ModelObservation]) -> None:
        """An InferenceModel came, changed, or went."""
        key, old, new = change.key, change.old, change.new
        namespace = key.namespace
        selecting = self._selecting.setdefault(namespace, {})
        selecting.pop(key, None)
        if new is None:
            self._models.pop(key, None)
            self._selectors.pop(key, None)
        else:
            self._models[key] = new
            selector = self._selectors[key] = new.workers.selector
            if selector is not None:
                selecting[key] = selector
        selects_pods = any(model is not None and model.workers.selector is not None for model in (old, new))
        touched = self._namespaces.get(namespace, {}) if selects_pods else self._labelled.get(key, {})
        for alike in list(touched.values()):
            was_its = alike.part is not None and alike.part.model == key
            if was_its or (new is not None and claims(key, new.workers.selector, alike.labels)):
                alike.part = self._part_of(namespace, alike.labels)
                for pod in list(alike.pods.values()):
                    self._settle(pod, alike.part)

    # -- what workers tell -------------------------------------------------------------------------------------------

    def scraped(self, pod: ObjectKey, ranks: Iterable[int], *, incarnation: str) -> None:
        """A scrape of this incarnation showed exactly these data-parallel ranks."""
        worker = self._workers.get(pod)
        if worker is not None and worker.incarnation == incarnation and worker.scraped_ranks != frozenset(ranks):
            worker.scraped_ranks = frozenset(ranks)
            self._place_ranks(worker)

    def heard(self, worker: str) -> WorkerPlace | None:
        """Somebody who may speak for its pod beats as this worker.

        Returns: its place; None when the pod is no worker (or has too many ranks). A rank that was not known is now.
        """
        split = split_worker(worker)
        if split is None:
            return None
        pod, rank = split
        known = self._workers.get(pod)
        if known is None:
            return None
        # Rank 0 too, which is there before anybody tells: the next rank that beats must not take its place.
        if rank not in known.heard_ranks and len(known.heard_ranks) < MAX_RANKS:
            known.heard_ranks |= {rank}
            self._place_ranks(known)
        return known.places.get(rank)

    def silent(self, worker: str) -> bool:
        """This worker has not beaten for long: it is expected no more, unless a scrape shows it.

        Returns: whether its heartbeats count no more. False: its rank is the lowest of its pod, and one is expected.
        """
        split = split_worker(worker)
        known = None if split is None else self._workers.get(split[0])
        if known is None or split is None or split[1] not in known.heard_ranks:
            return True
        rank = split[1]
        if rank not in known.scraped_ranks and rank == min(known.ranks()):
            return False
        known.heard_ranks -= {rank}
        self._place_ranks(known)
        return True

    def place(self, worker: str) -> WorkerPlace | None:
        """A worker that is expected; None: there is none of this id."""
        split = split_worker(worker)
        known = None if split is None else self._workers.get(split[0])
        return None if known is None or split is None else known.places.get(split[1])

    # -- how it follows ----------------------------------------------------------------------------------------------

    def _join(self, pod: WorkerPod) -> _Part | None:
        """Put a pod beside those of the same labels. Returns: what they are."""
        namespace = pod.key.namespace
        groups = self._namespaces.setdefault(namespace, {})
        alike = groups.get(id(pod.labels))
        if alike is None:
            alike = groups[id(pod.labels)] = _Alike(pod.labels, part=self._part_of(namespace, pod.labels))
            if pod.model is not None:
                self._labelled.setdefault(ObjectKey(namespace, pod.model), {})[id(pod.labels)] = alike
        alike.pods[pod.key] = pod
        return alike.part

    def _leave(self, pod: WorkerPod) -> None:
        namespace, same = pod.key.namespace, id(pod.labels)
        groups = self._namespaces.get(namespace, {})
        alike = groups.get(same)
        if alike is None:
            return
        alike.pods.pop(pod.key, None)
        if alike.pods:
            return
        del groups[same]
        if not groups:
            del self._namespaces[namespace]
        if pod.model is not None:
            labelled = self._labelled[ObjectKey(namespace, pod.model)]
            del labelled[same]
            if not labelled:
                del self._labelled[ObjectKey(namespace, pod.model)]

    def _part_of(self, namespace: str, labels: Mapping[str, str]) -> _Part | None:
        selecting = self._selecting.get(namespace, {}).items()
        owner = owning_model(
            labels,
            namespace=namespace,
            models=self._selectors,
            selecting=(model for model, selector in selecting if claims(model, selector, labels)),
        )
        return None if owner is None else self._role_in(self._models[owner], labels)

    def _role_in(self, model: ModelObservation, labels: Mapping[str, str]) -> _Part | None:
        label = labels.get(LABEL_ROLE)
        roles = {role.name: role for role in model.roles}
        name = role_of(list(roles), label)
        if name is not None:
            follower = roles[name].pods_per_replica > 1 and labels.get(LABEL_GROUP_INDEX, "0") != "0"
            return None if follower else _Part(model.key, name)
        self._tell(
            model.key,
            f"pods expected to name one of the roles {', '.join(role.name for role in model.roles)} in the label "
            f"{LABEL_ROLE}, got {label or 'none'}: they are no workers",
        )
        return None

    def _settle(self, pod: WorkerPod, part: _Part | None) -> None:
        """Bring what is expected of one pod in step with what it is now."""
        if part is None or pod.node is None or pod.finished:
            self._remove(pod.key)
            return
        incarnation = f"{pod.uid}/{pod.started_at}"
        ports = self._models[part.model].workers
        worker = self._workers.get(pod.key)
        if worker is None or worker.incarnation != incarnation or worker.part.model != part.model:
            places = {} if worker is None else worker.places
            target = None if worker is None else worker.target
            streams = {} if worker is None else worker.streams
            worker = self._workers[pod.key] = _Worker(pod, part, incarnation, ports, places, target, streams)
        worker.pod, worker.part, worker.ports = pod, part, ports
        self._place_ranks(worker)
        target = None
        if pod.ip is not None and _is_ready(pod):
            address = f"{_host(pod.ip)}:{ports.metrics_port}"
            target = ScrapeTarget(pod=pod.key, model=part.model, incarnation=incarnation, address=address)
        if worker.target != target:
            worker.target = target
            self._target_changed(pod.key, target)

    def _place_ranks(self, worker: _Worker) -> None:
        pod = worker.pod
        places = {
            rank: WorkerPlace(
                worker=f"{pod.key.namespace}:{pod.key.name}:{rank}",
                model=worker.part.model,
                role=worker.part.role,
                incarnation=worker.incarnation,
                ready=_is_ready(pod),
                node=pod.node,
                address=None if pod.ip is None else f"{_host(pod.ip)}:{worker.ports.http_port}",
            )
            for rank in sorted(worker.ranks())
        }
        before, worker.places = worker.places, places
        for rank, place in before.items():
            if rank not in places:
                self._placed(place.worker, None)
        for rank, place in places.items():
            if before.get(rank) != place:
                self._placed(place.worker, place)
        self._follow_ranks(worker)

    def _follow_ranks(self, worker: _Worker) -> None:
        """Say where the events of each rank are now."""
        streams = {rank: target for rank in worker.places if (target := _stream_of(worker, rank)) is not None}
        before, worker.streams = worker.streams, streams
        for rank, target in before.items():
            if rank not in streams:
                self._stream_changed(target.worker, None)
        for rank, target in streams.items():
            if before.get(rank) != target:
                self._stream_changed(target.worker, target)

    def _remove(self, key: ObjectKey) -> None:
        worker = self._workers.pop(key, None)
        if worker is None:
            return
        if worker.target is not None:
            self._target_changed(key, None)
        for place in worker.places.values():
            self._placed(place.worker, None)
        for stream in worker.streams.values():
            self._stream_changed(stream.worker, None)

    def _tell(self, model: ObjectKey, sentence: str) -> None:
        if (model, sentence) not in self._told:
            self._told[model, sentence] = True
            log.warning("worker pods passed over", namespace=model.namespace, model=model.name, problem=sentence)


def split_worker(worker: str) -> tuple[ObjectKey, int] | None:
    """Pod and data-parallel rank of a worker's id, ``<namespace>:<pod>:<rank>``; None when it is none."""
    namespace, _, rest = worker.partition(":")
    pod, _, rank = rest.partition(":")
    if not namespace or not pod or not (rank.isascii() and rank.isdecimal() and len(rank) <= 4):
        return None
    if int(rank) > MAX_RANK or str(int(rank)) != rank:
        return None
    return ObjectKey(namespace, pod), int(rank)


def _stream_of(worker: _Worker, rank: int) -> KvEventTarget | None:
    """Where a rank's events are; None: nowhere that is known."""
    ports, ip = worker.ports, worker.pod.ip
    if ports.kv_events_port is None or ip is None or ports.kv_events_port + rank > MAX_PORT:
        return None
    replay = None if ports.kv_events_replay_port is None else ports.kv_events_replay_port + rank
    return KvEventTarget(
        worker=worker.places[rank].worker,
        incarnation=worker.incarnation,
        address=f"{_host(ip)}:{ports.kv_events_port + rank}",
        replay_address=None if replay is None or replay > MAX_PORT else f"{_host(ip)}:{replay}",
    )


def _is_ready(pod: WorkerPod) -> bool:
    return pod.ready and not pod.terminating


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
