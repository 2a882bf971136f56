"""Hot models get replicas where they fit, and give them back: real operator, extender, kube-scheduler, ReplicaSets."""

import time

from kvaware_testing.controlplane import eventually, stays
from kvaware_testing.controlplane.leader_worker_sets import playing_leader_worker_set
from kvaware_testing.controlplane.operator_world import OperatorWorld
from kvaware_testing.controlplane.proxy import Call
from kvaware_testing.controlplane.sandbox import RESERVATION, Sandbox
from kvaware_testing.controlplane.scaled_model import ScaledModel
from kvaware_testing.controlplane.workers_under_kwok import ModelServer, Worker, beating, pod_token

QUEUE = 40
"""Requests that wait at each replica: more than any can take at once."""
POLLS_S = 3.0
"""Several polls of the load (``OPERATOR_CONFIG``): long enough for what must not happen to have happened."""
SLOW_DOWN = {"scaleUp": "0s", "scaleDown": "1h"}


def test_a_queue_brings_replicas_that_kvaware_places_and_a_quiet_time_takes_them_away(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """defilantech/LLMKube#482: running requests are capped by the server's slots, so the queue is what counts."""
    # given
    sandbox.add_nodes("a", "b", gpus=2)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(most=3)
    server.say(running=1)
    eventually(lambda: model.role().get("desiredReplicas") == 1, 30, "one replica is enough")
    # when
    server.say(running=1, waiting=QUEUE)
    # then
    model.wait_ready(3)
    assert all(RESERVATION in pod["metadata"]["annotations"] for pod in model.pods()), "not placed by kvaware"
    model.wait_figures(3, 3, 3)
    # when
    server.say()
    # then
    model.wait_ready(1)
    model.wait_figures(1, 1, 1)
    assert model.condition("HBMConstrained") in {"", "False"}


def test_recommend_only_reports(world: OperatorWorld, sandbox: Sandbox, server: ModelServer) -> None:
    """What Auto would do stands in the status and in a metric; the workload is the user's."""
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(most=3, mode="Recommend")
    # when
    server.say(running=1, waiting=QUEUE)
    # then
    eventually(lambda: model.role().get("desiredReplicas") == 3, 30, "three are recommended")
    metric = {"namespace": sandbox.namespace, "model": "llama", "role": "both"}
    eventually(lambda: world.operator.metric("kvaware_desired_replicas", **metric) == 3, 10, "the metric says so too")
    stays(lambda: model.wanted() == 1, POLLS_S, "the workload is left alone")


def test_no_replica_is_added_that_would_not_fit_until_there_is_room(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """An HPA would leave pods Pending here: seven of eight shares of the GPU are free, its memory is not."""
    # given
    sandbox.add_nodes("a", gpus=1, replicas=8)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(most=4, hbm="60Gi")
    # when
    server.say(running=1, waiting=QUEUE)
    # then
    said = model.wait_condition("HBMConstrained")
    assert "60" in said["message"] or "HBM" in said["message"]
    stays(lambda: (model.wanted(), model.unscheduled()) == (1, 0), POLLS_S, "one replica, and no pod without a node")
    # when
    sandbox.add_nodes("b", gpus=1, replicas=8)
    # then what fits is added, and no more
    model.wait_ready(2)
    model.wait_condition("HBMConstrained")
    stays(lambda: (model.wanted(), model.unscheduled()) == (2, 0), POLLS_S, "two replicas, and no pod without a node")
    # when
    server.say()
    # then
    model.wait_condition("HBMConstrained", "False")


def test_the_replica_with_the_least_valuable_cache_goes_first(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """A ReplicaSet would take the youngest. Deletion costs are written before, and are gone afterwards."""
    # given three replicas that tell by heartbeats what they hold; nobody answers scrapes
    server.broken = True
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(replicas=3, least=3, most=3)
    pods = sorted(model.pods(), key=lambda pod: str(pod["metadata"]["name"]))
    workers = [Worker(world.extender, pod, model="llama", token=pod_token(sandbox.control_plane, pod)) for pod in pods]
    held = {"block_size": 16, "kv_blocks_total": 10_000, "running": 0, "waiting": 0, "queued_tokens": 0}
    # all of it fits into two pools: KV pressure does not ask for the third replica
    full, empty = {**held, "kv_blocks_free": 4_000}, {**held, "kv_blocks_free": 9_900}
    # the second by name is empty: neither the first nor the last of any order
    figures = {worker.id: empty if index == 1 else full for index, worker in enumerate(workers)}
    began_s = time.monotonic()
    with beating(workers, figures) as refused:
        model.wait_condition("Ready")
        assert not refused
        # when
        sandbox.control_plane.apply(model.manifest(least=2, most=3))
        # then
        model.wait_ready(2)
        assert model.pod_names() == {pods[0]["metadata"]["name"], pods[2]["metadata"]["name"]}
        costs_at_s = [call.began_at_s for call in patched_pods(world, sandbox, began_s)]
        (scaled_at_s,) = [
            call.began_at_s for call in world.proxy.calls("/scale", method="PUT") if began_s < call.began_at_s
        ]
        assert costs_at_s
        assert min(costs_at_s) < scaled_at_s, "the costs come first"
        eventually(lambda: not model.costs(), 30, "the costs are taken off again")


def patched_pods(world: OperatorWorld, sandbox: Sandbox, since_s: float) -> list[Call]:
    """The operator's writes to pods of the test's namespace."""
    prefix = f"/api/v1/namespaces/{sandbox.namespace}/pods/"
    return [
        call for call in world.proxy.calls_since(since_s) if call.method == "PATCH" and call.path.startswith(prefix)
    ]


def test_any_workload_with_a_scale_subresource_is_scaled(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """A StatefulSet chooses itself who goes, as a LeaderWorkerSet does through one: no deletion cost is written."""
    # given
    sandbox.add_nodes("a", gpus=8)
    kinds = ("StatefulSet", "LeaderWorkerSet")
    models = [ScaledModel(sandbox, kind.lower(), kind=kind, server=server) for kind in kinds]
    with playing_leader_worker_set(sandbox, "leaderworkerset"):
        for model in models:
            model.start(most=3)
        # when
        server.say(running=1, waiting=QUEUE)
        # then
        for model in models:
            model.wait_ready(3)
        # when
        server.say()
        # then
        for model in models:
            model.wait_ready(1)
            model.wait_figures(1, 1, 1)
    assert not patched_pods(world, sandbox, 0.0)


def test_a_replica_that_cannot_be_scheduled_stops_further_ones(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """Somebody added more than fit, by hand. More Pending pods would help nobody."""
    # given
    sandbox.add_nodes("a", gpus=1)
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(most=6, windows=SLOW_DOWN)
    sandbox.control_plane.kubectl("scale", "deployment/llama", "--replicas=2", "-n", sandbox.namespace)
    eventually(lambda: model.unscheduled() == 1, 30, "one pod waits")
    # when
    server.say(running=1, waiting=QUEUE)
    eventually(lambda: (model.role().get("desiredReplicas") or 0) > 2, 30, "more are wanted")
    # then
    stays(lambda: model.wanted() == 2, POLLS_S, "no further replica")


def test_zero_is_not_reached_yet_and_the_status_says_so(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """Nobody could wake the model: requests do not pass through kvaware yet."""
    # given
    sandbox.add_nodes("a", gpus=2)
    model = ScaledModel(sandbox, "llama", server=server)
    # when
    model.start(replicas=2, least=0, most=3)
    # then
    model.wait_condition("ScaleToZeroNotYet")
    model.wait_ready(1)
    stays(lambda: model.wanted() == 1, POLLS_S, "the last replica stays")


def test_standing_still_is_no_load_and_no_answer_is_no_figure(
    world: OperatorWorld, sandbox: Sandbox, server: ModelServer
) -> None:
    """ai-dynamo/dynamo#6985: with 0/0 every round was skipped; and an outage of the metrics is no quiet time."""
    # given
    sandbox.add_nodes("a", gpus=4)
    model = ScaledModel(sandbox, "llama", server=server)
    server.broken = True
    model.start(replicas=3, most=3)
    # then
    model.wait_condition("Ready", "Unknown")
    stays(lambda: model.wanted() == 3, POLLS_S, "unknown load holds the number")
    # when
    server.broken = False
    # then
    model.wait_ready(1)
