"""When each of many targets is scraped: at its own pace, spread, a bounded number at a time, dead ones seldom.

Places are shared between the owners of the targets.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Never, Protocol, TypeVar

import structlog

from kvaware_cluster.fair_queue import FairQueue

__all__ = ["Pace", "ScrapeLoop"]

K = TypeVar("K", bound=Hashable)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Pace(Protocol):
    """How often, as the settings of a scraper say."""

    @property
    def interval_s(self) -> float:
        """Between the scrapes of one target."""
        ...

    @property
    def interval_jitter_ratio(self) -> float:
        """Share of it by which each pause is moved."""
        ...

    @property
    def slow_after_misses_interval_s(self) -> float:
        """Between the scrapes of a target that is dead."""
        ...

    @property
    def concurrency(self) -> int:
        """Scrapes at a time."""
        ...


@dataclass(slots=True)
class _Target(Generic[K]):
    key: K
    timer: asyncio.TimerHandle | None = None
    tried: bool = False
    """Whether it was scraped once, well or not."""


class ScrapeLoop(Generic[K]):
    """One entry per target: waiting for its time, queued, or being scraped; never two of these.

    It has one owner, which awaits ``run``; the rest is called in the same loop.
    """

    def __init__(
        self,
        name: str,
        scrape: Callable[[K], Awaitable[bool]],
        *,
        pace: Pace,
        rng: random.Random,
        owner: Callable[[K], Hashable] = lambda _: None,
    ) -> None:
        """Scrape nothing yet.

        Args:
            name: Of the tasks, and in the log.
            scrape: One scrape of one target. Returns whether the target is alive: False slows it down. It must end in
                time by itself; what it raises is logged.
            pace: How often.
            rng: For jitter.
            owner: Whose a target is: while others wait, no owner's targets take more places than theirs.
        """
        self._name = name
        self._scrape = scrape
        self._pace = pace
        self._rng = rng
        self._targets: dict[K, _Target[K]] = {}
        self._owner = owner
        self._due: FairQueue[Hashable, _Target[K]] = FairQueue()  # at most one entry per target

    def add(self, key: K) -> None:
        """Scrape this target from now on; one that is known stays as it is."""
        if key not in self._targets:
            target = self._targets[key] = _Target(key)
            # spread the first scrapes of a whole cluster over a fifth of the interval
            self._schedule(target, self._pace.interval_s * 0.2 * self._rng.random())

    def drop(self, key: K) -> None:
        """Scrape it no more. A scrape that runs goes on to its end."""
        target = self._targets.pop(key, None)
        if target is not None and target.timer is not None:
            target.timer.cancel()

    def all_tried(self) -> bool:
        """Whether every target was scraped once, well or not."""
        return all(target.tried for target in self._targets.values())

    async def run(self) -> Never:
        """Scrape until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._pace.concurrency):
                    group.create_task(self._work(), name=f"{self._name}-{number}")
            raise RuntimeError(f"{self._name}: its tasks ended by themselves")
        finally:
            for target in self._targets.values():
                if target.timer is not None:
                    target.timer.cancel()

    async def _work(self) -> None:
        while True:
            target = await self._due.get()
            try:
                if self._is_current(target):  # else it went while it was queued
                    await self._turn(target)
            finally:
                self._due.done(self._owner(target.key))

    async def _turn(self, target: _Target[K]) -> None:
        target.timer = None
        alive = True
        try:
            alive = await self._scrape(target.key)
            target.tried = True
        except Exception as error:  # a fault of ours or of a listener; this target's next turn comes
            log.exception(
                "scrape failed unforeseen", scrape=self._name, target=str(target.key), error=type(error).__name__
            )
        if self._is_current(target):
            self._schedule(target, self._pause_s(alive=alive))

    def _is_current(self, target: _Target[K]) -> bool:
        return self._targets.get(target.key) is target

    def _pause_s(self, *, alive: bool) -> float:
        interval_s = self._pace.interval_s if alive else self._pace.slow_after_misses_interval_s
        return interval_s * (1 + self._pace.interval_jitter_ratio * (2 * self._rng.random() - 1))

    def _schedule(self, target: _Target[K], wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        target.timer = loop.call_later(wait_s, partial(self._due.put, target, group=self._owner(target.key)))
