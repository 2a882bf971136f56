"""What a replay came to."""

import pytest

from kvaware_simulator import Outcome, Tally, tally


def outcome(worker: str = "w", *, tokens: int = 100, cached: int = 0, ttft_ms: float = 1.0) -> Outcome:
    return Outcome(worker=worker, input_tokens=tokens, cached_tokens=cached, ttft_ms=ttft_ms)


def test_the_hit_rate_is_of_tokens_not_of_requests() -> None:
    """A long prompt counts as much as it is long: 90 of 1,000 tokens."""
    assert tally([outcome(tokens=900), outcome(tokens=100, cached=90)], refused=0, workers=1).hit_ratio == 0.09


def test_times_to_first_token_are_quantiles_and_mean() -> None:
    made = tally([outcome(ttft_ms=float(ms)) for ms in range(1, 12)], refused=0, workers=1)
    assert (made.ttft_p50_ms, made.ttft_p90_ms, made.ttft_mean_ms) == (6, 10, 6)


def test_an_unused_worker_counts_in_the_spread() -> None:
    """3 of 4 requests on one of 4 workers: 3 where the mean is 1."""
    made = tally([*[outcome("a")] * 3, outcome("b")], refused=0, workers=4)
    assert made.spread_ratio == pytest.approx(3)


def test_without_an_answer_nothing_is_known() -> None:
    assert tally([], refused=2, workers=4) == Tally(
        requests=0,
        refused=2,
        hit_ratio=None,
        ttft_mean_ms=None,
        ttft_p50_ms=None,
        ttft_p90_ms=None,
        spread_ratio=None,
    )
