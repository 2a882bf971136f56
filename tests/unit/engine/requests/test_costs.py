"""Each term of the cost model by itself; the arithmetic stands beside each figure."""

from math import nan

import pytest

from kvaware_engine.requests import costs
from kvaware_engine.requests.options import best_option, options
from kvaware_engine.requests.words import Action, Option, Phase
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts
from kvaware_testing.worker_builders import hardware

CURVED = hardware(prefill=(10.0, 0.5, 1e-4))


def only(one: Seat, **told: object) -> Option:
    """The best option of the only worker."""
    return best_option(candidates(one, **told), 0)  # type: ignore[arg-type]


def test_waiting_is_the_queue_and_half_a_running_step():
    """What is not busy any more does not count: the queue ended in the past."""
    assert costs.queue_ms(12.5, now_s=10.0) == 2500
    assert costs.queue_ms(9.0, now_s=10.0) == 0
    option = only(seat(queue_ms=300, half_step_ms=10))
    assert option.wait_ms == pytest.approx(310)
    # 310 + 100 tokens * 10 ms
    assert option.terms.compute_wait == pytest.approx(1310)


def test_prefill_depends_on_what_is_cached_before_it():
    """As the hardware profile has it: a + b·u + c·u·(u + 2h) for u tokens after h."""
    option = only(seat(matched=800), classes=[CURVED])
    # a = 10 ms, b = 0.5 ms; c = 1e-4 ms for 200 tokens times (200 + 2 * 800)
    assert option.prefill_ms == pytest.approx(10 + 100 + 36)
    assert option.terms.cache_access == pytest.approx(146)
    assert only(seat(), classes=[CURVED]).prefill_ms == pytest.approx(10 + 500 + 100)


def test_confidence_scales_the_tokens_that_are_expected_and_nothing_else():
    """It is not charged a second time: all other terms stay."""
    sure, unsure = (only(seat(matched=800, queue_ms=100, risk_ms=3, confidence_ratio=ratio)) for ratio in (1.0, 0.5))
    assert (sure.matched_tokens, unsure.matched_tokens) == (800, 400)
    assert unsure.terms.cache_access == pytest.approx(0.5 * 600)
    assert unsure.terms.compute_wait == sure.terms.compute_wait
    assert unsure.terms.risk == sure.terms.risk == 3


def test_congestion_prices_the_prefill_that_is_left():
    """Work taken now delays those who come next; a hit takes less of it."""
    cold, warm = (only(seat(matched=matched), congestion=0.8).terms for matched in (0, 800))
    assert cold.compute_wait == pytest.approx(1000 + 0.8 * 500)
    assert warm.compute_wait == pytest.approx(1000 + 0.8 * 100)


@pytest.mark.parametrize(
    ("cpu", "ssd", "load_ms"),
    [
        pytest.param(600, 0, 6.0, id="CPU memory: 60 MB at 10 GB/s"),
        pytest.param(0, 600, 60.0, id="SSD: 60 MB at 1 GB/s"),
        pytest.param(400, 200, 24.0, id="both, one after the other"),
    ],
)
def test_lower_tiers_are_charged_by_bytes_and_bandwidth(cpu: float, ssd: float, load_ms: float):
    """Loads happen by themselves: they are priced, not commanded."""
    option = only(seat(matched=600, cpu=cpu, ssd=ssd))
    assert option.action is Action.LOCAL
    assert option.terms.cache_access == pytest.approx(load_ms + 0.5 * 400)


def test_what_lies_on_a_slow_disk_may_be_dearer_than_to_compute_it():
    """Both options exist always; the cheaper counts."""
    # 5 ms of prefill for 10 tokens a ms, but 60 ms to load
    seen = candidates(seat(matched=600, ssd=600), classes=[hardware(prefill=(0, 0.01, 0))])
    first, second = options(seen, 0)
    assert (first.action, second.action) == (Action.RECOMPUTE, Action.LOCAL)
    assert first.terms.cache_access == pytest.approx(10)
    assert second.terms.cache_access == pytest.approx(60 + 4)


def test_where_the_bytes_of_a_token_are_unknown_lower_tiers_count_as_not_held():
    """No load can be priced, and a server loads only where that is faster than to compute: the upper bound."""
    option = only(seat(matched=600, cpu=500), bytes_per_token=None)
    assert option.matched_tokens == 100
    assert option.terms.cache_access == pytest.approx(0.5 * 900)


def test_displacement_is_charged_once_and_only_for_tokens_that_need_new_room():
    """In memory_pressure and nowhere else: prompt and expected output, less what is held already."""
    one, two = (only(seat(matched=400, pressure_ms_per_token=price)).terms for price in (0.0, 0.2))
    # 1,000 - 400 + 100 tokens at 0.2 ms
    assert two.memory_pressure == pytest.approx(140)
    assert two.total - one.total == pytest.approx(140)


def test_what_has_no_room_waits_and_displaces_nothing():
    """The own demand counts, not only what runs already (llm-d/llm-d-router#2909): a nearly full worker loses."""
    # given: 8,000 tokens; A has 100 blocks of 16 free, B 1,000, of 20,000 tokens; 10 requests have 200 each to go
    told = {"kv_total_tokens": 20_000.0, "requests": 10.0, "remaining_tokens": 2000.0, "half_step_ms": 15.0}
    full = seat(kv_free_tokens=1600.0, pressure_ms_per_token=0.1, **told)
    roomy = seat(kv_free_tokens=16_000.0, pressure_ms_per_token=0.1, **told)
    seen = candidates(full, roomy, demand=request(input_tokens=8000))
    # when
    a, b = best_option(seen, 0), best_option(seen, 1)
    # then: 8,100 tokens, 6,500 too many of 18,400 held, which are gone after 200 steps of 30 ms
    assert a.wait_ms == pytest.approx(15 + 6500 / 18_400 * 200 * 30)
    assert a.terms.memory_pressure == pytest.approx(1600 * 0.1)
    assert b.wait_ms == 15
    assert b.terms.memory_pressure == pytest.approx(8100 * 0.1)
    assert b.terms.total < a.terms.total


