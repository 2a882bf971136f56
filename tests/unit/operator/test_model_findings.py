"""What is said about an InferenceModel: facts and plans in, findings out."""

from typing import Any

import pytest

from kvaware_cluster.workloads import CustomResource
from kvaware_crds import ConditionStatus, ConditionType
from kvaware_engine import ScalingReason
from kvaware_engine.observations import ObjectKey, PodObservation
from kvaware_engine.reasons import Reason
from kvaware_operator.conditions import Finding
from kvaware_operator.model_findings import accepted, model_findings
from kvaware_operator.scales import ScaleProblem
from kvaware_testing.operator_harness import facts, model_of, raw_scaled_model, scale, scaling_plan, worker_pod

GIB = 2**30


def finding(type_: ConditionType, *arguments: Any, **more: Any) -> Finding | None:
    """The one of this type."""
    plans = arguments[1] if len(arguments) > 1 else {}
    return next((each for each in model_findings(arguments[0], plans, **more) if each.type is type_), None)


def asks(name: str, *, gpus: int = 1, hbm_gib: float | None = None, problem: Reason | None = None) -> PodObservation:
    return PodObservation(
        uid=f"uid-{name}",
        namespace="ml",
        name=name,
        gpu_requests=(("nvidia.com/gpu", gpus),),
        hbm_per_gpu_bytes=None if hbm_gib is None else int(hbm_gib * GIB),
        problem=problem,
    )


def test_a_spec_that_cannot_be_used_is_not_accepted_and_says_why():
    """An object older than the rule: min above max."""
    told = accepted(model_of(least=3, most=1))
    assert (told.status, told.reason) == (ConditionStatus.FALSE, "Invalid")
    assert "replicas.min must be at most replicas.max, got 3 and 1" in told.message


def test_a_usable_spec_is_accepted():
    assert accepted(model_of()).status is ConditionStatus.TRUE


@pytest.mark.parametrize(
    ("pods", "plan", "more", "status", "message"),
    [
        pytest.param([worker_pod("a")], scaling_plan(), {}, "True", "", id="one of one"),
        pytest.param([worker_pod("a", ready=False)], scaling_plan(), {}, "False", "role both: 0 of 1", id="not Ready"),
        pytest.param([worker_pod("a")], scaling_plan(desired=3), {}, "False", "1 of 3", id="the load asks for more"),
        pytest.param(
            [worker_pod("a")], scaling_plan(desired=None, reason=ScalingReason.LOAD_UNKNOWN), {"load_missing": True},
            "Unknown", "number stays", id="nobody knows the load",
        ),
        pytest.param(
            [worker_pod("a", ready=False)], scaling_plan(desired=None), {"load_missing": True},
            "False", "0 of 1", id="what is missing for sure is said although the load is unknown",
        ),
        pytest.param(
            [worker_pod("a", terminating=True)], scaling_plan(), {}, "False", "0 of 1", id="who is going is not Ready"
        ),
    ],
)  # fmt: skip
def test_ready_is_what_the_spec_asks_for_now(pods, plan, more, status, message):
    told = finding(ConditionType.READY, facts(pods=pods), {"both": plan}, **more)
    assert told is not None
    assert told.status == status
    assert message in told.message


def test_a_recommendation_is_no_want():
    """In mode Recommend the number of replicas is the user's."""
    model = model_of(mode="Recommend")
    told = finding(ConditionType.READY, facts(model, pods=[worker_pod("a")]), {"both": scaling_plan(desired=3)})
    assert told is not None
    assert told.status is ConditionStatus.TRUE


def test_a_replica_of_several_pods_is_ready_when_all_of_them_are():
    roles = [{"name": "both", "footprint": {"gpusPerPod": 1, "podsPerReplica": 2}}]
    model = model_of(raw_scaled_model(roles=roles, mode=None))
    group = "leaderworkerset.sigs.k8s.io/group-index"
    pods = [worker_pod("a-0", labels={group: "0"}), worker_pod("b-0", labels={group: "1"})]
    told = finding(ConditionType.READY, facts(model, pods=pods))
    assert told is not None
    assert "0 of 1" in told.message, "two halves of two groups are no replica"
    pods.append(worker_pod("a-1", labels={group: "0"}))
    told = finding(ConditionType.READY, facts(model, pods=pods[:1] + pods[2:]))
    assert told is not None
    assert told.status is ConditionStatus.TRUE


def test_a_served_name_that_an_older_one_owns_is_named_with_its_owner():
    told = finding(ConditionType.NAME_CONFLICT, facts(names_owned={"gpt": ObjectKey("ml", "elder")}))
    assert told is not None
    assert (told.status, told.reason) == (ConditionStatus.TRUE, "OwnedByOlder")
    assert "gpt (InferenceModel elder)" in told.message


