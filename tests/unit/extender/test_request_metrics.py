"""What is counted of placements: once each, by closed sets and by models that there are."""

from collections.abc import Callable

import pytest

from kvaware_engine import ObjectKey
from kvaware_engine.requests.words import (
    CODE_OF_REFUSAL,
    Action,
    EventType,
    EventVerdict,
    PlacementEvent,
    PlacementReason,
)
from kvaware_extender.histograms import Seconds
from kvaware_extender.request_metrics import LOOKED_AT, OPEN_MAX, RequestMetrics
from kvaware_testing.placement_builders import LLAMA, demand, option, placement, refusal

MODEL = {"model": "ml/llama"}


def counted() -> RequestMetrics:
    metrics = RequestMetrics()
    metrics.model(LLAMA, exists=True)
    return metrics


def value(metrics: RequestMetrics, name: str, **labels: str) -> float | None:
    """One sample; None: there is none."""
    return next(
        (
            sample.value
            for family in metrics.metrics()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ),
        None,
    )


def tell(metrics: RequestMetrics, type_: EventType, *, at_s: float = 100.0, **told) -> None:
    """One report on ``placement()`` that was taken."""
    event = PlacementEvent(type=type_, **told)
    metrics.happened(placement(), event, EventVerdict.TAKEN, now_s=at_s)


def test_placements_are_counted_by_reason_and_action_and_refusals_by_reason():
    metrics = counted()
    metrics.decided(placement(reason=PlacementReason.PREFIX_RESIDENT))
    metrics.decided(placement(option=option(action=Action.REMOTE_READ)))
    metrics.decided(placement(option=option(action=Action.MIGRATE)))
    metrics.decided(placement(option=option(action=Action.WARM_UP)))
    metrics.decided(refusal(PlacementReason.SATURATED))
    assert (metrics.placed, metrics.refused) == (4, 1)
    assert value(metrics, "kvaware_placements_total", reason="PrefixResident") == 1
    assert value(metrics, "kvaware_placement_actions_total", action="local") == 1
    assert value(metrics, "kvaware_placement_refusals_total", reason="Saturated") == 1
    assert value(metrics, "remote_cache_read_count") == 1
    assert value(metrics, "cache_migration_triggered_by_schedule") == 2, "a warm-up makes a copy as well"


def test_every_reason_has_a_series_from_the_start():
    """A counter that appears with its first event hides that event from ``increase()``."""
    metrics = counted()
    for reason in PlacementReason:
        name = "kvaware_placement_refusals_total" if reason in CODE_OF_REFUSAL else "kvaware_placements_total"
        assert value(metrics, name, reason=reason.value) == 0


def test_a_refused_assignment_is_counted_once():
    metrics = counted()
    event = PlacementEvent(type=EventType.REFUSED)
    metrics.happened(placement(), event, EventVerdict.TAKEN, now_s=100.0)
    metrics.happened(placement(), event, EventVerdict.REPEATED, now_s=100.0)
    metrics.happened(placement(), event, EventVerdict.LATE, now_s=100.0)
    metrics.happened(None, event, EventVerdict.UNKNOWN_PLACEMENT, now_s=100.0)
    assert value(metrics, "worker_assignment_failure_count") == 1
    assert value(metrics, "kvaware_placement_events_total", type="refused", result="late") == 1
    assert value(metrics, "kvaware_placement_events_total", type="refused", result="unknown_placement") == 1


def test_a_request_that_is_told_step_by_step_is_measured_by_the_clock():
    metrics = counted()
    tell(metrics, EventType.STARTED, at_s=100.01, queue_wait_ms=4)
    tell(metrics, EventType.FIRST_TOKEN, at_s=100.5)
    tell(metrics, EventType.FINISHED, at_s=102.5, output_tokens=101)
    assert value(metrics, "batch_wait_time_sum", **MODEL) == 0.004
    assert value(metrics, "request_ttft_sum", **MODEL) == pytest.approx(0.5)
    # 2 s for the 100 tokens after the first
    assert value(metrics, "request_tpot_sum", **MODEL) == pytest.approx(0.02)


def test_a_request_whose_end_alone_is_told_is_measured_by_what_is_said():
    metrics = counted()
    tell(metrics, EventType.FINISHED, at_s=102.0, output_tokens=19, queue_wait_ms=4, ttft_ms=200, cached_tokens=600)
    assert value(metrics, "batch_wait_time_count", **MODEL) == 1
    assert value(metrics, "request_ttft_sum", **MODEL) == 0.2
    # 1.8 s for the 18 tokens after the first
    assert value(metrics, "request_tpot_sum", **MODEL) == pytest.approx(0.1)


def test_what_is_told_twice_is_measured_once():
    """Gateways repeat in the last event what they said before."""
    metrics = counted()
    tell(metrics, EventType.STARTED, queue_wait_ms=4)
    tell(metrics, EventType.FIRST_TOKEN, at_s=100.2, queue_wait_ms=4, ttft_ms=200, cached_tokens=600)
    tell(metrics, EventType.PROGRESS, at_s=101.0, output_tokens=5, cached_tokens=600)
    tell(metrics, EventType.FINISHED, at_s=102.2, output_tokens=21, queue_wait_ms=4, ttft_ms=200, cached_tokens=600)
    assert value(metrics, "batch_wait_time_count", **MODEL) == 1
    assert value(metrics, "request_ttft_count", **MODEL) == 1
    assert value(metrics, "request_tpot_sum", **MODEL) == pytest.approx(0.1)  # 2 s / 20
    assert value(metrics, "kvaware_placement_prompt_tokens_total", **MODEL) == 1000


