"""What users get wrong, and who else acts: each has a clear condition or error, and nothing is scaled by mistake."""

from typing import Any

from kvaware_testing.controlplane import eventually, stays
from kvaware_testing.controlplane.operator_world import OperatorWorld
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.scaled_model import (
    ScaledModel,
    autoscaler,
    inference_model,
)
from kvaware_testing.controlplane.workers_under_kwok import AUDIENCE, ModelServer, Worker, pod_token

QUEUE = 40
POLLS_S = 4.0


def test_an_autoscaler_on_the_same_workload_is_left_alone(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """Two who scale one workload would undo each other's work for ever."""
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    sandbox.control_plane.apply(autoscaler("theirs", sandbox.namespace, target=model.target))
    model.start(most=3)
    # when
    server.say(running=1, waiting=QUEUE)
    # then
    said = model.wait_condition("ScalingConflict")
    assert "theirs" in said["message"]
    eventually(lambda: model.role().get("desiredReplicas") == 3, 30, "it recommends")
    stays(lambda: model.wanted() == 1, POLLS_S, "the workload is theirs")
    # when
    sandbox.control_plane.kubectl("delete", "hpa", "theirs", "-n", sandbox.namespace)
    # then
    model.wait_ready(3)
    model.wait_condition("ScalingConflict", "False")


def test_of_two_models_on_one_workload_the_older_scales_it(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    # given
    sandbox.add_nodes("a", gpus=4)
    older = ScaledModel(sandbox, "older", server=server)
    older.start(most=2)
    younger = ScaledModel(sandbox, "younger", server=server)
    eventually(lambda: older.get()["status"].get("conditions"), 30, "the older one is looked at")
    sandbox.control_plane.apply(
        inference_model("younger", sandbox.namespace, target=older.target, port=server.port, least=3, most=4)
    )
    # then
    said = younger.wait_condition("ScalingConflict")
    assert "older" in said["message"]
    stays(lambda: older.wanted() == 1, POLLS_S, "the younger one does not raise it to its minimum")
    # when
    server.say(running=1, waiting=QUEUE)
    # then
    older.wait_ready(2)
    stays(lambda: older.wanted() == 2, POLLS_S, "the older one's maximum holds")
    assert older.condition("ScalingConflict") in {"", "False"}


def test_a_scale_target_that_cannot_be_scaled_is_said_at_the_model(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """And nothing of it is retried in a hurry: none of it gets better by itself."""
    # given
    plane, namespace = sandbox.control_plane, sandbox.namespace
    cluster_wide = sandbox.full_name("one")
    owned = {"namespace": namespace, "name": "one"}
    plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned})
    for made in (
        {"apiVersion": "test.kvaware.io/v1", "kind": "Unscalable", "metadata": owned},
        {
            "apiVersion": "test.kvaware.io/v1",
            "kind": "Clusterwide",
            "metadata": {"name": cluster_wide, "labels": sandbox.owner},
            "spec": {"replicas": 1},
        },
    ):
        eventually(lambda made=made: plane.apply(made) is None, 20, "the kind is served")
    targets = {
        "nothing-there": (("apps/v1", "Deployment", "nowhere"), "nowhere"),
        "without-scale": (("test.kvaware.io/v1", "Unscalable", "one"), "Unscalable"),
        "without-scale-too": (("v1", "ConfigMap", "one"), "ConfigMap"),
        "cluster-scoped": (("test.kvaware.io/v1", "Clusterwide", cluster_wide), "Clusterwide"),
        "unknown-kind": (("nobody.example/v1", "Thing", "one"), "Thing"),
        "unreadable": (("not/a/version", "Thing", "one"), "not/a/version"),
    }
    models = {name: ScaledModel(sandbox, name, server=server) for name in targets}
    # when
    plane.apply(
        *(inference_model(name, namespace, target=target, port=server.port) for name, (target, _) in targets.items())
    )
    # then
    for name, (_, word) in targets.items():
        said = models[name].wait_condition("Scalable", "False")
        assert word in said["message"], said
    eventually(lambda: plane.kubectl("delete", "clusterwide", cluster_wide) is not None, 20, "tidy")
    # when the workload appears
    late = ScaledModel(sandbox, "nowhere", server=server)
    sandbox.add_nodes("a", gpus=2)
    plane.apply(sandbox.deployment("nowhere", replicas=1, model="nothing-there", role="both", host_network=True))
    # then nobody has to touch the model
    models["nothing-there"].wait_condition("Scalable")
    assert late.wanted() == 1


def test_a_quota_that_shrinks_below_use_kills_nobody_and_admits_nothing(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    # given a tenant that uses three GPUs
    sandbox.add_nodes("a", gpus=8)
    plane = sandbox.control_plane
    plane.apply(sandbox.quota("team", gpus=4))
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=3, least=3, most=6)
    there = {pod["metadata"]["uid"] for pod in model.pods()}
    name = sandbox.full_name("team")

    def quota() -> dict[str, Any]:
        found: dict[str, Any] = plane.get_json("tenantquota", name)
        return found

    eventually(lambda: quota().get("status", {}).get("used", {}).get("gpus") == 3, 30, "three are in use")
    # when
    plane.apply(sandbox.quota("team", gpus=1))
    server.say(running=1, waiting=QUEUE)
    # then

    def exceeded() -> bool:
        conditions = {one["type"]: one for one in quota()["status"].get("conditions", ())}
        assert conditions.get("LimitExceeded", {}).get("status") == "True", conditions
        assert "gpus" in conditions["LimitExceeded"]["message"], conditions
        return True

    eventually(exceeded, 30, "the quota says that more is in use than it allows")
    eventually(lambda: (model.role().get("desiredReplicas") or 0) > 3, 30, "more are wanted")
    stays(lambda: (model.wanted(), model.unscheduled()) == (3, 0), POLLS_S, "nothing is added")
    assert {pod["metadata"]["uid"] for pod in model.pods()} == there, "somebody was killed"
    # when the limit is raised
    plane.apply(sandbox.quota("team", gpus=4))
    # then
    model.wait_ready(4)


def test_heartbeats_are_believed_only_from_the_worker_itself(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """Lies, from the past, from nobody, without a name: each has an answer that says which, and changes nothing."""
    # given
    sandbox.add_nodes("a", gpus=4)
    server.broken = True  # no scrape: what is known is what heartbeats say
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=2, least=2, mode="Recommend")
    plane = sandbox.control_plane
    one, other = (Worker(world.extender, pod, model="llama", token=pod_token(plane, pod)) for pod in model.pods())

    def waiting() -> int | None:
        found = world.extender.get(f"/v1/workers?model={sandbox.namespace}/llama")["items"]
        (figure,) = [worker["waiting"] for worker in found if worker["worker"] == one.id]
        return figure

    # a good one
    assert one.heartbeat(seq=10, waiting=5, running=1).status == 202
    eventually(lambda: waiting() == 5, 10, "it counts")
    # from the past
    late = one.heartbeat(seq=9, waiting=99)
    assert (late.status, late.code) == (409, "Outdated")
    # of another worker
    assert one.heartbeat(seq=11, waiting=99, token=other.token).status == 403
    # without a token, with one that is none, one for the API server, and one of another account
    assert one.heartbeat(seq=11, waiting=99, token=None).status == 401
    assert one.heartbeat(seq=11, waiting=99, token="nonsense").status == 401
    everywhere = plane.kubectl("create", "token", "default", "-n", "default").stdout.strip()
    assert one.heartbeat(seq=11, waiting=99, token=everywhere).status == 401
    foreign = plane.kubectl("create", "token", "default", "-n", "default", f"--audience={AUDIENCE}").stdout.strip()
    assert one.heartbeat(seq=11, waiting=99, token=foreign).status == 403
    # lies
    for figures in (
        {"waiting": -1},
        {"waiting": 1.5},
        {"waiting": 10**30},
        {"kv_blocks_total": 10, "kv_blocks_free": 11},
        {"gpu_utilization_ratio": 3},
        {"hbm_used_bytes": "all"},
        {"model": "other/llama"},
        {"no_such_field": 1},
    ):
        lie = one.heartbeat(seq=11, **figures)
        assert 400 <= lie.status < 500, (figures, lie)
        assert lie.body["error"]["message"], figures
    # from nobody
    nobody = Worker(
        world.extender, {"metadata": {"namespace": sandbox.namespace, "name": "gone"}}, model="llama", token=one.token
    )
    assert nobody.heartbeat(waiting=99).status in {403, 404}
    # then nothing of it was believed
    assert waiting() == 5
    assert one.heartbeat(seq=11, waiting=6).status == 202
    eventually(lambda: waiting() == 6, 10, "the next good one counts")
