"""Keeps the tables of one kind in step with a source: list, watch, and again, whatever happens.

::

    list ──▶ watch from its version ──clean end──▶ watch again from the last version seen
      ▲          │ 410 (answer or ERROR event)            │ cut, time-out, 5xx: wait, watch again from that version
      └──────────┴──── 404, 403: unknown; wait; list ◀────┘
    anything unforeseen: log it, wait, list. Cancellation is the only end.
A kind whose removals are held (``hold_removals_s``) takes none from a watch, nor from the first list that lacks an
object: it is listed again once the hold has passed, and what is still missing then is removed.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Generic, Never, TypeVar

import structlog

from kvaware_cluster.backoff import Backoff
from kvaware_cluster.errors import ClusterApiError, GoneError, ThrottledError
from kvaware_cluster.parse.wire import object_key
from kvaware_cluster.removals import RemovalHold
from kvaware_cluster.settings import StoreSettings
from kvaware_cluster.source import EventType, RawObject, Watchable
from kvaware_cluster.table import Table
from kvaware_crds.errors import UpstreamError, WireError
from kvaware_engine.observations import ObjectKey

__all__ = ["Reflector"]

YIELD_EVERY = 100
"""Objects between two turns of the event loop: some 3 ms."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

K = TypeVar("K", bound=str)


class Reflector(Generic[K]):
    """One kind's list and watch. It has one owner, which awaits ``run``."""

    def __init__(
        self,
        kind: K,
        source: Watchable[K],
        tables: Sequence[Table[Any]],
        *,
        settings: StoreSettings,
        clock: Callable[[], float],
        rng: random.Random,
        listed: Callable[[float], None],
        hold_removals_s: float | None = None,
    ) -> None:
        self._kind = kind
        self._source = source
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._listed = listed
        self._removals = RemovalHold(hold_removals_s)
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s, rng)
        self._fresh_at_s: float | None = None
        self._complete = False
        self._trouble = ""
        self.resource_version: str | None = None
        """Of the last event or list; None: the next step is a list."""

    @property
    def complete(self) -> bool:
        """Whether the kind was ever listed to its end."""
        return self._complete

    def age_s(self) -> float | None:
        """Seconds since the view was last proven fresh; None while the kind cannot be listed."""
        return None if self._fresh_at_s is None else self._clock() - self._fresh_at_s

    async def run(self) -> Never:
        """List and watch until cancelled."""
        while True:
            wait_s = 0.0
            try:
                if self.resource_version is None:
                    await self._list()
                wait_s = await self._watch(self.resource_version or "")
            except GoneError as error:
                # the first time a list follows at once: a long silence explains it. From then on it backs off
                self.resource_version = None
                again = self._backoff.failures > 0
                wait_s = self._wait_s(error)
                wait_s = wait_s if again else 0.0
            except ThrottledError as error:
                wait_s = max(self._wait_s(error), min(error.retry_after_s, self._settings.retry_after_max_s))
            except ClusterApiError as error:
                wait_s = self._wait_s(error)
                if error.status in {403, 404}:
                    self._unknown()
            except UpstreamError as error:
                wait_s = self._wait_s(error)
            except Exception as error:  # a fault of ours, or of a listener: what was missed is found by a list
                log.exception("watch failed unforeseen", kind=self._kind, error=type(error).__name__)
                self.resource_version = None
                wait_s = self._wait_s(error)
            if wait_s:
                await asyncio.sleep(wait_s)

    async def _list(self) -> None:
        began_at_s = self._clock()
        listed_at_s = asyncio.get_running_loop().time()
        version = ""
        for table in self._tables:
            table.begin_list()
        async with aclosing(self._source.list_pages(self._kind)) as pages:
            async for page in pages:
                version = version or page.resource_version
                for start in range(0, len(page.items), YIELD_EVERY):
                    for raw in page.items[start : start + YIELD_EVERY]:
                        self._see(raw)
                    await asyncio.sleep(0)
        missing = set().union(*(table.missing() for table in self._tables))
        kept = self._removals.listed(missing, began_at_s=listed_at_s)
        for table in self._tables:
            table.end_list(keep=kept)
        self._listed(began_at_s)
        # last: a listener that raised gets the whole list again, and nothing counts as listed before
        self._complete = True
        self._fresh_at_s = began_at_s
        self.resource_version = version

    async def _watch(self, version: str) -> float:
        """Follow one watch to its clean end. Returns: seconds to wait before the next one."""
        opened_at_s = asyncio.get_running_loop().time()
        events = 0
        try:
            async with (
                asyncio.timeout_at(self._removals.look_at_s()) as held,
                aclosing(self._source.watch(self._kind, version)) as stream,
            ):
                async for event in stream:
                    if event.type is not EventType.BOOKMARK:
                        self._take(event.type, event.object)
                        held.reschedule(self._removals.look_at_s())
                    self.resource_version = _version_of(event.object) or self.resource_version
                    self._fresh_at_s = self._clock()
                    if events == 1:  # the first event only says that the stream is open
                        self._recovered()
                    events += 1
                    if events % YIELD_EVERY == 0:
                        await asyncio.sleep(0)
        except TimeoutError:  # ours, for a list that confirms removals: a source raises UpstreamError instead
            self.resource_version = None
            return 0.0
        self._fresh_at_s = self._clock()
        if events > 1 or asyncio.get_running_loop().time() - opened_at_s >= self._settings.watch_min_s:
            self._recovered()
            return 0.0
        return self._wait_s(None)

    def _see(self, raw: RawObject) -> None:
        """An object of a list."""
        key = self._key(raw)
        if key is None:
            return
        for table in self._tables:
            table.see(key, raw)

    def _take(self, type_: EventType, raw: RawObject) -> None:
        """A change, as a watch tells it."""
        key = self._key(raw)
        if key is None:
            return
        if type_ is not EventType.DELETED:
            self._removals.present(key)
        elif self._removals.deleted(key, at_s=asyncio.get_running_loop().time()):
            return
        for table in self._tables:
            if type_ is EventType.DELETED:
                table.remove(key, raw["metadata"].get("uid"))
            else:
                table.put(key, raw)

    def _key(self, raw: RawObject) -> ObjectKey | None:
        try:
            return object_key(raw, self._kind)
        except WireError as error:
            log.warning("object without a name passed over", kind=self._kind, error=str(error))
            return None

    def _unknown(self) -> None:
        """The kind cannot be listed: what is held of it stays, and nobody may rely on it."""
        self.resource_version = None
        self._fresh_at_s = None
        self._removals.start_over()

    def _wait_s(self, error: Exception | None) -> float:
        trouble = "watch ended at once" if error is None else type(error).__name__
        if trouble != self._trouble:  # in a loop the change is logged, not the repetition
            self._trouble = trouble
            log.warning(
                "watch interrupted", kind=self._kind, trouble=trouble, error=None if error is None else str(error)
            )
        return self._backoff.next_s()

    def _recovered(self) -> None:
        self._backoff.reset()
        if self._trouble:
            self._trouble = ""
            log.info("watch works again", kind=self._kind)


def _version_of(raw: RawObject) -> str | None:
    metadata = raw.get("metadata")
    version = metadata.get("resourceVersion") if type(metadata) is dict else None
    return version if type(version) is str else None
