"""Words of following KV events: how gaps and replays end, what is counted, and what applies the events."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kvaware_cluster.parse.kv_events import PassedOver
from kvaware_engine.blocks.events import BlockEvent

__all__ = ["BlockSink", "GapResult", "KvCounts", "ReplayResult"]


class GapResult(StrEnum):
    """What became of a gap in a worker's events."""

    FILLED = "filled"
    LOST = "lost"
    """The worker's blocks are forgotten."""
    RESTARTED = "restarted"
    """It was no gap: the server started again, and holds nothing of before."""
    UNREADABLE = "unreadable"
    """A batch, or an event that may have been a removal, could not be read: forgotten too."""


class ReplayResult(StrEnum):
    """How a replay ended."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Batches were missing in it: the server did not keep them, or they were dropped on the way."""
    BROKEN_OFF = "broken_off"
    SILENT = "silent"
    """Nobody answered (ai-dynamo/dynamo#4904)."""


@dataclass(slots=True)
class KvCounts:
    """Of all workers. Never goes down."""

    events: int = 0
    """Applied, in words of the engine: one of many blocks counts several times."""
    gaps: dict[GapResult, int] = field(default_factory=lambda: dict.fromkeys(GapResult, 0))
    replays: dict[ReplayResult, int] = field(default_factory=lambda: dict.fromkeys(ReplayResult, 0))
    passed_over: dict[PassedOver, int] = field(default_factory=lambda: dict.fromkeys(PassedOver, 0))


class BlockSink(Protocol):
    """What applies events."""

    def blocks(self, worker: str, events: Sequence[BlockEvent]) -> None:
        """These happened, in this order. Nothing: the worker is followed from now on."""
        ...

    def lost(self, worker: str) -> None:
        """Nothing that was told of the worker holds any more."""
        ...

    def ended(self, worker: str) -> None:
        """The worker is followed no more."""
        ...
