"""Nothing in the operator may block its loop, whatever a test is about; kopf's thread has a loop of its own."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kvaware_testing.loop_guard import blocking_calls_are_errors


@pytest.fixture(autouse=True)
def _blocking_calls_are_errors() -> Iterator[None]:
    with blocking_calls_are_errors("kvaware_operator", "kvaware_cluster", "kvaware_engine"):
        yield


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged; not rendered, because the development renderer reads source files in the loop."""
    with capture_logs() as events:
        yield events
