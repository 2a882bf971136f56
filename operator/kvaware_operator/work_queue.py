"""Keys of objects to look at: one entry per key, back-off per key, a bounded number at a time.

::

    request ──▶ waiting ──due──▶ running ──▶ done: forgotten, or waiting again (asked for meanwhile, look again after)
                   ▲                 └─────▶ failed: waiting, for twice as long each time
                   └──────────────────────────────┘
An object whose look fails waits by itself; all others pass. A request for it brings its next look forward, but never
closer to the last one than the first back-off: events must not make a hot loop of an object that always fails.
"""

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Generic, TypeVar

import structlog

from kvaware_cluster.backoff import Backoff
from kvaware_crds.errors import KvawareError, UpstreamError
from kvaware_operator.errors import NotLeadingError

__all__ = ["Result", "Schedule", "WorkQueue"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)


class Result(StrEnum):
    """How a look at an object ended."""

    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class _Entry:
    due_s: float | None = None
    """None: not asked for."""
    turn: int = 0
    """Of the newest place in the heap; older places are passed over."""
    running: bool = False
    ended_s: float | None = None
    """When its last look failed; None: it did not fail."""
    backoff: Backoff | None = None


class Schedule(Generic[K]):
    """When which key is looked at. No task, no clock: time is an argument."""

    def __init__(self, *, first_s: float, max_s: float, rng: random.Random) -> None:
        self._first_s, self._max_s, self._rng = first_s, max_s, rng
        self._entries: dict[K, _Entry] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._turns = count(1)

    def __len__(self) -> int:
        """Keys that wait, are running, or wait after a failure."""
        return len(self._entries)

    @property
    def failing(self) -> int:
        """Keys whose last look failed."""
        return sum(entry.backoff is not None for entry in self._entries.values())

    def request(self, key: K, *, now_s: float, after_s: float = 0.0) -> None:
        """Look at a key after a while; of two requests the earlier holds."""
        entry = self._entries.setdefault(key, _Entry())
        due_s = now_s + after_s
        if entry.ended_s is not None:
            due_s = max(due_s, entry.ended_s + self._first_s)
        self._wait(key, entry, due_s)

    def take(self, *, now_s: float) -> K | None:
        """The key that is due longest; it runs until ``done`` or ``failed``. None: none is due."""
        while self._heap and self._heap[0][0] <= now_s:
            _, turn, key = heapq.heappop(self._heap)
            entry = self._entries.get(key)
            if entry is None or entry.turn != turn or entry.running:
                continue  # overtaken by an earlier place; or running, then ``_ended`` puts it back
            entry.due_s, entry.running = None, True
            return key
        return None

    def next_due_s(self) -> float | None:
        """When ``take`` has something next; None: nothing is asked for."""
        while self._heap:
            due_s, turn, key = self._heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry.turn == turn and not entry.running:
                return due_s
            heapq.heappop(self._heap)
        return None

    def done(self, key: K, *, now_s: float, again_after_s: float | None = None) -> None:
        """A look ended well."""
        entry = self._entries[key]
        entry.backoff = entry.ended_s = None
        self._ended(key, entry, None if again_after_s is None else now_s + again_after_s)

    def failed(self, key: K, *, now_s: float, at_least_s: float = 0.0) -> None:
        """A look failed; the next one comes after the back-off, and not before ``at_least_s``."""
        entry = self._entries[key]
        entry.backoff = entry.backoff or Backoff(self._first_s, self._max_s, self._rng)
        entry.ended_s = now_s
        wait_s = max(entry.backoff.next_s(), at_least_s)
        asked_s = None if entry.due_s is None else max(entry.due_s, now_s + self._first_s)
        entry.due_s = None
        self._ended(key, entry, now_s + wait_s if asked_s is None else min(asked_s, now_s + wait_s))

    def _ended(self, key: K, entry: _Entry, due_s: float | None) -> None:
        entry.running = False
        asked_s, entry.due_s = entry.due_s, None
        dues = [each for each in (due_s, asked_s) if each is not None]
        if dues:
            self._wait(key, entry, min(dues))
        else:
            del self._entries[key]

    def _wait(self, key: K, entry: _Entry, due_s: float) -> None:
        if entry.due_s is not None and entry.due_s <= due_s:
            return
        entry.due_s = due_s
        if not entry.running:
            entry.turn = next(self._turns)
            heapq.heappush(self._heap, (due_s, entry.turn, key))


