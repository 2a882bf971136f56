"""What holds for every policy, whatever it prefers."""

from dataclasses import fields, replace
from math import isfinite, nan
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from kvaware_crds.errors import ConfigError
from kvaware_crds.v1alpha1 import inference_model
from kvaware_engine.policies import POLICIES, Policy, collect, policy_named
from kvaware_engine.policies.least_loaded import LeastLoaded, Measure
from kvaware_engine.policies.power_of_two import DrawnFrom, PowerOfTwo
from kvaware_engine.policies.round_robin import RoundRobin
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.options import options
from kvaware_engine.requests.words import FloatArray, PlacementReason
from kvaware_testing.candidate_builders import candidates, request, seat, worker_facts

VARIANTS = [
    *(policy_named(name) for name in sorted(POLICIES)),
    *(LeastLoaded(measure=measure) for measure in Measure if measure is not Measure.REQUESTS),
    PowerOfTwo(drawn_from=DrawnFrom.HOLDERS),
]
UNKNOWABLE = [
    Figure.KV_TOTAL_TOKENS,
    Figure.KV_FREE_TOKENS,
    Figure.GPU_UTILIZATION_RATIO,
    Figure.HBM_USED_BYTES,
    Figure.CPU_FREE_BYTES,
    Figure.SSD_FREE_BYTES,
    Figure.OBSERVED_AT_S,
]
REASONS = {
    "cost": PlacementReason.PREFIX_RESIDENT,
    "locality": PlacementReason.NEAREST_CACHE,
    "least_loaded": PlacementReason.LEAST_LOADED,
    "power_of_two": PlacementReason.LESS_LOADED_OF_TWO,
    "round_robin": PlacementReason.IN_TURN,
}


