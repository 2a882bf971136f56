"""The command itself: help that teaches, quick start-up, its name as a kubectl plugin, output into pipes."""

import os
import subprocess
import sys

import pytest

from kvaware_testing.command_line import Kvaware
from kvaware_testing.extender_answers import candidate, explanation
from kvaware_testing.fake_extender import FakeExtender

COMMANDS = ["extender", "crds", "demo", "explain", "top"]


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvaware_cli", *args],
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **environ},
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_an_example(kvaware: Kvaware, command: str) -> None:
    result = kvaware(command, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert f"kvaware {command}" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_help_does_not_import_what_it_does_not_need() -> None:
    """The Kubernetes client alone takes a second to import; nobody waits for that to read a help text."""
    code = (
        "import sys\nsys.argv = ['kvaware', '--help']\n"
        "from kvaware_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('HEAVY', sorted({'kubernetes', 'aiohttp', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "HEAVY []" in result.stdout


def test_as_a_kubectl_plugin_it_calls_itself_what_the_user_typed(kvaware: Kvaware) -> None:
    result = kvaware("top", "--help", argv0="/usr/local/bin/kubectl-kvaware")
    assert "Usage: kubectl kvaware top" in result.out


def test_version(kvaware: Kvaware) -> None:
    result = kvaware("--version")
    assert result.code == 0
    assert result.out.startswith("kvaware 0.")


def test_an_unknown_option_is_wrong_use(kvaware: Kvaware) -> None:
    result = kvaware("top", "--frobnicate")
    assert result.code == 2
    assert "No such option: --frobnicate" in result.err


def test_piped_output_has_no_escape_codes_and_survives_an_ascii_locale(server: FakeExtender) -> None:
    """Boxes, arrows and colours belong on terminals; a log collector's locale must not end in a traceback."""
    server.answers["GET /v1/pods/ml/x/explanation"] = (200, explanation([candidate("a"), candidate("b")]))
    result = run("explain", "pod", "ml/x", "--server", server.url, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout


def test_a_reader_that_leaves_early_is_no_error(server: FakeExtender) -> None:
    """``kvaware top | head -1``."""
    server.answers["GET /v1/nodes"] = (200, {"items": []})
    process = subprocess.Popen(
        [sys.executable, "-m", "kvaware_cli", "explain", "pod", "ml/x", "-o", "json", "--server", server.url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    server.answers["GET /v1/pods/ml/x/explanation"] = (200, {"long": "x" * 200_000})
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(30)
    assert "Traceback" not in errors
