"""``kvaware explain``: a pod's decision in a reader's words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaware_testing.command_line import Kvaware
from kvaware_testing.extender_answers import candidate, explanation, refused
from kvaware_testing.fake_extender import FakeExtender

POD = """
apiVersion: v1
kind: Pod
metadata: {name: llama-0, namespace: ml, labels: {kvaware.io/model: llama}}
spec: {containers: [{name: server, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
WARM = candidate("warm", hbm_free_gib=40, terms={"cache_access": 4000.0, "compute_wait": 3000.0}, weights="node")
EMPTY = candidate("empty", hbm_free_gib=80, terms={"cache_access": 4000.0, "network": 13400.0}, weights="far")


def answer(*candidates: dict[str, Any], **fields: Any) -> tuple[int, Any]:
    return 200, explanation(candidates, **fields)


def test_a_pod_of_the_cluster_is_explained_with_choice_runner_up_and_the_difference(
    kvaware: Kvaware, server: FakeExtender
) -> None:
    """The three things that a reader looks for stand in one place, and the difference is told by its terms."""
    server.answers["GET /v1/pods/ml/llama-0/explanation"] = answer(WARM, EMPTY, refused("full"))
    # when
    result = kvaware("explain", "pod", "ml/llama-0", server=server)
    # then
    assert result.code == 0
    assert "choice     warm (LeastCost)" in result.out
    # 17,400 - 7,000
    assert "runner-up  empty, 10,400 ms dearer (network +13,400, compute_wait -3,000)" in result.out
    assert "refused    1 node, not enough free GPUs: full" in result.out
    assert "Where should it go?" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_a_file_is_a_dry_run_of_each_of_its_pods(kvaware: Kvaware, server: FakeExtender, tmp_path: Path) -> None:
    """Namespace and UID are filled in: the extender gets what the API server would have stored."""
    server.answers["POST /v1/pods:explain"] = answer(WARM)
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    # when
    result = kvaware("explain", "-f", str(file), server=server)
    # then
    assert result.code == 0
    [(route, pod)] = server.asked
    assert route == "POST /v1/pods:explain"
    assert pod["metadata"]["namespace"] == "ml"
    assert pod["metadata"]["uid"]
    assert "runner-up  none: no other node can take it" in result.out


def test_a_workload_stands_for_one_pod_of_its_template(kvaware: Kvaware, server: FakeExtender, tmp_path: Path) -> None:
    """People have Deployments in their files, not pods."""
    server.answers["POST /v1/pods:explain"] = answer(WARM)
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "namespace": "ml"},
        "spec": {"template": {"metadata": {"labels": {"kvaware.io/model": "llama"}}, "spec": {"containers": []}}},
    }
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(deployment))
    # when
    result = kvaware("explain", "-f", str(file), server=server)
    # then
    assert result.code == 0
    pod = server.asked[0][1]
    assert pod["kind"] == "Pod"
    assert pod["metadata"]["labels"] == {"kvaware.io/model": "llama"}
    assert (pod["metadata"]["namespace"], pod["metadata"]["name"]) == ("ml", "chat")


def test_many_refused_nodes_are_grouped_by_reason(kvaware: Kvaware, server: FakeExtender) -> None:
    """Five thousand nodes must not print five thousand lines."""
    many = [refused(f"n{i:04}") for i in range(500)]
    server.answers["GET /v1/pods/ml/llama-0/explanation"] = answer(WARM, *many)
    # when
    result = kvaware("explain", "pod", "ml/llama-0", server=server)
    # then
    assert len(result.out.splitlines()) < 20
    assert "500 nodes, not enough free GPUs: n0000, n0001" in result.out
    assert "and 494 more" in result.out


def test_a_refused_pod_says_why(kvaware: Kvaware, server: FakeExtender) -> None:
    server.answers["GET /v1/pods/ml/llama-0/explanation"] = answer(
        refused("n1", reason="TenantGPULimit", text="kvaware: the tenant's GPU limit is reached")
    )
    # when
    result = kvaware("explain", "pod", "ml/llama-0", server=server)
    # then
    assert result.code == 0
    assert "refused    TenantGPULimit: the tenant's GPU limit is reached" in result.out


