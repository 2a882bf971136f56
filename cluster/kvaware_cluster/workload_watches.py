"""Watches the kinds of workloads that scaleTargetRefs name, metadata only, so that nobody has to poll their scales.

One list and watch per kind over all namespaces, which costs nothing while nothing happens.

::

    wanted ──discovery──▶ served, with a scale ──one of at most kinds_max──▶ watched
                │ no: looked up again seldom; all such kinds together cost one list of API versions
                ▼
    a kind that is not watched (not served, no place, no right to it) has no age: its scales must be polled
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from kvaware_cluster.backoff import Backoff
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
from kvaware_crds.errors import UpstreamError
from kvaware_engine.observations import ObjectKey

__all__ = ["WorkloadWatches"]

LOOK_UPS: Final = 4
"""API versions that are looked up at a time: an aggregated API that does not answer holds up few others."""

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


@dataclass(slots=True)
class _Sought:
    """A wanted kind that is not watched."""

    backoff: Backoff
    due_s: float = 0.0
    """When it is looked up, by the loop's clock."""
    served: bool | None = None
    """None: not looked up yet."""
    problem: str = "not looked up yet"


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
        self._limits = settings
        self._settings = StoreSettings(
            backoff_first_s=settings.backoff_first_s,
            backoff_max_s=settings.backoff_max_s,
            retry_after_max_s=settings.retry_after_max_s,
            watch_min_s=settings.watch_min_s,
        )
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._wanted: frozenset[ScaleTarget] = frozenset()
        self._kinds: Mapping[WorkloadKind, int] = {}
        """Wanted kinds, and how many targets each has."""
        self._watched: dict[WorkloadKind, _Watched] = {}
        self._sought: dict[WorkloadKind, _Sought] = {}
        self._news = asyncio.Event()

    def want(self, targets: Collection[ScaleTarget]) -> None:
        """Replace what is wanted: kinds that come are watched, those that nobody names any more are let go."""
        self._wanted = frozenset(targets)
        kinds = Counter(target.workload_kind for target in self._wanted)
        if kinds.keys() != self._kinds.keys():
            self._news.set()
        self._kinds = kinds

    def ages(self) -> Mapping[WorkloadKind, float | None]:
        """Seconds since each wanted kind's view was last proven fresh; None: it cannot be watched (yet)."""
        return {kind: self.age_s(kind) for kind in self._kinds}

    def age_s(self, kind: WorkloadKind) -> float | None:
        """The same of one kind."""
        watched = self._watched.get(kind)
        return None if watched is None else watched.reflector.age_s()

    def unwatched(self) -> Mapping[WorkloadKind, str]:
        """Wanted kinds that are not watched, and why not."""
        refused = {kind: "it cannot be listed" for kind, age_s in self.ages().items() if age_s is None}
        return refused | {kind: each.problem for kind, each in self._sought.items() if kind in self._kinds}

    async def run(self) -> None:
        """Watch until cancelled. Nothing that the cluster does ends it.

        Raises: RuntimeError when a watch ended for another reason, as ``Store.run``.
        """
        look_ups: asyncio.Task[None] | None = None
        try:
            while True:
                self._news.clear()
                await self._let_go([kind for kind in self._watched if kind not in self._kinds])
                self._seek()
                self._begin_served()
                if look_ups is None and (due := self._due()):
                    look_ups = asyncio.create_task(self._look_up(due), name="look-up-kinds")
                await self._next_news(look_ups)
                if look_ups is not None and look_ups.done():
                    look_ups.result()
                    look_ups = None
        finally:
            if look_ups is not None:
                look_ups.cancel()
                await asyncio.wait([look_ups])
            await self._let_go(list(self._watched))

    def _seek(self) -> None:
        for kind in [kind for kind in self._sought if kind not in self._kinds]:
            del self._sought[kind]
        for kind in self._kinds.keys() - self._watched.keys() - self._sought.keys():
            backoff = Backoff(self._limits.backoff_first_s, self._limits.backoff_max_s, self._rng)
            self._sought[kind] = _Sought(backoff)

    def _due(self) -> Mapping[str, Sequence[WorkloadKind]]:
        """Kinds to be looked up now, by their API version; those that most targets are of first."""
        now_s = asyncio.get_running_loop().time()
        due: dict[str, list[WorkloadKind]] = {}
        for kind in self._by_targets(kind for kind, sought in self._sought.items() if sought.due_s <= now_s):
            due.setdefault(kind.api_version, []).append(kind)
        return due

    async def _look_up(self, due: Mapping[str, Sequence[WorkloadKind]]) -> None:
        """Ask whether kinds are served. What is found is watched at once, whoever else is still waited for."""
        places = asyncio.Semaphore(LOOK_UPS)

        async def look_up(kinds: Sequence[WorkloadKind]) -> None:
            async with places:
                await self._look_up_version(kinds)
            self._news.set()

        async with asyncio.TaskGroup() as look_ups:
            for version, kinds in due.items():
                look_ups.create_task(look_up(kinds), name=f"look-up-{version}")

    async def _look_up_version(self, kinds: Sequence[WorkloadKind]) -> None:
        """Ask for kinds of one API version; if it does not answer for the first of them, the others are not asked."""
        failed: UpstreamError | None = None
        for kind in kinds:
            sought = self._sought.get(kind)
            if sought is None:
                continue
            wait_s = self._limits.absent_again_s
            try:
                if failed is None:
                    await self._discovery.scalable(kind, doubted=True)
                    sought.served, sought.problem = True, f"only {self._limits.kinds_max} kinds are watched at a time"
            except ScaleTargetError as error:
                sought.served, sought.problem = False, str(error)
            except UpstreamError as error:
                failed = error
            if failed is None:
                sought.backoff.reset()
            else:  # what was served before waits on for a place
                sought.served = sought.served or False
                sought.problem, wait_s = f"it cannot be looked up: {failed}", sought.backoff.next_s()
            sought.due_s = asyncio.get_running_loop().time() + wait_s

    def _by_targets(self, kinds: Iterable[WorkloadKind]) -> list[WorkloadKind]:
        return sorted(kinds, key=lambda kind: (-self._kinds.get(kind, 0), kind))

    def _begin_served(self) -> None:
        """Watch what is served, those that most targets are of first; who is watched keeps the place.

        A place is also kept for one that is being looked up, so that who is answered first does not matter.
        """
        waiting = self._by_targets(kind for kind, sought in self._sought.items() if sought.served is not False)
        for kind in waiting[: max(0, self._limits.kinds_max - len(self._watched))]:
            if self._sought[kind].served:
                del self._sought[kind]
                self._watched[kind] = self._begin(kind)

    async def _next_news(self, look_ups: asyncio.Task[None] | None) -> None:
        """Until other kinds are wanted, one was looked up or is to be, or a watch has ended."""
        due_s = None if look_ups else min((each.due_s for each in self._sought.values()), default=None)
        timeout_s = None if due_s is None else max(0.0, due_s - asyncio.get_running_loop().time())
        news = asyncio.create_task(self._news.wait(), name="workload-kinds")
        try:
            ended, _ = await asyncio.wait(
                [news, *([look_ups] if look_ups else ()), *(each.task for each in self._watched.values())],
                return_when=asyncio.FIRST_COMPLETED,
                timeout=timeout_s,
            )
        finally:
            news.cancel()
        for task in ended - {news, look_ups}:
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
