from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kvaware_testing.loop_guard import blocking_calls_are_errors


@pytest.fixture(autouse=True)
def _blocking_calls_are_errors() -> Iterator[None]:
    """Nothing in the extender may block its loop."""
    with blocking_calls_are_errors("kvaware_extender", "kvaware_cluster", "kvaware_engine"):
        yield


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged; not rendered, because the development renderer reads source files in the loop."""
    with capture_logs() as events:
        yield events
