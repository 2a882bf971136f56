"""Nothing in the operator may block its loop, whatever a test is about; kopf's thread has a loop of its own."""

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster
from structlog.testing import capture_logs
from structlog.typing import EventDict


@pytest.fixture(autouse=True)
def _blocking_calls_are_errors() -> Iterator[None]:
    guard = BlockBuster(scanned_modules=["kvaware_operator", "kvaware_cluster", "kvaware_engine"])
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged; not rendered, because the development renderer reads source files in the loop."""
    with capture_logs() as events:
        yield events
