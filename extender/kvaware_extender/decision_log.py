"""The log of decisions: one JSON line each, under the field names of the design (§8), written off the hot path.

The loop only puts a record that nobody changes any more on a bounded queue; a thread renders and writes. When the disk
or the reader is slow, or more is decided than the thread may write (some 12,000 records a second), records are dropped
and counted: a decision never waits for its log.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any, BinaryIO, Final, Protocol

import orjson
import structlog

__all__ = ["DecisionLog", "Record"]

log = structlog.get_logger(__name__)

CLOSE_WITHIN_S: Final = 5.0
COLLECT_S: Final = 0.05
"""How long records may lie before they are written."""
AT_A_TIME: Final = 16
"""Records between two writes, each of which lets the loop go on: some 0.1 ms of requests, 1 ms of pods."""
SHARE: Final = 0.1
"""Of one core that the thread may take. Without a bound, 30,000 requests a second would leave the loop two thirds."""


class Record(Protocol):
    """One decision."""

    def fields(self) -> dict[str, Any]:
        """What is written; called in the writing thread, so it reads only what nobody changes."""
        ...


class DecisionLog:
    """A thread behind a bounded queue. ``open`` first; ``close`` writes what is queued, for some seconds at most.

    The thread looks by itself some times a second. Woken by each record it would take the interpreter's lock away from
    the loop in the middle of a call of kube-scheduler, for up to 5 ms.
    """

    def __init__(self, *, target: str, capacity: int) -> None:
        self._target = target
        self._capacity = capacity
        self._queue: deque[Record] = deque()
        """Appended to by the loop, taken from by the thread: both are atomic."""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Records that found the queue full. Written by the loop only."""
        self.failed = 0
        """Records that could not be rendered or written. Written by the thread only."""

    @property
    def off(self) -> bool:
        """Whether nothing is written: then no record has to be made."""
        return self._thread is None

    def open(self) -> None:
        """Open the target and start the thread. Reads and writes files: not for the event loop."""
        if self._target == "off":
            return
        out = sys.stdout.buffer if self._target == "-" else Path(self._target).open("ab")  # noqa: SIM115 - the thread closes it
        self._thread = threading.Thread(target=self._write_all, args=(out,), name="decision-log", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Log one decision; never waits."""
        if self._thread is None:
            return
        if len(self._queue) >= self._capacity:
            self.dropped += 1
        else:
            self._queue.append(record)

    def close(self) -> None:
        """Write what is queued and end the thread. Waits: not for the event loop."""
        if self._thread is None:
            return
        self._closing.set()
        self._thread.join(CLOSE_WITHIN_S)
        if self._thread.is_alive():
            log.warning("decision log does not take records; what is queued is lost", queued=len(self._queue))

    def _write_all(self, out: BinaryIO) -> None:
        try:
            ending = False
            while not ending:
                ending = self._closing.wait(COLLECT_S)
                waiting = len(self._queue)  # what comes meanwhile is collected first: to wake up takes 50 µs
                while self._queue and (ending or waiting > 0):
                    began_s = thread_time()
                    waiting -= self._write_some(out)
                    if not ending:
                        ending = self._closing.wait((thread_time() - began_s) * (1 / SHARE - 1))
        finally:
            if out is not sys.stdout.buffer:
                self._guarded(out.close)

    def _write_some(self, out: BinaryIO) -> int:
        """Write the next records. Returns: how many were taken."""
        lines: list[bytes] = []
        taken = min(AT_A_TIME, len(self._queue))
        for _ in range(taken):
            record = self._queue.popleft()
            self._guarded(lambda record=record: lines.append(render(record)))  # type: ignore[misc] # lambda default
        self._guarded(lambda: (out.write(b"".join(lines)), out.flush()), records=len(lines))
        return taken

    def _guarded(self, step: Callable[[], object], *, records: int = 1) -> None:
        """A full disk or an odd record must not end the log."""
        try:
            step()
        except Exception:  # it is counted, and said once
            if not self.failed:
                log.exception("decision log cannot be written", target=self._target)
            self.failed += records


def render(record: Record) -> bytes:
    """One line."""
    return orjson.dumps(record.fields(), default=str, option=orjson.OPT_APPEND_NEWLINE)
