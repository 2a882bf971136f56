"""Bindings that are refused, come late, or are answered late: nobody is bound without a reservation, nothing twice."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvaware_engine import REFUSAL_TEXTS, Reason
from kvaware_testing.controlplane import ControlPlane, Process, eventually
from kvaware_testing.controlplane.bookings import free_gpus, pods_booked, reservation_of
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.proxy import Proxy
from kvaware_testing.controlplane.sandbox import Sandbox

SHARED = {"gpus": 1, "replicas": 8}
GIB = 2**30


@pytest.fixture
def calls(extender: ExtenderProcess) -> Iterator[Proxy]:
    """A proxy between kube-scheduler and the extender."""
    with Proxy(extender.scheduler_url.removesuffix("/scheduler")) as proxy:
        yield proxy


@pytest.fixture
def watched_scheduler(calls: Proxy, start_scheduler: Callable[..., Process]) -> Process:
    """kube-scheduler, calling the extender through ``calls``."""
    return start_scheduler(f"{calls.url}/scheduler")


@pytest.mark.usefixtures("watched_scheduler")
def test_a_refused_bind_leaves_the_pod_waiting(sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy) -> None:
    """Between filter and bind somebody else took the GPU's memory.

    kube-scheduler sees seven free shares and would bind; only kvaware knows better, and with ``ignorable: false`` its
    word holds.
    """
    # given
    (node,) = sandbox.add_nodes("a", **SHARED)
    with calls.held("/bind") as bind:
        sandbox.control_plane.create(sandbox.pod("server", hbm="60Gi"))
        bind.wait_arrived(20)
        # when
        sandbox.control_plane.create(sandbox.pod("thief", scheduler="another-scheduler", node_name=node))
        eventually(lambda: "thief" in pods_booked(extender, node), 4, "the extender has seen the thief")
    # then
    eventually(lambda: calls.calls("/bind"), 5, "bind was answered")
    assert REFUSAL_TEXTS[Reason.HBM_SHORT] in calls.calls("/bind")[0].reply.decode()
    sandbox.wait_refused("server", "kvaware:")
    assert pods_booked(extender, node) == {"thief"}
    # and when the thief is gone the pod is placed
    sandbox.control_plane.kubectl("delete", "pod", "thief", "-n", sandbox.namespace)
    assert sandbox.wait_bound("server", timeout_s=30) == node
    assert reservation_of(sandbox.get_pod("server")).hbm_per_gpu_bytes == 60 * GIB


def slow_volume(sandbox: Sandbox, name: str) -> None:
    """Create a claim whose volume somebody makes only after the pod has been given a node."""
    sandbox.control_plane.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": sandbox.full_name("slow"), "labels": sandbox.owner},
            "provisioner": "example.invalid/slow",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": sandbox.namespace},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": sandbox.full_name("slow"),
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    )


def provide_volume(sandbox: Sandbox, name: str) -> None:
    """Do what the slow provisioner does at last."""
    claim = sandbox.control_plane.get_json("pvc", name, "-n", sandbox.namespace)
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": sandbox.namespace, "name": name}
    sandbox.control_plane.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": sandbox.full_name(name),
                "labels": sandbox.owner,
                "annotations": {"pv.kubernetes.io/provisioned-by": "example.invalid/slow"},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "storageClassName": sandbox.full_name("slow"),
                "claimRef": {**reference, "uid": claim["metadata"]["uid"]},
                "hostPath": {"path": "/data"},
            },
        }
    )


def wait_for_volume_wait(sandbox: Sandbox, extender: ExtenderProcess, claim: str, node: str, free: int) -> None:
    """Wait until the pod's node is chosen and its intent, which no bind followed, has ended (10 s)."""

    def chosen() -> str:
        found = sandbox.control_plane.get_json("pvc", claim, "-n", sandbox.namespace)["metadata"]
        return str(found.get("annotations", {}).get("volume.kubernetes.io/selected-node", ""))

    assert eventually(chosen, 20, "kube-scheduler has chosen a node for the claim") == node
    eventually(lambda: free_gpus(extender, node) == free, 20, "the intent has ended")


@pytest.mark.usefixtures("watched_scheduler")
def test_a_bind_that_comes_after_its_intent_has_ended_is_booked(
    sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy
) -> None:
    """A pod may wait for its volume between filter and bind, longer than any guess about it lives."""
    # given
    (node,) = sandbox.add_nodes("a", gpus=2)
    slow_volume(sandbox, "data")
    sandbox.control_plane.create(sandbox.pod("late", claim="data"))
    wait_for_volume_wait(sandbox, extender, "data", node, free=2)
    assert not calls.calls("/bind")
    # when
    provide_volume(sandbox, "data")
    # then
    assert sandbox.wait_bound("late") == node
    assert reservation_of(sandbox.get_pod("late")).gpus == 1
    assert pods_booked(extender, node) == {"late"}
    assert free_gpus(extender, node) == 1