@pytest.mark.parametrize("output_tokens", [None, 0, 1])
def test_an_answer_of_one_token_has_no_time_per_token(output_tokens):
    metrics = counted()
    tell(metrics, EventType.FINISHED, at_s=102.0, output_tokens=output_tokens, ttft_ms=200)
    assert value(metrics, "request_tpot_count", **MODEL) == 0


def test_predicted_and_found_tokens_are_of_the_same_prompts():
    """Of a prompt whose cached tokens nobody told, neither counts: the two would not be comparable."""
    metrics = counted()
    predicted = placement(option=option(matched_tokens=800))
    event = PlacementEvent(type=EventType.FINISHED, cached_tokens=5000)
    metrics.happened(predicted, event, EventVerdict.TAKEN, now_s=101.0)
    metrics.happened(placement("p-2"), PlacementEvent(type=EventType.FINISHED), EventVerdict.TAKEN, now_s=101.0)
    assert value(metrics, "kvaware_placement_prompt_tokens_total", **MODEL) == 1000
    assert value(metrics, "kvaware_placement_predicted_tokens_total", **MODEL) == 800
    assert value(metrics, "kvaware_placement_cached_tokens_total", **MODEL) == 1000, "no more than the prompt has"


def test_with_split_roles_the_prompt_is_matched_where_it_is_computed():
    metrics = counted()
    pair = placement(option=option("ml:decode:0"), prefill=option("ml:prefill:0", matched_tokens=640))
    metrics.happened(pair, PlacementEvent(type=EventType.FINISHED, cached_tokens=600), EventVerdict.TAKEN, now_s=101.0)
    assert value(metrics, "kvaware_placement_predicted_tokens_total", **MODEL) == 640


def test_the_hit_rate_is_of_the_last_minute_and_absent_where_nothing_was_told():
    metrics = counted()

    def finish(cached: int) -> None:
        tell(metrics, EventType.FINISHED, cached_tokens=cached)

    def tick(second: float) -> None:
        metrics.tick(second, known=lambda _: True)

    tick(0)
    assert value(metrics, "cache_local_hit_rate", **MODEL) is None, "unknown is not 0"
    finish(1000)
    assert value(metrics, "cache_local_hit_rate", **MODEL) == 1
    tick(30)
    finish(0)
    assert value(metrics, "cache_local_hit_rate", **MODEL) == 0.5
    tick(61)
    assert value(metrics, "cache_local_hit_rate", **MODEL) == 0, "what was told before second 1 is gone"
    tick(200)
    assert value(metrics, "cache_local_hit_rate", **MODEL) is None


def test_a_models_series_end_with_it_and_no_other_goes_down():
    """openvox-operator#554."""
    metrics = counted()
    other = ObjectKey("ml", "other")
    metrics.model(other, exists=True)
    tell(metrics, EventType.FINISHED, at_s=101.0, ttft_ms=5)
    metrics.decided(placement())
    metrics.model(LLAMA, exists=False)
    assert value(metrics, "request_ttft_count", **MODEL) is None
    assert value(metrics, "request_ttft_count", model="ml/other") == 0
    assert value(metrics, "kvaware_placements_total", reason="Cold") == 1
    tell(metrics, EventType.FINISHED, at_s=102.0, ttft_ms=5)  # still in flight when its model was deleted
    assert value(metrics, "request_ttft_count", **MODEL) is None


def test_what_requests_say_never_becomes_a_series():
    """llm-d-router#1625."""
    metrics = counted()

    def series() -> int:
        return sum(len(family.samples) for family in metrics.metrics())

    before = series()
    for number in range(500):
        strange = demand(f"r{number}", model=ObjectKey("x", f"m{number}"), tenant=f"t{number}", session=f"s{number}")
        placed = placement(f"p{number}", demand=strange, option=option(f"ml:w{number}:0"))
        metrics.decided(placed)
        metrics.decided(refusal(demand=strange))
        event = PlacementEvent(type=EventType.REFUSED, reason=f"why{number}", worker=f"w{number}")
        metrics.happened(placed, event, EventVerdict.TAKEN, now_s=101.0)
    assert series() == before


def test_requests_that_never_finish_are_forgotten_when_the_ledger_has():
    metrics = counted()

    def follow(count: int, *, known: Callable[[str], bool]) -> int:
        for number in range(count):
            event = PlacementEvent(type=EventType.FIRST_TOKEN)
            metrics.happened(placement(f"p{number}"), event, EventVerdict.TAKEN, now_s=101.0)
        for second in range(1 + count // LOOKED_AT):
            metrics.tick(float(second), known=known)
        return len(metrics._followed)

    assert follow(3 * LOOKED_AT, known=lambda placement_id: placement_id == "p7") == 1


def test_requests_that_are_followed_are_bounded(monkeypatch):
    metrics = counted()
    assert OPEN_MAX >= 10_000
    monkeypatch.setattr("kvaware_extender.request_metrics.OPEN_MAX", 10)
    for number in range(50):
        event = PlacementEvent(type=EventType.FIRST_TOKEN)
        metrics.happened(placement(f"p{number}"), event, EventVerdict.TAKEN, now_s=101.0)
    assert list(metrics._followed) == [f"p{number}" for number in range(40, 50)]


def test_buckets_are_cumulative_and_a_time_below_zero_is_zero():
    """Two machines' clocks may say that the first token came before the decision."""
    seconds = Seconds((0.1, 1.0))
    for value_s in (-5.0, 0.1, 0.5, 7.0):
        seconds.observe(value_s)
    assert seconds.buckets() == [("0.1", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert (seconds.sum_s, seconds.observed) == (7.6, 4)
