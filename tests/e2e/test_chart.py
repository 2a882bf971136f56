"""The chart on a real API server: helm installs, upgrades and uninstalls it; its policies."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import CompletedProcess
from typing import Any

import pytest

from kvaware_testing.chart import CHART, IMAGE, NAMESPACE, Helm, HelmFailedError
from kvaware_testing.chart_plane import EXTENDER, TEAM, chart_plane, install
from kvaware_testing.controlplane import Binaries, ControlPlane, eventually
from kvaware_testing.repository import REPOSITORY

RESERVATION = "kvaware.io/reservation"
REFUSED = "the annotation kvaware.io/reservation is written by kvaware alone, when it binds a pod"
USER = "somebody"
"""May do everything with pods, as many do."""
PODS = "pods,pods/status,pods/binding,bindings,pods/ephemeralcontainers,pods/resize,deployments.apps,jobs.batch"
CRDS = "inferencemodels.kvaware.io", "kvcacheblockgroups.kvaware.io", "tenantquotas.kvaware.io"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, programs: Binaries) -> Iterator[ControlPlane]:
    with chart_plane(tmp_path_factory.mktemp("chart-plane"), programs) as running:
        running.kubectl("create", "clusterrole", USER, "--verb=*", f"--resource={PODS}")
        running.kubectl("create", "clusterrolebinding", USER, f"--clusterrole={USER}", f"--user={USER}")
        yield running


@pytest.fixture(scope="module")
def helm(plane: ControlPlane, programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(programs["helm"], tmp_path_factory.mktemp("helm"), kubeconfig=plane.admin_kubeconfig)


def uninstall(helm: Helm) -> None:
    helm("uninstall", "kvaware", f"--namespace={NAMESPACE}", "--wait", "--timeout=60s")


@pytest.fixture(scope="module")
def notes(helm: Helm) -> str:
    """The chart, installed; what helm printed."""
    return install(helm)


@pytest.fixture
def waiting(plane: ControlPlane) -> Iterator[None]:
    """A pod of the namespace team that nobody schedules."""
    plane.create(pod_named("waiting"))
    yield
    plane.kubectl("delete", "pod", "waiting", "-n", TEAM, "--grace-period=0", "--force")


def pod_named(name: str, *, scheduler: str = "nobody", model: str | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {} if model is None else {"kvaware.io/model": model}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM, "labels": labels, **metadata},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "server", "image": "registry.invalid/server:1"}]},
    }


def deployment_named(name: str, **options: Any) -> dict[str, Any]:
    """Its pods are those of ``pod_named``."""
    pod = pod_named(name, **options)
    template = {
        "metadata": {**pod["metadata"], "labels": {**pod["metadata"]["labels"], "app": name}},
        "spec": pod["spec"],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def create(plane: ControlPlane, manifest: dict[str, Any], *more: str) -> CompletedProcess[str]:
    return plane.kubectl("create", "-f", "-", *more, input=json.dumps(manifest), check=False)


def reservation_of(plane: ControlPlane, pod: str) -> str | None:
    annotations = plane.get_json("pod", pod, "-n", TEAM)["metadata"].get("annotations", {})
    found: str | None = annotations.get(RESERVATION)
    return found


# -- helm -----------------------------------------------------------------------------------------------------------


def test_what_helm_installs_becomes_ready(plane: ControlPlane, notes: str) -> None:
    """In a namespace that enforces the restricted Pod Security Standard, with the CRDs; the notes say what is next."""
    deployments = plane.get_json("deployments", "-n", NAMESPACE)["items"]
    ready = {one["metadata"]["name"]: one["status"].get("readyReplicas") for one in deployments}
    assert ready == {"kvaware-scheduler": 1, "kvaware-operator": 1}
    for crd in CRDS:
        plane.kubectl("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=10s")
    assert "helm test kvaware --namespace kvaware-system" in notes
    assert "kube-scheduler runs as registry.k8s.io/kube-scheduler:v1.37.2" in notes


def test_the_documentation_shows_what_helm_prints(notes: str) -> None:
    """But for the time. Out of step: copy what it prints now."""
    text = (REPOSITORY / "docs" / "install.md").read_text("utf-8")
    [shown] = re.findall(r"<!-- printed by helm;.*?-->\n```console\n\$ helm .*?\n(NAME: .*?)```\n", text, re.DOTALL)

    def timeless(printed: str) -> list[str]:
        return [line.rstrip() for line in printed.strip().splitlines() if not line.startswith("LAST DEPLOYED")]

    assert timeless(shown) == timeless(notes)


@pytest.mark.usefixtures("notes")
def test_a_second_release_is_refused(helm: Helm) -> None:
    """Two of them would give the same GPUs away twice."""
    with pytest.raises(HelmFailedError, match="invalid ownership metadata"):
        install(helm, "another")


@pytest.mark.usefixtures("notes")
def test_an_upgrade_starts_new_pods_and_keeps_crds_as_they_are(plane: ControlPlane, helm: Helm) -> None:
    """slauger/openvox-operator#555: helm does not touch CRDs. The command of docs/upgrade.md does."""
    # given: a cluster whose CRD is older
    crd = plane.get_json("crd", "tenantquotas.kvaware.io")
    (version,) = crd["spec"]["versions"]
    version["additionalPrinterColumns"] = []
    plane.kubectl("replace", "-f", "-", input=json.dumps(crd))

    def columns() -> list[Any]:
        read = plane.get_json("crd", "tenantquotas.kvaware.io")
        found: list[Any] = read["spec"]["versions"][0].get("additionalPrinterColumns", [])
        return found

    def template() -> dict[str, Any]:
        found: dict[str, Any] = plane.get_json("deployment", "kvaware-scheduler", "-n", NAMESPACE)["spec"]["template"]
        return found

    before = template()
    # when
    values = {**IMAGE, "extender": {"config": {"staleView": "admit"}}}
    helm("upgrade", "kvaware", CHART, f"--namespace={NAMESPACE}", "--wait", "--timeout=60s", values=values)
    # then
    assert template() != before
    assert not columns()
    # when
    [command] = re.findall(
        r"kubectl (apply .*helm/kvaware/crds)", (REPOSITORY / "docs" / "upgrade.md").read_text("utf-8")
    )
    plane.kubectl(*command.replace("helm/kvaware/crds", str(CHART / "crds")).split())
    # then
    assert columns()
    helm("rollback", "kvaware", "1", f"--namespace={NAMESPACE}", "--wait", "--timeout=60s")
    assert template() == before


