"""The command itself: help that teaches, quick start-up, its name as a kubectl plugin, output into pipes."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from kvaware_testing.command_line import Kvaware
from kvaware_testing.extender_answers import candidate, explanation
from kvaware_testing.fake_extender import FakeExtender

COMMANDS = ["extender", "crds", "demo", "explain", "replay", "top"]


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvaware_cli", *args],
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **environ},
    )  # fmt: skip


def run_on_terminal(*args: str) -> tuple[int, str]:
    """The command with a pseudo-terminal of 80 columns as its output. Returns: exit status, output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "kvaware_cli", *args], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    chunks = []
    with contextlib.suppress(OSError):  # Linux tells the end of a terminal as EIO
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    os.close(ours)
    return process.wait(30), b"".join(chunks).decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_an_example(kvaware: Kvaware, command: str) -> None:
    result = kvaware(command, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert [line for line in result.out.splitlines() if line.startswith(f"    kvaware {command}")]
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize("on_terminal", [False, True])
def test_examples_in_the_help_stand_on_lines_of_their_own(on_terminal: bool) -> None:  # noqa: FBT001 - a test's parameter
    """The character that keeps lines apart was once printed, and the lines run together."""
    if on_terminal:
        code, output = run_on_terminal("top", "--help")
    else:
        done = run("top", "--help")
        code, output = done.returncode, done.stdout
    assert code == 0
    lines = [line.rstrip() for line in output.splitlines()]
    where = lines.index("  Examples:")
    assert lines[where : where + 4] == [
        "  Examples:", "    kvaware top", "    kvaware top tenants", "    kvaware top models"
    ]  # fmt: skip
    assert "\\b" not in output
    assert "\b" not in output


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


@pytest.mark.parametrize("args", [("crds",), ("--version",), ("top", "--help")])
def test_a_full_disk_is_one_line(args: tuple[str, ...]) -> None:
    """Long output fails when it is written, short output only when it is flushed at the end."""
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "kvaware_cli", *args],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "kvaware: error: cannot write: No space left on device\n"