@pytest.mark.parametrize(
    ("pod", "asked", "difference"),
    [
        pytest.param(worker_pod("a"), asks("a"), None, id="as the footprint says"),
        pytest.param(worker_pod("a"), asks("a", hbm_gib=40), None, id="says the same itself"),
        pytest.param(worker_pod("a"), asks("a", gpus=2), "a asks for 2 GPUs instead of 1", id="other GPUs"),
        pytest.param(worker_pod("a"), asks("a", hbm_gib=80), "asks for 80Gi per GPU instead of 40Gi", id="other HBM"),
        pytest.param(
            worker_pod("a"), asks("a", problem=Reason.INVALID_HBM_ANNOTATION), "a cannot be read", id="unreadable"
        ),
        pytest.param(worker_pod("a"), None, None, id="not seen yet"),
        pytest.param(worker_pod("a", role="prefill"), asks("a"), "a names the role prefill", id="a role that is none"),
    ],
)
def test_pods_that_ask_for_something_else_are_named(pod, asked, difference):
    seen = {} if asked is None else {pod.key: asked}
    told = finding(ConditionType.FOOTPRINT_MISMATCH, facts(pods=[pod], observations=seen))
    assert told is not None
    assert (told.status is ConditionStatus.TRUE) is (difference is not None)
    assert difference is None or difference in told.message


def test_a_thousand_pods_that_differ_make_a_short_message():
    pods = [worker_pod(f"p-{i:04}") for i in range(1000)]
    told = finding(
        ConditionType.FOOTPRINT_MISMATCH,
        facts(pods=pods, observations={pod.key: asks(pod.key.name, gpus=8) for pod in pods}),
    )
    assert told is not None
    assert told.message.endswith("and 997 more")


@pytest.mark.parametrize("type_", [ConditionType.HBM_OVERRUN, ConditionType.FOREIGN_USE_UNKNOWN])
def test_what_the_extender_says_on_pods_is_rolled_up(type_):
    flag = {"hbm_overrun": True} if type_ is ConditionType.HBM_OVERRUN else {"foreign_use_unknown": True}
    told = finding(type_, facts(pods=[worker_pod("a"), worker_pod("b", **flag)]))
    assert told is not None
    assert told.status is ConditionStatus.TRUE
    assert "pods b" in told.message
    calm = finding(type_, facts(pods=[worker_pod("a")]))
    assert calm is not None
    assert calm.status is ConditionStatus.FALSE


def test_an_autoscaler_on_the_same_workload_is_a_conflict():
    told = finding(ConditionType.SCALING_CONFLICT, facts(autoscalers=["theirs"]))
    assert told is not None
    assert (told.status, told.reason) == (ConditionStatus.TRUE, "Autoscaler")
    assert "Deployment llama (role both) is scaled by HorizontalPodAutoscaler theirs" in told.message


def test_an_older_model_on_the_same_workload_is_a_conflict():
    told = finding(ConditionType.SCALING_CONFLICT, facts(target_owner=ObjectKey("ml", "elder")))
    assert told is not None
    assert (told.status, told.reason) == (ConditionStatus.TRUE, "OlderModel")
    assert "older InferenceModel elder" in told.message


def test_autoscalers_that_cannot_be_listed_are_not_none():
    """A right is missing: somebody may scale the same workload."""
    told = finding(ConditionType.SCALING_CONFLICT, facts(autoscalers_known=False))
    assert told is not None
    assert told.status is ConditionStatus.UNKNOWN


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        pytest.param(scale(), "True", "TargetsFound", id="there"),
        pytest.param(ScaleProblem(reason="TargetNotFound", message="none"), "False", "TargetNotFound", id="not there"),
        pytest.param(
            ScaleProblem(reason="ApiUnavailable", message="?", unknown=True),
            "Unknown",
            "ApiUnavailable",
            id="no answer",
        ),
    ],
)
def test_whether_the_workload_can_be_scaled_is_said(found, status, reason):
    told = finding(ConditionType.SCALABLE, facts(found=found))
    assert told is not None
    assert (told.status, told.reason) == (status, reason)


@pytest.mark.parametrize("changes", [{"mode": "Off"}, {"mode": None}, {"target": None}])
def test_where_nothing_is_scaled_nothing_is_said_about_it(changes):
    assert finding(ConditionType.SCALABLE, facts(model_of(**changes))) is None


def test_a_minimum_of_zero_is_said_to_be_one_for_now():
    told = finding(ConditionType.SCALE_TO_ZERO_NOT_YET, facts(model_of(least=0)))
    assert told is not None
    assert told.status is ConditionStatus.TRUE
    assert "one replica is kept" in told.message


def test_replicas_that_do_not_fit_are_said_without_figures_that_change_with_the_load():
    plan = scaling_plan(desired=3, hbm_constrained=True, message="3 wanted, 1 fits", lacking="not enough free GPUs")
    told = finding(ConditionType.HBM_CONSTRAINED, facts(pods=[worker_pod("a")]), {"both": plan})
    assert told is not None
    assert told.status is ConditionStatus.TRUE
    assert told.message == "role both: more replicas are wanted than fit: not enough free GPUs"


def test_one_finding_per_type():
    found = model_findings(facts(pods=[worker_pod("a")]), {"both": scaling_plan()})
    assert len({each.type for each in found}) == len(found)


def test_a_problem_without_words_has_some():
    broken = CustomResource(
        kind=model_of().kind, key=ObjectKey("ml", "x"), uid="u", generation=1, created_at="", terminating=False,
        resource=None, problem=None, status={},
    )  # fmt: skip
    assert accepted(broken).message == "the spec cannot be read"
