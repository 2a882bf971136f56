"""What is counted of placements and of what became of them: plain numbers on the path of requests, read at scrape time.

Labels are reasons, actions and events (closed sets) and the names of InferenceModels in the cluster. No tenant, no
served name, nothing that a request says becomes a label: callers could grow memory without end (llm-d-router#1625).
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvaware_cluster.process_metrics import count, counters
from kvaware_engine import ObjectKey
from kvaware_engine.requests.words import (
    CODE_OF_REFUSAL,
    Action,
    EventType,
    EventVerdict,
    Placement,
    PlacementEvent,
    PlacementReason,
    PlacementRefusal,
)
from kvaware_extender.histograms import Seconds, histogram

__all__ = ["RequestMetrics"]

WAIT_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TTFT_BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
TPOT_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)
HIT_WINDOW_S: Final = 60
"""``cache_local_hit_rate`` is taken over this time, as the rates of workers are."""
OPEN_MAX: Final = 200_000
"""Requests that are followed from their first event to their end, 0.15 kB each; beyond it the oldest are not."""
LOOKED_AT: Final = 200
"""Of them, looked at per tick: those that never finished are forgotten."""
COPIES: Final = frozenset({Action.MIGRATE, Action.WARM_UP})
MODEL: Final = ["model"]


class _OfModel:
    """What is counted of one model's requests."""

    __slots__ = ("cached_tokens", "input_tokens", "marks", "predicted_tokens", "tpot", "ttft", "wait")

    def __init__(self) -> None:
        self.wait, self.ttft, self.tpot = Seconds(WAIT_BUCKETS_S), Seconds(TTFT_BUCKETS_S), Seconds(TPOT_BUCKETS_S)
        self.input_tokens = 0
        """Of prompts whose cached tokens were told; so are the next two."""
        self.predicted_tokens = 0
        self.cached_tokens = 0
        self.marks: deque[tuple[int, int, int]] = deque(maxlen=HIT_WINDOW_S + 1)
        """Second, cached tokens and tokens of prompts until then."""

    def hit_ratio(self) -> float | None:
        """Cached share of the prompts of the last minute; None: nothing was told of any."""
        _, cached, asked = self.marks[0] if self.marks else (0, 0, 0)
        if self.input_tokens == asked:
            return None
        return min(1.0, (self.cached_tokens - cached) / (self.input_tokens - asked))


class _Followed:
    """What was told of a request so far."""

    __slots__ = ("cached", "first_token_at_s", "ttft", "wait")

    def __init__(self) -> None:
        self.first_token_at_s: float | None = None
        self.wait = self.ttft = self.cached = False
        """Whether it was counted already."""


NOTHING: Final = _Followed()
"""Of a request whose end alone is told, as most are. Never changed."""


