"""What is true in the cluster, as far as this process has seen, and how old that is.

One list and watch per kind; only observations are kept. Nothing else in kvaware opens a watch on these kinds.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

import structlog
from cachetools import LRUCache

from kvaware_cluster.dcgm_scraper import DcgmScraper
from kvaware_cluster.parse.autoscalers import parse_autoscaler
from kvaware_cluster.parse.block_groups import parse_block_group
from kvaware_cluster.parse.custom_resources import parse_custom_resource
from kvaware_cluster.parse.exporters import exporter_of
from kvaware_cluster.parse.models import parse_model
from kvaware_cluster.parse.nodes import parse_node
from kvaware_cluster.parse.pods import parse_pod
from kvaware_cluster.parse.quotas import parse_quota
from kvaware_cluster.parse.worker_pods import parse_worker_pod
from kvaware_cluster.reflector import Reflector
from kvaware_cluster.settings import StoreSettings
from kvaware_cluster.source import CUSTOM_KINDS, OBSERVED_KINDS, ExporterTarget, Kind, RawObject, Source
from kvaware_cluster.table import Change, Table
from kvaware_cluster.workloads import Autoscaler, CustomResource, WorkerPod
from kvaware_crds.errors import WireError
from kvaware_engine.observations import (
    BlockGroupObservation,
    ModelObservation,
    NodeObservation,
    NodeUse,
    ObjectKey,
    PodObservation,
    TenantQuotaObservation,
)

__all__ = ["Listener", "Observation", "Store"]

Observation = NodeObservation | PodObservation | ModelObservation | BlockGroupObservation | TenantQuotaObservation

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Listener(Protocol):
    """Told of every change, synchronously, in the store's loop, in order per kind.

    What it raises is logged, the change is undone in the store, and the kind is listed again after a wait: it then gets
    the change once more. So each method must bear to be told twice.
    """

    def changed(self, change: Change[Any]) -> None:
        """``change.kind`` is a ``Kind``; old and new are that kind's observations."""
        ...

    def listed(self, kind: Kind, *, began_at_s: float) -> None:
        """A complete list was taken and all its changes were told; it shows the cluster at ``began_at_s`` or later."""
        ...

    def used(self, node: str, use: NodeUse | None) -> None:
        """A node's HBM in use, from its DCGM exporter; None: not known any more."""
        ...


