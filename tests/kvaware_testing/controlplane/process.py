"""One child process with a log of its own, which never outlives the test run."""

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Process", "ProcessFailedError", "free_ports"]

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_running: "weakref.WeakSet[Process]" = weakref.WeakSet()


class ProcessFailedError(Exception):
    """A process ended, or did not become ready; the message ends with the tail of its log."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that were free a moment ago, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Process:
    """A program with fixed arguments that may be started and stopped again.

    It dies with its parent: on Linux by a parent-death signal, elsewhere by ``atexit``. That signal belongs to the
    *thread* that starts it, so start processes from a thread that stays, best the main one.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        ready_url: str,
        tls: ssl.SSLContext | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [os.fspath(part) for part in command]
        self._ready_url = ready_url
        self._tls = tls
        self._environ = None if environ is None else dict(environ)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._child.pid if self._child is not None and self.alive else None

    def start(self) -> None:
        """Start it and return at once. The log of an earlier start stays."""
        if self.alive:
            raise RuntimeError(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,  # Ctrl-C is for the test run, which then stops us in order
                preexec_fn=_die_with_parent,  # noqa: PLW1509  one prctl call through a library loaded before the fork
            )
        _running.add(self)

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until its readiness URL answers 200.

        Raises: ProcessFailedError.
        """
        end = time.monotonic() + timeout_s
        answer = "nothing"
        while time.monotonic() < end:
            if not self.alive:
                raise ProcessFailedError(f"{self.name} ended: {self._status()}\n{self.tail()}")
            ready, answer = self._probe()
            if ready:
                return
            time.sleep(0.05)
        raise ProcessFailedError(f"{self.name} was not ready within {timeout_s:g} s ({answer})\n{self.tail()}")

    def stop(self, timeout_s: float = 15.0) -> None:
        """Ask it to end, wait, and kill it when it does not. Harmless when it has ended."""
        self.signal(signal.SIGTERM)
        self._reap(timeout_s)

    def kill(self) -> None:
        """End it without a chance to tidy up, as a node that loses power does."""
        self.signal(signal.SIGKILL)
        self._reap(15.0)

    def signal(self, number: int) -> None:
        """Send a signal when it runs."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def tail(self, characters: int = 3000) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return f"(no log {self.log})"
        with self.log.open("rb") as content:
            content.seek(max(0, self.log.stat().st_size - characters))
            return f"… end of {self.log}:\n{content.read().decode('utf-8', errors='replace')}"

    def _probe(self) -> tuple[bool, str]:
        try:
            with urllib.request.urlopen(self._ready_url, timeout=2, context=self._tls) as reply:  # noqa: S310  own URL
                return reply.status == 200, str(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return False, f"{error.code} {error.read(500).decode('utf-8', errors='replace')}"
        except OSError as error:
            return False, str(error)

    def _reap(self, timeout_s: float) -> None:
        if self._child is None:
            return
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        _running.discard(self)

    def _status(self) -> str:
        return "never started" if self._child is None else f"exit status {self._child.poll()}"


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@atexit.register
def _end_all() -> None:
    for process in list(_running):
        process.kill()
