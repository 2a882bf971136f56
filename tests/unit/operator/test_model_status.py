"""The status of an InferenceModel as it is written."""

import pytest

from kvaware_crds import InferenceModel, read
from kvaware_engine import ScalingReason
from kvaware_operator.model_findings import accepted, model_findings
from kvaware_operator.model_status import model_status, refused_status
from kvaware_testing.operator_harness import NOW, facts, model_of, raw_scaled_model, scale, scaling_plan, worker_pod

TWO_ROLES = [
    {"name": "prefill", "footprint": {"gpusPerPod": 1}},
    {
        "name": "decode",
        "footprint": {"gpusPerPod": 1},
        "replicas": {"min": 1, "max": 9},
        "scaleTargetRef": {"kind": "Deployment", "name": "decode"},
    },
]


def status_of(found, plans, before=None):
    return model_status(found, plans, model_findings(found, plans), before=before or {}, now=NOW)


def test_desired_existing_and_ready_replicas_are_told_per_role_and_in_all():
    pods = [
        worker_pod("p-0", role="prefill"),
        worker_pod("d-0", role="decode"),
        worker_pod("d-1", role="decode", ready=False),
    ]
    found = facts(model_of(raw_scaled_model(roles=TWO_ROLES)), pods=pods, found=scale(3, current=2))
    status = status_of(found, {"decode": scaling_plan(desired=5, reason=ScalingReason.QUEUE_GROWS, message="why")})
    assert status["roles"] == [
        {"name": "prefill", "replicas": 1, "readyReplicas": 1},
        {
            "name": "decode",
            "replicas": 2,
            "readyReplicas": 1,
            "desiredReplicas": 5,
            "reason": "QueueGrows",
            "message": "why",
        },
    ]
    # 1 prefill as there is + 5 decode as the load asks for
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (3, 2, 6)
    raw = raw_scaled_model(roles=TWO_ROLES, status=status)
    assert read(InferenceModel, raw).status is not None, "it is a status of the CRD"


@pytest.mark.parametrize(
    ("found", "plans"),
    [
        pytest.param(facts(), {"both": scaling_plan(desired=None)}, id="the load is unknown"),
        pytest.param(facts(), {}, id="the workload cannot be read"),
        pytest.param(facts(model_of(mode=None)), {}, id="nothing is scaled"),
    ],
)
def test_desired_replicas_that_nobody_knows_are_left_out(found, plans):
    assert "desiredReplicas" not in status_of(found, plans)


def test_the_sentence_stays_while_reason_and_number_stay():
    """Its figures change with every poll: a status that follows them would be written every ten seconds for ever."""
    found = facts(pods=[worker_pod("a")])
    first = status_of(found, {"both": scaling_plan(message="1.3 requests/s")})
    again = status_of(found, {"both": scaling_plan(message="1.4 requests/s")}, before=first)
    assert again == first
    other = status_of(found, {"both": scaling_plan(desired=2, message="9 requests/s")}, before=first)
    assert other["roles"][0]["message"] == "9 requests/s"


def test_a_spec_that_cannot_be_used_keeps_its_figures_and_says_why():
    resource = model_of(least=3, most=1)
    before = {"replicas": 2, "roles": [{"name": "both", "replicas": 2}]}
    status = refused_status(before, [accepted(resource)], generation=4, now=NOW)
    assert {**status, "conditions": []} == {**before, "conditions": []}
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [("Accepted", "False")]


def test_a_status_that_is_no_status_is_written_over():
    """Somebody, or another version, wrote something else there."""
    found = facts(pods=[worker_pod("a")])
    assert status_of(found, {}, before={"roles": "many", "conditions": 7})["replicas"] == 1
