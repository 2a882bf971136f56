from dataclasses import replace
from typing import Any

import pytest

from kvaware_cluster import ClusterApiError, ConflictError, Kind, KubernetesApi, KubernetesSource, NotFoundError
from kvaware_crds.errors import UpstreamError
from kvaware_engine import ObjectKey
from kvaware_testing.fake_api import Failure, FakeApi, raw_model, raw_pod, raw_quota
from kvaware_testing.store_harness import FakeClock

LLAMA = ObjectKey("ml", "llama")
COST = "controller.kubernetes.io/pod-deletion-cost"
READY = {"type": "Ready", "status": "True", "reason": "AsWanted", "message": ""}


@pytest.fixture
async def cluster(source: KubernetesSource, clock: FakeClock) -> KubernetesApi:
    return KubernetesApi(source.http, clock=clock)


async def model(api: FakeApi, **status: Any) -> str:
    uid: str = (await api.put("inferencemodel", {**raw_model(), "status": status}))["metadata"]["uid"]
    return uid


def stored(api: FakeApi) -> dict[str, Any]:
    status: dict[str, Any] = api.objects["inferencemodel"]["ml", "llama"]["status"]
    return status


def writes(api: FakeApi) -> int:
    return sum(method != "GET" for method, *_ in api.requests)


async def test_a_status_replaces_the_one_that_is_there(api, cluster):
    """Whatever that is: what the operator does not write must not live on."""
    uid = await model(api, roles=[{"name": "old"}], conditions=[READY], note="goes", deep={"a": {"b": 1}})
    # when
    answered = await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status={"deep": {"a": {"c": 2}}})
    # then
    assert stored(api) == answered == {"deep": {"a": {"c": 2}}}
    assert writes(api) == 1
    _, path, query, _ = api.requests[-1]
    assert path == "/apis/kvaware.io/v1alpha1/namespaces/ml/inferencemodels/llama/status"
    assert query == {"fieldManager": "kvaware-operator"}


async def test_the_first_status_is_written_too(api, cluster):
    uid = (await api.put("inferencemodel", raw_model()))["metadata"]["uid"]
    await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status={"conditions": [READY]})
    assert stored(api) == {"conditions": [READY]}


async def test_an_empty_status_removes_everything(api, cluster):
    uid = await model(api, conditions=[READY], roles=[])
    assert await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status={}) == {}
    assert stored(api) == {}


async def test_none_counts_as_left_out_at_every_depth(api, cluster):
    """The schema knows no null."""
    uid = await model(api, desired=3)
    status = {"desired": None, "roles": [{"name": "both", "desired": None}], "more": {"x": None, "y": 1}}
    answered = await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status=status)
    assert stored(api) == answered == {"roles": [{"name": "both"}], "more": {"y": 1}}


async def test_the_same_status_again_changes_nothing(api, cluster):
    """strimzi/strimzi-kafka-operator#13079: a write that changes nothing must not wake its writer."""
    uid = await model(api, conditions=[READY])
    version = api.version
    await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status={"conditions": [READY]})
    assert api.version == version


async def test_a_status_lands_only_on_the_object_that_was_seen(api, cluster):
    await model(api, conditions=[READY])
    with pytest.raises(ConflictError, match="expected UID another, found uid-1"):
        await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid="another", status={})
    assert stored(api) == {"conditions": [READY]}


async def test_a_status_that_the_schema_refuses_is_no_conflict(api, cluster):
    """To look again would not help: it is a fault of ours, and says which field."""
    uid = await model(api, conditions=[READY])
    causes = [{"reason": "FieldValueTypeInvalid", "message": "must be of type array", "field": "status.conditions"}]
    body = {"reason": "Invalid", "message": "status.conditions: Invalid value", "details": {"causes": causes}}
    api.failures["write"] = Failure(422, body=body)
    with pytest.raises(ClusterApiError, match=r"status\.conditions: Invalid value") as refused:
        await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status={"conditions": "x"})
    assert not isinstance(refused.value, ConflictError)


