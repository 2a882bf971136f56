"""What the operator asks and writes, against the real API server: its preconditions, its paths, its answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaware_cluster import (
    ConflictError,
    Kind,
    KubernetesApi,
    KubernetesHttp,
    LeaderLease,
    LeaseLostError,
    LeaseTiming,
    NotFoundError,
    ScaleTarget,
    ScaleTargetError,
    WorkloadKind,
    WorkloadWatches,
)
from kvaware_crds import render_crds
from kvaware_engine import ObjectKey
from kvaware_testing.controlplane import ControlPlane, eventually
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.fake_api import raw_model

TARGETS = Path(__file__).parent / "manifests" / "scale-targets.yaml"
LWS = WorkloadKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
COST = "controller.kubernetes.io/pod-deletion-cost"


@pytest.fixture
async def http(control_plane: ControlPlane) -> AsyncIterator[KubernetesHttp]:
    made = await KubernetesHttp.connect(kubeconfig=str(control_plane.admin_kubeconfig))
    yield made
    await made.close()


@pytest.fixture
async def api(http: KubernetesHttp) -> KubernetesApi:
    return KubernetesApi(http, clock=time.monotonic)


@pytest.fixture
def scale_targets(control_plane: ControlPlane) -> None:
    """A LeaderWorkerSet, a kind without a scale, a cluster-scoped one with it."""
    control_plane.apply_file(TARGETS)
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


async def until(holds: Any, what: str, timeout_s: float = 30.0) -> None:
    """As ``eventually``, in a loop that must go on."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.05)


async def test_a_deployments_scale_is_read_and_written_once(sandbox: Sandbox, api: KubernetesApi) -> None:
    """The resource version of the scale is the Deployment's: whoever changed it in between is not overwritten."""
    control_plane, namespace = sandbox.control_plane, sandbox.namespace
    control_plane.apply(sandbox.deployment("llama", replicas=0, scheduler="nobody"))
    target = ScaleTarget("apps/v1", "Deployment", namespace, "llama")
    stored = control_plane.get_json("deployment", "llama", "-n", namespace)
    # when
    seen = await api.read_scale(target)
    # then
    assert (seen.replicas, seen.current_replicas, seen.uid) == (0, 0, stored["metadata"]["uid"])
    assert "app" in seen.selector
    # when
    written = await api.write_scale(target, replicas=2, seen=seen)
    # then
    assert written.replicas == 2
    assert control_plane.get_json("deployment", "llama", "-n", namespace)["spec"]["replicas"] == 2
    managers = control_plane.get_json("deployment", "llama", "-n", namespace, "--show-managed-fields")
    assert {"kvaware-operator"} == {
        entry["manager"] for entry in managers["metadata"]["managedFields"] if entry.get("subresource") == "scale"
    }
    with pytest.raises(ConflictError):
        await api.write_scale(target, replicas=5, seen=seen)
    # when: another one of the same name
    control_plane.kubectl("delete", "deployment", "llama", "-n", namespace, "--cascade=foreground", "--timeout=30s")
    with pytest.raises(NotFoundError):
        await api.read_scale(target)
    control_plane.apply(sandbox.deployment("llama", replicas=1, scheduler="nobody"))
    # then
    with pytest.raises(ConflictError):
        await api.write_scale(target, replicas=5, seen=written)
    assert control_plane.get_json("deployment", "llama", "-n", namespace)["spec"]["replicas"] == 1


@pytest.mark.usefixtures("scale_targets")
async def test_a_custom_resources_scale_is_read_and_written_once(sandbox: Sandbox, api: KubernetesApi) -> None:
    """LeaderWorkerSet: the same preconditions hold where the API server maps a scale onto a CRD's fields."""
    control_plane, namespace = sandbox.control_plane, sandbox.namespace
    lws = {
        "apiVersion": LWS.api_version,
        "kind": LWS.kind,
        "metadata": {"name": "big", "namespace": namespace},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2}},
    }
    eventually(lambda: control_plane.apply(lws) is None, 20, "kubectl knows the kind")
    target = ScaleTarget(*LWS, namespace, "big")
    seen = await api.read_scale(target)
    assert (seen.replicas, seen.current_replicas, seen.selector) == (1, 0, "")
    written = await api.write_scale(target, replicas=3, seen=seen)
    assert written.replicas == 3
    with pytest.raises(ConflictError):
        await api.write_scale(target, replicas=5, seen=seen)
    control_plane.kubectl("delete", "lws", "big", "-n", namespace, "--timeout=30s")
    control_plane.apply(lws)
    with pytest.raises(ConflictError):
        await api.write_scale(target, replicas=5, seen=written)
    assert (await api.read_scale(target)).replicas == 1


