"""Locality reads a table: only order and ratios matter."""

import numpy as np
import pytest

from kvaware_engine.policies import policy_named
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import choose
from kvaware_testing.candidate_builders import candidates, request, seat, worker_facts

LOCALITY = policy_named("locality")


def costs(*seats: object, **told: object) -> list[float]:
    seen: Candidates = candidates(*seats, demand=request(input_tokens=1000), **told)  # type: ignore[arg-type]
    found: list[float] = np.round(LOCALITY.costs_ms(seen), 6).tolist()
    return found


def test_each_tier_has_its_price():
    """Half a prompt in HBM, CPU memory and on SSD, and nothing: 200 for a whole prompt computed."""
    half = {"matched": 500.0}
    assert costs(seat(**half), seat(cpu=500, **half), seat(ssd=500, **half), seat()) == [100, 105, 125, 200]


def test_what_can_be_read_from_others_is_nearer_than_to_compute_it():
    """80 for memory elsewhere, 150 for an SSD elsewhere; only with the capability and within the tenant's bytes."""
    can, cannot = worker_facts("a", can=("pull_from_peer",)), worker_facts("b")
    holder = worker_facts("h", can=("pull_from_peer",))
    assert costs(seat(facts=can), seat(facts=cannot), seat(facts=holder, matched=500)) == [140, 200, 100]
    # 100 of the 500 on the holder's SSD: 500 * 200 + 400 * 80 + 100 * 150
    assert costs(seat(facts=can), seat(facts=holder, matched=500, ssd=100))[0] == pytest.approx(147)
    assert costs(seat(facts=can), seat(facts=holder, matched=500), remote_bytes=0.0)[0] == 200


def test_less_is_expected_of_a_worker_that_is_less_believed():
    """Confidence scales the tokens."""
    assert costs(seat(matched=500, confidence_ratio=0.5)) == [150]


def test_queues_do_not_count_but_equal_ones_take_turns():
    """The holder gets it however long it takes."""
    seen = candidates(seat(matched=500, queue_ms=60_000), seat())
    choice = choose(LOCALITY, seen)
    assert choice is not None
    assert choice.chosen == 0
    seen = candidates(seat(matched=500, last_chosen=2.0), seat(matched=500, last_chosen=1.0))
    choice = choose(LOCALITY, seen)
    assert choice is not None
    assert (choice.chosen, choice.runner_up) == (1, 0)
