"""What a service writes to its log."""

import io
import sys

import pytest
import structlog

from kvaware_cli.service import log_to_stderr

SECRET = "a-token-of-a-gateway"


class Terminal(io.StringIO):
    """Standard error, on a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_traceback_tells_where_and_not_what_was_there(monkeypatch, terminal):
    """Variables hold tokens and prompts, which belong into no log."""
    err = Terminal(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", err)
    log_to_stderr()
    try:
        _failing(SECRET)
    except ValueError as e:
        structlog.get_logger("test").error("unforeseen error", exc_info=e)
    finally:
        structlog.reset_defaults()
    assert "_failing" in err.getvalue()
    assert "what went wrong" in err.getvalue()
    assert SECRET not in err.getvalue()


def _failing(token: str) -> None:
    headers = {"Authorization": token}
    raise ValueError(f"what went wrong with {len(headers)} header")
