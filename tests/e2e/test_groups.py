"""Groups of pods on a kube-scheduler that knows them (``GenericWorkload``, off by default): all are bound or none."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvaware_crds import render_crds
from kvaware_testing.controlplane import Binaries, ControlPlane, Process, eventually
from kvaware_testing.controlplane.bookings import pods_booked, reservation_of
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.proxy import Proxy
from kvaware_testing.controlplane.sandbox import Sandbox

MEMBERS = [f"member-{index}" for index in range(4)]
SHARED = {"gpus": 1, "replicas": 8}
QUIET_S = 5.0


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory, programs: Binaries) -> Iterator[ControlPlane]:
    """A control plane of this file's own: every other test runs with Kubernetes' defaults."""
    folder = tmp_path_factory.mktemp("group-plane")
    gates, served = {"GenericWorkload": True}, "scheduling.k8s.io/v1beta1=true"
    with ControlPlane(folder, programs, feature_gates=gates, runtime_config=served) as running:
        running.apply_text("---\n".join(render_crds().values()))
        running.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield running


@pytest.fixture
def calls(extender: ExtenderProcess, start_scheduler: Callable[..., Process]) -> Iterator[Proxy]:
    """kube-scheduler at work, every call of it recorded."""
    with Proxy(extender.scheduler_url.removesuffix("/scheduler")) as proxy:
        start_scheduler(f"{proxy.url}/scheduler")
        yield proxy


def create_gang(sandbox: Sandbox, **options: Any) -> None:
    """A group of four pods that all must run."""
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": sandbox.namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": len(MEMBERS)}}},
    }
    sandbox.control_plane.create(group, *(sandbox.pod(name, group="gang", **options) for name in MEMBERS))


def bound(sandbox: Sandbox) -> set[str]:
    """Members that have a node."""
    return {
        pod["metadata"]["name"]
        for pod in sandbox.pods()
        if pod["spec"].get("nodeName") and pod["metadata"]["name"] in MEMBERS
    }


def never_in_part(sandbox: Sandbox, seconds: float) -> None:
    """Watch for a while that no member is bound."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert bound(sandbox) == set()
        time.sleep(0.2)


def test_a_group_is_bound_whole(sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy) -> None:
    """Filter gives each member one node; the binds come all at once and all succeed."""
    # given
    nodes = sandbox.add_nodes("a", "b", gpus=2)
    # when
    create_gang(sandbox)
    # then
    at = {name: sandbox.wait_bound(name) for name in MEMBERS}
    assert sorted(at.values()) == sorted([*nodes, *nodes])
    assert {call.reply for call in calls.calls("/bind")} == {b'{"Error":""}'}
    for node in nodes:
        eventually(
            lambda node=node: pods_booked(extender, node) == {name for name in at if at[name] == node},  # type: ignore[misc]
            10,
            "booked once, where they are",
        )
    assert all(reservation_of(sandbox.get_pod(name)).gpus == 1 for name in MEMBERS)


def test_a_half_bound_group_cannot_arise(sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy) -> None:
    """Between filter and bind somebody else takes the memory of one place.

    kube-scheduler binds all members at once and takes none back: one refused bind would leave three pods that wait for
    the fourth for ever, which then tries 650 times a second.
    """
    # given
    nodes = sandbox.add_nodes("a", "b", "c", "d", **SHARED)
    with calls.held("/bind") as bind:
        create_gang(sandbox, hbm="60Gi")
        bind.wait_arrived(20)
        # when
        sandbox.control_plane.create(sandbox.pod("thief", scheduler="another-scheduler", node_name=nodes[2]))
        eventually(lambda: "thief" in pods_booked(extender, nodes[2]), 5, "the extender has seen the thief")
    # then
    eventually(lambda: len(calls.calls("/bind")) >= len(MEMBERS), 10, "all binds were answered")
    assert all(b'{"Error":""}' not in call.reply for call in calls.calls("/bind"))
    never_in_part(sandbox, 3.0)
    before = {verb: len(calls.calls(verb)) for verb in ("/bind", "/filter")}
    never_in_part(sandbox, QUIET_S)
    after = {verb: len(calls.calls(verb)) for verb in ("/bind", "/filter")}
    assert after["/bind"] == before["/bind"]
    assert after["/filter"] - before["/filter"] <= 2 * len(MEMBERS), "no hot loop"
    # and when the thief is gone all four are bound
    sandbox.control_plane.kubectl("delete", "pod", "thief", "-n", sandbox.namespace)
    assert {sandbox.wait_bound(name, timeout_s=30) for name in MEMBERS} == set(nodes)


def test_a_group_for_which_quota_is_short_waits_whole_and_comes_whole(sandbox: Sandbox, calls: Proxy) -> None:
    """Three of four are within the limit: none is bound, and the group is not tried again and again for it."""
    # given
    sandbox.add_nodes("a", gpus=8)
    sandbox.control_plane.apply(sandbox.quota("team", gpus=3))
    # when
    create_gang(sandbox)
    # then
    eventually(lambda: len(calls.calls("/filter")) >= len(MEMBERS), 20, "the group was tried")
    never_in_part(sandbox, 12.0)  # longer than an intent stands
    before = len(calls.calls("/filter"))
    never_in_part(sandbox, QUIET_S)
    assert len(calls.calls("/filter")) - before <= len(MEMBERS)
    assert calls.calls("/bind") == []
    # and
    sandbox.control_plane.apply(sandbox.quota("team", gpus=4))
    for name in MEMBERS:
        sandbox.wait_bound(name, timeout_s=30)


def test_nobody_dies_for_a_group_that_quota_refuses(
    control_plane: ControlPlane, sandbox: Sandbox, calls: Proxy
) -> None:
    """kube-scheduler tries preemption for a whole group in thought, and asks filter then: preempt is never called."""
    # given
    sandbox.add_nodes("a", gpus=4)
    control_plane.create(sandbox.priority_class("low", 10))
    with Sandbox(control_plane, f"{sandbox.namespace}-others") as others:
        pods = [others.pod(f"low-{i}", priority_class=sandbox.full_name("low")) for i in range(4)]
        for pod in pods:
            pod["spec"]["nodeSelector"] = sandbox.owner
        control_plane.create(*pods)
        for i in range(4):
            others.wait_bound(f"low-{i}")
        control_plane.apply(sandbox.quota("team", gpus=3))
        control_plane.create({**sandbox.priority_class("high", 1000)})
        # when
        group = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "gang", "namespace": sandbox.namespace},
            "spec": {
                "schedulingPolicy": {"gang": {"minCount": len(MEMBERS)}},
                "priorityClassName": sandbox.full_name("high"),
            },
        }
        high = sandbox.full_name("high")
        control_plane.create(group, *(sandbox.pod(name, group="gang", priority_class=high) for name in MEMBERS))
        # then
        sandbox.wait_refused(MEMBERS[-1], "minCount (4) cannot be satisfied")
        eventually(lambda: calls.calls("/filter"), 10, "filter was asked with the victims taken away in thought")
        never_in_part(sandbox, QUIET_S)
        before = len(calls.calls("/filter"))
        never_in_part(sandbox, QUIET_S)
        assert len(calls.calls("/filter")) - before <= 2 * len(MEMBERS)
        assert calls.calls("/preempt") == []
        assert all("deletionTimestamp" not in pod["metadata"] for pod in others.pods())