class Store:
    """The shared view. It has one owner, which awaits ``run``; everything else is called in the same loop."""

    def __init__(
        self,
        source: Source,
        *,
        settings: StoreSettings | None = None,
        clock: Callable[[], float],
        rng: random.Random | None = None,
        kinds: Collection[Kind] = OBSERVED_KINDS,
        details: bool = False,
    ) -> None:
        """Connect nothing yet.

        Args:
            source: Where the view comes from; closed by its own owner.
            settings: See there.
            clock: Monotonic seconds, the same as the engine's ``now_s``.
            rng: For jitter.
            kinds: What is watched. Exporters are looked for where nodes and pods are.
            details: Whether the objects of our kinds are also kept whole, for ``resources``.
        """
        settings = settings or StoreSettings()
        self._listeners: list[Listener] = []
        self._on_resource: list[Callable[[Change[CustomResource]], None]] = []
        self._on_autoscaler: list[Callable[[Change[Autoscaler]], None]] = []
        self._on_worker_pod: list[Callable[[Change[WorkerPod]], None]] = []
        self._unreadable: Counter[Kind] = Counter()
        # one line per object and fault, not one per event; bounded, so a fault may be told again after 4,096 others
        self._told: LRUCache[tuple[Kind, ObjectKey, str], bool] = LRUCache(4096)
        rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._scraper = DcgmScraper(
            source.read_exporter, settings=settings.dcgm, clock=clock, rng=rng, used=self._tell_use
        )
        self._dcgm_enabled = settings.dcgm.enabled and {Kind.NODE, Kind.POD}.issubset(kinds)
        self._tables: dict[Kind, Table[Any]] = {
            kind: Table(
                kind,
                parse,
                notify=self._tell_autoscaler if kind is Kind.AUTOSCALER else self._tell,
                unreadable=partial(self._tell_unreadable, kind),
            )
            for kind, parse in self._parsers(settings).items()
            if kind in kinds
        }
        self._resources: dict[Kind, Table[CustomResource]] = {
            kind: Table(
                kind,
                partial(parse_custom_resource, kind=kind),
                notify=self._tell_resource,
                unreadable=partial(self._tell_unreadable, kind),
            )
            for kind in CUSTOM_KINDS.intersection(kinds)
            if details
        }
        self._worker_pods: Table[WorkerPod] = Table(
            "workerpod", parse_worker_pod, notify=self._tell_worker_pod, unreadable=self._tell_worker_pod_unreadable
        )
        exporters: Table[ExporterTarget] = Table(
            "exporter",
            lambda raw: exporter_of(raw, settings.dcgm, report=partial(self._tell_exporter_elsewhere, raw)),
            notify=self._scraper.changed,
            unreadable=lambda _key, _error: None,  # the table of pods has told it
        )
        beside: dict[Kind, list[Table[Any]]] = {kind: [table] for kind, table in self._resources.items()}
        beside[Kind.POD] = [self._worker_pods, exporters] if self._dcgm_enabled else [self._worker_pods]
        self._reflectors = {
            kind: Reflector(
                kind,
                source,
                (table, *beside.get(kind, ())),
                settings=settings,
                clock=clock,
                rng=rng,
                listed=partial(self._tell_listed, kind),
                hold_removals_s=settings.quota_removal_hold_s if kind is Kind.TENANT_QUOTA else None,
            )
            for kind, table in self._tables.items()
        }

    async def run(self) -> None:
        """Keep the view until cancelled. Nothing that the cluster does ends it.

        Raises: RuntimeError when a watch ended for another reason, its cancellation included: the view would silently
            grow old, so the process should exit. (A TaskGroup would take a cancelled child for a finished one.)
        """
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(reflector.run(), name=f"watch-{kind}") for kind, reflector in self._reflectors.items()
        ]
        if self._dcgm_enabled:
            tasks.append(asyncio.create_task(self._scraper.run(), name="dcgm-scrape"))
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = ended.pop()
            cause = None if first.cancelled() else first.exception()
            raise RuntimeError(f"{first.get_name()} ended by itself") from cause
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every change from now on; subscribe before ``run`` to hear of everything."""
        self._listeners.append(listener)

    def on_resource(self, callback: Callable[[Change[CustomResource]], None]) -> None:
        """Tell of every change of a whole object of ours, as a ``Listener`` is told; needs ``details``."""
        self._on_resource.append(callback)

    def on_autoscaler(self, callback: Callable[[Change[Autoscaler]], None]) -> None:
        """Tell of every change of a HorizontalPodAutoscaler, as a ``Listener`` is told."""
        self._on_autoscaler.append(callback)

    def on_worker_pod(self, callback: Callable[[Change[WorkerPod]], None]) -> None:
        """Tell of every change of a pod that may run workers, as a ``Listener`` is told, and after it."""
        self._on_worker_pod.append(callback)

    def synced(self) -> bool:
        """Whether every kind was listed, and every exporter tried, at least once.

        It never turns back: later troubles show in ``ages``.
        """
        listed = all(reflector.complete for reflector in self._reflectors.values())
        return listed and (not self._dcgm_enabled or self._scraper.went_round())

    def ages(self) -> dict[Kind, float | None]:
        """Seconds since each kind's view was last proven fresh: a list, an opened or well ended watch, any event.

        None: it was never listed, or cannot be listed now (404, 403): unknown, which is not empty.
        """
        return {kind: reflector.age_s() for kind, reflector in self._reflectors.items()}

    def resource_version(self, kind: Kind) -> str | None:
        """Of the last list or event of the kind; None before the first, and while it is to be listed again."""
        return self._reflectors[kind].resource_version

    def objects(self, kind: Kind) -> Mapping[ObjectKey, Any]:
        """A read-only live view of a kind's observations; namespace "" for nodes and quotas.

        Raises: KeyError for a kind that is not watched, in the two methods below too: not watched is not empty.
        """
        return self._tables[kind].objects

    def resources(self, kind: Kind) -> Mapping[ObjectKey, CustomResource]:
        """The whole objects of one of our kinds; a read-only live view."""
        return self._resources[kind].objects

    @property
    def autoscalers(self) -> Mapping[ObjectKey, Autoscaler]:
        """Every HorizontalPodAutoscaler; a read-only live view."""
        return self._tables[Kind.AUTOSCALER].objects

    @property
    def worker_pods(self) -> Mapping[ObjectKey, WorkerPod]:
        """Every pod that asks for GPUs or names a model; a read-only live view."""
        return self._worker_pods.objects

    def pod(self, namespace: str, name: str) -> PodObservation | None:
        """The pod as last seen, if it is one that asks for GPUs or names a model."""
        pod: PodObservation | None = self._tables[Kind.POD].get(ObjectKey(namespace, name))
        return pod

    def unreadable(self) -> Mapping[Kind, int]:
        """How many times an object could not be read, or only in part, since the start."""
        return self._unreadable

    def _parsers(self, settings: StoreSettings) -> dict[Kind, Callable[[RawObject], Any]]:
        def reporting(
            kind: Kind, parse: Callable[..., Observation | None]
        ) -> Callable[[RawObject], Observation | None]:
            return lambda raw: parse(raw, report=partial(self._tell_in_part, kind, raw))

        return {
            Kind.NODE: partial(parse_node, rack_label=settings.rack_label, zone_label=settings.zone_label),
            Kind.POD: reporting(Kind.POD, parse_pod),
            Kind.INFERENCE_MODEL: reporting(Kind.INFERENCE_MODEL, parse_model),
            Kind.KV_CACHE_BLOCK_GROUP: reporting(Kind.KV_CACHE_BLOCK_GROUP, parse_block_group),
            Kind.TENANT_QUOTA: reporting(Kind.TENANT_QUOTA, parse_quota),
            Kind.AUTOSCALER: parse_autoscaler,
        }

    def _tell(self, change: Change[Any]) -> None:
        for listener in self._listeners:
            listener.changed(change)

    def _tell_resource(self, change: Change[CustomResource]) -> None:
        for callback in self._on_resource:
            callback(change)

    def _tell_autoscaler(self, change: Change[Autoscaler]) -> None:
        for callback in self._on_autoscaler:
            callback(change)

    def _tell_listed(self, kind: Kind, began_at_s: float) -> None:
        for listener in self._listeners:
            listener.listed(kind, began_at_s=began_at_s)

    def _tell_use(self, node: str, use: NodeUse | None) -> None:
        for listener in self._listeners:
            listener.used(node, use)

    def _tell_worker_pod(self, change: Change[WorkerPod]) -> None:
        for callback in self._on_worker_pod:
            callback(change)

    def _tell_worker_pod_unreadable(self, key: ObjectKey, error: Exception) -> None:
        """What the engine's observation could not be read from either has been told."""
        if self._tables[Kind.POD].get(key) is not None:
            self._tell_unreadable(Kind.POD, key, error)

    def _tell_in_part(self, kind: Kind, raw: RawObject, sentence: str) -> None:
        self._unreadable[kind] += 1
        metadata = raw["metadata"]
        key = ObjectKey(metadata.get("namespace") or "", metadata["name"])
        if self._first_time(kind, key, sentence):
            log.warning("object read in part", kind=kind, namespace=key.namespace, name=key.name, problem=sentence)

    def _tell_exporter_elsewhere(self, raw: RawObject, sentence: str) -> None:
        """Once per namespace: whoever can label pods could fill the log."""
        namespace = raw["metadata"].get("namespace") or ""
        if self._first_time(Kind.POD, ObjectKey(namespace, ""), sentence):
            log.warning("exporter passed over", namespace=namespace, problem=sentence, setting="store.dcgm.namespaces")

    def _tell_unreadable(self, kind: Kind, key: ObjectKey, error: Exception) -> None:
        """An object that could not be read at all: what was known of it stays."""
        self._unreadable[kind] += 1
        if self._first_time(kind, key, str(error)):
            unforeseen = None if isinstance(error, WireError) else error
            log.error(
                "object cannot be read",
                kind=kind,
                namespace=key.namespace,
                name=key.name,
                problem=str(error),
                exc_info=unforeseen,
            )

    def _first_time(self, kind: Kind, key: ObjectKey, sentence: str) -> bool:
        if (kind, key, sentence) in self._told:
            return False
        self._told[kind, key, sentence] = True
        return True
