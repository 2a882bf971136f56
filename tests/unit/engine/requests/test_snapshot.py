"""What a decision saw stands alone: the live columns move on, the snapshot does not."""

from dataclasses import fields, replace

import numpy as np
import pytest

from kvaware_engine.policies import POLICIES, policy_named
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import Choice, choose
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.snapshot import HOLDERS_KEPT, WHOLE_COLUMNS_MAX, Snapshot, emptiest, take
from kvaware_testing.candidate_builders import candidates, request, seat, worker_facts

COST = policy_named("cost")
CAN_PULL = ("pull_from_peer",)


def decided(seen: Candidates, policy: str = "cost") -> tuple[Choice, Snapshot]:
    choice = choose(policy_named(policy), seen)
    assert choice is not None
    return choice, take(policy_named(policy), seen, choice)


def fleet(count: int, *, holders: int = 5, seed: int = 1, empty: int | None = None) -> Candidates:
    """Loaded at random; every worker can read from every other; slots without a worker between them."""
    rng = np.random.default_rng(seed)
    holding = set(rng.choice(count, size=min(holders, count), replace=False).tolist())
    seats = [
        seat(
            facts=worker_facts(f"w{slot}", node=f"n{slot}", rack=f"r{slot % 7}", can=CAN_PULL),
            matched=float(rng.integers(1, 999)) if slot in holding else 0.0,
            barred=bool(rng.random() < 0.1),
            queue_ms=float(rng.integers(0, 2000)),
            requests=0.0 if slot == empty else float(rng.integers(1, 30)),
            confidence_ratio=float(rng.uniform(0.3, 1.0)),
            link_bytes_in_flight=float(rng.integers(0, 10**9)),
        )
        for slot in range(count)
    ]
    return candidates(*seats, demand=request(hashes=60))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("own_bars", [True, False])
def test_the_same_is_chosen_from_it_after_the_live_columns_have_changed(policy: str, *, own_bars: bool) -> None:
    """Those of the fleet: what is else in candidates was made for the one decision, and nobody changes it."""
    seen = fleet(64)
    live = seen.figures
    live[Figure.BARRED] = seen.barred
    if not own_bars:  # where the demand bars nobody more than the fleet does
        seen.barred = live[Figure.BARRED]
    seen.lower_tokens = {3: (100.0, 0.0)}
    choice, snapshot = decided(seen, policy)
    costs = choice.costs.copy()
    live[:] = 7.0
    again = choose(snapshot.policy, snapshot.candidates)
    assert again is not None
    assert (again.chosen, again.runner_up) == (choice.chosen, choice.runner_up)
    np.testing.assert_array_equal(again.costs, costs)
    assert snapshot.whole


@pytest.mark.parametrize("count", [4, WHOLE_COLUMNS_MAX + 1])
def test_nothing_that_the_decision_saw_is_left_out(count: int) -> None:
    """Whoever adds a field to the candidates finds here that snapshots must carry it."""
    seen = fleet(count)
    seen.waits_ahead_ms = np.arange(count, dtype=np.float64)
    seen.remote_bytes, seen.migration_bytes, seen.reuse_ratio, seen.congestion = 1e9, 2e9, 0.4, 0.2
    live = replace(seen)
    _, snapshot = decided(seen)
    of_columns = {"figures", "facts", "barred", "matched_tokens", "lower_tokens", "waits_ahead_ms", "reach", "classes"}
    for field in fields(Candidates):
        if field.init and field.name not in of_columns:  # the others are worked out of these
            assert getattr(snapshot.candidates, field.name) == getattr(live, field.name), field.name
    assert tuple(snapshot.candidates.classes) == tuple(live.classes)
    for slot, facts in enumerate(snapshot.candidates.facts):
        assert facts is not None
        there = int(facts.worker.removeprefix("w"))
        np.testing.assert_array_equal(snapshot.candidates.figures[:, slot], live.figures[:, there])
        assert snapshot.candidates.matched_tokens[slot] == live.matched_tokens[there]
        assert snapshot.candidates.barred[slot] == live.barred[there]
        assert snapshot.candidates.waits_ahead_ms is not None
        assert snapshot.candidates.waits_ahead_ms[slot] == there


