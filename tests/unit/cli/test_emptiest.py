"""What "the emptiest GPU" would have chosen is computed from the explanation, never assumed."""

from typing import Any

import pytest

from kvaware_cli.demo.emptiest import compare, dearest
from kvaware_cli.wire import Explanation
from kvaware_testing.extender_answers import candidate, explanation, refused


def explained(*candidates: dict[str, Any], name: str = "p") -> Explanation:
    return Explanation.model_validate(explanation(candidates, name=name))


def test_the_extra_cost_is_the_difference_of_the_totals() -> None:
    pod = explained(
        candidate("warm", hbm_free_gib=40, terms={"network": 100.0, "locality_gain": 50.0}),
        candidate("empty", hbm_free_gib=80, terms={"network": 900.0}),
    )
    comparison = compare(pod)
    assert comparison is not None
    assert (comparison.chosen.node, comparison.emptiest.node) == ("warm", "empty")
    assert comparison.extra_ms == pytest.approx(900 - (100 - 50))


def test_the_dearest_pod_is_told_and_none_where_the_emptiest_was_right() -> None:
    right = explained(candidate("a", hbm_free_gib=80), candidate("b", hbm_free_gib=40))
    cheap = explained(candidate("a", hbm_free_gib=40), candidate("b", terms={"network": 200.0}), name="cheap")
    dear = explained(candidate("a", hbm_free_gib=40), candidate("b", terms={"network": 900.0}), name="dear")
    nowhere = explained(refused("a"))
    # then
    worst = dearest([right, cheap, dear, nowhere])
    assert worst is not None
    assert worst.explanation.demand.name == "dear"
    assert dearest([right, nowhere]) is None
