"""Scrapes the DCGM exporter of each node, at its own pace, and tells what is in use there."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from kvaware_cluster.parse.dcgm import parse_dcgm
from kvaware_cluster.settings import DcgmSettings
from kvaware_cluster.source import ExporterTarget
from kvaware_cluster.table import Change
from kvaware_crds.errors import KvawareError
from kvaware_engine.observations import NodeUse, ObjectKey

__all__ = ["DcgmScraper"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_ASKED: Final = 3
"""Exporters of one node that one scrape asks at most: each can take the whole time-out."""


@dataclass(slots=True)
class _Exporter:
    target: ExporterTarget
    missed: int = 0
    """Failed scrapes in a row."""
    retry_at_s: float = 0.0
    """Before this one that is dead is not asked again, unless all of its node are dead."""


@dataclass(slots=True)
class _Node:
    """A node with at least one exporter pod."""

    exporters: dict[ObjectKey, _Exporter] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    dead: bool = False
    """Whether none of its exporters answers."""
    tried: bool = False
    """Whether it was scraped once, well or not."""
    known: bool = False
    """Whether the last thing told about it was a use."""

    def by_age(self) -> list[_Exporter]:
        """The oldest first: a pod that joins later cannot take its place, whoever made it."""
        return sorted(self.exporters.values(), key=lambda each: (each.target.created_at, each.target.uid))


class DcgmScraper:
    """One entry per node: waiting for its time, queued, or being scraped; never two of these.

    A node can have several exporter pods, during a roll-out or because somebody else's pod wears the label. The oldest
    one's word holds; only when it stops answering is the next oldest asked, and the older one now and then again.
    It has one owner, which awaits ``run``. ``changed`` is called by the table of exporter pods, in the same loop.
    """

    def __init__(
        self,
        read: Callable[[ExporterTarget], Awaitable[str]],
        *,
        settings: DcgmSettings,
        clock: Callable[[], float],
        rng: random.Random,
        used: Callable[[str, NodeUse | None], None],
    ) -> None:
        self._read = read
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._used = used
        self._nodes: dict[str, _Node] = {}
        self._due: asyncio.Queue[str] = asyncio.Queue()  # at most one entry per node
        self._waited_since_s: float | None = None
        self._went_round = False

    def changed(self, change: Change[ExporterTarget]) -> None:
        """An exporter pod came, went or moved."""
        if change.old is not None and (change.new is None or change.new.node != change.old.node):
            self._drop(change.key, change.old.node)
        if change.new is not None:
            node = self._nodes.get(change.new.node)
            if node is None:
                node = self._nodes[change.new.node] = _Node()
                # spread the first scrapes of a whole cluster over a fifth of the interval
                self._schedule(change.new.node, node, self._settings.interval_s * 0.2 * self._rng.random())
            node.exporters[change.key] = _Exporter(change.new)

    def went_round(self) -> bool:
        """Whether every exporter known so far was tried once, or ``first_round_limit_s`` is over. Never turns back.

        Ask only once the pods were listed: before that no exporter is known. Until then a GPU that somebody else fills
        would look free.
        """
        if not self._went_round:
            now_s = self._clock()
            if self._waited_since_s is None:
                self._waited_since_s = now_s
            over = now_s - self._waited_since_s >= self._settings.first_round_limit_s
            self._went_round = over or all(node.tried for node in self._nodes.values())
        return self._went_round

    async def run(self) -> None:
        """Scrape until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._settings.concurrency):
                    group.create_task(self._work(), name=f"dcgm-scrape-{number}")
        finally:
            for node in self._nodes.values():
                if node.timer is not None:
                    node.timer.cancel()

    async def _work(self) -> None:
        while True:
            name = await self._due.get()
            node = self._nodes.get(name)
            if node is None:
                continue  # its exporter went while it was queued
            node.timer = None
            try:
                await self._scrape(name, node)
                node.tried = True
            except Exception as error:  # a fault of ours or of a listener; this node's next turn comes
                log.exception("scrape failed unforeseen", node=name, error=type(error).__name__)
            if self._nodes.get(name) is node:
                self._schedule(name, node, self._pause_s(node))

    async def _scrape(self, name: str, node: _Node) -> None:
        began_at_s = self._clock()
        order = node.by_age()
        alive = [each for each in order if not self._is_dead(each) or began_at_s >= each.retry_at_s]
        for exporter in (alive or order)[:MAX_ASKED]:
            try:
                use = parse_dcgm(await self._read(exporter.target), node=name, observed_at_s=began_at_s)
            except KvawareError as error:
                exporter.missed += 1
                if not self._is_dead(exporter):
                    return  # one miss is no reason to believe another
                exporter.retry_at_s = self._clock() + self._settings.slow_after_misses_interval_s
                if exporter.missed == self._settings.missed_limit:
                    log.warning("exporter does not answer", node=name, error=str(error))
                continue
            if self._nodes.get(name) is not node:
                return  # it went while it answered
            if self._is_dead(exporter):
                log.info("exporter answers again", node=name)
            exporter.missed = 0
            node.dead = False
            node.known = True
            self._used(name, use)
            return
        if self._nodes.get(name) is node and all(self._is_dead(each) for each in node.exporters.values()):
            node.dead = True
            self._forget(name, node)

    def _is_dead(self, exporter: _Exporter) -> bool:
        return exporter.missed >= self._settings.missed_limit

    def _pause_s(self, node: _Node) -> float:
        interval_s = self._settings.slow_after_misses_interval_s if node.dead else self._settings.interval_s
        return interval_s * (1 + self._settings.interval_jitter_ratio * (2 * self._rng.random() - 1))

    def _schedule(self, name: str, node: _Node, wait_s: float) -> None:
        node.timer = asyncio.get_running_loop().call_later(wait_s, self._due.put_nowait, name)

    def _drop(self, key: ObjectKey, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        node.exporters.pop(key, None)
        if not node.exporters:
            del self._nodes[name]
            if node.timer is not None:
                node.timer.cancel()
            self._forget(name, node)

    def _forget(self, name: str, node: _Node) -> None:
        if node.known:
            node.known = False
            self._used(name, None)
