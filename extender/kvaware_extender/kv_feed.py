"""KV events of workers go into the engine's ``Placer``: who holds which blocks is then known, not estimated."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Final, Protocol

import structlog
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from kvaware_cluster import KvEventSettings, KvFollowers, WorkerMembership
from kvaware_cluster.process_metrics import counter, counters
from kvaware_engine.blocks.events import BlockEvent
from kvaware_engine.blocks.residency import Applied

__all__ = ["KvFeed"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RESULTS: Final = tuple(field.name for field in fields(Applied))
"""What may become of blocks: ``stored``, ``removed``, ``orphaned`` and so on."""


class ObservingBlocks(Protocol):
    """The engine's ``Placer``, as far as workers' blocks are concerned."""

    def observe_blocks(self, worker: str, events: Sequence[BlockEvent], *, now_s: float) -> Applied:
        """These happened. Returns: what became of them."""
        ...

    def blocks_lost(self, worker: str, *, now_s: float) -> None:
        """Nothing that was told of the worker's blocks holds any more."""
        ...

    def events_ended(self, worker: str, *, now_s: float) -> None:
        """The worker's events are followed no more."""
        ...


class KvFeed:
    """A ``BlockSink`` of the followers of all workers."""

    def __init__(
        self,
        placer: ObservingBlocks,
        *,
        membership: WorkerMembership,
        settings: KvEventSettings,
        clock: Callable[[], float],
    ) -> None:
        """Follow nobody yet; ``followers.run`` does, and is its owner's to await."""
        self._placer = placer
        self._clock = clock
        self._blocks = dict.fromkeys(RESULTS, 0)
        self._asked_anew = 0
        self.followers = KvFollowers(self, membership=membership, settings=settings, clock=clock)

    def blocks(self, worker: str, events: Sequence[BlockEvent]) -> None:
        """See ``BlockSink``."""
        applied = self._placer.observe_blocks(worker, events, now_s=self._clock())
        for result in RESULTS:
            self._blocks[result] += getattr(applied, result)

    def lost(self, worker: str) -> None:
        """See ``BlockSink``."""
        self._placer.blocks_lost(worker, now_s=self._clock())

    def ended(self, worker: str) -> None:
        """See ``BlockSink``."""
        self._placer.events_ended(worker, now_s=self._clock())

    def ask_anew(self, workers: Iterable[str]) -> None:
        """Requests find less than half of what these told: what they hold is learnt again, where they can be asked."""
        for worker in workers:
            if self.followers.follow_again(worker):
                self._asked_anew += 1
                log.warning("requests find less than half of what a worker told, it is asked anew", worker=worker)

    def metrics(self) -> Iterator[Metric]:
        """What is followed, and what came of it."""
        counts, connected = self.followers.counts, self.followers.connected()
        text = "Workers whose KV events are to be followed, by whether they are connected."
        streams = GaugeMetricFamily("kvaware_kv_event_streams", text, labels=["state"])
        streams.add_metric(["connected"], connected)
        streams.add_metric(["unconnected"], len(self.followers) - connected)
        yield streams
        yield counter("kvaware_kv_events", "KV events applied.", counts.events)
        text = "Times that a worker was asked anew, since requests found less than half of what it had told."
        yield counter("kvaware_kv_events_asked_anew", text, self._asked_anew)
        yield counters(
            "kvaware_kv_blocks", "Blocks that KV events name, by what became of them.", "result", self._blocks.items()
        )
        yield counters(
            "kvaware_kv_event_gaps",
            "Gaps in workers' KV events, by what became of them.",
            "result",
            counts.gaps.items(),
        )
        yield counters(
            "kvaware_kv_event_replays",
            "Replays of lost KV events, by how they ended.",
            "result",
            counts.replays.items(),
        )
        yield counters(
            "kvaware_kv_events_passed_over", "KV events not applied, by why.", "reason", counts.passed_over.items()
        )
