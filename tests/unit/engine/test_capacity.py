"""Replicas that a traffic fills, by the profile: the arithmetic behind the capacity signal."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine import ScalingSettings
from kvaware_engine.capacity import Traffic, prefill_share, replicas_needed, traffic_of
from kvaware_testing.worker_builders import hardware, role_load

SETTINGS = ScalingSettings()


def traffic(*, prompt_ms: float = 100.0, prefill: float = 0.0, decode: float = 0.0) -> Traffic:
    """Prefill in milliseconds per second, decode in tokens per second."""
    return Traffic(
        prompt_tokens=200, prompt_ms=prompt_ms, prefill_ms_per_s=prefill, decode_tokens_per_s=decode, tokens_per_s=0
    )


def needed(work: Traffic, *, ttft_ms: float | None = None, tpot_ms: float | None = None) -> float:
    """On ``hardware()``: 0.5 ms per prompt token, 20 ms steps up to a batch of 10, 30 ms at 20."""
    return replicas_needed(work, hardware(), ttft_ms=ttft_ms, tpot_ms=tpot_ms, settings=SETTINGS)


def test_prefill_alone_may_take_four_fifths_of_a_replicas_time():
    """1,600 ms a second / 800."""
    assert needed(traffic(prefill=1600)) == pytest.approx(2)


def test_decode_without_an_objective_uses_the_largest_measured_batch():
    """20 sequences in 30 ms are 667 tokens/s; four fifths are 533. 1,600 / 533 = 3."""
    assert needed(traffic(decode=1600)) == pytest.approx(3, rel=0.002)


def test_a_tpot_objective_limits_the_batch():
    """20.001 ms allow a batch of 10: 500 tokens/s, four fifths 400. 1,200 / 400 = 3."""
    assert needed(traffic(decode=1200), tpot_ms=20.001) == pytest.approx(3, rel=0.002)


def test_prefill_and_decode_share_a_replicas_time():
    """Of n replicas, prefill takes 800/1000n. At n = 2 the rest is 60 %: 667 * 0.6 * 0.8 * 2 = 640 tokens/s."""
    assert needed(traffic(prefill=800, decode=640)) == pytest.approx(2, rel=0.002)


def test_an_objective_below_a_single_step_is_served_one_by_one():
    """5 ms cannot be met: a batch of 1, 50 tokens/s, four fifths 40. It is finite."""
    assert needed(traffic(decode=400), tpot_ms=5) == pytest.approx(10, rel=0.002)


def test_a_tighter_ttft_objective_leaves_more_time_idle():
    """P(wait > t) = r·exp(-(1-r)·t/s) is 1 % at the share that comes back."""
    share = prefill_share(100, 700, SETTINGS)  # t/s = (700 - 100) / 100 = 6
    assert share == pytest.approx(0.4, abs=0.001)  # 0.4 * exp(-3.6) = 0.0109: below the least share, so that holds
    share = prefill_share(100, 1100, SETTINGS)  # t/s = 10
    assert share * pow(2.718281828, -(1 - share) * 10) == pytest.approx(0.01, rel=0.01)
    assert prefill_share(100, 10_000, SETTINGS) == SETTINGS.utilization_max_ratio
    assert prefill_share(100, None, SETTINGS) == SETTINGS.utilization_max_ratio


def test_an_objective_that_one_prompt_misses_does_not_ask_for_the_moon():
    """More replicas would not make a prompt shorter: the least share holds."""
    assert prefill_share(900, 500, SETTINGS) == SETTINGS.utilization_min_ratio


@given(
    prefill=st.floats(0, 1e6),
    decode=st.floats(0, 1e6),
    factor=st.floats(1.01, 100),
    ttft_ms=st.none() | st.floats(1, 1e5),
    tpot_ms=st.none() | st.floats(1, 1e4),
)
def test_needed_replicas_are_proportional_to_the_traffic(prefill, decode, factor, ttft_ms, tpot_ms):
    """The margin against flapping relies on it."""
    once = needed(traffic(prefill=prefill, decode=decode), ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    more = needed(traffic(prefill=prefill * factor, decode=decode * factor), ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    assert more == pytest.approx(once * factor, rel=0.005, abs=1e-6)


def test_traffic_is_what_the_cache_does_not_supply():
    """10 requests of 400 tokens a second, half of each cached: 200 * 0.5 ms * 10."""
    load = role_load(requests_per_s=10, prompt_tokens_per_s=4000, generation_tokens_per_s=300, prefix_hit_ratio=0.5)
    seen = traffic_of(load, hardware(), SETTINGS)
    assert seen is not None
    assert (seen.prompt_tokens, seen.prompt_ms, seen.prefill_ms_per_s) == (400, 100, 1000)
    assert (seen.decode_tokens_per_s, seen.tokens_per_s) == (300, 4300)


def test_who_does_not_report_is_taken_for_one_of_the_others():
    """Two of three tell 200 tokens/s."""
    load = role_load(workers=3, reporting=2, prompt_tokens_per_s=0, generation_tokens_per_s=200)
    seen = traffic_of(load, hardware(), SETTINGS)
    assert seen is not None
    assert seen.decode_tokens_per_s == pytest.approx(300)


@pytest.mark.parametrize(
    ("role", "unknown", "known"),
    [
        pytest.param("both", "prompt_tokens_per_s", False, id="both needs prompts"),
        pytest.param("both", "generation_tokens_per_s", False, id="both needs answers"),
        pytest.param("prefill", "generation_tokens_per_s", True, id="prefill does not need answers"),
        pytest.param("decode", "prompt_tokens_per_s", True, id="decode does not need prompts"),
    ],
)
def test_a_role_needs_only_the_rates_of_its_work(role, unknown, known):
    """Unknown is None, never 0."""
    load = replace(role_load(role), **{unknown: None})
    assert (traffic_of(load, hardware(), SETTINGS) is not None) is known


def test_a_decode_workers_prompts_are_not_its_work():
    """Their KV cache was handed over."""
    load = role_load("decode", requests_per_s=10, prompt_tokens_per_s=4000, generation_tokens_per_s=300)
    seen = traffic_of(load, hardware(), SETTINGS)
    assert seen is not None
    assert (seen.prefill_ms_per_s, seen.decode_tokens_per_s) == (0, 300)
