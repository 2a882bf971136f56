"""The chart's accounts: what they may not do, and that the real processes need nothing else than what they may."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvaware_testing.chart import NAMESPACE, Helm, Manifests
from kvaware_testing.chart_plane import EXTENDER, OPERATOR, TEAM, chart_plane, install
from kvaware_testing.chart_processes import ChartProcesses, Right, rights_of, rights_used
from kvaware_testing.controlplane import Binaries, ControlPlane, eventually
from kvaware_testing.controlplane.operator_world import EXTENDER_CONFIG, OPERATOR_CONFIG
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.scaled_model import ScaledModel
from kvaware_testing.controlplane.workers_under_kwok import ModelServer, Worker, model_server, pod_token


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, programs: Binaries) -> Iterator[ControlPlane]:
    with chart_plane(tmp_path_factory.mktemp("chart-plane"), programs) as running:
        helm = Helm(programs["helm"], tmp_path_factory.mktemp("helm"), kubeconfig=running.admin_kubeconfig)
        install(helm)
        yield running


@pytest.fixture(scope="module")
def manifests(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """With seconds where users have tens of them."""
    operator = {key: value for key, value in OPERATOR_CONFIG.items() if key != "lease"}
    values = {"extender": {"config": dict(EXTENDER_CONFIG)}, "operator": {"config": operator}}
    return Helm(programs["helm"], tmp_path_factory.mktemp("helm")).render(values)


def may(plane: ControlPlane, account: str, right: str, *, namespace: str = TEAM) -> bool:
    """Whether an account may, as the API server says: ``update leaderworkersets/scale in leaderworkerset.x-k8s.io``.

    A name follows the resource after a colon, and core's group is left out.
    """
    what, _, group = right.partition(" in ")
    verb, _, resource = what.partition(" ")
    resource, _, name = resource.partition(":")
    resource, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": {**attributes, "name": name, "namespace": namespace}},
    }
    answer = plane.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(review))
    allowed: bool = json.loads(answer.stdout)["status"]["allowed"]
    return allowed


@pytest.mark.parametrize(
    ("account", "right"),
    [
        (EXTENDER, "patch pods"),
        (EXTENDER, "create pods"),
        (EXTENDER, "get secrets"),
        (EXTENDER, "patch nodes"),
        (EXTENDER, "patch inferencemodels/status in kvaware.io"),
        (EXTENDER, "update deployments/scale in apps"),
        (EXTENDER, "update leases:kvaware-operator in coordination.k8s.io"),
        (OPERATOR, "create pods/binding"),
        (OPERATOR, "patch pods/status"),
        (OPERATOR, "create pods"),
        (OPERATOR, "delete pods"),
        (OPERATOR, "get secrets"),
        (OPERATOR, "list nodes"),
        (OPERATOR, "patch deployments in apps"),
        (OPERATOR, "delete deployments in apps"),
        (OPERATOR, "update inferencemodels in kvaware.io"),
        (OPERATOR, "delete tenantquotas in kvaware.io"),
        (OPERATOR, "delete customresourcedefinitions in apiextensions.k8s.io"),
        (OPERATOR, "update horizontalpodautoscalers in autoscaling"),
        (OPERATOR, "update leases:kvaware-scheduler in coordination.k8s.io"),
    ],
)
def test_an_account_may_not(plane: ControlPlane, account: str, right: str) -> None:
    """Not even in the chart's own namespace."""
    assert not may(plane, account, right, namespace=NAMESPACE)


def test_each_process_holds_its_own_lease(plane: ControlPlane) -> None:
    """By its name, and in the namespace of the release only."""
    for account, lease in ((EXTENDER, "kvaware-scheduler"), (OPERATOR, "kvaware-operator")):
        assert may(plane, account, f"update leases:{lease} in coordination.k8s.io", namespace=NAMESPACE)
        assert not may(plane, account, f"update leases:{lease} in coordination.k8s.io", namespace=TEAM)
    # (a kube-scheduler's own role may create Leases everywhere)
    assert not may(plane, OPERATOR, "create leases in coordination.k8s.io", namespace=TEAM)


def test_scale_of_another_kind_is_given_by_a_labelled_role(plane: ControlPlane) -> None:
    """A scaleTargetRef may name anything with a scale subresource."""
    right = "update widgets/scale in example.com"
    assert not may(plane, OPERATOR, right)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "widgets", "labels": {"kvaware.io/aggregate-to-operator": "true"}},
        "rules": [
            {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["list", "watch"]},
            {"apiGroups": ["example.com"], "resources": ["widgets/scale"], "verbs": ["get", "update"]},
        ],
    }
    plane.apply(role)
    try:
        eventually(lambda: may(plane, OPERATOR, right), 20, "the cluster has filled the aggregated role")
    finally:
        plane.kubectl("delete", "clusterrole", "widgets")