class RequestMetrics:
    """Counts of placements. Changed in the loop only."""

    def __init__(self) -> None:
        self.placed = 0
        self.refused = 0
        self.assignment_failures = 0
        """Placements that a worker refused."""
        self.remote_reads = 0
        self.copies = 0
        """Placements that move or make a copy of KV cache."""
        self._reasons: Final = {reason: 0 for reason in PlacementReason if reason not in CODE_OF_REFUSAL}
        self._refusals: Final = dict.fromkeys(CODE_OF_REFUSAL, 0)
        self._actions: Final = dict.fromkeys(Action, 0)
        self._events: Final = {type_: dict.fromkeys(EventVerdict, 0) for type_ in EventType}
        self._models: Final[dict[ObjectKey, _OfModel]] = {}
        self._followed: Final[dict[str, _Followed]] = {}

    # -- what happens ------------------------------------------------------------------------------------------------

    def model(self, key: ObjectKey, *, exists: bool) -> None:
        """An InferenceModel is there, or is gone: its series end with it (openvox-operator#554)."""
        if not exists:
            self._models.pop(key, None)
        elif key not in self._models:
            self._models[key] = _OfModel()

    def decided(self, outcome: Placement | PlacementRefusal) -> None:
        """Count one decision. On the path of every request: 0.4 µs."""
        if isinstance(outcome, PlacementRefusal):
            self.refused += 1
            self._refusals[outcome.reason] += 1
            return
        self.placed += 1
        self._reasons[outcome.reason] += 1
        action = outcome.option.action
        self._actions[action] += 1
        if action is Action.REMOTE_READ:
            self.remote_reads += 1
        elif action in COPIES:
            self.copies += 1

    def happened(
        self,
        placement: Placement | None,
        event: PlacementEvent,
        verdict: EventVerdict,
        *,
        now_s: float,
    ) -> None:
        """Count one report. On the path of every request: 1.6 µs where it tells everything.

        Args:
            placement: What it is about, as it was before; None: unknown.
            event: As it was told.
            verdict: What became of it; only what was taken is counted further.
            now_s: Now, by the clock of ``decided_at_s``.
        """
        type_ = event.type
        self._events[type_][verdict] += 1
        if verdict is not EventVerdict.TAKEN or placement is None:
            return
        if type_ is EventType.REFUSED:
            self.assignment_failures += 1
            return
        of_model = self._models.get(placement.demand.model)
        if of_model is None:
            return
        finished = type_ is EventType.FINISHED
        placement_id = placement.placement_id
        followed = self._followed.pop(placement_id, NOTHING) if finished else self._followed.get(placement_id)
        if followed is None:
            followed = self._follow(placement_id)
        wait_ms, ttft_ms, cached = event.queue_wait_ms, event.ttft_ms, event.cached_tokens
        if wait_ms is not None and not followed.wait:
            of_model.wait.observe(wait_ms / 1000)
        if cached is not None and not followed.cached:
            asked = placement.demand.input_tokens
            of_model.input_tokens += asked
            of_model.cached_tokens += min(asked, cached)
            of_model.predicted_tokens += (placement.prefill or placement.option).matched_tokens
        if ttft_ms is not None and not followed.ttft:
            of_model.ttft.observe(ttft_ms / 1000)
        if finished:
            tokens = event.output_tokens
            if tokens is not None and tokens > 1:
                first_s = followed.first_token_at_s
                if first_s is None and ttft_ms is not None:
                    first_s = placement.decided_at_s + ttft_ms / 1000
                if first_s is not None and now_s > first_s:
                    of_model.tpot.observe((now_s - first_s) / (tokens - 1))
            return
        followed.wait |= wait_ms is not None
        followed.cached |= cached is not None
        if type_ is EventType.FIRST_TOKEN and followed.first_token_at_s is None:
            followed.first_token_at_s = now_s
            if ttft_ms is None and not followed.ttft:
                of_model.ttft.observe(now_s - placement.decided_at_s)
            followed.ttft = True
        followed.ttft |= ttft_ms is not None

    def _follow(self, placement_id: str) -> _Followed:
        if len(self._followed) >= OPEN_MAX:
            del self._followed[next(iter(self._followed))]
        followed = self._followed[placement_id] = _Followed()
        return followed

    def tick(self, now_s: float, *, known: Callable[[str], bool]) -> None:
        """Once a second.

        Args:
            now_s: Now.
            known: Whether a placement may still be reported on.
        """
        second = int(now_s)
        for model in self._models.values():
            marks = model.marks
            if not marks or marks[-1][0] < second:
                marks.append((second, model.cached_tokens, model.input_tokens))
            while marks[0][0] < second - HIT_WINDOW_S:
                marks.popleft()
        for placement_id in [each for each, _ in zip(self._followed, range(LOOKED_AT), strict=False)]:
            followed = self._followed.pop(placement_id)
            if known(placement_id):
                self._followed[placement_id] = followed  # to the end: the others come next

    # -- what is shown -----------------------------------------------------------------------------------------------

    def metrics(self) -> Iterator[Metric]:
        """As they stand."""
        yield count("remote_cache_read_count", "Requests placed to read KV cache of another worker.", self.remote_reads)
        yield count(
            "cache_migration_triggered_by_schedule", "Requests placed with a copy of KV cache to be made.", self.copies
        )
        yield count("worker_assignment_failure_count", "Placements that the worker refused.", self.assignment_failures)
        yield counters("kvaware_placements", "Requests placed, by why that worker.", "reason", self._reasons.items())
        yield counters("kvaware_placement_refusals", "Requests not placed, by why.", "reason", self._refusals.items())
        yield counters(
            "kvaware_placement_actions",
            "Requests placed, by what happens to KV cache.",
            "action",
            self._actions.items(),
        )
        events = CounterMetricFamily(
            "kvaware_placement_events", "Reports on placed requests, by what became of them.", labels=["type", "result"]
        )
        for type_, verdicts in self._events.items():
            for verdict, number in verdicts.items():
                events.add_metric([type_.value, verdict.value], number)
        yield events
        models = [([f"{key.namespace}/{key.name}"], model) for key, model in self._models.items()]
        for name, text, seconds in HISTOGRAMS:
            yield histogram(name, text, MODEL, [(labels, seconds(model)) for labels, model in models])
        for name, text, tokens in TOKENS:
            family = CounterMetricFamily(f"kvaware_placement_{name}_tokens", text, labels=MODEL)
            for labels, model in models:
                family.add_metric(labels, tokens(model))
            yield family
        rate = GaugeMetricFamily(
            "cache_local_hit_rate", "Share of prompts found in the worker's cache, 0..1, over a minute.", labels=MODEL
        )
        for labels, model in models:
            ratio = model.hit_ratio()
            if ratio is not None:
                rate.add_metric(labels, ratio)
        yield rate


HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[_OfModel], Seconds]], ...]] = (
    ("batch_wait_time", "Time in the worker's queue until the batch, as told, in seconds.", lambda of: of.wait),
    ("request_ttft", "Time from the decision to the first token, in seconds.", lambda of: of.ttft),
    ("request_tpot", "Time per output token after the first, in seconds.", lambda of: of.tpot),
)
TOKENS: Final[tuple[tuple[str, str, Callable[[_OfModel], int]], ...]] = (
    ("prompt", "Tokens of prompts whose cached tokens were told.", lambda of: of.input_tokens),
    ("predicted", "Of them, tokens that were expected in the worker's cache.", lambda of: of.predicted_tokens),
    ("cached", "Of them, tokens that the worker found in its cache.", lambda of: of.cached_tokens),
)
