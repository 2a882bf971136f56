"""Follows the KV events of every worker whose model says where they are: one stream each, all in one loop."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Never

import structlog
import zmq
import zmq.asyncio

from kvaware_cluster.backoff import Backoff
from kvaware_cluster.kv_stream import KvStream
from kvaware_cluster.kv_turns import Turns
from kvaware_cluster.kv_words import BlockSink, KvCounts
from kvaware_cluster.settings import KvEventSettings
from kvaware_cluster.worker_membership import KvEventTarget, WorkerMembership

__all__ = ["KvFollowers"]

AGAIN_FIRST_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""After a fault of ours, or when the process may open no more files."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Follower:
    target: KvEventTarget
    task: asyncio.Task[Never] | None = None
    stream: KvStream | None = None


class KvFollowers:
    """It has one owner, which awaits ``run``; the rest is called in the same loop."""

    def __init__(
        self,
        sink: BlockSink,
        *,
        membership: WorkerMembership,
        settings: KvEventSettings | None = None,
        clock: Callable[[], float],
        rng: random.Random | None = None,
    ) -> None:
        """Follow nobody yet.

        Args:
            sink: Applies the events; told when a worker is followed no more.
            membership: Says who is followed where.
            settings: See there.
            clock: Monotonic seconds.
            rng: For jitter.
        """
        self.counts = KvCounts()
        self._sink = sink
        self._settings = settings or KvEventSettings()
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._turns = Turns(self._settings.slice_blocks)
        self._followers: dict[str, _Follower] = {}
        self._context: zmq.asyncio.Context | None = None
        self._group: asyncio.TaskGroup | None = None
        membership.on_stream(self._target_changed)

    def connected(self) -> int:
        """How many of the workers that are followed are connected now."""
        return sum(each.stream is not None and each.stream.connected for each in self._followers.values())

    def __len__(self) -> int:
        return len(self._followers)

    def follow_again(self, worker: str) -> bool:
        """Forget what a worker told and learn it anew from its replay: what was believed of it has proved wrong.

        Returns: False where nobody can be asked: what would be forgotten would never be told again.
        """
        follower = self._followers.get(worker)
        if follower is None or follower.target.replay_address is None:
            return False
        self._target_changed(worker, follower.target)
        return True

    async def run(self) -> Never:
        """Follow until cancelled."""
        context = zmq.asyncio.Context()
        context.set(zmq.MAX_SOCKETS, context.get(zmq.SOCKET_LIMIT))  # ZeroMQ's own default is 1023
        try:
            async with asyncio.TaskGroup() as group:
                self._context, self._group = context, group
                for worker, follower in self._followers.items():
                    self._start(worker, follower)
                await self._turns.run()
        finally:
            self._context = self._group = None
            context.destroy(linger=0)

    def _target_changed(self, worker: str, target: KvEventTarget | None) -> None:
        before = self._followers.pop(worker, None)
        if before is not None:
            if before.task is not None:
                before.task.cancel()  # it applies nothing more: its next step is its end
            self._end(before)
        if target is not None:
            follower = self._followers[worker] = _Follower(target)
            self._start(worker, follower)

    def _start(self, worker: str, follower: _Follower) -> None:
        if self._group is not None:
            follower.task = self._group.create_task(self._follow(follower), name=f"kv-events-{worker}")

    def _end(self, follower: _Follower) -> None:
        stream, follower.stream = follower.stream, None
        if stream is not None and stream.heard:
            self._sink.ended(follower.target.worker)

    async def _follow(self, follower: _Follower) -> Never:
        backoff = Backoff(AGAIN_FIRST_S, AGAIN_MAX_S, self._rng)
        context, worker = self._context, follower.target.worker
        if context is None:
            raise RuntimeError("kv-events: expected a context, found none")
        while True:
            follower.stream = KvStream(
                follower.target,
                context=context,
                sink=self._sink,
                settings=self._settings,
                turns=self._turns,
                counts=self.counts,
                clock=self._clock,
                rng=self._rng,
            )
            try:
                await follower.stream.run()
            except Exception as error:  # of ZeroMQ (no more files), or a fault of ours; the other workers go on
                log.exception("KV events cannot be followed", worker=worker, error=type(error).__name__)
            self._end(follower)
            await asyncio.sleep(backoff.next_s())
