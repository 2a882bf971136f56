"""kvaware's kinds go, come back, or are older than the operator: nothing is scaled, lost or written for ever."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kvaware_crds import render_crds
from kvaware_testing.controlplane import ControlPlane, eventually, stays
from kvaware_testing.controlplane.operator_world import OperatorWorld
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.scaled_model import ScaledModel
from kvaware_testing.controlplane.workers_under_kwok import ModelServer

QUEUE = 40
CRD = "inferencemodels.kvaware.io"


@pytest.fixture(autouse=True)
def crds(control_plane: ControlPlane) -> Iterator[None]:
    """Whatever happens in the test, the kinds are there again afterwards, as they should be."""
    yield
    apply(control_plane, *crd_documents())


def crd_documents() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in render_crds().values()]


def apply(control_plane: ControlPlane, *documents: dict[str, Any]) -> None:
    control_plane.apply_text("---\n".join(yaml.safe_dump(document) for document in documents))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def test_without_the_kind_nothing_is_scaled_and_with_it_everything_goes_on(
    control_plane: ControlPlane, world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """nolar/kopf#1094: a CRD that is deleted, or arrives late. Whoever deletes it deletes the models, not the pods."""
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=2, most=3)
    server.say(running=1, waiting=QUEUE)
    model.wait_ready(3)
    uids = {pod["metadata"]["uid"] for pod in model.pods()}
    pid = world.operator.process.pid
    # when
    control_plane.kubectl("delete", "crd", CRD, "--timeout=30s")
    server.say()
    eventually(world.operator.not_ready, 60, "the operator says that it does not know the models")
    # then
    stays(lambda: model.wanted() == 3, 5, "what runs goes on")
    assert {pod["metadata"]["uid"] for pod in model.pods()} == uids
    # when
    apply(control_plane, *crd_documents())
    eventually(lambda: control_plane.apply(model.manifest(most=3)) is None, 20, "the model is back")
    # then
    model.wait_ready(1, timeout_s=60)
    model.wait_condition("Accepted")
    eventually(lambda: not world.operator.not_ready(), 30, "ready again")
    assert world.operator.process.pid == pid, "it was never restarted"


def test_an_older_kind_that_drops_status_fields_is_said_once_and_not_written_for_ever(
    control_plane: ControlPlane, world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """slauger/openvox-operator#555: helm upgrade keeps old CRDs; what is read back then always differs."""
    # given
    older = crd_documents()
    for document in older:
        if document["metadata"]["name"] == CRD:
            status = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
            del status["properties"]["desiredReplicas"]
            del status["properties"]["roles"]["items"]["properties"]["reason"]
    apply(control_plane, *older)
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    # when
    began_s = time.monotonic()
    model.start(replicas=1, most=3)
    model.wait_condition("Accepted")
    time.sleep(8)  # the measure: many polls, and several times the interval between two writes of a status
    # then
    path = f"/namespaces/{sandbox.namespace}/inferencemodels/llama/status"
    written = [call for call in world.proxy.calls_since(began_s) if call.path.endswith(path) and call.method != "GET"]
    assert 1 <= len(written) <= 3, f"{len(written)} writes"
    log = world.operator.process.log.read_text("utf-8")
    said = [line for line in log.splitlines() if "older" in line]
    assert len(said) == 1, said
    # and it scales all the same
    server.say(running=1, waiting=QUEUE)
    model.wait_ready(3)
    # when the CRDs are updated
    apply(control_plane, *crd_documents())
    # then the status is whole again
    eventually(lambda: model.get()["status"].get("desiredReplicas") == 3, 60, "the status has the new field")


def test_an_old_object_with_a_minimum_above_its_maximum_is_refused_in_words(
    control_plane: ControlPlane, world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """Rules bind what is written from now on; what was there before them stays, and must not be scaled by."""
    # given a CRD from before the rule, and an object from then
    older = crd_documents()
    for document in older:
        if document["metadata"]["name"] == CRD:
            schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            role = schema["properties"]["spec"]["properties"]["roles"]["items"]
            del role["properties"]["replicas"]["x-kubernetes-validations"]
    apply(control_plane, *older)
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    eventually(lambda: model.start(replicas=2, least=3, most=1) is None, 20, "the old object is taken")
    apply(control_plane, *crd_documents())
    # then
    said = model.wait_condition("Accepted", "False")
    assert "replicas.min" in said["message"]
    stays(lambda: model.wanted() == 2, 4, "nothing is scaled by it")