@pytest.mark.parametrize(
    ("output", "parse"), [pytest.param("json", json.loads, id="json"), pytest.param("yaml", yaml.safe_load, id="yaml")]
)
def test_machine_formats_carry_the_whole_answer(
    kvaware: Kvaware, server: FakeExtender, output: str, parse: Callable[[str], Any]
) -> None:
    """Fields that the table does not show, or that this version does not know, are not lost."""
    body = explanation([WARM]) | {"a_field_of_tomorrow": [1, 2]}
    server.answers["GET /v1/pods/ml/llama-0/explanation"] = (200, body)
    # when
    result = kvaware("explain", "pod", "ml/llama-0", "-o", output, server=server)
    # then
    assert parse(result.out) == body


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("pod", "ml/llama-0"), id="namespace and name"),
        pytest.param(("pod/llama-0", "-n", "ml"), id="kubectl's slash form"),
        pytest.param(("pod", "llama-0", "--namespace", "ml"), id="namespace option"),
    ],
)
def test_a_pod_can_be_named_as_kubectl_users_do(kvaware: Kvaware, server: FakeExtender, args: tuple[str, ...]) -> None:
    server.answers["GET /v1/pods/ml/llama-0/explanation"] = answer(WARM)
    assert kvaware("explain", *args, server=server).code == 0


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param((), "expected -f FILE, 'pod NAMESPACE/NAME' or 'placement ID', got nothing", id="nothing"),
        pytest.param(("deployment", "x"), "got deployment x", id="another kind"),
        pytest.param(("pod", "a/b/c"), "expected a pod as NAMESPACE/NAME, got 'a/b/c'", id="two slashes"),
        pytest.param(("pod", "/x"), "expected a pod as NAMESPACE/NAME, got '/x'", id="no namespace"),
        pytest.param(
            ("-f", "missing.yaml"), "missing.yaml: expected a file that can be read: No such file", id="no such file"
        ),
        pytest.param(("pod", "ml/x", "-f", "p.yaml"), "expected either -f FILE or", id="both"),
        pytest.param(("pod", "ml/x", "--server", "ftp://x"), "expected a URL like http://", id="not a web address"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(kvaware: Kvaware, args: tuple[str, ...], expected: str) -> None:
    result = kvaware("explain", *args)
    assert result.code == 2
    assert expected in result.err
    assert len(result.err.splitlines()) == 1
    assert not result.out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("kind: Service\nmetadata: {name: x}", "expected a Pod, or a workload", id="another kind"),
        pytest.param("- 1", "document 1: expected a Kubernetes object, got list", id="a list"),
        pytest.param("a: [", "expected YAML", id="not YAML"),
        pytest.param("kind: Pod\nmetadata: {}", "expected metadata.name, got None", id="no name"),
        pytest.param("", "expected a Pod, got an empty file", id="empty"),
        pytest.param(
            "kind: Deployment\nmetadata: {name: x}\nspec: {}", "spec.template of the Deployment", id="no template"
        ),
    ],
)
def test_a_file_that_is_no_pod_is_named_with_what_was_expected(
    kvaware: Kvaware, server: FakeExtender, tmp_path: Path, content: str, expected: str
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(content)
    result = kvaware("explain", "-f", str(file), server=server)
    assert result.code == 2
    assert expected in result.err
    assert "pod.yaml" in result.err
    assert len(result.err.splitlines()) == 1


def test_the_servers_error_is_passed_on_with_its_code(kvaware: Kvaware, server: FakeExtender) -> None:
    """The extender's own message is the best there is."""
    body = {
        "error": {
            "code": "PodNotFound",
            "message": "expected a pod ml/x in the cluster, found none",
            "retryable": False,
        }
    }
    server.answers["GET /v1/pods/ml/x/explanation"] = (404, body)
    result = kvaware("explain", "pod", "ml/x", server=server)
    assert result.code == 1
    assert "PodNotFound: expected a pod ml/x in the cluster, found none" in result.err
    assert "HTTP 404" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(200, "<html>It works!</html>", id="another program's page"),
        pytest.param(200, {"items": []}, id="another answer"),
        pytest.param(502, "bad gateway", id="a proxy's error"),
        pytest.param(500, "", id="an empty error"),
    ],
)
def test_an_answer_that_is_not_the_extenders_is_one_line(
    kvaware: Kvaware, server: FakeExtender, status: int, body: Any
) -> None:
    """Something else may listen on the port."""
    server.answers["GET /v1/pods/ml/x/explanation"] = (status, body)
    result = kvaware("explain", "pod", "ml/x", server=server)
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert "Traceback" not in result.err


def test_nobody_there_names_the_address_and_how_to_start_one(kvaware: Kvaware) -> None:
    # port 9 (discard) is not served on a test machine's loopback
    result = kvaware("explain", "pod", "ml/x", "--server", "http://127.0.0.1:9")
    assert result.code == 1
    assert "http://127.0.0.1:9" in result.err
    assert "kvaware extender" in result.err
    assert len(result.err.splitlines()) == 1


def test_the_terms_that_are_shown_add_up(kvaware: Kvaware, server: FakeExtender) -> None:
    """What is not named is summed up as "other", so that nobody looks for a mistake."""
    many = {"network": 13400.4, "cache_access": 400.4, "risk": 200.4, "migration": 50.4, "compute_wait": 3.0}
    server.answers["GET /v1/pods/ml/x/explanation"] = answer(candidate("a"), candidate("b", terms=many))
    out = kvaware("explain", "pod", "ml/x", server=server).out
    # 13,400 + 400 + 255 = 14,055 (of 14,054.6)
    assert "14,055  network 13,400, cache_access 400, other 255" in out
    # the total less the 100 of a
    assert "13,955 ms dearer (network +13,300, cache_access +400, risk +200, other +55)" in out


