"""Scrapes the DCGM exporter of each node, at its own pace, and tells what is in use there."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Never

import structlog

from kvaware_cluster.parse.dcgm import parse_dcgm
from kvaware_cluster.scrape_loop import ScrapeLoop
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
    dead: bool = False
    """Whether none of its exporters answers."""
    known: bool = False
    """Whether the last thing told about it was a use."""

    def by_age(self) -> list[_Exporter]:
        """The oldest first: a pod that joins later cannot take its place, whoever made it."""
        return sorted(self.exporters.values(), key=lambda each: (each.target.created_at, each.target.uid))


class DcgmScraper:
    """One scrape per node and turn.

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
        self._used = used
        self._nodes: dict[str, _Node] = {}
        self._loop = ScrapeLoop("dcgm-scrape", self._turn, pace=settings, rng=rng)
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
                self._loop.add(change.new.node)
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
            self._went_round = over or self._loop.all_tried()
        return self._went_round

    async def run(self) -> Never:
        """Scrape until cancelled."""
        await self._loop.run()

    async def _turn(self, name: str) -> bool:
        node = self._nodes[name]
        await self._scrape(name, node)
        return not node.dead

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

    def _drop(self, key: ObjectKey, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        node.exporters.pop(key, None)
        if not node.exporters:
            del self._nodes[name]
            self._loop.drop(name)
            self._forget(name, node)

    def _forget(self, name: str, node: _Node) -> None:
        if node.known:
            node.known = False
            self._used(name, None)
