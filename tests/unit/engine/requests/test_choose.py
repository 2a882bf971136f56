"""The cheapest, the best other one, turns among equals, and no herd of two."""

from collections import Counter
from math import inf

import numpy as np
import pytest

from kvaware_engine.policies import policy_named
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import choose, choose_by
from kvaware_engine.requests.figures import Figure
from kvaware_testing.candidate_builders import candidates, request, seat

COST = policy_named("cost")


@pytest.mark.parametrize(
    ("costs", "last", "chosen", "runner_up"),
    [
        pytest.param([3, 1, 2], [0, 9, 0], 1, 2, id="by cost, whoever was last"),
        pytest.param([1, 1, 2], [5, 4, 0], 1, 0, id="two equal: the less recent first, the other next"),
        pytest.param([1, 1 + 5e-7, 2], [5, 4, 0], 1, 0, id="equal within a millionth"),
        pytest.param([1, 2, 2], [0, 7, 3], 0, 2, id="equal runners-up go by turns, too"),
        pytest.param([1, 1, 1], [0, 0, 0], 0, 1, id="then by slot"),
        pytest.param([1, 1 + 8e-7, 1 + 1.6e-6], [2, 1, 0], 1, 0, id="the bound counts from the least"),
        pytest.param([1, 1 + 8e-7, 1 + 1.6e-6], [1, 2, 0], 0, 2, id="and from the least of the others for the next"),
        pytest.param([inf, 4], [0, 0], 1, None, id="an only candidate has no runner-up"),
        pytest.param([7], [0], 0, None, id="one worker"),
        pytest.param([-5, 0], [0, 0], 0, 1, id="a gain may exceed the rest"),
    ],
)
def test_the_least_then_turns(costs: list[float], last: list[float], chosen: int, runner_up: int | None):
    """And the column is what it was."""
    column = np.array(costs, dtype=np.float64)
    choice = choose_by(column, np.array(last, dtype=np.float64))
    assert choice is not None
    assert (choice.chosen, choice.runner_up) == (chosen, runner_up)
    assert choice.costs.tolist() == costs


def test_nobody_is_chosen_where_all_are_barred_or_none_is_there():
    """A refusal is the caller's to word."""
    assert choose(COST, candidates(seat(barred=True), seat(barred=True))) is None
    assert choose(COST, candidates()) is None
    assert choose(COST, candidates(empty_slots=3)) is None


def decide(seen: Candidates, number: int) -> int:
    """Choose, and note whose turn it was."""
    choice = choose(COST, seen)
    assert choice is not None
    seen.figures[Figure.LAST_CHOSEN, choice.chosen] = number
    return choice.chosen


def test_idle_twins_take_turns():
    """400 unrelated prompts, each finished before the next: 45-55 % each (AMD-AGI/Infera#103)."""
    seen = candidates(seat(), seat())
    counts = Counter(decide(seen, number) for number in range(1, 401))
    assert counts == {0: 200, 1: 200}


def test_seven_thousand_idle_workers_take_turns():
    """Nobody is second while somebody has not been first."""
    seen = candidates(*[seat() for _ in range(50)], empty_slots=6950)
    assert [decide(seen, number) for number in range(1, 101)] == [*range(50), *range(50)]


def together(prefix: int, own: int, requests: int) -> Counter[int]:
    """Requests at once with a prefix that worker 0 holds; each choice lengthens a queue and leaves the prefix there."""
    tokens = prefix + own
    seen = candidates(seat(matched=prefix), seat(), demand=request(input_tokens=tokens), output=0)
    counts: Counter[int] = Counter()
    for number in range(1, requests + 1):
        seen.need = None
        chosen = decide(seen, number)
        counts[chosen] += 1
        uncached = tokens - seen.matched_tokens[chosen]
        free_at_s = seen.figures[Figure.FREE_AT_S]
        free_at_s[chosen] = max(free_at_s[chosen], seen.now_s) + uncached * 0.5 / 1000
        seen.matched_tokens[chosen] = prefix
    return counts


def test_a_shared_prefix_draws_no_herd_once_its_queue_costs_more_than_to_compute_it():
    """6,144 shared and 2,000 own tokens, 0.5 ms each: after 4 queues of 1,000 ms the twin's 4,072 ms are less."""
    # 1,000 * k + 1,000 > 4,072 from k = 4 on; then the twin has it, too, and both are filled evenly
    assert together(6144, 2000, 4) == {0: 4}
    assert together(6144, 2000, 5) == {0: 4, 1: 1}
    assert together(6144, 2000, 64) == {0: 34, 1: 30}


def test_a_long_prefix_with_a_tiny_own_part_stays_together():
    """Computing 6,144 tokens again costs more than waiting for 60 requests of 16 tokens."""
    # 8 ms each: 61 * 8 < 3,080
    assert together(6144, 16, 61) == {0: 61}