@pytest.mark.parametrize("seed", range(5))
def test_of_a_large_fleet_the_telling_columns_are_kept_and_priced_as_before(seed: int) -> None:
    """The sources of remote reads are among them, so that their options cost what they did."""
    seen = fleet(1000, seed=seed, empty=500, holders=20)
    seen.barred[500] = 0.0
    seen.lower_tokens = {500: (10.0, 20.0), 501: (1.0, 1.0)}
    choice, snapshot = decided(seen)
    names = [facts.worker for facts in snapshot.candidates.facts if facts is not None]
    assert not snapshot.whole
    assert len(names) < 50
    assert snapshot.facts(snapshot.chosen).worker == f"w{choice.chosen}"
    assert snapshot.runner_up is not None
    assert snapshot.facts(snapshot.runner_up).worker == f"w{choice.runner_up}"
    assert {f"w{slot}" for slot in np.argsort(choice.costs)[:16]} <= set(names)
    assert {f"w{slot}" for slot in np.flatnonzero(seen.matched_tokens)} <= set(names)
    assert "w500" in names
    assert snapshot.candidates.lower_tokens[names.index("w500")] == (10.0, 20.0)
    at = [int(name.removeprefix("w")) for name in names]
    np.testing.assert_allclose(COST.costs_ms(snapshot.candidates), COST.costs_ms(seen)[at], rtol=1e-12)
    np.testing.assert_array_equal(snapshot.costs, choice.costs[at])
    again = choose(COST, snapshot.candidates)
    assert again is not None
    assert (again.chosen, again.runner_up) == (snapshot.chosen, snapshot.runner_up)


@pytest.mark.parametrize("distinct", [1, 3, 40, 10_000])
def test_the_cheapest_are_kept_however_many_cost_the_same(distinct: int) -> None:
    """Of those that cost as much as the sixteenth any will do, but nobody cheaper is left out."""
    rng = np.random.default_rng(distinct)
    seats = [seat(queue_ms=float(wait)) for wait in rng.integers(0, distinct, size=777)]
    choice, snapshot = decided(candidates(*seats))
    sixteenth = np.sort(choice.costs)[15]
    cheaper = {f"w{slot}" for slot in np.flatnonzero(choice.costs < sixteenth)}
    names = {facts.worker for facts in snapshot.candidates.facts if facts is not None}
    assert cheaper <= names
    assert np.count_nonzero(snapshot.costs <= sixteenth) >= 16
    assert len(names) < 200


def test_of_many_holders_those_expected_to_hold_most_are_kept() -> None:
    seen = fleet(2000, holders=1500)
    _, snapshot = decided(seen)
    names = {facts.worker for facts in snapshot.candidates.facts if facts is not None}
    expected = seen.matched_tokens * seen.figures[Figure.CONFIDENCE_RATIO]
    assert {f"w{slot}" for slot in np.argsort(expected)[-HOLDERS_KEPT:]} <= names
    assert len(names) <= HOLDERS_KEPT + 16 + 3


def test_equal_ones_go_to_the_lower_slot_here_as_there() -> None:
    """1,000 idle workers, all alike: those that were kept stand in the order of the fleet."""
    seen = candidates(*[seat(last_chosen=1.0) for _ in range(1000)])
    choice, snapshot = decided(seen)
    again = choose(COST, snapshot.candidates)
    assert again is not None
    assert choice.chosen == 0
    assert snapshot.facts(again.chosen).worker == "w0"


@pytest.mark.parametrize(("count", "most_bytes"), [(64, 16_000), (256, 55_000), (7000, 20_000)])
def test_its_memory_is_bounded(count: int, most_bytes: int) -> None:
    _, snapshot = decided(candidates(*[seat(matched=float(slot % 100)) for slot in range(count)]))
    arrays = (snapshot.candidates.figures, snapshot.candidates.matched_tokens, snapshot.candidates.barred)
    assert sum(array.nbytes for array in arrays) < snapshot.size_bytes <= most_bytes


def test_it_holds_no_view_of_the_live_columns() -> None:
    """A view would keep a whole array of 7,000 workers alive, and change."""
    for count in (10, 300):
        seen = fleet(count)
        live = seen.figures
        seen.barred = live[Figure.BARRED]
        kept = decided(seen)[1].candidates
        for array in (kept.figures, kept.barred, kept.matched_tokens):
            assert not np.shares_memory(array, live)


def test_the_emptiest_has_the_fewest_requests_and_of_several_costs_least() -> None:
    seen = candidates(
        seat(requests=3.0),
        seat(requests=1.0, queue_ms=500),
        seat(requests=1.0, queue_ms=100),
        seat(requests=0.0, barred=True),
    )
    assert emptiest(seen, COST.costs_ms(seen)) == 2


def test_a_slot_without_a_worker_has_no_facts() -> None:
    seen = candidates(seat(), seat(barred=True))
    seen.facts = (seen.facts[0], None)
    _, snapshot = decided(seen)
    assert snapshot.slot_of("w0") == 0
    assert snapshot.slot_of("w1") is None
    with pytest.raises(ValueError, match="slot 1: expected a worker"):
        snapshot.facts(1)