def test_every_process_does_its_work_with_the_rights_that_the_chart_gives_it(
    plane: ControlPlane, manifests: Manifests, tmp_path: Path
) -> None:
    """From a first bind to scaling up and down: nothing is refused, and hardly a right is there for nothing."""
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(plane, "chart-rights"))
        server = stack.enter_context(model_server())
        running = stack.enter_context(ChartProcesses(plane, manifests, tmp_path))
        # when
        sandbox.add_nodes("a", gpus=4)
        model = scale_up_and_down(sandbox, server)
        be_refused_and_woken(sandbox, free=model)
        (pod,) = model.pods()
        beat = Worker(running.extender, pod, model=model.name, token=pod_token(plane, pod)).heartbeat()
        answers = running.scheduler_answers(token_of_prometheus(plane))
        explained = run_helm_test(manifests, running, tmp_path)
        leases = plane.get_json("leases", "-n", NAMESPACE)["items"]
        # then
        assert beat.status == 202, beat
        assert answers["200"], answers
        assert not {"401", "403"} & set(answers), answers
        assert "kvaware-test" in explained
        assert {one["metadata"]["name"] for one in leases if one["spec"]["holderIdentity"]} == {
            "kvaware-scheduler",
            "kvaware-operator",
        }
        for process in running.proxies:
            calls = running.calls(process)
            assert calls, process
            refused = {(call.method, call.path) for call in calls if call.status in {401, 403}}
            assert not refused, process
        used = rights_used(running.calls("extender"))
        assert rights_in(manifests, "kvaware-extender") - used == {
            Right("get", "", "pods")  # only after a binding whose answer was lost
        }
        used = rights_used(running.calls("operator"))
        for role in ("kvaware-operator", "kvaware-operator-workloads"):
            unused = {right for right in rights_in(manifests, role) - used if not another_workload(right)}
            assert not unused, role


def rights_in(manifests: Manifests, role: str) -> set[Right]:
    return rights_of(manifests.one("ClusterRole", role)["rules"])


def another_workload(right: Right) -> bool:
    """Of kinds that the test does not scale; status of kinds that it has none of."""
    kind = right.resource.partition("/")[0]
    return kind in {"statefulsets", "replicasets", "leaderworkersets"} or right.resource == "kvcacheblockgroups/status"


def scale_up_and_down(sandbox: Sandbox, server: ModelServer) -> ScaledModel:
    """Three replicas for a queue, one without; its deletion costs come and go."""
    model = ScaledModel(sandbox, "llama", server=server)
    model.start(most=3)
    server.say(running=1, waiting=40)
    model.wait_ready(3)
    server.say()
    model.wait_ready(1)
    eventually(lambda: model.condition("Ready") == "True", 30, "the status tells")
    return model


def be_refused_and_woken(sandbox: Sandbox, *, free: ScaledModel) -> None:
    """A quota holds a pod until it is raised; its condition is a write to pods/status."""
    sandbox.control_plane.apply(sandbox.quota("team", gpus=1))
    sandbox.control_plane.create(sandbox.pod("late"))
    sandbox.wait_refused("late", "the tenant's GPU limit")
    quota = sandbox.full_name("team")
    told = "the operator writes the quota's status"
    eventually(lambda: sandbox.control_plane.get_json("tenantquota", quota).get("status"), 30, told)
    sandbox.control_plane.apply(sandbox.quota("team", gpus=4))
    sandbox.wait_bound("late")
    assert free.ready() == 1


def token_of_prometheus(plane: ControlPlane) -> str:
    """Of an account that may read metrics: kube-scheduler asks the API server who it is and whether it may."""
    plane.kubectl("create", "serviceaccount", "prometheus", "-n", TEAM)
    plane.kubectl("create", "clusterrole", "metrics", "--verb=get", "--non-resource-url=/metrics")
    binding = "clusterrolebinding", "metrics", "--clusterrole=metrics", f"--serviceaccount={TEAM}:prometheus"
    plane.kubectl("create", *binding)
    return plane.kubectl("create", "token", "prometheus", "-n", TEAM).stdout.strip()


def run_helm_test(manifests: Manifests, running: ChartProcesses, folder: Path) -> str:
    """The command of the test pod, with its file, against this extender."""
    (container,) = manifests.one("Pod", "kvaware-test-explain")["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    config_map = manifests.one("ConfigMap", "kvaware-test-explain")
    for name, text in config_map["data"].items():
        (folder / name).write_text(text, "utf-8")
    service = f"http://kvaware-extender.{NAMESPACE}.svc:8900"
    arguments = [
        argument.replace(mount["mountPath"], str(folder)).replace(service, running.extender.api_url)
        for argument in container["args"]
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvaware_cli", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert not done.returncode, done.stderr
    return done.stdout