@pytest.mark.usefixtures("scale_targets")
async def test_what_cannot_be_scaled_says_why(sandbox: Sandbox, api: KubernetesApi) -> None:
    namespace = sandbox.namespace
    for api_version, kind, words in (
        ("test.kvaware.io/v1", "Unscalable", "subresource scale"),
        ("test.kvaware.io/v1", "Clusterwide", "is cluster-scoped"),
        ("apps/v1", "Deploymint", "it has no apps/v1 Deploymint"),
        ("nowhere.io/v1", "Deployment", "it has no nowhere.io/v1 Deployment"),
        ("v1", "ConfigMap", "subresource scale"),
    ):
        with pytest.raises(ScaleTargetError, match="expected a kind") as refused:
            await api.read_scale(ScaleTarget(api_version, kind, namespace, "x"))
        assert words in str(refused.value)


@pytest.mark.usefixtures("scale_targets")
async def test_workloads_are_watched_by_their_metadata(sandbox: Sandbox, http: KubernetesHttp) -> None:
    """The real server sends PartialObjectMetadata, for its own kinds and for CRDs', in lists and in watches."""
    control_plane, namespace = sandbox.control_plane, sandbox.namespace
    told: list[ScaleTarget] = []
    api = KubernetesApi(http, clock=time.monotonic)
    watches = WorkloadWatches(http, api.discovery, changed=told.append, clock=time.monotonic)
    llama = ScaleTarget("apps/v1", "Deployment", namespace, "llama")
    big = ScaleTarget(*LWS, namespace, "big")
    watches.want([llama, big, ScaleTarget("nowhere.io/v1", "Lost", namespace, "x")])
    task = asyncio.create_task(watches.run())
    try:
        await until(lambda: sum(age is not None for age in watches.ages().values()) == 2, "both kinds are watched")
        assert watches.ages()[WorkloadKind("nowhere.io/v1", "Lost")] is None
        await asyncio.to_thread(control_plane.apply, sandbox.deployment("llama", replicas=0, scheduler="nobody"))
        await until(lambda: llama in told, "its creation is told")
        await until(lambda: llama in told, "it settles")
        told.clear()
        await asyncio.to_thread(control_plane.kubectl, "scale", "deployment/llama", "-n", namespace, "--replicas=1")
        await until(lambda: llama in told, "its scaling is told")
        told.clear()
        await asyncio.to_thread(control_plane.kubectl, "delete", "deployment/llama", "-n", namespace)
        await until(lambda: llama in told, "its deletion is told")
        assert set(told) == {llama}
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_deletion_cost_is_ours_and_only_on_the_pod_that_was_judged(
    sandbox: Sandbox, api: KubernetesApi
) -> None:
    control_plane, namespace = sandbox.control_plane, sandbox.namespace
    control_plane.create(sandbox.pod("a", scheduler="nobody"))
    key, uid = ObjectKey(namespace, "a"), sandbox.get_pod("a")["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await api.write_deletion_cost(key, uid="00000000-0000-0000-0000-000000000000", cost=5)
    await api.write_deletion_cost(key, uid=uid, cost=-5)
    pod = control_plane.get_json("pod", "a", "-n", namespace, "--show-managed-fields")
    assert pod["metadata"]["annotations"][COST] == "-5"
    (ours,) = [each for each in pod["metadata"]["managedFields"] if each["manager"] == "kvaware-operator"]
    assert f"f:{COST}" in ours["fieldsV1"]["f:metadata"]["f:annotations"]
    await api.write_deletion_cost(key, uid=uid, cost=None)
    assert COST not in sandbox.get_pod("a")["metadata"].get("annotations", {})
    with pytest.raises(NotFoundError):
        await api.write_deletion_cost(ObjectKey(namespace, "b"), uid=uid, cost=5)


def condition(reason: str) -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": "True",
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.fixture
def older_crd(control_plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """The CRD of InferenceModel without one field of its status; the right one is back afterwards."""
    name, text = next((name, text) for name, text in render_crds().items() if "inferencemodels" in name)
    older = yaml.safe_load(text)
    status = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["roles"]
    yield older
    control_plane.apply_text(text)
    assert name


async def test_a_status_is_replaced_and_lands_only_on_its_object(sandbox: Sandbox, api: KubernetesApi) -> None:
    control_plane, namespace = sandbox.control_plane, sandbox.namespace
    control_plane.apply(raw_model(namespace=namespace))
    key = ObjectKey(namespace, "llama")

    def model() -> Any:
        return control_plane.get_json("inferencemodel", "llama", "-n", namespace)

    uid = model()["metadata"]["uid"]
    with pytest.raises(ConflictError, match=f"found {uid}"):
        await api.write_status(
            Kind.INFERENCE_MODEL, key, uid="00000000-0000-0000-0000-000000000000", status={"conditions": []}
        )
    first = {"roles": [{"name": "both", "replicas": 1, "readyReplicas": 0}], "conditions": [condition("First")]}
    assert await api.write_status(Kind.INFERENCE_MODEL, key, uid=uid, status=first) == first
    # when: the same again
    version = model()["metadata"]["resourceVersion"]
    assert await api.write_status(Kind.INFERENCE_MODEL, key, uid=uid, status=first) == first
    assert model()["metadata"]["resourceVersion"] == version
    # when: it says less than before
    second = {"conditions": [condition("Second")]}
    assert await api.write_status(Kind.INFERENCE_MODEL, key, uid=uid, status=second) == second
    assert model()["status"] == second
    assert model()["metadata"]["generation"] == 1
    control_plane.kubectl("delete", "inferencemodel", "llama", "-n", namespace)
    with pytest.raises(NotFoundError):
        await api.write_status(Kind.INFERENCE_MODEL, key, uid=uid, status=second)


async def test_an_older_crd_shows_in_what_was_stored(
    sandbox: Sandbox, api: KubernetesApi, older_crd: dict[str, Any]
) -> None:
    """slauger/openvox-operator#555: `helm upgrade` keeps old CRDs, and the server drops new status fields silently."""
    control_plane, namespace = sandbox.control_plane, sandbox.namespace
    control_plane.apply(raw_model(namespace=namespace))
    uid = control_plane.get_json("inferencemodel", "llama", "-n", namespace)["metadata"]["uid"]
    control_plane.apply(older_crd)
    status = {"roles": [{"name": "both", "replicas": 1}], "conditions": [condition("First")]}
    end = time.monotonic() + 30  # the server takes a moment to serve the changed schema
    while True:
        stored = await api.write_status(Kind.INFERENCE_MODEL, ObjectKey(namespace, "llama"), uid=uid, status=status)
        if "roles" not in stored:
            break
        assert time.monotonic() < end, "the older schema is not served"
        await asyncio.sleep(0.2)
    assert stored == {"conditions": [condition("First")]}


async def test_a_lease_passes_from_one_to_the_next(sandbox: Sandbox, control_plane: ControlPlane) -> None:
    """Released at once where the first ends in order, waited out where it just stops; never held by two."""
    timing = LeaseTiming(duration_s=4.0, renew_deadline_s=2.5, retry_s=0.3)
    led: list[str] = []
    leading: set[str] = set()

    def candidate(name: str) -> tuple[LeaderLease, KubernetesHttp, asyncio.Task[None]]:
        lease = LeaderLease(
            https[name],
            namespace=sandbox.namespace,
            name="operator",
            identity=name,
            clock=time.monotonic,
            timing=timing,
        )

        async def lead() -> None:
            assert not leading, f"{name} leads beside {leading}"
            leading.add(name)
            led.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                leading.discard(name)

        return lease, https[name], asyncio.create_task(lease.run(lead))

    https = {
        name: await KubernetesHttp.connect(kubeconfig=str(control_plane.admin_kubeconfig)) for name in ("a", "b", "c")
    }
    tasks = []
    try:
        a, _, a_task = candidate("a")
        tasks.append(a_task)
        await until(lambda: a_task.done() or leading == {"a"}, f"the first leads: {a.problem}")
        assert not a_task.done(), a_task
        b, _, b_task = candidate("b")
        tasks.append(b_task)
        await until(lambda: b.holder == "a", "the second sees the first")
        # when: the first ends in order
        a_task.cancel()
        await asyncio.wait([a_task])
        assert not a.held()
        await until(lambda: leading == {"b"}, "the second leads")
        stored = control_plane.get_json("lease", "operator", "-n", sandbox.namespace)["spec"]
        assert (stored["holderIdentity"], stored["leaseTransitions"], stored["leaseDurationSeconds"]) == ("b", 1, 4)
        # when: somebody else takes it over the leader's head
        c, _, c_task = candidate("c")
        tasks.append(c_task)
        await until(lambda: c.holder == "b", "the third sees the second")
        await asyncio.to_thread(
            control_plane.kubectl,
            *("patch", "lease", "operator", "-n", sandbox.namespace, "--type=merge"),
            '-p={"spec":{"holderIdentity":"ghost"}}',
        )
        # then: the second stops at its next renewal, the third waits the ghost out
        await asyncio.wait([b_task], timeout=30)
        assert isinstance(b_task.exception(), LeaseLostError)
        assert leading == set()
        await until(lambda: leading == {"c"}, "the third leads")
        assert led == ["a", "b", "c"]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for http in https.values():
            await http.close()
