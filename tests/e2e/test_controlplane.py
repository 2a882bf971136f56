"""The control plane itself works: without kvaware, and with our profile and an extender that does nothing."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvaware_testing.controlplane import ControlPlane, Process, eventually
from kvaware_testing.controlplane.extender import noop_extender
from kvaware_testing.controlplane.sandbox import Sandbox


@pytest.fixture
def noop(control_plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The urlPrefix of a running no-op extender that binds with the rights of kvaware's account."""
    kubeconfig = control_plane.service_account_kubeconfig("kvaware-system", "kvaware-extender")
    process, url = noop_extender(tmp_path, kubeconfig)
    process.start()
    try:
        process.wait_ready()
        yield url
    finally:
        process.stop()


def test_a_plain_deployment_becomes_ready_without_kvaware(sandbox: Sandbox) -> None:
    """The cluster's own scheduler takes pods that name none: kvaware stands beside it, not in its place."""
    # given
    nodes = sandbox.add_nodes("a", "b", gpus=4)
    # when
    sandbox.control_plane.apply(sandbox.deployment("plain", replicas=6, scheduler="default-scheduler"))
    # then
    sandbox.wait_ready("plain")
    pods = sandbox.pods()
    assert len(pods) == 6
    assert {pod["spec"]["nodeName"] for pod in pods} == set(nodes)
    assert all(pod["status"]["podIP"] for pod in pods)


def test_the_shipped_profile_binds_through_its_extender(
    sandbox: Sandbox, noop: str, start_scheduler: Callable[..., Process]
) -> None:
    """kube-scheduler accepts examples/kube-scheduler/config.yaml and calls filter, prioritize and bind with it."""
    # given
    start_scheduler(noop)
    sandbox.add_nodes("a", "b", gpus=8)  # room everywhere: with one feasible node left prioritize is not called
    # when
    sandbox.control_plane.apply(sandbox.deployment("served", replicas=6))
    # then
    sandbox.wait_ready("served")
    with urllib.request.urlopen(noop.replace("/scheduler", "/calls"), timeout=5) as reply:  # noqa: S310  our own URL
        calls = json.load(reply)
    assert calls["bind"] == 6
    assert calls["filter"] >= 6
    assert calls["prioritize"] >= 6


def test_a_pod_waits_while_the_extender_is_away_and_is_bound_when_it_returns(
    sandbox: Sandbox, noop: str, start_scheduler: Callable[..., Process], tmp_path: Path
) -> None:
    """``ignorable: false``: nobody is bound behind the extender's back."""
    # given
    away, url = noop_extender(
        tmp_path, sandbox.control_plane.service_account_kubeconfig("kvaware-system", "kvaware-extender")
    )
    start_scheduler(url)
    sandbox.add_nodes("a")
    # when
    sandbox.control_plane.create(sandbox.pod("waits"))
    # then
    sandbox.wait_refused("waits", "connection refused")
    away.start()
    try:
        assert sandbox.wait_bound("waits", timeout_s=30)
    finally:
        away.stop()


def test_a_stopped_process_starts_again_with_its_data(sandbox: Sandbox) -> None:
    """Tests restart the API server in the middle of things; what was written must still be there."""
    control_plane = sandbox.control_plane
    # given
    sandbox.add_nodes("a")
    # when
    control_plane.restart("kube-apiserver")
    # then
    assert control_plane.get_json("namespace", sandbox.namespace)["status"]["phase"] == "Active"
    control_plane.apply(sandbox.deployment("after", replicas=2, scheduler="default-scheduler"))
    eventually(lambda: len(sandbox.pods()) == 2, 20, "the controllers work again")
    sandbox.wait_ready("after")


def test_the_extender_may_do_what_it_needs_and_nothing_that_hurts(control_plane: ControlPlane) -> None:
    """The accounts of examples/kube-scheduler/rbac.yaml: the extender holds none of the scheduler's rights."""

    def may(verb: str, resource: str, *more: str, account: str = "kvaware-extender") -> bool:
        who = f"--as=system:serviceaccount:kvaware-system:{account}"
        return control_plane.kubectl("auth", "can-i", verb, resource, who, *more, check=False).returncode == 0

    assert may("create", "pods", "--subresource=binding", "-n", "default")
    assert may("patch", "pods", "--subresource=status", "-n", "default")
    assert may("watch", "tenantquotas.kvaware.io")
    assert may("list", "nodes")
    assert not may("update", "pods", "-n", "default")
    assert not may("create", "pods", "-n", "default")
    assert not may("delete", "pods", "-n", "default")
    assert not may("list", "persistentvolumes")
    assert not may("create", "leases.coordination.k8s.io", "-n", "kvaware-system")
    assert not may("update", "nodes")
    assert not may("get", "secrets", "-n", "kvaware-system")
    assert not may("update", "tenantquotas.kvaware.io")
    assert not may("create", "clusterrolebindings")
    assert may("list", "persistentvolumes", account="kvaware-scheduler")
    assert may("create", "leases.coordination.k8s.io", "-n", "kvaware-system", account="kvaware-scheduler")
    assert not may("list", "tenantquotas.kvaware.io", account="kvaware-scheduler")
    assert not may("get", "secrets", "-n", "kvaware-system", account="kvaware-scheduler")
