"""Preemption on the real kube-scheduler: it kills where that helps, and nobody dies for what HBM or quota forbids."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvaware_engine import REFUSAL_TEXTS, Reason
from kvaware_testing.controlplane import ControlPlane, Process, eventually
from kvaware_testing.controlplane.bookings import pods_booked
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.proxy import Proxy
from kvaware_testing.controlplane.sandbox import Sandbox

SHARED = {"gpus": 1, "replicas": 8}
FINALIZER = "kvaware-test/slow-end"
QUIET_S = 5.0


@pytest.fixture
def calls(extender: ExtenderProcess, start_scheduler: Callable[..., Process]) -> Iterator[Proxy]:
    """kube-scheduler at work, every call of it recorded."""
    with Proxy(extender.scheduler_url.removesuffix("/scheduler")) as proxy:
        start_scheduler(f"{proxy.url}/scheduler")
        yield proxy


@pytest.fixture
def ranks(control_plane: ControlPlane, sandbox: Sandbox) -> tuple[str, str]:
    """The names of two PriorityClasses, low and high."""
    control_plane.create(sandbox.priority_class("low", 10), sandbox.priority_class("high", 1000))
    return sandbox.full_name("low"), sandbox.full_name("high")


def alive(sandbox: Sandbox) -> set[str]:
    """Pods that run and are not on their way out."""
    return {
        pod["metadata"]["name"]
        for pod in sandbox.pods()
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    }


def offers(calls: Proxy) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What preempt was asked and what it answered: node to victims."""
    return [
        (json.loads(call.request)["NodeNameToMetaVictims"], json.loads(call.reply)["NodeNameToMetaVictims"])
        for call in calls.calls("/preempt")
    ]


def stays_quiet(calls: Proxy, *, most_filters: int = 2) -> None:
    """No hot loop: hardly a call while nothing changes."""
    time.sleep(1)  # what the last change itself set off
    before = len(calls.calls("/filter"))
    time.sleep(QUIET_S)  # the measure
    assert len(calls.calls("/filter")) - before <= most_filters


def test_a_pod_of_higher_priority_gets_whole_gpus(
    control_plane: ControlPlane, sandbox: Sandbox, extender: ExtenderProcess, calls: Proxy, ranks: tuple[str, str]
) -> None:
    """The ordinary case, end to end: the cheapest node's pod dies, the preemptor is bound there, the books agree."""
    low, high = ranks
    # given two full nodes, one with GPUs too small for the preemptor
    large, small = sandbox.add_nodes("large", gpus=1)[0], sandbox.add_nodes("small", gpus=1, memory_mib=40960)[0]
    control_plane.create(sandbox.pod("on-large", hbm="60Gi", priority_class=low))
    assert sandbox.wait_bound("on-large") == large
    control_plane.create(sandbox.pod("on-small", hbm="20Gi", priority_class=low))
    assert sandbox.wait_bound("on-small") == small
    # when
    control_plane.create(sandbox.pod("vip", hbm="70Gi", priority_class=high))
    # then only the node whose HBM fits is preempted on: on the other one a pod would have died in vain
    assert sandbox.wait_bound("vip") == large
    assert alive(sandbox) == {"on-small", "vip"}
    asked, kept = offers(calls)[0]
    assert set(asked) == {large, small}
    assert set(kept) == {large}
    assert len(offers(calls)) == 1
    eventually(lambda: pods_booked(extender, large) == {"vip"}, 10, "the books agree")


def test_a_quota_refusal_kills_nobody(
    control_plane: ControlPlane, sandbox: Sandbox, calls: Proxy, ranks: tuple[str, str]
) -> None:
    """Without the verb one low-priority pod died on each of the nodes while the pod stayed pending."""
    low, high = ranks
    # given three full nodes, by pods of a namespace without limits
    nodes = sandbox.add_nodes("a", "b", "c", gpus=1)
    with Sandbox(control_plane, f"{sandbox.namespace}-others") as others:
        pods = [others.pod(f"low-{i}", priority_class=low) for i in range(3)]
        for pod in pods:
            pod["spec"]["nodeSelector"] = sandbox.owner
        control_plane.create(*pods)
        for i in range(3):
            others.wait_bound(f"low-{i}")
        control_plane.apply(sandbox.quota("team", gpus=0))
        # when
        control_plane.create(sandbox.pod("vip", priority_class=high))
        # then
        eventually(lambda: calls.calls("/preempt"), 20, "kube-scheduler would preempt")
        stays_quiet(calls)
        assert {node for asked, _ in offers(calls) for node in asked} == set(nodes)
        assert [kept for _, kept in offers(calls)] == [{}] * len(offers(calls))
        assert alive(others) == {"low-0", "low-1", "low-2"}
        assert sandbox.node_of("vip") is None
        assert len(offers(calls)) <= 4, "nor does preempt loop"


