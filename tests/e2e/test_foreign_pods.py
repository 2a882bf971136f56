"""GPU pods that others place are booked all the same: DaemonSets, other schedulers' pods, and those that are ending."""

from typing import Any

import pytest

from kvaware_testing.controlplane import eventually
from kvaware_testing.controlplane.bookings import free_gpus, pods_booked
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.sandbox import Sandbox

FINALIZER = "kvaware-test/slow-end"

pytestmark = pytest.mark.usefixtures("scheduler")


def daemon_set(sandbox: Sandbox, name: str) -> dict[str, Any]:
    """An agent that takes one GPU of every node, placed by the cluster's own scheduler."""
    template = sandbox.template(gpus=1, scheduler="default-scheduler")
    template["metadata"]["labels"]["app"] = name
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "namespace": sandbox.namespace}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}


def test_a_daemon_sets_gpus_are_taken_and_count_for_its_tenant(sandbox: Sandbox, extender: ExtenderProcess) -> None:
    """Monitoring and burn-in agents come as DaemonSets, with GPUs, on every node."""
    # given
    nodes = sandbox.add_nodes("a", "b", gpus=2)
    sandbox.control_plane.apply(sandbox.quota("team", gpus=3))
    # when
    sandbox.control_plane.apply(daemon_set(sandbox, "agent"))
    # then
    for node in nodes:
        eventually(lambda node=node: len(pods_booked(extender, node)) == 1, 20, "the agent is booked")  # type: ignore[misc]
        assert free_gpus(extender, node) == 1
    (tenant,) = [one for one in extender.get("/v1/tenants")["items"] if one["tenant"] == sandbox.namespace]
    assert tenant["used_gpus"] == 2
    # and one more pod of the tenant fits, not two
    sandbox.control_plane.create(sandbox.pod("server"), sandbox.pod("one-too-many"))
    eventually(lambda: sum(1 for name in ("server", "one-too-many") if sandbox.node_of(name)) == 1, 20, "one is bound")


def test_an_ending_pod_of_another_scheduler_holds_its_gpu_until_it_is_gone(
    sandbox: Sandbox, extender: ExtenderProcess
) -> None:
    """kueue#10076: capacity of finished work was handed out while its pods still terminated."""
    # given
    (node,) = sandbox.add_nodes("a", gpus=1, replicas=8)
    stranger = sandbox.pod("stranger", scheduler="another-scheduler", node_name=node)
    stranger["metadata"]["finalizers"] = [FINALIZER]
    sandbox.control_plane.create(stranger)
    eventually(lambda: pods_booked(extender, node) == {"stranger"}, 10, "booked, as a whole GPU")
    sandbox.control_plane.create(sandbox.pod("server", hbm="60Gi"))
    sandbox.wait_refused("server", "kvaware: not enough free HBM")
    # when
    sandbox.control_plane.kubectl("delete", "pod", "stranger", "-n", sandbox.namespace, "--wait=false")
    eventually(lambda: "deletionTimestamp" in sandbox.get_pod("stranger")["metadata"], 5, "it is ending")
    sandbox.control_plane.create(sandbox.pod("probe", hbm="60Gi"))
    # then
    sandbox.wait_refused("probe", "kvaware: not enough free HBM")
    assert pods_booked(extender, node) == {"stranger"}
    # and
    released = '{"metadata":{"finalizers":null}}'
    sandbox.control_plane.kubectl("patch", "pod", "stranger", "-n", sandbox.namespace, "--type=merge", "-p", released)
    eventually(lambda: sandbox.node_of("server") or sandbox.node_of("probe"), 10, "one of them is bound")
