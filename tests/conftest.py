"""What all tests share."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logs_of_its_own() -> Iterator[None]:
    """A command that a test runs in this process sends logs to its own standard error, which is closed afterwards.

    The next test's logger would write there, and a task that logs would end of it.
    """
    yield
    structlog.reset_defaults()