async def test_an_object_that_goes_while_its_status_is_refused_is_a_conflict(api, cluster):
    """The refusal may have been about it; there is nothing left to write to."""
    await model(api)
    api.failures["write"] = Failure(422, body={"reason": "Invalid", "message": "refused"})
    await api.delete("inferencemodel", "ml", "llama")
    with pytest.raises(ConflictError, match="found None"):
        await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid="uid-1", status={})


async def test_a_cluster_scoped_object_of_another_uid_is_a_conflict(api, cluster):
    """Its collection is listed like any kind's; only it is looked at."""
    await api.put("tenantquota", raw_quota("another"))
    await api.put("tenantquota", raw_quota())
    with pytest.raises(ConflictError, match="found uid-2"):
        await cluster.write_status(Kind.TENANT_QUOTA, ObjectKey("", "team-a"), uid="gone", status={})


async def test_a_status_of_what_is_gone_is_not_found(cluster):
    with pytest.raises(NotFoundError):
        await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid="u", status={})


async def test_an_older_crd_shows_in_what_was_stored(api, cluster):
    """slauger/openvox-operator#555: the server drops fields that the installed CRD does not know, without a word."""
    api.kinds["inferencemodel"] = replace(api.kinds["inferencemodel"], status_fields=frozenset({"conditions"}))
    uid = await model(api)
    wanted = {"conditions": [READY], "roles": [{"name": "both"}]}
    answered = await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid=uid, status=wanted)
    assert answered == {"conditions": [READY]}
    assert writes(api) == 1


async def test_cluster_scoped_kinds_have_their_path(api, cluster):
    quota = await api.put("tenantquota", raw_quota())
    key = ObjectKey("", "team-a")
    await cluster.write_status(Kind.TENANT_QUOTA, key, uid=quota["metadata"]["uid"], status={"used": {"gpus": 1}})
    assert api.requests[-1][1] == "/apis/kvaware.io/v1alpha1/tenantquotas/team-a/status"
    assert api.objects["tenantquota"]["", "team-a"]["status"] == {"used": {"gpus": 1}}


@pytest.mark.parametrize("body", [{}, {"metadata": {}, "status": []}, {"metadata": {}, "status": None}])
async def test_an_answer_without_its_status_is_an_upstream_error(api, cluster, body: dict[str, Any]):
    await model(api)
    api.failures["write"] = Failure(200, body=body)
    with pytest.raises(UpstreamError, match="status of inferencemodel ml/llama: expected"):
        await cluster.write_status(Kind.INFERENCE_MODEL, LLAMA, uid="u", status={})


async def test_a_deletion_cost_is_set_changed_and_removed(api, cluster):
    """Other annotations, and who else wrote them, stay."""
    pod = await api.put("pod", raw_pod(annotations={"mine": "stays"}))
    key, uid = ObjectKey("ml", "p1"), pod["metadata"]["uid"]

    def annotations() -> dict[str, str]:
        found: dict[str, str] = api.objects["pod"]["ml", "p1"]["metadata"]["annotations"]
        return found

    await cluster.write_deletion_cost(key, uid=uid, cost=-17)
    assert annotations() == {"mine": "stays", COST: "-17"}
    assert api.requests[-1][2] == {"fieldManager": "kvaware-operator"}
    await cluster.write_deletion_cost(key, uid=uid, cost=0)
    assert annotations()[COST] == "0"
    await cluster.write_deletion_cost(key, uid=uid, cost=None)
    assert annotations() == {"mine": "stays"}


async def test_a_deletion_cost_lands_only_on_the_pod_that_was_judged(api, cluster):
    """A StatefulSet's pod comes back under its name, with an empty cache."""
    await api.put("pod", raw_pod())
    with pytest.raises(ConflictError):
        await cluster.write_deletion_cost(ObjectKey("ml", "p1"), uid="another", cost=5)
    with pytest.raises(NotFoundError):
        await cluster.write_deletion_cost(ObjectKey("ml", "p2"), uid="another", cost=5)
    assert COST not in api.objects["pod"]["ml", "p1"]["metadata"]["annotations"]
