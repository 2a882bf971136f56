"""What users see: pods are placed by HBM and quota, wait with a reason, and are placed when room appears."""

import json
import time

import pytest

from kvaware_engine import REFUSAL_TEXTS, GpuClass, Reason
from kvaware_testing.controlplane import ControlPlane, Process
from kvaware_testing.controlplane.bookings import pods_booked, reservation_of, reservations_by_node
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.proxy import Proxy
from kvaware_testing.controlplane.sandbox import Sandbox

GIB = 2**30
SHARED = {"gpus": 1, "replicas": 8}
"""One GPU of 80 GB that eight pods may share: kube-scheduler sees room for eight whatever their HBM."""

pytestmark = pytest.mark.usefixtures("scheduler")


def test_a_deployment_is_placed_and_becomes_ready(sandbox: Sandbox, extender: ExtenderProcess) -> None:
    """The whole path: kube-scheduler asks, kvaware chooses and binds, the kubelet starts, the books agree."""
    # given
    nodes = sandbox.add_nodes("a", "b", gpus=4)
    # when
    sandbox.control_plane.apply(sandbox.deployment("server", replicas=8))
    # then
    sandbox.wait_ready("server")
    pods = sandbox.pods()
    held = reservations_by_node(pods)
    assert {node: len(reservations) for node, reservations in held.items()} == dict.fromkeys(nodes, 4)
    for node in nodes:
        names = {pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == node}
        assert pods_booked(extender, node) == names


def test_the_reservation_is_written_with_the_binding(control_plane: ControlPlane, sandbox: Sandbox) -> None:
    """Another kvaware must be able to read the books from the pods alone; the model's footprint is in them."""
    # given
    (node,) = sandbox.add_nodes("a", **SHARED)
    sandbox.control_plane.apply(
        {
            "apiVersion": "kvaware.io/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {"name": "llama", "namespace": sandbox.namespace},
            "spec": {
                "modelId": "meta/llama",
                "roles": [{"name": "both", "footprint": {"gpusPerPod": 1, "hbmPerGPU": "30Gi"}}],
            },
        },
        sandbox.quota("team", gpus=4),
    )
    before = control_plane.get_json("namespace", sandbox.namespace)["metadata"]["resourceVersion"]
    # when
    sandbox.control_plane.create(sandbox.pod("server", model="llama", role="both"))
    # then
    assert sandbox.wait_bound("server") == node
    reservation = reservation_of(sandbox.get_pod("server"))
    assert reservation.model == "llama"
    assert reservation.tenant == sandbox.namespace
    assert (reservation.resource, reservation.gpus) == ("nvidia.com/gpu", 1)
    assert reservation.hbm_per_gpu_bytes == 30 * GIB
    assert reservation.gpu_class is GpuClass.SHARED
    assert reservation.decision_id
    # In the same write: no version of the pod has the node without the annotation.
    watch = f"/api/v1/namespaces/{sandbox.namespace}/pods?watch=1&resourceVersion={before}&timeoutSeconds=1"
    versions = [json.loads(line)["object"] for line in control_plane.kubectl("get", "--raw", watch).stdout.splitlines()]
    with_node = [version for version in versions if version["spec"].get("nodeName")]
    assert with_node
    assert all(reservation_of(version) == reservation for version in with_node)


def test_small_pods_leave_a_whole_node_for_a_large_one(sandbox: Sandbox) -> None:
    """Spread over three nodes, four small pods would leave no node with eight GPUs: the profile must not spread."""
    # given
    sandbox.add_nodes("a", "b", "c", gpus=8)
    sandbox.control_plane.apply(sandbox.deployment("small", replicas=4))
    sandbox.wait_ready("small")
    # when
    sandbox.control_plane.create(sandbox.pod("large", gpus=8), sandbox.pod("large-too", gpus=8))
    # then
    assert sandbox.wait_bound("large") != sandbox.wait_bound("large-too")