def test_less_than_a_millisecond_is_not_worth_a_word(kvaware: Kvaware, server: FakeExtender) -> None:
    terms = {"network": 1000.0, "cache_access": 400.0, "risk": 0.9}
    server.answers["GET /v1/pods/ml/x/explanation"] = answer(candidate("a", terms=terms))
    out = kvaware("explain", "pod", "ml/x", server=server).out
    assert [line for line in out.splitlines() if line.endswith("network 1,000, cache_access 400")]


def test_long_node_names_are_whole_in_a_pipe(kvaware: Kvaware, server: FakeExtender) -> None:
    """GKE's have 75 characters and more: neither they nor the figures beside them are cut."""
    names = [f"gke-{'inference-pool-' * 5}a1b2c3d4-{i}" for i in range(2)] + ["n" * 300]
    terms = {"memory_pressure": 123456.0, "cache_access": 35679.0, "risk": 3000.0}
    server.answers["GET /v1/pods/ml/x/explanation"] = answer(*(candidate(n, terms=terms) for n in names))
    out = kvaware("explain", "pod", "ml/x", server=server).out
    rows = [line for line in out.splitlines() if "80.0/80.0" in line]
    assert [next(name for name in names if name in row) for row in rows] == names
    assert all(row.endswith("162,135  memory_pressure 123,456, cache_access 35,679, other 3,000") for row in rows)


@pytest.mark.parametrize(
    ("scheduler", "noted"),
    [
        pytest.param("schedulerName: kvaware-scheduler, ", False, id="ours"),
        pytest.param("schedulerName: volcano, ", True, id="another"),
        pytest.param("", True, id="none"),
    ],
)
def test_a_dry_run_says_when_kube_scheduler_would_not_ask(
    kvaware: Kvaware,
    server: FakeExtender,
    tmp_path: Path,
    scheduler: str,
    noted: bool,  # noqa: FBT001 - a test's parameter
) -> None:
    server.answers["POST /v1/pods:explain"] = answer(WARM)
    file = tmp_path / "pod.yaml"
    file.write_text(POD.replace("spec: {", "spec: {" + scheduler))
    out = kvaware("explain", "-f", str(file), server=server).out
    assert ("kube-scheduler will not ask kvaware about this pod" in out) is noted
    assert ("it is volcano" in out) is ("volcano" in scheduler)


@pytest.mark.parametrize(
    ("problem", "resource", "expected"),
    [
        pytest.param(
            "InvalidGPURequest", None, "asks for   what cannot be understood (InvalidGPURequest)", id="1.5 GPUs"
        ),
        pytest.param(
            "ModelNotFound",
            "nvidia.com/gpu",
            "1 x nvidia.com/gpu, HBM unknown (ModelNotFound)",
            id="no model",
        ),
        pytest.param(None, None, "asks for   no GPU", id="none"),
    ],
)
def test_a_request_that_cannot_be_read_is_not_shown_as_another(
    kvaware: Kvaware, server: FakeExtender, problem: str | None, resource: str | None, expected: str
) -> None:
    """A request for "1.5" GPUs once read: asks for no GPU."""
    body = explanation([refused("n")])
    body["demand"] |= {"problem": problem, "resource": resource, "hbm_per_gpu_bytes": None}
    server.answers["GET /v1/pods/ml/x/explanation"] = (200, body)
    assert expected in kvaware("explain", "pod", "ml/x", server=server).out


def stale(*, retryable: bool = True) -> tuple[int, Any]:
    return 503, {"error": {"code": "StaleView", "message": "pods were never listed", "retryable": retryable}}


def test_a_stale_view_is_asked_again_for_a_while(
    kvaware: Kvaware, server: FakeExtender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after its start the extender has not seen the cluster yet."""
    monkeypatch.setattr("kvaware_cli.client.STALE_EVERY_S", 0.0)
    route = "GET /v1/pods/ml/x/explanation"
    server.answers[route] = answer(WARM)
    server.first[route] = [stale(), stale()]
    assert kvaware("explain", "pod", "ml/x", server=server).code == 0
    assert len(server.asked) == 3


def test_a_view_that_stays_stale_is_an_error(
    kvaware: Kvaware, server: FakeExtender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvaware_cli.client.STALE_FOR_S", 0.0)
    server.answers["GET /v1/pods/ml/x/explanation"] = stale()
    result = kvaware("explain", "pod", "ml/x", server=server)
    assert result.code == 1
    assert "StaleView: pods were never listed" in result.err
    assert len(server.asked) == 1


def test_what_is_not_retryable_is_not_asked_again(kvaware: Kvaware, server: FakeExtender) -> None:
    server.answers["GET /v1/pods/ml/x/explanation"] = stale(retryable=False)
    assert kvaware("explain", "pod", "ml/x", server=server).code == 1
    assert len(server.asked) == 1


def test_yaml_nested_too_deeply_is_one_line(kvaware: Kvaware, tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("a: " + "[" * 3000 + "]" * 3000)
    result = kvaware("explain", "-f", str(file))
    assert result.code == 2
    assert "deep.yaml" in result.err
    assert len(result.err.splitlines()) == 1
