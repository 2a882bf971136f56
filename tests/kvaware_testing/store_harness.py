"""What tests of the store need: a clock, a listener that remembers, a store at work, quick settings."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from kubernetes.aio.client.configuration import Configuration

from kvaware_cluster import Change, DcgmSettings, Kind, KubernetesSettings, KubernetesSource, StoreSettings
from kvaware_engine.observations import NodeUse, ObjectKey
from kvaware_testing.fake_api import FakeApi

__all__ = ["QUICK", "FakeClock", "Recorder", "connected", "drain", "eventually", "running"]


class FakeClock:
    """Monotonic seconds that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Recorder:
    """A listener that keeps what it is told, builds its own view from it, and lets a test wait for a state."""

    def __init__(self) -> None:
        self.changes: list[Change[Any]] = []
        self.lists: list[tuple[Kind, float]] = []
        self.uses: list[tuple[str, NodeUse | None]] = []
        self.view: dict[tuple[str, ObjectKey], Any] = {}
        self.before: Callable[[Change[Any]], None] = lambda change: None
        self._news = asyncio.Event()

    def changed(self, change: Change[Any]) -> None:
        self.before(change)
        assert change.old == self.view.get((change.kind, change.key)), "a change starts from what was told before"
        if change.new is None:
            del self.view[change.kind, change.key]
        else:
            self.view[change.kind, change.key] = change.new
        self.changes.append(change)
        self._news.set()

    def listed(self, kind: Kind, *, began_at_s: float) -> None:
        self.lists.append((kind, began_at_s))
        self._news.set()

    def used(self, node: str, use: NodeUse | None) -> None:
        self.uses.append((node, use))
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a state that something told to this listener brings about."""
        async with asyncio.timeout(30):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def names(self, kind: Kind) -> set[str]:
        return {key.name for of, key in self.view if of == kind}


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for a state of the fake server or of an age, which nobody announces."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.002)


async def drain(events: AsyncGenerator[Any, None]) -> None:
    """Take all of a stream until it ends or raises."""
    async with aclosing(events):
        async for _ in events:
            pass


class Runs(Protocol):
    """A store, or another part that works until it is cancelled."""

    async def run(self) -> None:
        """Work."""
        ...


@asynccontextmanager
async def running(part: Runs) -> AsyncIterator[asyncio.Task[None]]:
    """The part at work until the block ends."""
    task = asyncio.create_task(part.run(), name=type(part).__name__)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


QUICK = StoreSettings(
    backoff_first_s=0.005,
    backoff_max_s=0.02,
    retry_after_max_s=0.05,
    watch_min_s=0.02,
    quota_removal_hold_s=0.05,
    dcgm=DcgmSettings(enabled=False),
)


@asynccontextmanager
async def connected(api: FakeApi, **settings: Any) -> AsyncIterator[KubernetesSource]:
    rng = random.Random(1)  # noqa: S311  # jitter
    source = KubernetesSource(Configuration(host=api.url), settings=KubernetesSettings(**settings), rng=rng)
    try:
        yield source
    finally:
        await source.close()
