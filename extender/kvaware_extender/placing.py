"""Placing requests, as the routes do it: the engine decides, and each decision is measured, counted and logged.

It has the methods of the engine's ``Placer`` that routes need. All of this is on the path of every request: to the
engine's own time it adds some 2.5 µs for a placement and its end.
"""

from dataclasses import replace
from time import perf_counter, time
from typing import Final, Protocol

from kvaware_engine import ModelObservation, ObjectKey
from kvaware_engine.requests.words import (
    EventVerdict,
    Placement,
    PlacementEvent,
    PlacementRefusal,
    RequestDemand,
)
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.metrics import Metrics
from kvaware_extender.request_metrics import RequestMetrics
from kvaware_extender.request_records import NotPlaced, Placed

__all__ = ["Deciding", "Placing", "believable"]

Outcome = Placement | PlacementRefusal


class Deciding(Protocol):
    """The engine's ``Placer``, as far as requests are concerned."""

    def place(self, demand: RequestDemand, *, now_s: float) -> Outcome:
        """Choose and reserve."""
        ...

    def event(self, placement_id: str, event: PlacementEvent, *, now_s: float) -> tuple[EventVerdict, Outcome | None]:
        """Take a report over; for a refusal, the next attempt."""
        ...

    def placement(self, placement_id: str) -> Placement | None:
        """What was decided."""
        ...

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        ...


def believable(event: PlacementEvent, *, elapsed_ms: float) -> PlacementEvent:
    """Leave out times that are longer than it is since the decision: another unit, or a clock that jumped.

    A few of them would spoil the hardware profiles and the histograms for all. A second more is let pass.
    """
    most_ms = elapsed_ms + 1000
    ttft_ms, queue_wait_ms = event.ttft_ms, event.queue_wait_ms
    if (ttft_ms is None or ttft_ms <= most_ms) and (queue_wait_ms is None or queue_wait_ms <= most_ms):
        return event
    return replace(
        event,
        ttft_ms=None if ttft_ms is None or ttft_ms > most_ms else ttft_ms,
        queue_wait_ms=None if queue_wait_ms is None or queue_wait_ms > most_ms else queue_wait_ms,
    )


class Placing:
    """One for all routes."""

    def __init__(self, placer: Deciding, *, metrics: Metrics, decisions: DecisionLog) -> None:
        self._placer: Final = placer
        self._metrics = metrics
        self.counts: Final = RequestMetrics()
        self._decisions = decisions
        self._model_ids: dict[ObjectKey, str] = {}

    def observe_model(self, key: ObjectKey, model: ModelObservation | None) -> None:
        """An InferenceModel, as the API server shows it."""
        self.counts.model(key, exists=model is not None)
        if model is None:
            self._model_ids.pop(key, None)
        else:
            self._model_ids[key] = model.model_id

    def place(self, demand: RequestDemand, *, now_s: float, trace_id: str | None = None) -> Outcome:
        """Choose a worker and reserve."""
        began_s = perf_counter()
        outcome = self._placer.place(demand, now_s=now_s)
        self._metrics.placed(now_s=now_s, took_s=perf_counter() - began_s)
        self._decided(outcome, trace_id)
        return outcome

    def refused(self, refusal: PlacementRefusal, *, trace_id: str | None = None) -> None:
        """Count and log what was refused before the engine was asked."""
        self._decided(refusal, trace_id)

    def event(
        self, placement_id: str, event: PlacementEvent, *, now_s: float, trace_id: str | None = None
    ) -> tuple[EventVerdict, Outcome | None]:
        """Take a report over. For a refusal: the next attempt, which is a decision as well."""
        placement = self._placer.placement(placement_id)
        if placement is not None:
            event = believable(event, elapsed_ms=(now_s - placement.decided_at_s) * 1000)
        verdict, following = self._placer.event(placement_id, event, now_s=now_s)
        self.counts.happened(placement, event, verdict, now_s=now_s)
        if following is not None and verdict is EventVerdict.TAKEN:
            self._decided(following, trace_id)
        return verdict, following

    def tick(self, now_s: float) -> None:
        """Once a second."""
        self._placer.tick(now_s)
        self.counts.tick(now_s, known=lambda placement_id: self._placer.placement(placement_id) is not None)

    def _decided(self, outcome: Outcome, trace_id: str | None) -> None:
        self.counts.decided(outcome)
        decisions = self._decisions
        if decisions.off:
            return
        if type(outcome) is Placement:
            model_id = self._model_ids.get(outcome.demand.model, "")
            decisions.put(Placed(outcome, model_id, time(), trace_id))
        elif type(outcome) is PlacementRefusal:
            model_id = self._model_ids.get(outcome.demand.model, "")
            decisions.put(NotPlaced(outcome, model_id, time(), trace_id))
