"""What the chart makes of its values: rendered by the real helm, applied to nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaware_cluster import parse_quantity
from kvaware_extender import ExtenderSettings, load_settings
from kvaware_operator.settings import load_settings as load_operator_settings
from kvaware_testing.chart import Helm, HelmFailedError, Manifests
from kvaware_testing.controlplane import Binaries
from kvaware_testing.controlplane.scheduler import EXAMPLE_CONFIG
from kvaware_testing.repository import REPOSITORY

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.fixture(scope="module")
def helm(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(programs["helm"], tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> Manifests:
    """The defaults."""
    return helm.render()


def scheduler_image(manifests: Manifests) -> str:
    image: str = manifests.container("kvaware-scheduler", "kube-scheduler")["image"]
    return image


def pods_of(manifests: Manifests) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod spec that the chart makes, by name."""
    for deployment in manifests.of("Deployment"):
        yield deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
    for pod in manifests.of("Pod"):
        yield pod["metadata"]["name"], pod["spec"]


# -- the scheduler's image ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        pytest.param("v1.37.2", "v1.37.2", id="upstream"),
        pytest.param("v1.37.2-eks-1a2b3c", "v1.37.2", id="EKS"),
        pytest.param("v1.37.2+k3s1", "v1.37.2", id="k3s"),
        pytest.param("v1.37.2-gke.100", "v1.37.2", id="GKE"),
        pytest.param("v1.37.2+rke2r1", "v1.37.2", id="RKE2"),
        pytest.param("v1.38.0-rc.1", "v1.38.0-rc.1", id="a release candidate is an image"),
        pytest.param("v1.38.0-alpha.2.17+0a1b2c3d", "v1.38.0-alpha.2", id="a build after an alpha"),
        pytest.param("v1.30.0", "v1.30.0", id="the oldest"),
    ],
)
def test_the_schedulers_image_is_the_upstream_release_of_the_clusters_version(
    helm: Helm, version: str, tag: str
) -> None:
    """SwissDataScienceCenter/amalthea#699, pingcap/tidb-operator#1243: no image has the vendor's suffix."""
    assert scheduler_image(helm.render(kube_version=version)) == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        pytest.param({"tag": "v1.36.3"}, "registry.k8s.io/kube-scheduler:v1.36.3", id="tag"),
        pytest.param({"digest": DIGEST, "tag": "x"}, f"registry.k8s.io/kube-scheduler@{DIGEST}", id="digest"),
        pytest.param({"repository": "mirror.example:5000/k/s"}, "mirror.example:5000/k/s:v1.37.2", id="repository"),
    ],
)
def test_the_schedulers_image_can_be_overridden(helm: Helm, image: dict[str, str], reference: str) -> None:
    manifests = helm.render({"scheduler": {"image": image}}, kube_version="v1.37.2-eks-1a2b3c")
    assert scheduler_image(manifests) == reference


def test_a_version_that_cannot_be_read_fails_with_what_to_set(helm: Helm) -> None:
    """Helm takes v1.37 for a version; no image is called so."""
    with pytest.raises(HelmFailedError, match=r'version is "v1.37"; expected vX\.Y\.Z.*Set scheduler\.image\.tag'):
        helm.render(kube_version="v1.37")
    manifests = helm.render({"scheduler": {"image": {"tag": "v1.37.2"}}}, kube_version="v1.37")
    assert scheduler_image(manifests) == "registry.k8s.io/kube-scheduler:v1.37.2"


