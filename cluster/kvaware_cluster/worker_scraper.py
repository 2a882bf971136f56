"""Scrapes the ``/metrics`` of every Ready worker pod, each at its own pace, and tells what its workers report."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Never, Protocol

import structlog

from kvaware_cluster.parse.worker_metrics import parse_worker_metrics
from kvaware_cluster.scrape_loop import ScrapeLoop
from kvaware_cluster.settings import WorkerScrapeSettings
from kvaware_cluster.worker_membership import ScrapeTarget, WorkerMembership, split_worker
from kvaware_crds.errors import KvawareError
from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import WorkerReport

__all__ = ["WorkerScraper"]

LARGE_CHARACTERS: Final = 2**16
"""A longer text is read in a thread: more than one rank of a vLLM, which writes 58 kB."""
FORGIVEN: Final = 0.5
"""Misses that a good scrape makes up for: who misses more than a third in the long run is slowed down."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReadMetrics(Protocol):
    """``Source.read_metrics``."""

    async def __call__(self, address: str, *, what: str, timeout_s: float, body_bytes: int) -> str: ...


@dataclass(slots=True)
class _Scraped:
    target: ScrapeTarget
    missed: float = 0.0
    """Failed scrapes, less half of the good ones since; up to ``missed_limit``, so that one good scrape is enough after
    an outage. Counted in a row, who answers every third time would take a place for two time-outs again and again."""
    trouble: str = ""
    """Of the last scrape; empty: it went well."""


class WorkerScraper:
    """One scrape per worker pod and turn. It has one owner, which awaits ``run``; the rest is called in the same loop.

    What cannot be had leaves what was known, which grows old; a change of trouble is logged once.
    """

    def __init__(
        self,
        read: ReadMetrics,
        *,
        membership: WorkerMembership,
        settings: WorkerScrapeSettings | None = None,
        clock: Callable[[], float],
        rng: random.Random | None = None,
        reported: Callable[[WorkerReport], None],
    ) -> None:
        """Scrape nothing yet.

        Args:
            read: A source's ``read_metrics``.
            membership: Says who is asked where, and is told of the ranks that show themselves.
            settings: See there.
            clock: Monotonic seconds, the same as the engine's ``now_s``.
            rng: For jitter.
            reported: Told of each report, after the membership knows the worker.
        """
        self._read = read
        self._membership = membership
        self._settings = settings or WorkerScrapeSettings()
        self._clock = clock
        self._reported = reported
        self._pods: dict[ObjectKey, _Scraped] = {}
        rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._loop: ScrapeLoop[ObjectKey] = ScrapeLoop(
            "worker-scrape", self._turn, pace=self._settings, rng=rng, owner=lambda pod: pod.namespace
        )
        membership.on_target(self._target_changed)

    async def run(self) -> Never:
        """Scrape until cancelled."""
        await self._loop.run()

    def troubles(self) -> Mapping[ObjectKey, str]:
        """Pods whose last scrape failed, and why."""
        return MappingProxyType({pod: each.trouble for pod, each in self._pods.items() if each.trouble})

    def _target_changed(self, pod: ObjectKey, target: ScrapeTarget | None) -> None:
        if target is None:
            self._pods.pop(pod, None)
            self._loop.drop(pod)
        else:
            self._pods[pod] = _Scraped(target)
            self._loop.add(pod)

    async def _turn(self, pod: ObjectKey) -> bool:
        scraped = self._pods[pod]
        try:
            reports = await self._scrape(scraped.target)
        except KvawareError as error:
            if self._pods.get(pod) is scraped:
                self._miss(scraped, str(error))
            return scraped.missed < self._settings.missed_limit
        if self._pods.get(pod) is not scraped:
            return True  # it went, or is another incarnation, while it answered
        if scraped.trouble:
            log.info("worker answers again", namespace=pod.namespace, pod=pod.name)
        scraped.missed, scraped.trouble = max(0.0, scraped.missed - FORGIVEN), ""
        ranks = [split[1] for report in reports if (split := split_worker(report.worker)) is not None]
        self._membership.scraped(pod, ranks, incarnation=scraped.target.incarnation)
        for report in reports:
            self._reported(report)
        return True

    async def _scrape(self, target: ScrapeTarget) -> tuple[WorkerReport, ...]:
        began_at_s = self._clock()  # what happens while it answers may or may not be in the answer
        text = await self._read(
            target.address,
            what=f"worker {target.pod.namespace}/{target.pod.name} at {target.address}",
            timeout_s=self._settings.timeout_s,
            body_bytes=self._settings.body_bytes,
        )

        def parse() -> tuple[WorkerReport, ...]:
            return parse_worker_metrics(
                text, pod=target.pod, model=target.model, incarnation=target.incarnation, observed_at_s=began_at_s
            )

        return parse() if len(text) <= LARGE_CHARACTERS else await asyncio.to_thread(parse)

    def _miss(self, scraped: _Scraped, trouble: str) -> None:
        scraped.missed = min(scraped.missed + 1, float(self._settings.missed_limit))
        if scraped.trouble != trouble:
            scraped.trouble = trouble
            pod = scraped.target.pod
            log.warning("worker cannot be scraped", namespace=pod.namespace, pod=pod.name, problem=trouble)
