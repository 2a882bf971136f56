"""The command line runs in this process against a fake extender's socket."""

import sys
from collections.abc import Iterator

import pytest

from kvaware_cli.main import main
from kvaware_testing.command_line import Kvaware, Result
from kvaware_testing.fake_extender import FakeExtender, fake_extender


@pytest.fixture
def server() -> Iterator[FakeExtender]:
    """A fake extender; the command finds it through KVAWARE_SERVER."""
    with fake_extender() as fake:
        yield fake


@pytest.fixture
def kvaware(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvaware:
    """Run the command with arguments, under the name ``kvaware`` unless told otherwise."""

    def run(*args: str, server: FakeExtender | None = None, argv0: str = "/usr/bin/kvaware") -> Result:
        monkeypatch.setattr(sys, "argv", [argv0, *args])
        monkeypatch.delenv("KVAWARE_SERVER", raising=False)
        if server is not None:
            monkeypatch.setenv("KVAWARE_SERVER", server.url)
        code = 0
        try:
            main()
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run
