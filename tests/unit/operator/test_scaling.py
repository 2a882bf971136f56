"""From facts to the engine's question, and from its plan to a step."""

from dataclasses import replace

import pytest

from kvaware_cluster.profiles import load_profiles
from kvaware_engine import Scaler, ScalingRules
from kvaware_engine.observations import ObjectKey
from kvaware_operator.scales import ScaleProblem
from kvaware_operator.scaling import Step, rules_of, scaling_request, step_of
from kvaware_testing.operator_harness import facts, model_of, role_load, scale, scaling_plan, worker_pod

UP = scaling_plan(desired=3, target=3)


def spec_of(**changes):
    return facts(model_of(**changes)).spec


def test_what_is_unset_has_the_defaults_that_the_crd_promises():
    assert rules_of(spec_of(mode=None)) == ScalingRules(
        up_window_s=0.0, down_window_s=300.0, up_step=4, down_step=1, ttft_ms=None, tpot_ms=None
    )


def test_windows_steps_and_objectives_come_from_the_spec():
    found = facts(model_of(windows=("30s", "1h"), objectives={"ttft": "500ms", "tpot": "50ms"}))
    scaling = found.spec.scaling
    assert scaling is not None
    rules = rules_of(found.spec)
    assert (rules.up_window_s, rules.down_window_s, rules.ttft_ms, rules.tpot_ms) == (30.0, 3600.0, 500.0, 50.0)


def test_the_question_says_what_there_is():
    found = facts(
        pods=[
            worker_pod("a"),
            worker_pod("b", ready=False, unschedulable=True),
            worker_pod("c", unschedulable=True, terminating=True),
        ],
        found=scale(3),
        load=role_load(waiting=7),
    )
    request = scaling_request(found, found.roles[0])
    assert request is not None
    assert (request.replicas, request.ready_replicas, request.unschedulable_pods) == (3, 1, 1)
    assert (request.min_replicas, request.max_replicas) == (1, 4)
    assert request.load == role_load(waiting=7)
    assert (request.model_id, request.gpus_per_pod) == ("meta-llama/Llama-3.1-8B", 1)


def test_the_profile_is_that_of_the_gpus_that_the_workers_run_on():
    """Without the product every capacity would be a guess for the slowest GPU that was measured."""
    found = facts(found=scale(1), load=replace(role_load(), product="NVIDIA-H100-80GB-HBM3"))
    request = scaling_request(found, found.roles[0])
    assert request is not None
    assert request.product == "NVIDIA-H100-80GB-HBM3"
    plan = Scaler(None, load_profiles(), now_s=-1e6).plan(request, now_s=0)
    assert plan.terms["profile_is_guess"] == 0


def test_a_minimum_of_zero_is_one_until_requests_are_placed():
    found = facts(model_of(least=0))
    request = scaling_request(found, found.roles[0])
    assert request is not None
    assert request.min_replicas == 1


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(facts(model_of(mode="Off")), id="mode Off"),
        pytest.param(facts(model_of(target=None)), id="no workload"),
        pytest.param(facts(found=ScaleProblem(reason="TargetNotFound", message="")), id="a workload that is not there"),
    ],
)
def test_what_is_not_scaled_is_not_asked_about(found):
    assert scaling_request(found, found.roles[0]) is None


@pytest.mark.parametrize(
    ("found", "plan", "step"),
    [
        pytest.param(facts(found=scale(1)), UP, Step(role="both", replicas=3, before=1), id="up"),
        pytest.param(facts(found=scale(3)), scaling_plan(target=2), Step(role="both", replicas=2, before=3), id="down"),
        pytest.param(facts(found=scale(3)), UP, None, id="nothing to do"),
        pytest.param(facts(model_of(mode="Recommend"), found=scale(1)), UP, None, id="only recommended"),
        pytest.param(facts(found=scale(1), autoscalers=["theirs"]), UP, None, id="an autoscaler scales it"),
        pytest.param(facts(found=scale(1), target_owner=ObjectKey("ml", "elder")), UP, None, id="an older model does"),
        pytest.param(facts(found=scale(1), autoscalers_known=False), UP, None, id="autoscalers are unknown"),
    ],
)
def test_what_is_done(found, plan, step):
    assert step_of(found, found.roles[0], plan) == step
    assert step is None or step.down is (step.replicas < step.before)


def test_a_model_that_is_being_deleted_is_not_scaled():
    going = facts(replace(model_of(), terminating=True), found=scale(1))
    assert step_of(going, going.roles[0], UP) is None
