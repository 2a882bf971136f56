"""The players around the operator behave as it will find them: what is scaled, and pods that answer."""

import json
import urllib.request
from pathlib import Path

from kvaware_testing.controlplane import ControlPlane, eventually
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.scaled_model import SERVICE_ACCOUNT, ScaledModel
from kvaware_testing.controlplane.workers_under_kwok import AUDIENCE, ModelServer, pod_token

MANIFESTS = Path(__file__).parent / "manifests"


def test_pods_of_every_workload_answer_on_the_model_servers_port(
    control_plane: ControlPlane, sandbox: Sandbox, server: ModelServer
) -> None:
    """With the host's network a pod's address is 127.0.0.1, and several of one model share a node."""
    # given
    control_plane.apply_file(MANIFESTS / "scale-targets.yaml")
    sandbox.add_nodes("a", gpus=8)
    models = [ScaledModel(sandbox, kind.lower(), kind=kind, server=server) for kind in ("Deployment", "StatefulSet")]
    for model in models:
        workload = model.workload(replicas=2)
        workload["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
        control_plane.apply(workload)
    # then
    for model in models:
        eventually(lambda model=model: model.ready() == 2, 30, f"{model.name} is Ready")
    addresses = {pod["status"]["podIP"] for model in models for pod in model.pods()}
    assert addresses == {"127.0.0.1"}
    server.say(waiting=7)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as reply:
        assert b'vllm:num_requests_waiting{engine="0",model_name="m"} 7.0' in reply.read()


def test_the_stand_in_for_a_leader_worker_set_has_the_real_ones_scale(
    control_plane: ControlPlane, sandbox: Sandbox, server: ModelServer
) -> None:
    control_plane.apply_file(MANIFESTS / "scale-targets.yaml")
    group = ScaledModel(sandbox, "group", kind="LeaderWorkerSet", server=server)
    eventually(lambda: control_plane.apply(group.workload(replicas=1)) is None, 20, "the kind is served")
    control_plane.kubectl("scale", "leaderworkerset/group", "--replicas=3", "-n", sandbox.namespace)
    assert group.wanted() == 3


def test_a_pod_has_a_token_of_its_own(control_plane: ControlPlane, sandbox: Sandbox, server: ModelServer) -> None:
    """As the kubelet projects one: the API server says to whom it belongs, down to the pod."""
    control_plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": SERVICE_ACCOUNT, "namespace": sandbox.namespace},
        }
    )
    sandbox.add_nodes("a", gpus=8)
    control_plane.create(sandbox.pod("p", scheduler="default-scheduler", service_account=SERVICE_ACCOUNT))
    sandbox.wait_bound("p")
    pod = sandbox.get_pod("p")
    token = pod_token(control_plane, pod)
    spec = {"token": token, "audiences": [AUDIENCE]}
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    done = control_plane.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(review))
    user = json.loads(done.stdout)["status"]["user"]
    assert user["username"] == f"system:serviceaccount:{sandbox.namespace}:{SERVICE_ACCOUNT}"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
