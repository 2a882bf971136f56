"""Watches the kinds of workloads that scaleTargetRefs name, metadata only, so that nobody has to poll their scales.

One list and watch per kind over all namespaces, which costs nothing while nothing happens. A kind that cannot be
watched (unknown, or no right to it) has no age; it is tried again with back-off, and meanwhile its scales must be
polled.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from kvaware_cluster.discovery import Discovery
from kvaware_cluster.errors import NotFoundError, ScaleTargetError
from kvaware_cluster.kubernetes_http import METADATA, METADATA_LIST, KubernetesHttp
from kvaware_cluster.list_watch import list_pages, watch
from kvaware_cluster.parse.wire import metadata_of, string, uid_of
from kvaware_cluster.reflector import Reflector
from kvaware_cluster.settings import StoreSettings, WorkloadWatchSettings
from kvaware_cluster.source import ListPage, RawObject, WatchEvent
from kvaware_cluster.table import Change, Table
from kvaware_cluster.workloads import ScaleTarget, WorkloadKind
from kvaware_engine.observations import ObjectKey

__all__ = ["WorkloadWatches"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Workload:
    uid: str
    version: str
    """resourceVersion: its status matters as well as its spec, and a generation tells only of the spec."""


@dataclass(slots=True)
class _Watched:
    reflector: Reflector[str]
    task: asyncio.Task[Any]


class WorkloadWatches:
    """The watches of the kinds that are wanted now.

    It has one owner, which awaits ``run``; everything else is called in the same loop.
    """

    def __init__(
        self,
        http: KubernetesHttp,
        discovery: Discovery,
        *,
        changed: Callable[[ScaleTarget], None],
        clock: Callable[[], float],
        settings: WorkloadWatchSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            http: Closed by its own owner.
            discovery: How each kind is addressed.
            changed: Told of each change of a wanted target, its creation and deletion included, in the loop; also when
                its kind was listed for the first time. May be told twice.
            clock: Monotonic seconds.
            settings: See there.
            rng: For jitter.
        """
        self._http = http
        self._discovery = discovery
        self._changed = changed
        self._clock = clock
        settings = settings or WorkloadWatchSettings()
        self._settings = StoreSettings(
            backoff_first_s=settings.backoff_first_s,
            backoff_max_s=settings.backoff_max_s,
            retry_after_max_s=settings.retry_after_max_s,
            watch_min_s=settings.watch_min_s,
        )
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._wanted: frozenset[ScaleTarget] = frozenset()
        self._kinds: frozenset[WorkloadKind] = frozenset()
        self._watched: dict[WorkloadKind, _Watched] = {}
        self._news = asyncio.Event()

    def want(self, targets: Collection[ScaleTarget]) -> None:
        """Replace what is wanted: kinds that come are watched, those that nobody names any more are let go."""
        self._wanted = frozenset(targets)
        kinds = frozenset(target.workload_kind for target in self._wanted)
        if kinds != self._kinds:
            self._kinds = kinds
            self._news.set()

    def ages(self) -> Mapping[WorkloadKind, float | None]:
        """Seconds since each wanted kind's view was last proven fresh; None: it cannot be watched (yet)."""
        watched = self._watched
        return {kind: watched[kind].reflector.age_s() if kind in watched else None for kind in self._kinds}

    async def run(self) -> None:
        """Watch until cancelled. Nothing that the cluster does ends it.

        Raises: RuntimeError when a watch ended for another reason, as ``Store.run``.
        """
        try:
            while True:
                self._news.clear()
                await self._let_go([kind for kind in self._watched if kind not in self._kinds])
                for kind in self._kinds - self._watched.keys():
                    self._watched[kind] = self._begin(kind)
                await self._next_news()
        finally:
            await self._let_go(list(self._watched))

    async def _next_news(self) -> None:
        news = asyncio.create_task(self._news.wait(), name="workload-kinds")
        try:
            ended, _ = await asyncio.wait(
                [news, *(each.task for each in self._watched.values())], return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            news.cancel()
        for task in ended - {news}:
            raise RuntimeError(f"{task.get_name()} ended by itself") from (
                None if task.cancelled() else task.exception()
            )

    async def _let_go(self, kinds: Collection[WorkloadKind]) -> None:
        tasks = [self._watched.pop(kind).task for kind in kinds]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, kind: WorkloadKind) -> _Watched:
        name = f"{kind.api_version} {kind.kind}"
        table: Table[_Workload] = Table(
            name, _workload, notify=partial(self._tell, kind), unreadable=partial(_tell_unreadable, name)
        )
        reflector = Reflector(
            name,
            _Metadata(self._http, self._discovery, kind, self._rng),
            (table,),
            settings=self._settings,
            clock=self._clock,
            rng=self._rng,
            listed=lambda _began_at_s: None,
        )
        return _Watched(reflector, asyncio.create_task(reflector.run(), name=f"watch-{name}"))

    def _tell(self, kind: WorkloadKind, change: Change[_Workload]) -> None:
        target = ScaleTarget(*kind, *change.key)
        if target in self._wanted:
            self._changed(target)


class _Metadata:
    """One kind of workloads as something to list and watch; its path is looked up at each list."""

    def __init__(self, http: KubernetesHttp, discovery: Discovery, kind: WorkloadKind, rng: random.Random) -> None:
        self._http = http
        self._discovery = discovery
        self._kind = kind
        self._rng = rng
        self._path = ""

    async def list_pages(self, kind: str) -> AsyncGenerator[ListPage, None]:
        """See ``Watchable``."""
        try:
            self._path = (await self._discovery.scalable(self._kind, doubted=True)).path
        except ScaleTargetError as error:  # to a reflector it is a kind that cannot be listed, as one without a path is
            raise NotFoundError(str(error), status=404, reason="NotFound") from error
        async for page in list_pages(self._http, self._path, what=kind, accept=METADATA_LIST):
            yield page

    def watch(self, kind: str, resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """See ``Watchable``."""
        return watch(self._http, self._path, resource_version, what=kind, rng=self._rng, accept=METADATA)


def _workload(raw: RawObject) -> _Workload:
    metadata = metadata_of(raw, "workload")
    return _Workload(uid_of(metadata, "workload"), string(metadata, "resourceVersion", "workload.metadata"))


def _tell_unreadable(kind: str, key: ObjectKey, error: Exception) -> None:
    log.warning("workload cannot be read", kind=kind, namespace=key.namespace, name=key.name, problem=str(error))