def test_while_the_victim_ends_slowly_nobody_else_dies(
    control_plane: ControlPlane, sandbox: Sandbox, calls: Proxy, ranks: tuple[str, str]
) -> None:
    """A model server takes its time to end and holds its GPU until then; the preemptor waits for it alone."""
    low, high = ranks
    # given
    nodes = sandbox.add_nodes("a", "b", gpus=1)
    pods = [sandbox.pod(f"low-{i}", priority_class=low) for i in range(2)]
    for pod in pods:
        pod["metadata"]["finalizers"] = [FINALIZER]
    control_plane.create(*pods)
    at = {name: sandbox.wait_bound(name) for name in ("low-0", "low-1")}
    assert set(at.values()) == set(nodes)
    try:
        # when
        control_plane.create(sandbox.pod("vip", priority_class=high))
        eventually(lambda: sandbox.get_pod("vip")["status"].get("nominatedNodeName"), 20, "nominated")
        victim = next(name for name in at if at[name] == sandbox.get_pod("vip")["status"]["nominatedNodeName"])
        # then
        stays_quiet(calls, most_filters=3)
        assert alive(sandbox) == set(at) - {victim}
        # and whoever comes meanwhile does not get what the victim dies for
        control_plane.create(sandbox.pod("later", priority_class=low))
        sandbox.wait_refused("later", "Insufficient nvidia.com/gpu")
        release(sandbox, victim)
        assert sandbox.wait_bound("vip", timeout_s=30) == at[victim]
        assert sandbox.node_of("later") is None
    finally:
        for name in at:
            release(sandbox, name)


def release(sandbox: Sandbox, name: str) -> None:
    """Let a terminating pod go."""
    sandbox.control_plane.kubectl(
        "patch",
        "pod",
        name,
        "-n",
        sandbox.namespace,
        "--type=merge",
        "-p",
        '{"metadata":{"finalizers":null}}',
        check=False,
    )


def test_victims_are_added_where_hbm_is_short_and_the_pod_waits_for_all_of_them(
    control_plane: ControlPlane, sandbox: Sandbox, calls: Proxy, ranks: tuple[str, str]
) -> None:
    """CPU is short as well, so kube-scheduler preempts, and would stop at the pod that frees the CPU.

    The one that frees the CPU ends first: then only kvaware refuses the nominated node. Refused as unresolvable, it
    would be the start of a cascade.
    """
    low, high = ranks
    # given: shared GPUs of 80 GB on two nodes with 10 CPUs each
    nodes = sandbox.add_nodes("a", "b", cpu="10", **SHARED)
    for index, node in enumerate(nodes):
        hungry = sandbox.pod(f"cpu-{index}", cpu="8", hbm="1Gi", priority_class=low)
        large = sandbox.pod(f"hbm-{index}", cpu="1", hbm="70Gi", priority_class=low)
        for pod in (hungry, large):
            pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
            pod["metadata"]["finalizers"] = [FINALIZER]
        control_plane.create(hungry, large)
        sandbox.wait_bound(f"cpu-{index}")
        sandbox.wait_bound(f"hbm-{index}")
    try:
        # when
        control_plane.create(sandbox.pod("vip", cpu="8", hbm="60Gi", priority_class=high))
        nominated = eventually(lambda: sandbox.get_pod("vip")["status"].get("nominatedNodeName"), 20, "nominated")
        index = nodes.index(nominated)
        # then
        asked, kept = offers(calls)[0]
        assert {len(victims["Pods"]) for victims in asked.values()} == {1}
        assert {len(victims["Pods"]) for victims in kept.values()} == {2}
        eventually(lambda: alive(sandbox) == {f"cpu-{1 - index}", f"hbm-{1 - index}"}, 10, "both are ending")
        release(sandbox, f"cpu-{index}")
        sandbox.wait_refused("vip", REFUSAL_TEXTS[Reason.VICTIMS_LEAVING])
        stays_quiet(calls, most_filters=4)
        assert alive(sandbox) == {f"cpu-{1 - index}", f"hbm-{1 - index}"}
        assert sandbox.get_pod("vip")["status"].get("nominatedNodeName") == nominated
        release(sandbox, f"hbm-{index}")
        assert sandbox.wait_bound("vip", timeout_s=30) == nominated
    finally:
        for index in range(2):
            release(sandbox, f"hbm-{index}")
            release(sandbox, f"cpu-{index}")


