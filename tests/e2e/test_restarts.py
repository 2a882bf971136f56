"""Processes end in the middle of things: the truth is in the API server, and nothing is booked twice or lost."""

import pytest

from kvaware_testing.controlplane import ControlPlane, eventually
from kvaware_testing.controlplane.bookings import gpu_pool, pods_booked, reservations_by_node
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.sandbox import Sandbox

GIB = 2**30
USABLE_BYTES = 81559 * 2**20
"""HBM of the nodes here by their label; what is usable is a little less."""

pytestmark = pytest.mark.usefixtures("scheduler")


def bound(sandbox: Sandbox) -> int:
    return sum(1 for pod in sandbox.pods() if pod["spec"].get("nodeName"))


def test_an_extender_killed_in_the_middle_of_a_roll_out_books_nothing_twice(
    sandbox: Sandbox, extender: ExtenderProcess
) -> None:
    """A restarted extender knows nothing but what the pods say.

    Two of 30 GiB fit on a GPU of 80 GB, three do not, and kube-scheduler would allow eight: only the books keep the
    third away.
    """
    # given
    nodes = sandbox.add_nodes(*(f"n{index}" for index in range(60)), gpus=1, replicas=8)
    # when
    sandbox.control_plane.apply(sandbox.deployment("server", replicas=130, hbm="30Gi"))
    eventually(
        lambda: extender.metric("kvaware_bind_total", result="bound") >= 20, 30, "the roll-out has begun", every_s=0.01
    )
    extender.kill()
    assert bound(sandbox) < 120, "the roll-out was over before the extender was killed"
    extender.start()
    # then all that fits is placed, and no more
    eventually(lambda: bound(sandbox) >= 120, 60, "the roll-out went on", every_s=0.5)
    eventually(lambda: sum(1 for pod in sandbox.pods() if _unschedulable(pod)) == 10, 30, "the rest is refused")
    held = reservations_by_node(sandbox.pods())
    assert {node: len(reservations) for node, reservations in held.items()} == dict.fromkeys(nodes, 2)
    for node in nodes:
        (gpu,) = gpu_pool(extender, node)["gpus"]
        assert gpu["reserved_bytes"] == 60 * GIB <= USABLE_BYTES


def _unschedulable(pod: dict[str, object]) -> bool:
    status = pod["status"]
    assert isinstance(status, dict)
    return any(
        one["type"] == "PodScheduled" and one["status"] == "False" and "kvaware:" in one.get("message", "")
        for one in status.get("conditions", ())
    )


def test_an_extender_that_is_replaced_in_order_goes_on(sandbox: Sandbox, extender: ExtenderProcess) -> None:
    """A rolling update of kvaware itself: what was placed stays booked, what comes is placed."""
    # given
    (node,) = sandbox.add_nodes("a", gpus=1, replicas=8)
    sandbox.control_plane.create(sandbox.pod("before", hbm="50Gi"))
    sandbox.wait_bound("before")
    # when
    extender.restart()
    # then
    assert pods_booked(extender, node) == {"before"}
    sandbox.control_plane.create(sandbox.pod("too-much", hbm="50Gi"), sandbox.pod("fits", hbm="20Gi"))
    assert sandbox.wait_bound("fits") == node
    sandbox.wait_refused("too-much", "kvaware:")


def test_the_api_server_restarts(control_plane: ControlPlane, sandbox: Sandbox, extender: ExtenderProcess) -> None:
    """Watches break, and kvaware finds back by itself with the same books.

    Right after its start a real API server answers 403 to everybody for a moment, until it has read its own roles.
    """
    # given
    (node,) = sandbox.add_nodes("a", gpus=1, replicas=8)
    control_plane.create(sandbox.pod("before", hbm="50Gi"))
    sandbox.wait_bound("before")
    # when
    control_plane.restart("kube-apiserver")
    # then
    control_plane.create(sandbox.pod("too-much", hbm="50Gi"), sandbox.pod("fits", hbm="20Gi"))
    assert sandbox.wait_bound("fits", timeout_s=45) == node
    sandbox.wait_refused("too-much", "kvaware: not enough free HBM", timeout_s=45)
    assert pods_booked(extender, node) == {"before", "fits"}
    # and what is deleted afterwards is seen
    control_plane.kubectl("delete", "pod", "before", "-n", sandbox.namespace)
    assert sandbox.wait_bound("too-much", timeout_s=30) == node
