"""Policies by load: measures, lots and turns."""

from collections import Counter
from math import nan

import numpy as np
import pytest

from kvaware_engine.policies import policy_named
from kvaware_engine.policies.least_loaded import LeastLoaded, Measure
from kvaware_engine.policies.power_of_two import DrawnFrom, PowerOfTwo
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.figures import Figure
from kvaware_testing.candidate_builders import candidates, request, seat


@pytest.mark.parametrize(
    ("measure", "figure"),
    [
        (Measure.REQUESTS, "requests"),
        (Measure.QUEUE, "queue_ms"),
        (Measure.GPU_UTILIZATION, "gpu_utilization_ratio"),
        (Measure.HBM, "hbm_used_bytes"),
        (Measure.DECODING, "batch"),
        (Measure.REMAINING_TOKENS, "remaining_tokens"),
    ],
)
def test_the_least_loaded_by_each_measure(measure: Measure, figure: str):
    """One figure decides, the others do not matter."""
    seen = candidates(*[seat(**{figure: load}) for load in (0.9, 0.2, 0.5)])
    choice = choose(LeastLoaded(measure=measure), seen)
    assert choice is not None
    assert (choice.chosen, choice.runner_up) == (1, 2)


def test_an_unknown_load_is_taken_for_the_mean():
    """Neither full nor idle: the emptier one goes first, the fuller one after it. The barred do not count."""
    loads = [0.2, nan, 0.6, 1.0]
    seen = candidates(*[seat(gpu_utilization_ratio=load, barred=load == 1.0) for load in loads])
    costs = LeastLoaded(measure=Measure.GPU_UTILIZATION).costs_ms(seen)
    assert costs[:3].tolist() == pytest.approx([0.2, 0.4, 0.6])


def test_the_queue_counts_at_the_demands_priority():
    """What waits below it is not ahead of it."""
    seen = candidates(seat(queue_ms=900), seat(queue_ms=500), waits_ahead_ms=[100, 500])
    choice = choose(LeastLoaded(measure=Measure.QUEUE), seen)
    assert choice is not None
    assert choice.chosen == 0


def test_round_robin_goes_in_turn_past_those_who_cannot():
    """Whatever they have to do."""
    seen = candidates(seat(queue_ms=900), seat(barred=True), seat(matched=500), seat(requests=9.0))
    turns = []
    for number in range(1, 7):
        choice = choose(policy_named("round_robin"), seen)
        assert choice is not None
        seen.figures[Figure.LAST_CHOSEN, choice.chosen] = number
        turns.append(choice.chosen)
    assert turns == [0, 2, 3, 0, 2, 3]


def fleet(request_id: str, *, loads: list[float], matched: dict[int, float] | None = None) -> Candidates:
    held = matched or {}
    return candidates(
        *[seat(requests=load, matched=held.get(slot, 0.0)) for slot, load in enumerate(loads)],
        demand=request(request_id=request_id),
    )


def test_two_are_drawn_and_the_less_loaded_wins():
    """The other is the runner-up; the same request draws the same two again."""
    for number in range(50):
        seen = fleet(f"r{number}", loads=[5, 4, 3, 2, 1, 0])
        costs = PowerOfTwo().costs_ms(seen)
        drawn = np.flatnonzero(costs < 1e8).tolist()
        assert len(drawn) == 2
        choice = choose(PowerOfTwo(), seen)
        assert choice is not None
        assert (choice.chosen, choice.runner_up) == (drawn[1], drawn[0]), "higher slots have less to do here"
        again = PowerOfTwo().costs_ms(fleet(f"r{number}", loads=[5, 4, 3, 2, 1, 0]))
        np.testing.assert_array_equal(again, costs)


def test_lots_fall_evenly():
    """Each of four is one of the two drawn in half of the cases: 500 of 1,000, within five standard deviations."""
    drawn = Counter(
        slot
        for number in range(1000)
        for slot in np.flatnonzero(PowerOfTwo().costs_ms(fleet(f"r{number}", loads=[0, 0, 0, 0])) < 1e8).tolist()
    )
    assert set(drawn) == {0, 1, 2, 3}
    assert all(abs(count - 500) < 5 * (1000 * 0.25) ** 0.5 for count in drawn.values())


def test_nobody_barred_is_drawn():
    """With two left both are drawn, with one it is taken, with none nobody."""
    loads = [seat(barred=True), seat(requests=3.0), seat(requests=1.0)]
    choice = choose(PowerOfTwo(), candidates(*loads))
    assert choice is not None
    assert (choice.chosen, choice.runner_up) == (2, 1)
    assert choose(PowerOfTwo(), candidates(seat(barred=True))) is None
    assert choose(PowerOfTwo(drawn_from=DrawnFrom.HOLDERS), candidates(seat(barred=True))) is None


def test_a_holder_is_always_among_those_drawn_from_holders():
    """One of those that hold, one of all, one of the believed ones; the least estimated delay wins."""
    for number in range(30):
        seen = fleet(f"r{number}", loads=[0, 0, 0, 0, 0, 0, 0, 0], matched={5: 800.0})
        choice = choose(PowerOfTwo(drawn_from=DrawnFrom.HOLDERS), seen)
        assert choice is not None
        assert choice.chosen == 5
