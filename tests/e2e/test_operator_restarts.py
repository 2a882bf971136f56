"""The operator and the API server end in the middle of things: nothing is scaled twice, by half, or by a guess."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvaware_testing.controlplane import ControlPlane, eventually, stays
from kvaware_testing.controlplane.operator_world import OperatorWorld
from kvaware_testing.controlplane.proxy import Call
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.scaled_model import ScaledModel
from kvaware_testing.controlplane.workers_under_kwok import ModelServer

QUEUE = 40
SLOW_DOWN = {"scaleUp": "0s", "scaleDown": "1h"}


def writes(world: OperatorWorld, since_s: float) -> list[Call]:
    """What the operator wrote, its Lease apart."""
    return [
        call
        for call in world.proxy.calls_since(since_s)
        if call.method not in {"GET", "HEAD"} and "/leases" not in call.path
    ]


def scalings(world: OperatorWorld, sandbox: Sandbox, since_s: float = 0.0) -> list[Call]:
    """The operator's writes of a scale in the test's namespace."""
    return [
        call
        for call in writes(world, since_s)
        if call.path.endswith("/scale") and f"/namespaces/{sandbox.namespace}/" in call.path
    ]


def test_a_settled_model_is_not_written_again(world: OperatorWorld, sandbox: Sandbox, server: ModelServer) -> None:
    """A new time in a condition would wake its own writer, every second; for a model that is refused as well.

    strimzi/strimzi-kafka-operator#13079, Hostzero-GmbH/keycloak-operator#122.
    """
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=2, least=2, most=3)
    refused = ScaledModel(sandbox, "refused", server=server)
    sandbox.control_plane.apply(refused.manifest())
    server.say(running=2)
    refused.wait_condition("Scalable", "False")
    model.wait_condition("Ready")
    quiet_since = eventually_quiet(world)
    before = model.get(), refused.get()
    # when time passes: more than the interval between two writes of a status, and many polls
    server.say(running=3)
    time.sleep(8)  # the measure: nothing is written
    # then
    assert [(call.method, call.path) for call in writes(world, quiet_since)] == []
    assert (model.get(), refused.get()) == before
    # and what is read beyond the watches stays below one request a second (issue's budget), the Lease included
    asked = [call for call in world.proxy.calls_since(quiet_since) if not call.watch]
    assert len(asked) <= (time.monotonic() - quiet_since) * 1.0, [(call.method, call.path) for call in asked]


def eventually_quiet(world: OperatorWorld, for_s: float = 3.0) -> float:
    """Wait until nothing was written for some seconds; return since when."""

    def quiet() -> float:
        since = time.monotonic() - for_s
        assert not writes(world, since), [call.path for call in writes(world, since)]
        return since

    return eventually(quiet, 60, "the operator has nothing left to write")


def test_nothing_is_scaled_down_within_one_window_after_a_start(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """What was asked for before is not known: the load may have been high a second ago."""
    # given
    window_s = 6
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    server.say(running=1, waiting=QUEUE)
    model.start(replicas=3, most=3, windows={"scaleUp": "0s", "scaleDown": f"{window_s}s"})
    eventually(lambda: model.role().get("desiredReplicas") == 3, 30, "three are needed")
    # when
    world.operator.stop()
    server.say()
    started_at_s = time.monotonic()
    world.operator.start()
    # then
    model.wait_ready(1)
    first = min(call.began_at_s for call in scalings(world, sandbox, started_at_s))
    # at least the window, whatever the machine: it cannot begin before the process does
    assert first - started_at_s >= window_s


@pytest.mark.parametrize("fate", ["lost", "late"])
def test_an_operator_killed_between_deletion_costs_and_scale_is_succeeded_rightly(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer, fate: str
) -> None:
    """Its last request is lost, or lands after its successor has begun; either way one replica goes, once."""
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=3, least=3, most=3)
    # when one less would do, and the operator dies with the costs written and the scale on its way
    with world.proxy.held("/deployments/llama/scale", method="PUT") as hold:
        sandbox.control_plane.apply(model.manifest(least=2, most=3))
        hold.wait_arrived(60)
        assert len(model.costs()) >= 1, "costs come first"
        world.operator.kill()
        if fate == "lost":
            hold.lose()
        world.operator.process.start()
        if fate == "late":
            # its successor finds the costs there and is about to scale when the old request lands
            eventually(lambda: not world.operator.not_ready(), 60, "the next one is there", every_s=0.3)
            hold.release()
    world.operator.process.wait_ready(60)
    # then
    model.wait_ready(2)
    stays(lambda: model.wanted() == 2, 4, "no second one goes")
    eventually(lambda: not model.costs(), 30, "the costs are taken off again")
    done = [call for call in scalings(world, sandbox) if call.status == 200]
    assert len(done) <= 2, [call.request for call in done]


def test_of_two_operators_one_acts_and_the_other_takes_over_when_it_is_killed(
    control_plane: ControlPlane, world: OperatorWorld, sandbox: Sandbox, server: ModelServer, tmp_path: Path
) -> None:
    """A roll-out runs two for a moment: two who scale would undo each other's work."""
    # given
    world.operator.stop()
    timing = {"durationS": 8, "renewDeadlineS": 6, "retryS": 1}  # a slow machine may lose 6 s, not 15
    lease = {"enabled": True, "namespace": "kvaware-system", "timing": timing}
    first, second = (
        world.another_operator(_folder(tmp_path, name), config={"lease": lease}) for name in ("first", "second")
    )
    try:
        first.start()
        eventually(lambda: first.metric("kvaware_operator_leading") == 1, 30, "the first one leads")
        second.start()
        sandbox.add_nodes("a", gpus=4)
        model = ScaledModel(sandbox, "llama", server=server)
        model.start(most=2, windows=SLOW_DOWN)
        server.say(running=1)
        model.wait_condition("Ready")
        assert second.metric("kvaware_operator_leading") == 0
        # when
        first.kill()
        server.say(running=1, waiting=QUEUE)
        # then
        model.wait_ready(2)
        assert second.metric("kvaware_operator_leading") == 1
        # when the second one is asked to end
        began_s = time.monotonic()
        second.stop()
        # then its lease is free at once
        holder = control_plane.read("/apis/coordination.k8s.io/v1/namespaces/kvaware-system/leases/kvaware-operator")
        assert not holder["spec"].get("holderIdentity")
        assert time.monotonic() - began_s < 15
    finally:
        first.stop()
        second.stop()