def test_a_pod_waits_where_gpus_are_free_and_hbm_is_not(sandbox: Sandbox) -> None:
    """The reason this project exists: seven of eight shares are free, and the pod would run out of memory."""
    # given
    (node,) = sandbox.add_nodes("a", **SHARED)
    sandbox.control_plane.create(sandbox.pod("first", hbm="60Gi"))
    assert sandbox.wait_bound("first") == node
    # when
    sandbox.control_plane.create(sandbox.pod("second", hbm="60Gi"))
    # then
    sandbox.wait_refused("second", REFUSAL_TEXTS[Reason.HBM_SHORT])
    # and what fits beside it is placed
    sandbox.control_plane.create(sandbox.pod("small", hbm="10Gi"))
    assert sandbox.wait_bound("small") == node
    # and when memory frees, the waiting pod comes at once, not with the scheduler's next look in 5 minutes
    sandbox.control_plane.kubectl("delete", "pod", "first", "-n", sandbox.namespace)
    assert sandbox.wait_bound("second", timeout_s=30) == node


def test_a_model_that_no_gpu_can_hold_is_refused(sandbox: Sandbox) -> None:
    """90 GiB on each of 8 GPUs of 80 GB: all GPUs are free, none is large enough."""
    sandbox.add_nodes("a", gpus=8)
    sandbox.control_plane.create(sandbox.pod("huge", gpus=8, hbm="90Gi"))
    sandbox.wait_refused("huge", REFUSAL_TEXTS[Reason.HBM_SHORT])


def test_a_tenant_at_its_limit_waits_until_a_pod_of_its_ends(sandbox: Sandbox) -> None:
    """TenantQuota holds pods pending, with the reason where users look, and lets them go when quota frees."""
    # given
    sandbox.add_nodes("a", gpus=8)
    sandbox.control_plane.apply(sandbox.quota("team", gpus=2))
    sandbox.control_plane.create(sandbox.pod("first"), sandbox.pod("second"))
    sandbox.wait_bound("first")
    sandbox.wait_bound("second")
    # when
    sandbox.control_plane.create(sandbox.pod("third"))
    # then
    sandbox.wait_refused("third", REFUSAL_TEXTS[Reason.TENANT_GPU_LIMIT])
    # and
    sandbox.control_plane.kubectl("delete", "pod", "first", "-n", sandbox.namespace)
    assert sandbox.wait_bound("third", timeout_s=30)


def test_a_tenant_at_its_limit_goes_on_when_the_limit_is_raised(sandbox: Sandbox) -> None:
    """An administrator changes one number; nobody has to touch the pods."""
    # given
    sandbox.add_nodes("a", gpus=8)
    sandbox.control_plane.apply(sandbox.quota("team", gpus=0))
    sandbox.control_plane.create(sandbox.pod("server"))
    sandbox.wait_refused("server", REFUSAL_TEXTS[Reason.TENANT_GPU_LIMIT])
    # when
    sandbox.control_plane.apply(sandbox.quota("team", gpus=1))
    # then
    assert sandbox.wait_bound("server", timeout_s=30)


def test_a_refusal_that_stays_is_quiet_and_kills_nobody(
    control_plane: ControlPlane, sandbox: Sandbox, extender: ExtenderProcess, scheduler: Process
) -> None:
    """With ``FailedNodes``, or a text that differs per call, kube-scheduler would ask thousands of times here.

    kubernetes#139270: what only an extender counts cannot be preempted by kube-scheduler, and lower-priority pods must
    not die for it in vain.
    """
    with Proxy(extender.scheduler_url.removesuffix("/scheduler")) as proxy:
        control_plane.start_scheduler(f"{proxy.url}/scheduler")
        # given: 40 nodes, because the loop comes from a text that names them in random order. At 4 it may not start.
        sandbox.add_nodes(*(f"n{index}" for index in range(40)), **SHARED)
        control_plane.create(sandbox.priority_class("low", 10), sandbox.priority_class("high", 1000))
        low = sandbox.full_name("low")
        control_plane.apply(sandbox.deployment("low", replicas=40, hbm="70Gi", priority_class=low))
        sandbox.wait_ready("low")
        there = {pod["metadata"]["uid"] for pod in sandbox.pods()}
        # when
        control_plane.create(sandbox.pod("high", hbm="60Gi", priority_class=sandbox.full_name("high")))
        sandbox.wait_refused("high", REFUSAL_TEXTS[Reason.HBM_SHORT])
        time.sleep(1)  # what its arrival itself set off
        before = len(proxy.calls("/filter"))
        time.sleep(10)  # the measure: 10 quiet seconds
        # then
        assert len(proxy.calls("/filter")) - before <= 2
        after = {pod["metadata"]["uid"]: pod for pod in sandbox.pods() if pod["spec"].get("nodeName")}
        assert set(after) == there
        assert not [pod for pod in after.values() if "deletionTimestamp" in pod["metadata"]]