@pytest.mark.usefixtures("notes")
def test_uninstalling_leaves_crds_objects_and_bound_pods(plane: ControlPlane, helm: Helm) -> None:
    """What docs/upgrade.md promises; and the same release can be installed again over what was left."""
    quota = {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "TenantQuota",
        "metadata": {"name": "kept"},
        "spec": {"tenant": "kept", "namespaces": ["kept"]},
    }
    with uninstalled(helm):
        assert not plane.get_json("deployments", "-n", NAMESPACE)["items"]
        assert not plane.get_json("validatingadmissionpolicies")["items"]
        assert (
            "kvaware"
            not in plane.kubectl("get", "clusterroles,clusterrolebindings,rolebindings", "-A", "-o", "name").stdout
        )
        plane.apply(quota)
    assert plane.get_json("tenantquota", "kept")["spec"]["tenant"] == "kept"
    plane.kubectl("delete", "tenantquota", "kept")


@pytest.mark.usefixtures("notes")
def test_what_helm_renders_can_be_applied_without_helm(plane: ControlPlane, helm: Helm) -> None:
    """GitOps tools render and apply. CRDs only when they ask for them, as helm has it."""
    arguments = ["template", "kvaware", CHART, f"--namespace={NAMESPACE}", "--include-crds", "--no-hooks"]
    arguments += ["--kube-version=v1.37.2"]
    text = helm(*arguments, values={**IMAGE, "serviceMonitor": {"enabled": False}})
    hooks = helm.render(kube_version="v1.37.2").of("Pod")
    with uninstalled(helm):
        try:
            plane.apply_text(text)
            plane.kubectl("rollout", "status", "deployment/kvaware-scheduler", "-n", NAMESPACE, "--timeout=60s")
            plane.kubectl("rollout", "status", "deployment/kvaware-operator", "-n", NAMESPACE, "--timeout=60s")
            assert len(hooks) == 1
            plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(hooks[0]))
        finally:
            rest = "\n---\n".join(
                part for part in text.split("\n---\n") if "kind: CustomResourceDefinition" not in part
            )
            plane.kubectl("delete", "--ignore-not-found", "--wait", "-f", "-", input=rest)


