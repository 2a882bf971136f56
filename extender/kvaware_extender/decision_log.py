"""The log of decisions: one JSON line each, under the field names of the design (§8), written off the hot path.

The loop only puts a frozen record on a bounded queue; a thread renders and writes. When the disk or the reader is slow,
records are dropped and counted: a decision never waits for its log.
"""

import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import orjson
import structlog

__all__ = ["DecisionLog", "Record"]

log = structlog.get_logger(__name__)

CLOSE_WITHIN_S: Final = 5.0


class Record(Protocol):
    """One decision."""

    def fields(self) -> dict[str, Any]:
        """What is written; called in the writing thread, so it reads only frozen values."""
        ...


class DecisionLog:
    """A thread behind a bounded queue. ``open`` first; ``close`` writes what is queued, for some seconds at most."""

    def __init__(self, *, target: str, capacity: int) -> None:
        self._target = target
        self._queue: queue.Queue[Record | None] = queue.Queue(capacity)
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Records that found the queue full. Written by the loop only."""
        self.failed = 0
        """Records that could not be rendered or written. Written by the thread only."""

    def open(self) -> None:
        """Open the target and start the thread. Reads and writes files: not for the event loop."""
        if self._target == "off":
            return
        # Binary and unbuffered by us: the thread flushes when the queue is empty.
        out = sys.stdout.buffer if self._target == "-" else Path(self._target).open("ab")  # noqa: SIM115 - the thread closes it
        self._thread = threading.Thread(target=self._write_all, args=(out,), name="decision-log", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Log one decision; never waits."""
        if self._thread is None:
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued and end the thread. Waits: not for the event loop."""
        if self._thread is None:
            return
        try:
            self._queue.put(None, timeout=CLOSE_WITHIN_S)
        except queue.Full:
            log.warning("decision log does not take records; what is queued is lost", queued=self._queue.qsize())
            return
        self._thread.join(CLOSE_WITHIN_S)

    def _write_all(self, out: BinaryIO) -> None:
        try:
            while (record := self._queue.get()) is not None:
                self._guarded(lambda record=record: out.write(render(record)))  # type: ignore[misc] # lambda default
                if self._queue.empty():
                    self._guarded(out.flush)
            self._guarded(out.flush)
        finally:
            if out is not sys.stdout.buffer:
                self._guarded(out.close)

    def _guarded(self, step: Callable[[], object]) -> None:
        """A full disk or an odd record must not end the log."""
        try:
            step()
        except Exception:  # it is counted, and said once
            if not self.failed:
                log.exception("decision log cannot be written", target=self._target)
            self.failed += 1


def render(record: Record) -> bytes:
    """One line."""
    return orjson.dumps(record.fields(), default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
