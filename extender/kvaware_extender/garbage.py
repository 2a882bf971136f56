"""Python's garbage collector, kept out of the way of calls.

Its full passes look at every container that lives: 0.25 to 0.5 µs each, 0.2 s at 40,000 pods, while nobody is answered.
And each placement leaves some 15 objects behind for a while: of 60,000 placed and finished at 64 workers, on a busy
machine, the collector took 5.5 s in 400 passes, the longest 0.76 s; kept away as here, 0.18 s in 2. Next to nothing of
it is cyclic: 1,000 requests and 100 connections of aiohttp leave nothing that a pass would find. So what lives is taken
out of the collector's sight (``gc.freeze`` is one step, whatever the number), some times a second. Reference counts
free it all the same.

What is cyclic and was out of sight already is found by a full pass, seldom: after ten minutes, after longer times when
it finds nothing, and sooner when the process has grown.
"""

import gc
import resource
import sys
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final

import structlog
from prometheus_client import Metric

from kvaware_extender.histograms import Seconds, histogram

__all__ = ["EVERY_S", "Garbage", "garbage_metrics"]

log = structlog.get_logger(__name__)

EVERY_S: Final = 0.25
"""Between two looks; what is made in this time is the most that an unforeseen pass over young objects looks at."""
YOUNG_MAX: Final = 5_000
"""So many more objects were made than freed since the last look: perhaps cyclic ones."""
LOOKS_GROWING: Final = 4
"""When it goes on for so many looks, they are looked at. Books that fill up with the first traffic do so for less."""
THRESHOLDS: Final = (100_000, 20, 1_000)
"""Of the collector's own passes: they are for bursts between two looks."""
FULL_EVERY_S: Final = 600.0
FULL_EVERY_MAX_S: Final = 3600.0
WORTH_IT: Final = 10_000
"""Unreachable objects, some megabytes: with fewer the next full pass may come later."""
GROWN_RATIO: Final = 1.25
GROWN_BYTES: Final = 128 * 2**20
"""A process that has grown by both since the last full pass is looked through."""
PAUSES_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Garbage:
    """One per process. ``begin`` when everything is wired, ``look`` each ``EVERY_S``, ``end`` with the process."""

    def __init__(self, *, clock: Callable[[], float], peak_bytes: Callable[[], int] | None = None) -> None:
        """Change nothing yet; ``peak_bytes`` tells the most memory that the process had so far."""
        self._clock = clock
        self._peak_bytes = peak_bytes or _peak_bytes
        self._before: tuple[int, int, int] | None = None
        self._began_s = 0.0
        self._full_at_s = 0.0
        self._full_every_s = FULL_EVERY_S
        self._grown_at_bytes = 0.0
        self._growing = 0
        """Looks in a row."""
        self.pauses: Final = Seconds(PAUSES_S)
        """Of all passes."""
        self.full_passes = 0

    def begin(self) -> None:
        """Take out of sight what lives, once garbage of the start is gone."""
        self._before = gc.get_threshold()
        gc.callbacks.append(self._measure)
        gc.set_threshold(*THRESHOLDS)
        self._full_pass()

    def look(self) -> None:
        """Take out of sight what lives now. Takes no time, but for the rare pass."""
        now_s = self._clock()
        if now_s - self._full_at_s >= self._full_every_s or self._peak_bytes() >= self._grown_at_bytes:
            self._full_pass()
            return
        self._growing = self._growing + 1 if gc.get_count()[0] > YOUNG_MAX else 0
        if self._growing >= LOOKS_GROWING:
            gc.collect(0)
        gc.freeze()

    def end(self) -> None:
        """Leave the collector as it was found."""
        if self._before is not None:
            gc.callbacks.remove(self._measure)
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None

    def _full_pass(self) -> None:
        began_s = perf_counter()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self.full_passes += 1
        self._full_at_s = self._clock()
        self._full_every_s = FULL_EVERY_S if found >= WORTH_IT else min(FULL_EVERY_MAX_S, 2 * self._full_every_s)
        peak = self._peak_bytes()
        self._grown_at_bytes = max(peak * GROWN_RATIO, peak + GROWN_BYTES)
        log.debug("full pass of the garbage collector", found=found, took_s=round(perf_counter() - began_s, 4))

    def _measure(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_s = perf_counter()
        else:
            self.pauses.observe(perf_counter() - self._began_s)


def garbage_metrics(garbage: Garbage) -> Iterator[Metric]:
    """How long it held up calls."""
    text = "Time for which the garbage collector held up everything, in seconds, by pass."
    yield histogram("kvaware_gc_pause_seconds", text, (), [((), garbage.pauses)])


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
