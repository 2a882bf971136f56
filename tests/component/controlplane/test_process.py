"""Processes that the harness starts: ready when they say so, gone when the run is."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kvaware_testing.controlplane import Process, ProcessFailedError, eventually, free_ports
from kvaware_testing.controlplane.versions import REPOSITORY

SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    (port,) = free_ports(1)
    command = [*SERVER, "--directory", str(tmp_path), str(port)]
    process = Process("server", command, log=tmp_path / "log", ready_url=f"http://127.0.0.1:{port}/")
    yield process
    process.kill()


def test_a_process_is_ready_when_it_answers_and_starts_again_on_its_port(server: Process) -> None:
    for _ in range(2):
        server.start()
        server.wait_ready(timeout_s=30)
        assert server.alive
        server.stop()
        assert not server.alive


def test_a_process_that_ends_shows_the_tail_of_its_log(tmp_path: Path) -> None:
    """The first question after a failed start is what it said; nobody should have to look for the file."""
    # given
    command = [sys.executable, "-c", "import sys; print('cannot bind port'); sys.exit(3)"]
    process = Process("broken", command, log=tmp_path / "log", ready_url="http://127.0.0.1:9/")
    # when
    process.start()
    # then
    with pytest.raises(ProcessFailedError, match=r"(?s)broken ended: exit status 3.*cannot bind port"):
        process.wait_ready(timeout_s=30)


def test_a_process_that_does_not_listen_to_reason_is_killed(tmp_path: Path) -> None:
    """The API server waits a minute for its watches; a test run does not."""
    # given
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    process = Process("deaf", [sys.executable, "-c", code], log=tmp_path / "log", ready_url="http://127.0.0.1:9/")
    process.start()
    eventually(lambda: "deaf" in process.tail(), 10, "it ignores SIGTERM", every_s=0.01)
    # when
    process.stop(timeout_s=0.05)
    # then
    assert not process.alive


def test_a_killed_test_run_leaves_no_process_behind(tmp_path: Path) -> None:
    """CI kills runs that take too long; the next one must find the machine clean."""
    # given
    run = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from kvaware_testing.controlplane import Process
        child = Process("child", [sys.executable, "-c", "import signal; signal.pause()"],
                        log=Path({str(tmp_path / "log")!r}), ready_url="http://127.0.0.1:9/")
        child.start()
        print(child.pid, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", run],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")},
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        # when
        parent.send_signal(signal.SIGKILL)
        # then
        child.wait(timeout=10)
    assert not child.is_running()