@contextmanager
def uninstalled(helm: Helm) -> Iterator[None]:
    """Without the release; it is there again afterwards."""
    uninstall(helm)
    try:
        yield
    finally:
        install(helm)


# -- the reservation ------------------------------------------------------------------------------------------------

ANNOTATED = {"annotations": {RESERVATION: "{}"}}


@pytest.fixture
def guarded(plane: ControlPlane, notes: str) -> None:
    """The policies are in force: the API server takes them up a moment after they are made."""

    def refuses_and_warns() -> bool:
        done = create(plane, pod_named("trial", model="m", **ANNOTATED), "--dry-run=server")
        warned = create(plane, pod_named("trial", model="m"), "--dry-run=server")
        return REFUSED in done.stderr and "Warning" in warned.stderr

    eventually(refuses_and_warns, 20, "the admission policies are in force")


class Hand:
    """Somebody at kubectl."""

    def __init__(self, plane: ControlPlane, user: str | None) -> None:
        self._plane = plane
        self._as = () if user is None else (f"--as={user}",)

    def kubectl(self, *arguments: str, body: dict[str, Any] | None = None) -> CompletedProcess[str]:
        text = None if body is None else json.dumps(body)
        return self._plane.kubectl(*arguments, *self._as, input=text, check=False)

    def create_pod(self) -> CompletedProcess[str]:
        return self.kubectl("create", "-f", "-", body=pod_named("tampered", **ANNOTATED))

    def patch(self, *more: str) -> CompletedProcess[str]:
        change = json.dumps({"metadata": ANNOTATED})
        return self.kubectl("patch", "pod", "waiting", "-n", TEAM, "--type=merge", "-p", change, *more)

    def bind(self, path: str = "pods/waiting/binding", **metadata: Any) -> CompletedProcess[str]:
        target = {"kind": "Node", "name": "gpu-1"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting", **metadata}, "target": target}
        return self.kubectl("create", "--raw", f"/api/v1/namespaces/{TEAM}/{path}", "-f", "-", body=body)


WAYS = [
    pytest.param(Hand.create_pod, id="pods, create"),
    pytest.param(Hand.patch, id="pods, update"),
    pytest.param(lambda hand: hand.patch("--subresource=status"), id="pods/status"),
    pytest.param(lambda hand: hand.bind(**ANNOTATED), id="pods/binding"),
    pytest.param(lambda hand: hand.bind("bindings", **ANNOTATED), id="bindings, the older way"),
]


@pytest.mark.usefixtures("guarded", "waiting")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("user", [pytest.param(USER, id="user"), pytest.param(None, id="admin")])
def test_nobody_else_writes_a_reservation(
    plane: ControlPlane, way: Callable[[Hand], CompletedProcess[str]], user: str | None
) -> None:
    """With it a pod could look smaller than it is, and the next one there would run out of HBM."""
    done = way(Hand(plane, user))
    assert done.returncode
    assert REFUSED in done.stderr
    assert reservation_of(plane, "waiting") is None


@pytest.mark.usefixtures("guarded", "waiting")
@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
def test_other_subresources_carry_no_annotations(plane: ControlPlane, subresource: str) -> None:
    """Why the policy does not name them."""
    Hand(plane, USER).patch(f"--subresource={subresource}")
    assert reservation_of(plane, "waiting") is None


@pytest.mark.usefixtures("guarded", "waiting")
def test_the_extender_writes_it_with_the_binding_and_then_it_stays(plane: ControlPlane) -> None:
    """Nobody changes it, nobody takes it away; everything else about the pod stays as free as before."""
    user = Hand(plane, USER)
    assert not Hand(plane, EXTENDER).bind(annotations={RESERVATION: "held"}).returncode
    for change in (f"{RESERVATION}=other", f"{RESERVATION}-"):
        done = user.kubectl("annotate", "pod", "waiting", "-n", TEAM, "--overwrite", change)
        assert REFUSED in done.stderr
    for what in (("annotate", "note=1"), ("label", "note=1")):
        done = user.kubectl(what[0], "pod", "waiting", "-n", TEAM, what[1])
        assert not done.returncode, done.stderr
    status = {"status": {"conditions": [{"type": "example.com/Seen", "status": "True"}]}}
    done = user.kubectl(
        "patch", "pod", "waiting", "-n", TEAM, "--subresource=status", "--type=merge", "-p", json.dumps(status)
    )
    assert not done.returncode, done.stderr
    assert reservation_of(plane, "waiting") == "held"


@pytest.mark.usefixtures("guarded", "waiting")
def test_other_schedulers_bind_as_ever(plane: ControlPlane) -> None:
    assert not Hand(plane, USER).bind(annotations={"note": "1"}).returncode
    assert plane.get_json("pod", "waiting", "-n", TEAM)["spec"]["nodeName"] == "gpu-1"


@pytest.mark.usefixtures("guarded")
def test_a_template_with_a_reservation_ends_at_its_pods(plane: ControlPlane) -> None:
    """A Deployment copied from a running pod: its owner reads in the events what to leave out."""
    deployment = deployment_named("copied", **ANNOTATED)
    assert not Hand(plane, USER).kubectl("create", "-f", "-", body=deployment).returncode
    try:

        def told() -> bool:
            events = plane.get_json("events", "-n", TEAM, "--field-selector=reason=FailedCreate")["items"]
            return any(f"{REFUSED}. Leave it out of pods, pod templates" in event["message"] for event in events)

        eventually(told, 20, "the ReplicaSet's events tell why")
    finally:
        plane.kubectl("delete", "deployment", "copied", "-n", TEAM)


@pytest.mark.usefixtures("guarded")
def test_the_api_server_finds_nothing_wrong_in_the_policies(plane: ControlPlane) -> None:
    """It checks expressions against the types that they will meet; with a mistake in it a policy refuses everything."""

    def checked() -> bool:
        policies = plane.get_json("validatingadmissionpolicies")["items"]
        statuses = {one["metadata"]["name"]: one.get("status", {}) for one in policies}
        assert set(statuses) == {"kvaware-reservation", "kvaware-scheduler-name"}
        assert all("typeChecking" in status for status in statuses.values()), statuses
        return not any(status["typeChecking"].get("expressionWarnings") for status in statuses.values())

    eventually(checked, 20, "type checking is done, without warnings")


# -- the scheduler's name -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("scheduler", "model", "warned"),
    [
        pytest.param("default-scheduler", "m", True, id="a model and the default scheduler"),
        pytest.param("other", "m", True, id="a model and another scheduler"),
        pytest.param("kvaware-scheduler", "m", False, id="a model and ours"),
        pytest.param("default-scheduler", None, False, id="nothing to do with us"),
    ],
)
@pytest.mark.parametrize("kind", ["Pod", "Deployment"])
def test_a_model_with_another_scheduler_is_warned_of(
    plane: ControlPlane, kind: str, scheduler: str, model: str | None, *, warned: bool
) -> None:
    """Easily forgotten, and the pod would be placed without a look at HBM. Whoever applies it sees the warning."""
    make = pod_named if kind == "Pod" else deployment_named
    done = create(plane, make("w", scheduler=scheduler, model=model), "--dry-run=server")
    assert not done.returncode, done.stderr
    warning = f"no effect on where the pod is placed: spec.schedulerName is {scheduler}"
    assert (warning in done.stderr) is warned