@pytest.mark.usefixtures("watched_scheduler")
def test_a_pod_that_waits_for_its_volume_keeps_its_place(
    sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy
) -> None:
    """kube-scheduler says by ``nominatedNodeName`` where it expects the pod: nobody else gets the memory meanwhile."""
    # given
    (node,) = sandbox.add_nodes("a", **SHARED)
    slow_volume(sandbox, "data")
    sandbox.control_plane.create(sandbox.pod("late", claim="data", hbm="60Gi"))
    wait_for_volume_wait(sandbox, extender, "data", node, free=8)
    # when
    sandbox.control_plane.create(sandbox.pod("quick", hbm="60Gi"))
    sandbox.wait_refused("quick", "kvaware:")
    provide_volume(sandbox, "data")
    # then
    assert sandbox.wait_bound("late", timeout_s=30) == node
    assert len(calls.calls("/bind")) == 1
    assert pods_booked(extender, node) == {"late"}


@pytest.mark.usefixtures("watched_scheduler")
def test_a_late_bind_does_not_get_what_was_taken(sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy) -> None:
    """While the pod waited for its volume, another scheduler used the same memory: the late one waits again."""
    # given
    (node,) = sandbox.add_nodes("a", **SHARED)
    slow_volume(sandbox, "data")
    sandbox.control_plane.create(sandbox.pod("late", claim="data", hbm="60Gi"))
    wait_for_volume_wait(sandbox, extender, "data", node, free=8)
    sandbox.control_plane.create(sandbox.pod("thief", scheduler="another-scheduler", node_name=node))
    eventually(lambda: "thief" in pods_booked(extender, node), 20, "the extender has seen the thief")
    # when
    provide_volume(sandbox, "data")
    # then
    eventually(lambda: calls.calls("/bind"), 20, "the late bind came")
    assert REFUSAL_TEXTS[Reason.HBM_SHORT] in calls.calls("/bind")[0].reply.decode()
    sandbox.wait_refused("late", "kvaware:")
    assert pods_booked(extender, node) == {"thief"}
    # and
    sandbox.control_plane.kubectl("delete", "pod", "thief", "-n", sandbox.namespace)
    assert sandbox.wait_bound("late", timeout_s=30) == node


def test_a_binding_that_the_api_server_confirms_too_late_is_booked_once(
    control_plane: ControlPlane, sandbox: Sandbox, start_scheduler: Callable[..., Process], tmp_path: Path
) -> None:
    """kubernetes#96579: bind worked but answered after the time-out, and the pod was retried for ever."""
    with Proxy(
        control_plane.api_url, upstream_ca=control_plane.ca_file, serving=control_plane.serving_certificate
    ) as api:
        kubeconfig = control_plane.service_account_kubeconfig("kvaware-system", "kvaware-extender", server=api.url)
        extender = ExtenderProcess(tmp_path, kubeconfig)
        try:
            extender.start()
            with Proxy(extender.scheduler_url.removesuffix("/scheduler")) as calls:
                start_scheduler(f"{calls.url}/scheduler")
                # given
                first, second = sandbox.add_nodes("a", "b", gpus=2)
                # when
                with api.replies_delayed("/binding", 6):
                    sandbox.control_plane.create(sandbox.pod("server"))
                    node = sandbox.wait_bound("server")
                    eventually(lambda: calls.calls("/bind"), 6, "bind was answered")
                # then our answer left inside the scheduler's httpTimeout
                (bind,) = calls.calls("/bind")
                assert bind.answered_after_s < 5
                # and the same bind again is fine, another node is not
                other = second if node == first else first
                uid = sandbox.get_pod("server")["metadata"]["uid"]
                asked = {"PodName": "server", "PodNamespace": sandbox.namespace, "PodUID": uid}
                eventually(lambda: pods_booked(extender, node) == {"server"}, 10, "the doubt is cleared up")
                assert extender.verb("bind", {**asked, "Node": node}) == {"Error": ""}
                assert extender.verb("bind", {**asked, "Node": other})["Error"]
                # and it is booked once
                assert sandbox.node_of("server") == node
                assert free_gpus(extender, node) == 1
                assert free_gpus(extender, other) == 2
                # and the pod is not retried for ever
                assert len(calls.calls("/bind")) <= 2
        finally:
            extender.stop()


def test_a_reply_that_the_scheduler_did_not_wait_for_is_booked_once(
    sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy, start_scheduler: Callable[..., Process]
) -> None:
    """The extender bound in time, its answer got lost: kube-scheduler takes the bind for failed and tries again."""
    # given
    start_scheduler(f"{calls.url}/scheduler", http_timeout="1s")
    first, second = sandbox.add_nodes("a", "b", gpus=2)
    # when
    with calls.replies_delayed("/bind", 2):
        sandbox.control_plane.create(sandbox.pod("server"))
        node = sandbox.wait_bound("server")
        eventually(lambda: sandbox.get_pod("server")["status"]["phase"] == "Running", 10, "the pod runs")
    # then
    assert free_gpus(extender, node) == 1
    assert free_gpus(extender, second if node == first else first) == 2
    sandbox.control_plane.create(sandbox.pod("next"))
    assert sandbox.wait_bound("next")
