"""What the Scaler remembers of one role: what was asked for, how its replicas came up, how its queue moves."""

from collections import deque
from typing import Final

from kvaware_engine.learning import Lessons
from kvaware_engine.reports import RoleLoad
from kvaware_engine.scaling_words import ScalingRequest
from kvaware_engine.settings import ScalingSettings
from kvaware_engine.stabilizer import AskedWindow

__all__ = ["RoleState"]

_QUEUE_SPAN_S: Final = 60.0
"""A queue's trend is read over the last minute,"""
_QUEUE_LEAST_S: Final = 20.0
"""and over at least so long: two polls."""
_QUEUE_SPACING_S: Final = 7.5
"""Between two samples of it: however often somebody polls, eight are kept."""


class RoleState:
    """Of one role of one model."""

    __slots__ = (
        "_added_at_s",
        "_queue",
        "_replicas",
        "_unready_since_s",
        "by_running",
        "by_tokens",
        "down",
        "lowered_at_s",
        "since_s",
        "up",
    )

    def __init__(self, request: ScalingRequest, *, since_s: float) -> None:
        self.since_s = since_s
        """Since when it is watched."""
        self.up = AskedWindow(request.rules.up_window_s)
        self.down = AskedWindow(request.rules.down_window_s)
        self.by_tokens = Lessons()
        self.by_running = Lessons()
        """Where token rates are not told, the requests that run are what is needed: another measure, learned apart."""
        self.lowered_at_s = float("-inf")
        """When the replicas became fewer last."""
        self._replicas: int | None = None
        self._added_at_s: float | None = None
        self._unready_since_s: float | None = None
        self._queue: deque[tuple[float, float, int]] = deque()
        """Time, requests waiting, and workers that told of them."""

    def see(self, request: ScalingRequest, *, now_s: float) -> None:
        """Follow replicas and readiness, whoever changed them. Seeing the same again changes nothing."""
        self.up.window_s, self.down.window_s = request.rules.up_window_s, request.rules.down_window_s
        before, self._replicas = self._replicas, request.replicas
        unready = request.ready_replicas < request.replicas
        if not unready:
            self._added_at_s = self._unready_since_s = None
        elif self._unready_since_s is None:
            self._unready_since_s = now_s
        if before is None:
            # After a start nobody knows when they were added: they get the whole grace.
            self._added_at_s = now_s if unready else None
        elif request.replicas > before:
            self._added_at_s = now_s if unready else None
        elif request.replicas < before:
            self.lowered_at_s = now_s
            self.by_tokens.lowered(before=before, now_s=now_s)
            self.by_running.lowered(before=before, now_s=now_s)

    def starting(self, settings: ScalingSettings, *, now_s: float) -> bool:
        """Whether replicas that were added last are not Ready, and not yet given up."""
        return self._added_at_s is not None and now_s - self._added_at_s < settings.start_grace_s

    def stuck(self, request: ScalingRequest, settings: ScalingSettings, *, now_s: float) -> int:
        """Replicas that have not been Ready for so long that others have to do their work.

        Where that is more than half of them, the fault is not one of some replicas: more of the same would fail too,
        and none is made up for.
        """
        if self._unready_since_s is None:
            return 0
        since_s = max(self._unready_since_s, float("-inf") if self._added_at_s is None else self._added_at_s)
        stuck = request.replicas - request.ready_replicas
        return stuck if now_s - since_s >= settings.start_grace_s and stuck <= request.ready_replicas else 0

    def queue_drains(self, load: RoleLoad, settings: ScalingSettings, *, now_s: float) -> bool:
        """Whether the queue became so much shorter lately that it will be gone in time.

        What waited at workers that do not report any more was not served: of a queue of before, the share of those
        that stay is compared.
        """
        waiting = load.waiting
        if waiting is None:
            self._queue.clear()
            return False
        while self._queue and now_s - self._queue[0][0] > _QUEUE_SPAN_S:
            self._queue.popleft()
        drains = False
        if self._queue and now_s - self._queue[0][0] >= _QUEUE_LEAST_S:
            since_s, then, workers = self._queue[0]
            then *= min(1.0, load.reporting / workers)
            drained_per_s = (then - waiting) / (now_s - since_s)
            drains = drained_per_s > 0 and waiting / drained_per_s <= settings.queue_drain_s
        if not self._queue or now_s - self._queue[-1][0] >= _QUEUE_SPACING_S:
            self._queue.append((now_s, waiting, max(1, load.reporting)))
        return drains