def of(policies: list[Policy]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("policy", policies, ids=repr)


every_policy = of(VARIANTS)


def mixed(*, request_id: str = "r1") -> Candidates:
    """Some hold, some are busy, one is barred, one slot is empty."""
    return candidates(
        *[
            seat(
                facts=worker_facts(f"w{slot}", node=f"n{slot % 2}", can=("pull_from_peer",)),
                matched=matched,
                cpu=matched / 4,
                queue_ms=queue,
                requests=float(slot % 3),
                batch=float(slot % 2),
                barred=slot == 3,
                remaining_tokens=slot * 10.0,
                gpu_utilization_ratio=slot / 10,
                hbm_used_bytes=slot * 1e9,
                last_chosen=float(slot),
            )
            for slot, (matched, queue) in enumerate([(0, 0), (512, 40), (0, 300), (900, 0), (512, 900), (64, 10)])
        ],
        empty_slots=1,
        demand=request(request_id=request_id, hashes=62),
    )


@every_policy
def test_one_finite_cost_per_candidate_and_infinity_for_the_others(policy: Policy):
    """Barred are the barred slot and the empty one; nothing that was seen is changed."""
    seen = mixed()
    before = [each.copy() for each in (seen.figures, seen.barred, seen.matched_tokens)]
    costs = policy.costs_ms(seen)
    assert costs.shape == (7,)
    assert [isfinite(cost) for cost in costs] == [True, True, True, False, True, True, False]
    assert not np.isnan(costs).any()
    for was, now in zip(before, (seen.figures, seen.barred, seen.matched_tokens), strict=True):
        np.testing.assert_array_equal(was, now)


@every_policy
def test_the_same_input_gives_the_same_output_in_an_array_of_the_callers_own(policy: Policy):
    """No hidden state, no hidden randomness."""
    seen = mixed()
    first = policy.costs_ms(seen)
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(policy.costs_ms(seen), kept)
    np.testing.assert_array_equal(policy.costs_ms(mixed()), kept)


@of([policy for policy in VARIANTS if policy.name != "power_of_two"])
def test_the_order_of_the_workers_does_not_matter(policy: Policy):
    """But for lots, which fall on slots."""
    seen = mixed()
    turned = np.array([5, 4, 3, 2, 1, 0, 6])
    other = replace(
        seen,
        figures=seen.figures[:, turned],
        facts=[seen.facts[slot] for slot in turned],
        barred=seen.barred[turned],
        matched_tokens=seen.matched_tokens[turned],
        lower_tokens={int(np.flatnonzero(turned == slot)[0]): lower for slot, lower in seen.lower_tokens.items()},
        reach=None,
    )
    np.testing.assert_allclose(policy.costs_ms(other), policy.costs_ms(seen)[turned], rtol=0, atol=1e-6)


@every_policy
def test_unknown_figures_are_survived_and_are_not_read_as_full(policy: Policy):
    """A worker that tells nothing is a candidate (llm-d/llm-d-router#2408): alone it gets everything."""
    seen = mixed()
    seen.figures[UNKNOWABLE] = nan
    costs = policy.costs_ms(seen)
    assert [isfinite(cost) for cost in costs] == [True, True, True, False, True, True, False]
    alone = candidates(seat(**{figure.name.lower(): nan for figure in UNKNOWABLE}))
    choice = choose(policy, alone)
    assert choice is not None
    assert (choice.chosen, choice.runner_up) == (0, None)


@every_policy
def test_only_the_figures_that_it_says_it_reads_change_its_costs(policy: Policy):
    """So that a figure nobody observes can be told at the start."""
    seen = mixed()
    costs = policy.costs_ms(seen)
    others = sorted(set(Figure) - policy.reads - {Figure.BARRED, Figure.HARDWARE_CLASS})
    seen = mixed()
    seen.figures[others] = 0.123
    np.testing.assert_array_equal(policy.costs_ms(seen), costs)


@every_policy
def test_options_and_reasons_are_the_same_kind_for_all(policy: Policy):
    """Whoever chooses, the chosen worker's options carry the cost model's terms."""
    seen = mixed()
    choice = choose(policy, seen)
    assert choice is not None
    assert policy.options(seen, choice.chosen) == options(seen, choice.chosen)
    best = policy.best_option(seen, choice.chosen)
    assert best == options(seen, choice.chosen)[0]
    assert isinstance(policy.reason(seen, best), PlacementReason)
    assert policy.reason(seen, best, alone=True) is PlacementReason.ONLY_CANDIDATE


@pytest.mark.parametrize("name", sorted(REASONS))
def test_each_has_its_reason(name: str):
    """For the explanation of a worker that holds the prompt."""
    seen = candidates(seat(matched=500), seat())
    assert policy_named(name).reason(seen, options(seen, 0)[0]) is REASONS[name]


def test_the_names_are_those_of_the_inference_model():
    """``spec.policy.name`` and this folder know the same five."""
    assert set(POLICIES) == {str(name) for name in inference_model.PolicyName}
    assert {policy_named(name).name for name in POLICIES} == set(POLICIES)


def test_every_field_of_a_policy_can_be_chosen_in_the_inference_model():
    """Else a variant would be there for tests alone."""
    spec = inference_model.Policy.model_fields
    chosen = {field.name: field.default for policy in POLICIES.values() for field in fields(policy)}
    assert set(chosen) == set(spec) - {"name"}
    assert [str(each) for each in Measure] == [str(each) for each in inference_model.LoadMeasure]
    assert [str(each) for each in DrawnFrom] == [str(each) for each in inference_model.DrawnFrom]
    for policy in VARIANTS:
        given = tuple((field.name, str(getattr(policy, field.name))) for field in fields(policy))
        assert policy_named(policy.name, given) == policy


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("cost", ("measure", "queue"), r"policy cost: expected none of its fields, got 'measure'"),
        ("least_loaded", ("drawn_from", "holders"), r"policy least_loaded: expected measure, got 'drawn_from'"),
        (
            "least_loaded",
            ("measure", "moon"),
            r"policy least_loaded, measure: expected one of requests, .*, got 'moon'",
        ),
    ],
)
def test_a_field_that_the_policy_does_not_have_is_an_error(name: str, given: tuple[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        policy_named(name, [given])


@pytest.mark.parametrize("reads", [frozenset({"gpu_temperature"}), frozenset({99}), None], ids=str)
def test_a_policy_that_reads_what_there_is_not_is_refused(reads: object):
    """At import: what nobody observes would decide nothing, silently."""
    clairvoyant = type("Clairvoyant", (RoundRobin,), {"name": "clairvoyant", "reads": reads})
    with pytest.raises(ConfigError, match=r"policy clairvoyant, reads: expected a frozenset of Figures, got "):
        collect([SimpleNamespace(Clairvoyant=clairvoyant)])


def test_an_unknown_name_is_an_error_that_lists_what_there_is():
    """Never a silent default."""
    with pytest.raises(ConfigError, match=r"expected one of cost, .*, got 'best'"):
        policy_named("best")


def test_two_of_one_name_are_refused():
    """At import, before anything is decided by the wrong one."""

    class Impostor(Policy):
        name: ClassVar[str] = "round_robin"
        reads: ClassVar[frozenset[Figure]] = frozenset()

        def costs_ms(self, candidates: Candidates) -> FloatArray:
            return candidates.barred.copy()

        def reason(self, candidates, chosen, *, alone=False) -> PlacementReason:
            return PlacementReason.IN_TURN

    with pytest.raises(ConfigError, match="policy round_robin: expected one of that name, got RoundRobin in"):
        collect([SimpleNamespace(RoundRobin=RoundRobin), SimpleNamespace(Impostor=Impostor)])
    assert collect([SimpleNamespace(A=RoundRobin), SimpleNamespace(B=RoundRobin)]) == {"round_robin": RoundRobin}