def test_a_cluster_that_is_too_old_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmFailedError, match=r">=1\.30\.0-0 which is incompatible with Kubernetes v1\.29\.9"):
        helm.render(kube_version="v1.29.9")


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"image": {"repository": ""}}, "image.repository is not set. No image", id="no image"),
        pytest.param({"image": {"repository": "a/b:v1"}}, "expected registry and path alone", id="tag in repository"),
        pytest.param({"scheduler": {"replicas": 2}}, "scheduler.replicas is 2, and 1 is the most", id="two replicas"),
        pytest.param({"scheduler": {"replicas": 0}}, "at '/scheduler/replicas': minimum", id="no replica"),
        pytest.param({"extender": {"config": {"apiPort": 1}}}, "set extender.apiPort", id="port in config"),
        pytest.param({"extender": {"config": {"schedulerHost": "0.0.0.0"}}}, "loopback", id="verbs for everybody"),
        pytest.param(
            {"extender": {"config": {"engine": {"schedulerName": "x"}}}}, "set schedulerName", id="two scheduler names"
        ),
        pytest.param({"extender": {"schedulerPort": 8900}}, "are both 8900", id="two listeners on a port"),
        pytest.param({"operator": {"config": {"port": 1}}}, "set operator.port", id="the operator's port in config"),
        pytest.param(
            {"operator": {"config": {"extenderUrl": "http://x"}}}, "operator.config.extenderUrl", id="another extender"
        ),
        pytest.param(
            {"operator": {"config": {"lease": {"enabled": False}}}}, "operator.config.lease.enabled", id="two that act"
        ),
        pytest.param(
            {"operator": {"config": {"lease": {"name": "x"}}}}, "operator.config.lease.name", id="a Lease without right"
        ),
        pytest.param({"image": {"tagg": "1"}}, "at '/image': additional properties 'tagg' not allowed", id="typo"),
        pytest.param({"schedular": {}}, "additional properties 'schedular' not allowed", id="typo at the top"),
        pytest.param({"extender": {"apiPort": 99999}}, "at '/extender/apiPort': maximum", id="port out of range"),
        pytest.param({"extender": {"apiPort": "8900"}}, "at '/extender/apiPort': got string", id="port as text"),
        pytest.param(
            {"extender": {"extraVolumes": [{"name": "config"}]}},
            "at '/extender/extraVolumes/0/name'",
            id="a volume that is the chart's",
        ),
        pytest.param(
            {"operator": {"extraVolumes": [{"secret": {}}]}},
            "at '/operator/extraVolumes/0': missing property 'name'",
            id="a volume without a name",
        ),
        pytest.param(
            {"operator": {"extraVolumeMounts": [{"name": "x", "mountPath": "/etc/kvaware/more"}]}},
            "at '/operator/extraVolumeMounts/0/mountPath'",
            id="a mount inside the chart's",
        ),
        pytest.param(
            {
                "operator": {"extraVolumes": [{"name": "x", "emptyDir": {}}]},
                "extender": {"extraVolumeMounts": [{"name": "x", "mountPath": "/x"}]},
            },
            "extender.extraVolumeMounts: x is none of extender.extraVolumes",
            id="a mount of another pod's volume",
        ),
        pytest.param(
            {
                "extender": {
                    "config": {"gateway": {"tokenFile": "/x"}},
                    "gatewayTokens": {"secretName": "tokens", "key": "tokens"},
                }
            },
            "extender.config.gateway.tokenFile: set either it or extender.gatewayTokens.secretName",
            id="two files of gateways' tokens",
        ),
        pytest.param(
            {"extender": {"gatewayTokens": {"secretName": "tokens", "key": "../x"}}},
            "at '/extender/gatewayTokens/key'",
            id="a key that leads elsewhere",
        ),
        pytest.param(
            {"extender": {"extraVolumes": [{"name": "gateway-tokens"}]}},
            "at '/extender/extraVolumes/0/name'",
            id="the volume of gateways' tokens",
        ),
        pytest.param({"extender": {"config": []}}, "at '/extender/config': got array", id="config is a list"),
        pytest.param({"image": {"digest": "abc"}}, "at '/image/digest'", id="not a digest"),
        pytest.param({"scheduler": {"httpTimeout": 5}}, "at '/scheduler/httpTimeout'", id="duration without unit"),
        pytest.param({"schedulerName": "Kvaware Scheduler"}, "at '/schedulerName'", id="no scheduler's name"),
    ],
)
def test_what_cannot_work_is_refused_with_the_value_that_is_wrong(
    helm: Helm, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(HelmFailedError) as refused:
        helm.render(values)
    assert message in str(refused.value)


# -- what the processes are told ------------------------------------------------------------------------------------


def test_the_schedulers_profile_is_the_one_of_the_examples(rendered: Manifests) -> None:
    """What is shown to users who install by hand is what the chart installs, the preemption verb beside it."""
    example = yaml.safe_load(EXAMPLE_CONFIG.read_text("utf-8"))
    config = rendered.file("kvaware-scheduler", "scheduler.yaml")
    assert config["profiles"] == example["profiles"]
    assert config["leaderElection"] == example["leaderElection"]
    assert config["extenders"] == [{**example["extenders"][0], "preemptVerb": "preempt"}]


def test_the_extender_reads_what_the_chart_gives_it(helm: Helm, tmp_path: Path) -> None:
    """Figures above a million, too: templates are known to turn them into 3.3e+07."""
    values = {"schedulerName": "gpu", "extender": {"config": {"maxBodyBytes": 33554433, "engine": {"intentTtlS": 5}}}}
    manifests = helm.render(values)
    path = tmp_path / "extender.yaml"
    path.write_text(manifests.one("ConfigMap", "kvaware-scheduler")["data"]["extender.yaml"])
    settings = load_settings(path, {})
    assert settings.max_body_bytes == 33554433
    assert settings.engine.intent_ttl_s == 5
    assert settings.engine.scheduler_name == "gpu"
    assert manifests.file("kvaware-scheduler", "scheduler.yaml")["profiles"][0]["schedulerName"] == "gpu"


def test_the_operator_reads_what_the_chart_gives_it(helm: Helm, tmp_path: Path) -> None:
    manifests = helm.render({"operator": {"config": {"pollS": 5, "queue": {"workers": 3}}}})
    path = tmp_path / "operator.yaml"
    path.write_text(manifests.one("ConfigMap", "kvaware-operator")["data"]["operator.yaml"])
    settings = load_operator_settings(path, {})
    assert (settings.poll_s, settings.queue.workers) == (5, 3)


def test_files_of_ones_own_reach_the_process_that_reads_them(helm: Helm, tmp_path: Path) -> None:
    """The example of the page: a token for heartbeats from a Secret, hardware profiles from a ConfigMap."""
    section = (REPOSITORY / "docs" / "install.md").read_text("utf-8").partition("### Files of your own")[2]
    values = yaml.safe_load(section.partition("```yaml")[2].partition("```")[0])
    token = {"name": "heartbeat", "secret": {"secretName": "kvaware-heartbeat"}}
    profiles = {"name": "profiles", "configMap": {"name": "our-gpus"}}
    token_mount = {"name": "heartbeat", "mountPath": "/etc/heartbeat", "readOnly": True}
    profiles_mount = {"name": "profiles", "mountPath": "/etc/profiles", "readOnly": True}
    manifests = helm.render(values)
    pods = dict(pods_of(manifests))
    assert pods["kvaware-scheduler"]["volumes"][1:] == [token, profiles]
    assert pods["kvaware-operator"]["volumes"][1:] == [profiles]
    own = {"name": "config", "mountPath": "/etc/kvaware", "readOnly": True}
    assert manifests.container("kvaware-scheduler", "extender")["volumeMounts"] == [own, token_mount, profiles_mount]
    assert manifests.container("kvaware-operator", "operator")["volumeMounts"] == [own, profiles_mount]
    # and not the scheduler, which has no use for them
    assert manifests.container("kvaware-scheduler", "kube-scheduler")["volumeMounts"] == [own]
    path = tmp_path / "extender.yaml"
    path.write_text(manifests.one("ConfigMap", "kvaware-scheduler")["data"]["extender.yaml"])
    settings = load_settings(path, {})
    assert settings.heartbeat.token_file == "/etc/heartbeat/token"
    assert settings.hardware_profiles == "/etc/profiles/profiles.yaml"


def extender_settings(manifests: Manifests, tmp_path: Path) -> ExtenderSettings:
    """What the extender makes of the chart's file."""
    path = tmp_path / "extender.yaml"
    path.write_text(manifests.one("ConfigMap", "kvaware-scheduler")["data"]["extender.yaml"])
    return load_settings(path, {})


def test_gateways_tokens_are_mounted_from_a_secret_that_exists(helm: Helm, tmp_path: Path) -> None:
    """The example of the page; whoever has such a token may say whose a request is."""
    page = (REPOSITORY / "docs" / "install.md").read_text("utf-8")
    values = yaml.safe_load(page.partition("kubectl create secret generic kvaware-gateways")[2].split("```")[2][4:])
    values["extender"]["config"] = {"gateway": {"defaultTenant": "web"}}
    manifests = helm.render(values)
    volume = {"secretName": "kvaware-gateways", "items": [{"key": "tokens", "path": "tokens"}]}
    mount = {"name": "gateway-tokens", "mountPath": "/etc/kvaware-gateway", "readOnly": True}
    assert {"name": "gateway-tokens", "secret": volume} in dict(pods_of(manifests))["kvaware-scheduler"]["volumes"]
    assert mount in manifests.container("kvaware-scheduler", "extender")["volumeMounts"]
    assert mount not in manifests.container("kvaware-scheduler", "kube-scheduler")["volumeMounts"]
    gateway = extender_settings(manifests, tmp_path).gateway
    assert (gateway.token_file, gateway.default_tenant) == ("/etc/kvaware-gateway/tokens", "web")
    # and nothing of it is there by itself
    assert not manifests.of("Secret")


def test_without_a_secret_no_gateway_has_a_token(rendered: Manifests, tmp_path: Path) -> None:
    assert extender_settings(rendered, tmp_path).gateway.token_file == ""
    assert [each["name"] for each in dict(pods_of(rendered))["kvaware-scheduler"]["volumes"]] == ["config"]


def test_settings_of_requests_pass_through_and_the_block_index_fits_the_containers_memory(
    helm: Helm, rendered: Manifests, tmp_path: Path
) -> None:
    """The process's own bound is 4 GiB: the kernel would end it long before."""
    limit = parse_quantity(rendered.container("kvaware-scheduler", "extender")["resources"]["limits"]["memory"])
    assert extender_settings(rendered, tmp_path).requests.index.max_bytes <= limit / 4
    values = {"extender": {"config": {"requests": {"ledger": {"ttlS": 60}, "index": {"maxBytes": 8_589_934_592}}}}}
    requests = extender_settings(helm.render(values), tmp_path).requests
    assert (requests.ledger.ttl_s, requests.index.max_bytes) == (60, 8 * 2**30)


def test_ports_follow_everywhere(helm: Helm) -> None:
    """Probes, Services, network policies and kube-scheduler's configuration."""
    values = {"extender": {"apiPort": 9100, "schedulerPort": 9101}, "operator": {"port": 9102}}
    manifests = helm.render({**values, "serviceMonitor": {"enabled": True}})
    extender = manifests.container("kvaware-scheduler", "extender")
    assert {"--api-port=9100", "--scheduler-port=9101"} <= set(extender["args"])
    assert {extender[probe]["httpGet"]["port"] for probe in extender if probe.endswith("Probe")} == {9100}
    (called,) = manifests.file("kvaware-scheduler", "scheduler.yaml")["extenders"]
    assert called["urlPrefix"] == "http://127.0.0.1:9101/scheduler"
    assert manifests.one("Service", "kvaware-extender")["spec"]["ports"][0]["targetPort"] == 9100
    operator = manifests.container("kvaware-operator", "operator")
    assert "--port=9102" in operator["args"]
    assert "--extender-url=http://kvaware-extender.kvaware-system.svc:9100" in operator["args"]
    open_ports = {
        policy["metadata"]["name"]: {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}
        for policy in manifests.of("NetworkPolicy")
    }
    assert open_ports == {"kvaware-scheduler": {9100, 10259}, "kvaware-operator": {9102}}


def test_the_verbs_that_place_pods_stay_on_loopback(rendered: Manifests) -> None:
    """Whoever reaches bind can place pods: no Service, no policy and no other address leads there."""
    assert "--scheduler-host=127.0.0.1" in rendered.container("kvaware-scheduler", "extender")["args"]
    assert not [
        service for service in rendered.of("Service") for port in service["spec"]["ports"] if port["targetPort"] == 8901
    ]


def test_a_changed_setting_starts_new_pods(helm: Helm) -> None:
    """The processes read their settings once."""

    def annotations(values: dict[str, Any]) -> list[str]:
        manifests = helm.render(values)
        return [
            one["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for one in manifests.of("Deployment")
        ]

    before = annotations({})
    after = annotations({"extender": {"config": {"staleView": "admit"}}, "operator": {"config": {"pollS": 5}}})
    assert not set(before) & set(after)
    assert annotations({"podDisruptionBudget": {"enabled": False}}) == before


# -- pods -----------------------------------------------------------------------------------------------------------


def test_every_pod_runs_with_as_little_as_possible(rendered: Manifests) -> None:
    pods = dict(pods_of(rendered))
    assert set(pods) == {"kvaware-scheduler", "kvaware-operator", "kvaware-test-explain"}
    for name, pod in pods.items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["requests"], name


def test_services_beside_the_pods_cannot_set_their_variables(rendered: Manifests) -> None:
    """For a Service kvaware-extender the kubelet sets KVAWARE_EXTENDER_PORT=tcp://…; KVAWARE_… are settings here."""
    assert all(pod["enableServiceLinks"] is False for _, pod in pods_of(rendered))


def test_the_extender_is_a_native_sidecar_that_is_ready_first(rendered: Manifests) -> None:
    extender = rendered.container("kvaware-scheduler", "extender")
    pod = rendered.one("Deployment", "kvaware-scheduler")["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["initContainers"]] == ["extender"]
    assert extender["restartPolicy"] == "Always"
    assert extender["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert extender["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_never_do_two_schedulers_of_the_chart_run_at_once(rendered: Manifests) -> None:
    """Reservations are in memory: an update ends the old one first."""
    assert rendered.one("Deployment", "kvaware-scheduler")["spec"]["strategy"] == {"type": "Recreate"}


def test_wishes_about_pods_reach_every_pod(helm: Helm) -> None:
    wishes = {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "imagePullSecrets": [{"name": "mine"}],
    }
    for name, pod in pods_of(helm.render(wishes)):
        assert {key: pod[key] for key in wishes} == wishes, name


# -- switches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        pytest.param({"operator": {"enabled": False}}, {"kvaware-operator"}, id="operator"),
        pytest.param({"networkPolicy": {"enabled": False}}, {"NetworkPolicy"}, id="network policy"),
        pytest.param({"podDisruptionBudget": {"enabled": False}}, {"PodDisruptionBudget"}, id="disruption budget"),
        pytest.param({"admissionPolicies": {"reservation": False}}, {"kvaware-reservation"}, id="reservation"),
        pytest.param({"admissionPolicies": {"schedulerName": False}}, {"kvaware-scheduler-name"}, id="warning"),
    ],
)
def test_parts_can_be_left_out(helm: Helm, rendered: Manifests, values: dict[str, Any], gone: set[str]) -> None:
    """All of a part and nothing of another."""

    def named(manifests: Manifests) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in manifests}

    left_out = named(rendered) - named(helm.render(values))
    assert left_out
    assert all(any(kind == part or name.startswith(part) for part in gone) for kind, name in left_out)
    assert not [one for one in named(helm.render(values)) for part in gone if one[0] == part or one[1].startswith(part)]


def test_disruption_budgets_let_a_drain_pass(rendered: Manifests) -> None:
    """With minAvailable 1 a single replica would hold up every drain of its node."""
    budgets = {one["metadata"]["name"]: one["spec"] for one in rendered.of("PodDisruptionBudget")}
    assert set(budgets) == {"kvaware-scheduler", "kvaware-operator"}
    assert all(budget["maxUnavailable"] == 1 for budget in budgets.values())


def test_selectors_meet_exactly_their_own_pods(helm: Helm) -> None:
    """Services, budgets, network policies and monitors: the label of an operator's pod is not the scheduler's."""
    manifests = helm.render({"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in manifests.of("Deployment")
    }
    selectors = [
        *(one["spec"]["selector"] for one in manifests.of("Service")),
        *(one["spec"]["selector"]["matchLabels"] for one in manifests.of("PodDisruptionBudget")),
        *(one["spec"]["podSelector"]["matchLabels"] for one in manifests.of("NetworkPolicy")),
    ]
    met = [[name for name, has in labels.items() if selector.items() <= has.items()] for selector in selectors]
    assert sorted(met) == [["kvaware-operator"]] * 3 + [["kvaware-scheduler"]] * 3
    for monitor in manifests.of("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [one for one in manifests.of("Service") if selector.items() <= one["metadata"]["labels"].items()]
        assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_policy_trusts_the_account_of_the_release(helm: Helm) -> None:
    manifests = helm.render(namespace="elsewhere")
    (condition,) = manifests.one("ValidatingAdmissionPolicy", "kvaware-reservation")["spec"]["matchConditions"]
    assert "'system:serviceaccount:elsewhere:kvaware-scheduler'" in condition["expression"]
    bound = {
        (subject["namespace"], subject["name"])
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in manifests.of(kind)
        for subject in binding["subjects"]
    }
    assert bound == {("elsewhere", "kvaware-scheduler"), ("elsewhere", "kvaware-operator")}


def test_nobody_may_everything(rendered: Manifests) -> None:
    """No wildcard, no secrets, no rights to give rights."""
    rules = [rule for kind in ("Role", "ClusterRole") for role in rendered.of(kind) for rule in role.get("rules", ())]
    assert rules
    for rule in rules:
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}, rule
        assert not {"secrets", "configmaps", "roles", "clusterroles", "pods/exec"} & set(rule["resources"]), rule
        assert not {"escalate", "bind", "impersonate", "deletecollection", "delete"} & set(rule["verbs"]), rule