def test_where_only_hbm_is_short_preempt_is_never_called(
    control_plane: ControlPlane, sandbox: Sandbox, calls: Proxy, ranks: tuple[str, str]
) -> None:
    """kubernetes#139270, #135486: kube-scheduler 1.37.2 sees no need for victims; nobody dies and nothing loops."""
    low, high = ranks
    # given
    sandbox.add_nodes("a", **SHARED)
    control_plane.create(sandbox.pod("low", hbm="70Gi", priority_class=low))
    sandbox.wait_bound("low")
    # when
    control_plane.create(sandbox.pod("vip", hbm="60Gi", priority_class=high))
    # then
    sandbox.wait_refused("vip", REFUSAL_TEXTS[Reason.HBM_SHORT])
    stays_quiet(calls)
    assert calls.calls("/preempt") == []
    assert alive(sandbox) == {"low"}


def test_a_restarted_extender_still_keeps_the_nominated_node(
    control_plane: ControlPlane,
    sandbox: Sandbox,
    extender: ExtenderProcess,
    start_scheduler: Callable[..., Process],
    ranks: tuple[str, str],
) -> None:
    """What was agreed is in the pod's status; the new process reads it there."""
    low, high = ranks
    # given
    (node,) = sandbox.add_nodes("a", gpus=1)
    victim = sandbox.pod("victim", priority_class=low)
    victim["metadata"]["finalizers"] = [FINALIZER]
    start_scheduler(extender.scheduler_url)
    control_plane.create(victim)
    sandbox.wait_bound("victim")
    try:
        control_plane.create(sandbox.pod("vip", priority_class=high))
        eventually(lambda: sandbox.get_pod("vip")["status"].get("nominatedNodeName"), 20, "nominated")
        # when
        control_plane.stop_scheduler()
        extender.kill()
        extender.start()
        release(sandbox, "victim")
        eventually(lambda: not pods_booked(extender, node), 10, "the victim is gone from the books")
        # then
        thief = {**sandbox.pod("thief"), "metadata": {"name": "thief", "namespace": sandbox.namespace, "uid": "thief"}}
        offer = {"Nodes": None, "NodeNames": [node]}
        assert extender.verb("filter", {"Pod": thief, **offer})["NodeNames"] == []
        assert extender.verb("filter", {"Pod": sandbox.get_pod("vip"), **offer})["NodeNames"] == [node]
        start_scheduler(extender.scheduler_url)
        assert sandbox.wait_bound("vip", timeout_s=30) == node
    finally:
        release(sandbox, "victim")


def test_an_offer_without_victims_is_filled_or_dropped(
    sandbox: Sandbox, extender: ExtenderProcess, control_plane: ControlPlane, calls: Proxy, ranks: tuple[str, str]
) -> None:
    """kube-scheduler 1.37.2 never sends an empty list and takes one for an error; later releases may send it."""
    low, _ = ranks
    # given
    full, free = sandbox.add_nodes("full", "free", **SHARED)
    large = sandbox.pod("large", hbm="70Gi", priority_class=low)
    large["spec"]["nodeSelector"] = {"kubernetes.io/hostname": full}
    control_plane.create(large)
    sandbox.wait_bound("large")
    uid = sandbox.get_pod("large")["metadata"]["uid"]
    asking = sandbox.pod("vip", hbm="60Gi")
    asking["metadata"]["uid"], asking["spec"]["priority"] = "a-uid", 1000
    nothing = {"Pods": [], "NumPDBViolations": 0}
    # when
    body = {"Pod": asking, "NodeNameToVictims": None, "NodeNameToMetaVictims": {full: nothing, free: nothing}}
    # then
    kept = extender.verb("preempt", body)["NodeNameToMetaVictims"]
    assert kept == {full: {"Pods": [{"UID": uid}], "NumPDBViolations": 1}}