def test_the_api_server_is_away_for_half_a_minute(
    control_plane: ControlPlane, world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """The operator stays alive, says that it is not ready, asks seldom, does not rush back, and then goes on."""
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=1, most=3, windows=SLOW_DOWN)
    server.say(running=1)
    model.wait_condition("Ready")
    pid = world.operator.process.pid
    # when
    control_plane.stop("kube-apiserver")
    away_since_s = time.monotonic()
    try:
        server.say(running=1, waiting=QUEUE)
        eventually(world.operator.not_ready, 30, "readiness says so", every_s=0.5)
        time.sleep(max(0.0, away_since_s + 30 - time.monotonic()))  # the measure: what it asks in half a minute
    finally:
        during = world.proxy.calls_since(away_since_s)
        back_at_s = time.monotonic()
        control_plane.start("kube-apiserver")
    # then
    assert world.operator.process.pid == pid
    assert world.operator.live()
    # each of some ten watches backs off to a try in ten seconds
    assert len(during) <= 150, f"{len(during)} requests in half a minute"
    # placing the pods is kube-scheduler's, which looks for the API server again every 30 s
    eventually(lambda: model.wanted() == 3, 60, "it scales again")
    eventually(lambda: not world.operator.not_ready(), 30, "ready again")
    assert world.operator.process.pid == pid
    after = world.proxy.calls_since(back_at_s)
    rate = len(after) / (time.monotonic() - back_at_s)
    assert rate <= 15, f"{rate:.1f} requests a second afterwards"


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def running_operator(world: OperatorWorld) -> Iterator[None]:
    """Whatever a test ends, the next one finds it running."""
    yield
    if not world.operator.process.alive:
        world.operator.start()