@pytest.mark.parametrize(
    ("fresh", "free", "short", "displaced"),
    [
        pytest.param(100, 100, 0, 100, id="just fits"),
        pytest.param(100, 30, 70, 30, id="too little"),
        pytest.param(100, -5, 100, 0, id="promised more than there is"),
        pytest.param(100, nan, 0, 100, id="unknown is not full"),
    ],
)
def test_fresh_tokens_wait_or_displace(fresh: float, free: float, short: float, displaced: float):
    """Each token once."""
    assert costs.short_tokens(fresh, free_tokens=free) == short
    assert costs.displaced_tokens(fresh, free_tokens=free) == displaced


def test_room_comes_when_running_requests_end():
    """All that is held is left over the mean rest, never less than half an answer like this one."""
    told = {"free_tokens": 0.0, "total_tokens": 1000.0, "requests": 4.0, "output_tokens": 100.0, "step_ms": 10.0}
    assert costs.room_ms(0, remaining_tokens=800, **told) == 0
    assert costs.room_ms(500, remaining_tokens=800, **told) == 0.5 * 200 * 10
    assert costs.room_ms(5000, remaining_tokens=800, **told) == 200 * 10
    assert costs.room_ms(500, remaining_tokens=0, **told) == 0.5 * 50 * 10
    unknown = told | {"total_tokens": nan}
    assert costs.room_ms(1, remaining_tokens=800, **unknown) == 200 * 10


def test_a_gain_is_for_what_nobody_holds_yet():
    """Later requests find it; where a copy is already, here or elsewhere, there is none: the hit is in cache_access."""
    told = {"demand": request(hashes=62), "reuse_ratio": 0.4}  # 992 tokens in whole blocks
    assert only(seat(), **told).terms.locality_gain == pytest.approx(0.4 * 0.5 * 992)
    assert only(seat(matched=800), **told).terms.locality_gain == pytest.approx(0.4 * 0.5 * 192)
    for seats in ([seat(matched=992), seat()], [seat(), seat(matched=992)]):
        assert best_option(candidates(*seats, **told), 0).terms.locality_gain == 0  # type: ignore[arg-type]
    assert only(seat()).terms.locality_gain == 0, "without hashes nothing can be found again"


def test_a_hit_is_worth_its_prefill_and_no_more():
    """Never counted twice: sole holder or not, what it saves is the prefill, its congestion and its room."""
    seen = candidates(
        seat(matched=800, pressure_ms_per_token=0.1), seat(pressure_ms_per_token=0.1), congestion=0.5, reuse_ratio=1.0
    )
    holder, other = (best_option(seen, slot).terms.total for slot in (0, 1))
    assert other - holder == pytest.approx(800 * 0.5 * 1.5 + 800 * 0.1)


def test_each_phase_pays_for_its_own_part():
    """A prefill alone decodes nothing, a decode alone computes nothing."""
    one = seat(matched=400, queue_ms=50, pressure_ms_per_token=0.1)
    first, second = (
        only(one, demand=request(phase=phase, hashes=62), congestion=0.5) for phase in (Phase.PREFILL, Phase.DECODE)
    )
    assert first.terms.compute_wait == pytest.approx(50 + 0.5 * 300)
    assert first.terms.cache_access == pytest.approx(300)
    assert first.terms.memory_pressure == pytest.approx(0.1 * 600)
    assert first.terms.locality_gain > 0
    assert second.terms.compute_wait == pytest.approx(50 + 1000)
    assert second.terms.cache_access == 0
    assert second.terms.memory_pressure == pytest.approx(0.1 * 700)
    assert second.terms.locality_gain == 0
    assert (second.action, second.prefill_ms) == (Action.LOCAL, 0)


def test_an_answers_own_time_and_its_effect_on_the_batch_can_be_told_apart():
    """The column has both together: 8 sequences get 1.5 ms slower each, 12 ms per token."""
    profile = hardware(decode=((8, 20.0), (9, 21.5)))
    own, effect = costs.decode_parts_ms(21.5 + 12, batch=8, output_tokens=100, profile=profile)
    assert own == pytest.approx(2150)
    assert effect == pytest.approx(1200)


def test_waiting_where_it_is_takes_its_own_prefill_off_the_queue():
    """It is in that queue itself: a move would have to beat what is left."""
    here = seat(queue_ms=700, facts=worker_facts("here"))
    there = seat(queue_ms=300, facts=worker_facts("there"))
    moved = candidates(here, there)
    stays = candidates(here, there, demand=request(current_worker="here"))
    assert best_option(moved, 0).terms.total > best_option(moved, 1).terms.total
    option = best_option(stays, 0)
    assert option.action is Action.WAIT
    assert option.wait_ms == pytest.approx(700 - 500)
    assert option.terms.total < best_option(stays, 1).terms.total
    assert {each.action for each in options(stays, 1)} == {Action.RECOMPUTE}


def test_an_empty_slot_has_no_options():
    """Whoever asks made a mistake."""
    seen = candidates(seat(), empty_slots=1)
    for ask in (options, best_option):
        with pytest.raises(ValueError, match="slot 1: expected a worker"):
            ask(seen, 1)