class WorkQueue(Generic[K]):
    """The keys of one kind. One owner awaits ``run``; ``request`` is called in the same loop."""

    def __init__(
        self,
        name: str,
        *,
        first_s: float,
        max_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        rng: random.Random | None = None,
    ) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._clock = clock
        self._schedule: Schedule[K] = Schedule(
            first_s=first_s,
            max_s=max_s,
            rng=rng or random.Random(),  # noqa: S311  # jitter, not a secret
        )
        self._news = asyncio.Event()
        self._troubles: dict[K, str] = {}
        self._suffering: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._schedule)

    @property
    def failing(self) -> int:
        """Keys whose last look failed."""
        return self._schedule.failing

    def request(self, key: K, *, after_s: float = 0.0) -> None:
        """Look at a key."""
        self._schedule.request(key, now_s=self._clock(), after_s=after_s)
        self._news.set()

    async def run(
        self,
        look: Callable[[K], Awaitable[float | None]],
        *,
        workers: int,
        grace_s: float = 0.0,
        ended: Callable[[Result, float], None] = lambda _result, _took_s: None,
    ) -> None:
        """Look at keys as they fall due, until cancelled.

        Args:
            look: Brings one object to its spec. Returns: seconds after which to look again, or None. What it raises is
                logged when it changes; the key is tried again.
            workers: Looks at a time.
            grace_s: When cancelled, time for the looks that are running.
            ended: Told of every look and how long it took.
        """
        running: set[asyncio.Task[None]] = set()

        def finished(task: asyncio.Task[None]) -> None:
            running.discard(task)
            self._news.set()

        try:
            while True:
                self._news.clear()
                while len(running) < workers and (key := self._schedule.take(now_s=self._clock())) is not None:
                    task = asyncio.create_task(self._look(key, look, ended), name=f"{self._name}-look")
                    running.add(task)
                    task.add_done_callback(finished)
                await self._wait(idle=len(running) < workers)
        finally:
            if running and grace_s > 0:
                await asyncio.wait(set(running), timeout=grace_s)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _wait(self, *, idle: bool) -> None:
        """Until something changes, or (with a free worker) the next key is due."""
        due_s = self._schedule.next_due_s() if idle else None
        try:
            async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._clock())):
                await self._news.wait()
        except TimeoutError:
            return

    async def _look(
        self, key: K, look: Callable[[K], Awaitable[float | None]], ended: Callable[[Result, float], None]
    ) -> None:
        began_s = self._clock()
        try:
            async with asyncio.timeout(self._timeout_s):
                again_after_s = await look(key)
        except Exception as error:  # noqa: BLE001  # one object must not stop all others
            self._failed(key, error)
            ended(Result.FAILED, self._clock() - began_s)
        else:
            self._trouble(key, None)
            self._schedule.done(key, now_s=self._clock(), again_after_s=again_after_s)
            ended(Result.DONE, self._clock() - began_s)

    def _failed(self, key: K, error: Exception) -> None:
        self._schedule.failed(key, now_s=self._clock(), at_least_s=getattr(error, "retry_after_s", 0.0))
        trouble = type(error).__name__
        if not self._trouble(key, trouble, shared=isinstance(error, UpstreamError | NotLeadingError)):
            return
        log.warning(
            "look failed",
            kind=self._name,
            key="/".join(part for part in key if part) if isinstance(key, tuple) else str(key),
            trouble=trouble,
            error=str(error),
            exc_info=None if isinstance(error, KvawareError | TimeoutError) else error,
        )

    def _trouble(self, key: K, trouble: str | None, *, shared: bool = False) -> bool:
        """Remember what is wrong with a key. Returns: whether that is news.

        In a loop the change is logged, not the repetition; and a server that is down once, not once per object.
        """
        before = self._troubles.pop(key, None)
        if before is not None:
            self._suffering[before] -= 1
        if trouble is None:
            return False
        news = before != trouble and not (shared and self._suffering[trouble])
        self._troubles[key] = trouble
        self._suffering[trouble] += 1
        return news
