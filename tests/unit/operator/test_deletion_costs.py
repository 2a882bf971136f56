"""Deletion costs: the replica with the least valuable cache goes first; a crash changes nothing, others stay."""

from dataclasses import replace

import pytest

from kvaware_engine.observations import ObjectKey
from kvaware_operator.deletion_costs import COST_OF_LEAVING, CostsWritten, plan_costs, steerable
from kvaware_testing.operator_harness import worker_pod
from kvaware_testing.store_harness import FakeClock


def pods(*names: str, **changes):
    return [worker_pod(name, **changes) for name in names]


def plan(found, *, leaving: int = 1, choose: bool = True, **values: float | None):
    return plan_costs(
        found,
        leaving=leaving,
        choose=choose,
        cache_value_ms={ObjectKey("ml", name): value for name, value in values.items()},
    )


def written(planned) -> dict[str, int | None]:
    return {key.name: cost for key, cost in planned.writes.items()}


@pytest.mark.parametrize(
    ("found", "leaving", "values", "expected"),
    [
        pytest.param(pods("a", "b", "c"), 1, {"a": 9, "b": 1, "c": 5}, ["b"], id="the least valuable"),
        pytest.param(pods("a", "b", "c"), 2, {"a": 9, "b": 1, "c": 5}, ["b", "c"], id="two of them"),
        pytest.param(pods("a", "b"), 1, {"a": 900}, ["a"], id="unknown is not thrown away first"),
        pytest.param(pods("a", "b"), 1, {"a": 900, "b": None}, ["a"], id="said to be unknown"),
        pytest.param(pods("a", "b"), 1, {"a": 7, "b": 7}, ["a"], id="ties by name"),
        pytest.param(
            [*pods("a"), worker_pod("z", ready=False)], 1, {"a": 0, "z": 99}, ["z"], id="not Ready before anything"
        ),
        pytest.param(pods("a"), 0, {"a": 0}, [], id="nobody has to go"),
        pytest.param(
            [*pods("a", "b"), worker_pod("c", terminating=True)], 1, {"a": 5, "b": 1, "c": 0}, ["b"],
            id="who is going already does not count",
        ),
        pytest.param(pods("a", "b"), 5, {}, ["a", "b"], id="more than there are"),
    ],
)  # fmt: skip
def test_who_goes_first(found, leaving, values, expected):
    planned = plan(found, leaving=leaving, **values)
    assert [key.name for key in planned.leaving] == expected
    assert written(planned) == dict.fromkeys(expected, COST_OF_LEAVING)


def test_a_choice_stays_while_the_store_catches_up_and_after_a_crash():
    """Values move from second to second: choosing anew at each look would write costs for ever and never scale."""
    found = [*pods("a", "b"), worker_pod("c", cost=COST_OF_LEAVING)]
    planned = plan(found, a=1, b=2, c=99)
    assert [key.name for key in planned.leaving] == ["c"]
    assert planned.in_place


def test_a_half_written_choice_is_completed():
    """The operator was killed after the first of two writes."""
    found = [*pods("a", "b"), worker_pod("c", cost=COST_OF_LEAVING)]
    assert written(plan(found, leaving=2, a=1, b=2, c=99)) == {"a": COST_OF_LEAVING}


def test_costs_are_taken_off_when_nobody_has_to_go():
    found = [*pods("a"), worker_pod("b", cost=COST_OF_LEAVING)]
    assert written(plan(found, leaving=0, choose=False)) == {"b": None}


def test_costs_stay_until_the_replica_set_has_acted():
    """Right after the scale was written all pods are still there: taking the costs off now would let another one go."""
    found = [*pods("a"), worker_pod("b", cost=COST_OF_LEAVING)]
    planned = plan(found, leaving=1, choose=False)
    assert planned.in_place
    assert [key.name for key in planned.leaving] == ["b"]


def test_a_roll_out_gets_no_costs():
    """A surge has more pods than replicas for a while; who goes then is the Deployment's business."""
    assert plan(pods("a", "b"), leaving=1, choose=False).in_place


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(pods("a", "b", owner="StatefulSet"), id="a StatefulSet takes the highest ordinal"),
        pytest.param(pods("a", "b", owner=None), id="nobody owns them"),
        pytest.param([*pods("a"), worker_pod("b", cost=5, cost_by="kubectl")], id="somebody else writes costs"),
        pytest.param([*pods("a"), worker_pod("b", cost=5, cost_by="")], id="nobody knows who wrote them"),
        pytest.param([], id="there are none"),
    ],
)
def test_where_costs_do_not_decide_none_are_written(found):
    assert not steerable(found)
    assert plan(found, a=1, b=2).in_place


def test_ours_are_taken_off_where_somebody_else_begins_to_write_them():
    found = [worker_pod("a", cost=COST_OF_LEAVING), worker_pod("b", cost=5, cost_by="kubectl")]
    assert written(plan(found)) == {"a": None}


def test_a_cost_of_ours_with_another_figure_is_set_right():
    """An older version wrote another one."""
    assert written(plan([*pods("a"), worker_pod("b", cost=-1)])) == {"b": COST_OF_LEAVING}


def test_what_was_written_is_not_written_again_before_the_store_shows_it():
    """The store may be a second behind; a look every half a second must not write every half a second."""
    clock = FakeClock()
    memory = CostsWritten(clock)
    [pod] = pods("a")
    assert memory.due(pod, -1000)
    memory.note(pod, -1000)
    assert not memory.due(pod, -1000)
    assert memory.due(pod, None), "another figure is another write"
    assert memory.due(replace(pod, uid="uid-new"), -1000), "another pod of the same name has none"
    clock.now_s += 4
    assert memory.longest_s([pod.key]) == 4
    clock.now_s += 6
    assert memory.due(pod, -1000), "it may have been lost"
    memory.note(worker_pod("b"), -1000)
    assert set(memory._written) == {ObjectKey("ml", "b")}
