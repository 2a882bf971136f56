"""Refused pods are brought back when there is room: soon, once, and long before kube-scheduler would try by itself."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvaware_crds.names import CONDITION_PLACEABLE
from kvaware_engine import REFUSAL_TEXTS, Reason
from kvaware_testing.controlplane import ControlPlane, Process, eventually
from kvaware_testing.controlplane.bookings import pods_booked
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.proxy import Proxy
from kvaware_testing.controlplane.sandbox import Sandbox

SHARED = {"gpus": 1, "replicas": 8}
WITHIN_S = 2.0


@pytest.fixture
def api(control_plane: ControlPlane) -> Iterator[Proxy]:
    """A proxy between our extender and the API server."""
    with Proxy(
        control_plane.api_url, upstream_ca=control_plane.ca_file, serving=control_plane.serving_certificate
    ) as proxy:
        yield proxy


@pytest.fixture
def extender(control_plane: ControlPlane, api: Proxy, tmp_path: Path) -> Iterator[ExtenderProcess]:
    """Our extender, which sees the cluster through ``api``."""
    kubeconfig = control_plane.service_account_kubeconfig("kvaware-system", "kvaware-extender", server=api.url)
    with ExtenderProcess(tmp_path, kubeconfig) as process:
        yield process


@pytest.fixture
def calls(extender: ExtenderProcess, start_scheduler: Callable[..., Process]) -> Iterator[Proxy]:
    """kube-scheduler at work, every call of it recorded."""
    with Proxy(extender.scheduler_url.removesuffix("/scheduler")) as proxy:
        start_scheduler(f"{proxy.url}/scheduler")
        yield proxy


def conditions_written(api: Proxy, name: str) -> int:
    """How often the extender wrote the status of a pod."""
    return len(api.calls(f"/pods/{name}/status", method="PATCH"))


def placeable(sandbox: Sandbox, name: str) -> dict[str, Any] | None:
    """The pod's condition that the extender writes."""
    conditions = sandbox.get_pod(name)["status"].get("conditions", ())
    return next((one for one in conditions if one["type"] == CONDITION_PLACEABLE), None)


def full_node(sandbox: Sandbox) -> str:
    """A shared GPU of 80 GB with 60 GiB taken, and a pod that waits for as much."""
    (node,) = sandbox.add_nodes("a", **SHARED)
    sandbox.control_plane.create(sandbox.pod("first", hbm="60Gi"))
    assert sandbox.wait_bound("first") == node
    sandbox.control_plane.create(sandbox.pod("second", hbm="60Gi"))
    sandbox.wait_refused("second", REFUSAL_TEXTS[Reason.HBM_SHORT])
    return node


def delete(sandbox: Sandbox, name: str) -> None:
    """Delete a pod and return when it is gone from the API server."""
    sandbox.control_plane.kubectl("delete", "pod", name, "-n", sandbox.namespace)


def test_a_pod_is_bound_within_two_seconds_of_a_freed_gpu(sandbox: Sandbox, api: Proxy, calls: Proxy) -> None:
    """HBM that frees is no event for kube-scheduler; one write brings the pod back."""
    # given
    node = full_node(sandbox)
    # when
    delete(sandbox, "first")
    # then
    assert sandbox.wait_bound("second", timeout_s=WITHIN_S) == node
    assert conditions_written(api, "second") <= 1


def test_a_view_that_lags_loses_no_wake_up(
    sandbox: Sandbox, api: Proxy, calls: Proxy, extender: ExtenderProcess
) -> None:
    """gpushare-scheduler-extender#187, kubernetes#122019: the scheduler retried before the extender had seen the end.

    Refused again, the last pending pod then waited for 5 minutes.
    """
    # given
    node = full_node(sandbox)
    filters = len(calls.calls("/filter"))
    with api.events_delayed("/api/v1/pods", 2.0):
        # when
        delete(sandbox, "first")
        deleted_at_s = time.monotonic()
        eventually(lambda: len(calls.calls("/filter")) > filters, 1.5, "kube-scheduler tried again, too early")
        assert pods_booked(extender, node) == {"first"}
        # then
        eventually(lambda: "first" not in pods_booked(extender, node), 4, "our view has the deletion")
        assert time.monotonic() - deleted_at_s > 1.0, "the view did not lag"
        assert sandbox.wait_bound("second", timeout_s=WITHIN_S) == node
        assert conditions_written(api, "second") == 1


def test_a_pod_whose_model_is_missing_is_woken_when_it_appears(sandbox: Sandbox, api: Proxy, calls: Proxy) -> None:
    """People apply a Deployment before its InferenceModel."""
    # given
    (node,) = sandbox.add_nodes("a", **SHARED)
    sandbox.control_plane.create(sandbox.pod("early", model="llama", role="both"))
    sandbox.wait_refused("early", REFUSAL_TEXTS[Reason.MODEL_NOT_FOUND])
    # when
    role = {"name": "both", "footprint": {"gpusPerPod": 1, "hbmPerGPU": "30Gi"}}
    sandbox.control_plane.apply(
        {
            "apiVersion": "kvaware.io/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {"name": "llama", "namespace": sandbox.namespace},
            "spec": {"modelId": "meta/llama", "roles": [role]},
        }
    )
    # then
    assert sandbox.wait_bound("early", timeout_s=WITHIN_S) == node
    assert conditions_written(api, "early") == 1


def test_a_pod_that_quota_refused_is_woken_when_quota_frees(sandbox: Sandbox, api: Proxy, calls: Proxy) -> None:
    """The limit is raised, nothing else happens in the cluster."""
    # given
    sandbox.add_nodes("a", gpus=2)
    sandbox.control_plane.apply(sandbox.quota("team", gpus=0))
    sandbox.control_plane.create(sandbox.pod("waiting"))
    sandbox.wait_refused("waiting", REFUSAL_TEXTS[Reason.TENANT_GPU_LIMIT])
    assert placeable(sandbox, "waiting") is None, "nothing is written about a pod that was just refused"
    # when
    sandbox.control_plane.apply(sandbox.quota("team", gpus=1))
    # then
    assert sandbox.wait_bound("waiting", timeout_s=WITHIN_S)
    assert conditions_written(api, "waiting") == 1
    written = placeable(sandbox, "waiting")
    assert written is not None
    assert (written["status"], written["reason"]) == ("True", "RoomFound")


def test_changes_that_make_no_room_wake_nobody(sandbox: Sandbox, api: Proxy, calls: Proxy) -> None:
    """A busy cluster must not become a stream of writes to pods that wait."""
    # given
    full_node(sandbox)
    # when
    for index in range(5):
        sandbox.control_plane.create(sandbox.pod(f"small-{index}", hbm="1Gi"))
        sandbox.wait_bound(f"small-{index}")
        delete(sandbox, f"small-{index}")
    time.sleep(1.5)  # the looks of the last change
    # then
    assert conditions_written(api, "second") == 0
    assert sandbox.node_of("second") is None
