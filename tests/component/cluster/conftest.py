import random
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import structlog
from structlog.typing import EventDict

from kvaware_cluster import KubernetesSource, Source, Store, StoreSettings
from kvaware_testing.fake_api import FakeApi
from kvaware_testing.loop_guard import blocking_calls_are_errors
from kvaware_testing.store_harness import QUICK, FakeClock, Recorder, connected


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged. Captured always: rendering a traceback reads source files, which blocks."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture(autouse=True)
def _blocking_calls_are_errors() -> Iterator[None]:
    """Nothing in this room may block the loop (kubernetes.aio may, while it reads its certificates in a thread)."""
    # credentials are read in a thread, by a loop of its own
    with blocking_calls_are_errors("kvaware_cluster", but_in={"kvaware_cluster/credentials.py": ("load", "reload")}):
        yield


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi.serve() as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def source(api: FakeApi) -> AsyncIterator[KubernetesSource]:
    async with connected(api, page_size=3) as made:
        yield made


@pytest.fixture
def make_store(clock: FakeClock, recorder: Recorder) -> Callable[..., Store]:
    def make(source: Source, settings: StoreSettings = QUICK) -> Store:
        store = Store(source, settings=settings, clock=clock, rng=random.Random(1))  # noqa: S311  # jitter
        store.subscribe(recorder)
        return store

    return make
