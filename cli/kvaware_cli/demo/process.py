"""The real extender as a child process on free ports of 127.0.0.1."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvaware_cli.client import ApiClient, SchedulerVerbs
from kvaware_cli.errors import ServerError

__all__ = ["Extender", "running_extender"]

START_S: Final = 30.0  # imports take 2 s on an idle core; a busy machine gets more
STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """A running extender."""

    api: ApiClient
    verbs: SchedulerVerbs
    api_url: str
    process: subprocess.Popen[bytes]
    log: Path
    """What it wrote to standard output and error."""


@contextlib.contextmanager
def running_extender(cluster_dir: Path, settings: Mapping[str, str] | None = None) -> Iterator[Extender]:
    """``kvaware extender --cluster-dir``, ready to answer; ended on leaving, whatever happened.

    Args:
        cluster_dir: What it serves.
        settings: ``KVAWARE_*`` variables that it gets.
    """
    scheduler_port, api_port = _free_ports()
    command = [sys.executable, "-m", "kvaware_cli", "extender", "--cluster-dir", str(cluster_dir)]
    command += [
        "--host",
        "127.0.0.1",
        "--scheduler-host",
        "127.0.0.1",
        "--scheduler-port",
        str(scheduler_port),
        "--api-port",
        str(api_port),
    ]
    # KVAWARE_* settings of the user's shell are meant for their cluster, not for the example.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KVAWARE_")}
    environ |= {"KVAWARE_STORE__DCGM__INTERVAL_S": "1"}  # nobody should wait 15 s for the first figures
    environ |= settings or {}
    with tempfile.TemporaryDirectory(prefix="kvaware-log-") as folder:
        log = Path(folder, "extender.log")
        with log.open("wb") as sink:
            process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environ
            )
        try:
            api_url = f"http://127.0.0.1:{api_port}"
            extender = Extender(
                api=ApiClient(api_url),
                verbs=SchedulerVerbs(f"http://127.0.0.1:{scheduler_port}"),
                api_url=api_url,
                process=process,
                log=log,
            )
            _wait_until_ready(extender, process)
            yield extender
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(extender: Extender, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S
    while not extender.api.ready():
        if process.poll() is not None:
            raise ServerError(f"the extender ended with exit code {process.returncode}: {_last_line(extender.log)}")
        if time.monotonic() > deadline_s:
            raise ServerError(f"the extender was not ready after {START_S:.0f} s: {_last_line(extender.log)}")
        time.sleep(0.05)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"


def _free_ports() -> tuple[int, int]:
    """Two ports that are free now. Should another program take one before the extender does, that says so and ends."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
