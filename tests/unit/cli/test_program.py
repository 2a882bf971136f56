"""The command is named so that the user can type it."""

import sys
from pathlib import Path

import pytest

from kvaware_cli.program import program


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a virtual environment below the working directory, not on PATH."""
    command = tmp_path / ".venv" / "bin" / "kvaware"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "argv", [str(command)])
    return command


def test_outside_path_it_is_named_by_its_path_from_here(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program() == ".venv/bin/kvaware"
    monkeypatch.chdir("/")
    assert program() == str(installed.relative_to("/"))


def test_on_path_its_name_is_enough(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    assert program() == "kvaware"


def test_another_kvaware_on_path_is_not_taken_for_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "kvaware"
    other.write_text("#!/bin/sh\n")
    other.chmod(installed.stat().st_mode)
    monkeypatch.setenv("PATH", str(other.parent))
    assert program() == ".venv/bin/kvaware"


def test_as_a_plugin_and_as_a_module(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-kvaware"])
    assert program() == "kubectl kvaware"
    monkeypatch.setattr(sys, "argv", ["/site-packages/kvaware_cli/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(installed.with_name("python")))
    assert program() == ".venv/bin/kvaware"
    installed.unlink()
    assert program() == ".venv/bin/python -m kvaware_cli"
