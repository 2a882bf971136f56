"""The default policy's reasons, and the choice that "the emptiest GPU" and "the best match" both get wrong."""

import pytest

from kvaware_engine.policies import policy_named
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.words import PlacementReason
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts

COST = policy_named("cost")
HOLDER = {"matched": 6000.0}


def chosen(*seats: Seat, **told: object) -> tuple[int, PlacementReason]:
    seen = candidates(*seats, demand=request(input_tokens=8000), **told)  # type: ignore[arg-type]
    choice = choose(COST, seen)
    assert choice is not None
    option = COST.best_option(seen, choice.chosen)
    return choice.chosen, COST.reason(seen, option, alone=choice.runner_up is None)


def moved(*, can: str) -> list[Seat]:
    return [
        seat(facts=worker_facts("t", node="n", can=(can,))),
        seat(facts=worker_facts("h", node="n", can=(can,)), queue_ms=5000, **HOLDER),
    ]


@pytest.mark.parametrize(
    ("seats", "slot", "reason"),
    [
        pytest.param([seat(), seat(queue_ms=2000, **HOLDER)], 1, PlacementReason.PREFIX_RESIDENT, id="busy, holds it"),
        pytest.param([seat(), seat(queue_ms=4000, **HOLDER)], 0, PlacementReason.SHORTER_WAIT, id="too busy"),
        pytest.param(
            [seat(matched=5000), seat(queue_ms=4000, **HOLDER)], 0, PlacementReason.SHORTER_WAIT, id="holds less"
        ),
        pytest.param([seat(), seat(queue_ms=1)], 0, PlacementReason.COLD, id="nobody holds it"),
        pytest.param([seat(**HOLDER)], 0, PlacementReason.ONLY_CANDIDATE, id="alone"),
        pytest.param([seat(), seat(cpu=6000, **HOLDER)], 1, PlacementReason.PREFIX_IN_LOWER_TIER, id="in CPU memory"),
        pytest.param(moved(can="pull_from_peer"), 0, PlacementReason.REMOTE_READ, id="reads it"),
        pytest.param(moved(can="migrate"), 0, PlacementReason.MIGRATE, id="copies it"),
    ],
)
def test_the_whole_cost_decides_and_says_why(seats: list[Seat], slot: int, reason: PlacementReason):
    """6,000 of 8,000 tokens held are worth 3,000 ms of queue; a read on one node takes 60 ms."""
    assert chosen(*seats) == (slot, reason)


def test_it_stays_where_it_waits():
    """A move would queue it anew."""
    seen = candidates(
        seat(queue_ms=800, facts=worker_facts("here")), seat(queue_ms=400), demand=request(current_worker="here")
    )
    choice = choose(COST, seen)
    assert choice is not None
    assert choice.chosen == 0
    assert COST.reason(seen, COST.best_option(seen, 0)) is PlacementReason.STAYS


def test_an_idle_worker_without_room_loses_to_a_busy_one():
    """Emptiest by GPU is not emptiest by HBM: 8,100 of 10,000 tokens are left after 810 steps of 20 ms."""
    full = seat(kv_free_tokens=0.0, kv_total_tokens=10_000.0, requests=2.0, remaining_tokens=2000.0, half_step_ms=10.0)
    busy = seat(queue_ms=3000, requests=9.0)
    assert chosen(full, busy)[0] == 1
