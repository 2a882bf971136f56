"""The user's YAML, read as Kubernetes would."""

import json
from pathlib import Path

import pytest

from kvaware_cli.demo.scene import read_scene
from kvaware_cli.errors import InputError
from kvaware_cli.manifests import documents_in, pod_of, read_documents

NODE = "{apiVersion: v1, kind: Node, metadata: {name: n1}}"
PENDING = (
    "{apiVersion: v1, kind: Pod, metadata: {name: waiting}, "
    "spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
)
WEB = "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c}]}}"
BOUND = "{apiVersion: v1, kind: Pod, metadata: {name: bound}, spec: {nodeName: n1, containers: []}}"


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_lists_are_opened_and_timestamps_stay_text(tmp_path: Path) -> None:
    """``kubectl get -o yaml`` gives one List; a date that YAML turned into an object would not be JSON any more."""
    text = "kind: List\nitems:\n- {kind: Node, metadata: {name: n1, creationTimestamp: 2026-01-01T00:00:00Z}}\n"
    write(tmp_path, nodes=text)
    [node] = documents_in(tmp_path)
    assert json.loads(json.dumps(node))["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"


def test_typed_lists_are_opened_and_their_items_get_the_kind_that_they_lack(tmp_path: Path) -> None:
    """``kubectl get --raw`` gives what the API server sends, whose items are bare."""
    text = "{apiVersion: v1, kind: NodeList, items: [{metadata: {name: n1}}, {metadata: {name: n2}}]}"
    documents = documents_in(write(tmp_path, nodes=text))
    assert [(d["apiVersion"], d["kind"], d["metadata"]["name"]) for d in documents] == [
        ("v1", "Node", "n1"),
        ("v1", "Node", "n2"),
    ]
    assert [node["metadata"]["name"] for node in read_scene(write(tmp_path, pods=PENDING), None).nodes] == ["n1", "n2"]


TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        *((kind, {"template": TEMPLATE}) for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")),
        ("ReplicationController", {"template": TEMPLATE}),
        ("CronJob", {"schedule": "@daily", "jobTemplate": {"spec": {"template": TEMPLATE}}}),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 4, "workerTemplate": TEMPLATE}}),
    ],
)
def test_a_workload_stands_for_one_pod_of_it(kind: str, spec: dict[str, object]) -> None:
    pod = pod_of({"kind": kind, "metadata": {"name": "w", "namespace": "ml"}, "spec": spec}, file="f")
    assert (pod["kind"], pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("Pod", "w", "ml")
    assert (pod["metadata"]["labels"], pod["spec"]) == ({"app": "x"}, {"containers": []})


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("Deployment", {}, "f: expected spec.template of the Deployment to be a mapping"),
        ("CronJob", {"jobTemplate": {}}, "f: expected spec.jobTemplate.spec of the CronJob to be a mapping"),
        ("LeaderWorkerSet", None, "f: expected spec of the LeaderWorkerSet to be a mapping"),
        ("Service", {}, "f: expected a Pod, or a workload with a pod template, got kind 'Service'"),
    ],
)
def test_a_workload_without_its_template_says_where_it_was_looked_for(kind: str, spec: object, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        pod_of({"kind": kind, "metadata": {"name": "w"}, "spec": spec}, file="f")


def test_a_dry_run_pod_repeated_is_the_same_pod() -> None:
    """The extender answers a repeated question from its last verdict, by UID."""
    document = {"kind": "Pod", "metadata": {"name": "p"}}
    assert pod_of(document, file="f") == pod_of(document, file="f")
    assert pod_of(document, file="f")["metadata"]["namespace"] == "default"


def test_pods_to_place_are_the_pending_ones(tmp_path: Path) -> None:
    scene = read_scene(write(tmp_path / "c", all=f"{NODE}\n---\n{PENDING}\n---\n{BOUND}"), None)
    assert [pod["metadata"]["name"] for pod in scene.pending] == ["waiting"]
    assert len(scene.objects) == 2


def test_pods_without_gpus_are_left_out_and_the_others_placed_as_if_they_named_our_scheduler(tmp_path: Path) -> None:
    """People try the demo on what they have: web servers pending beside pods of the default scheduler."""
    scene = read_scene(write(tmp_path / "c", all=f"{NODE}\n---\n{PENDING}\n---\n{WEB}"), None)
    assert [pod["metadata"]["name"] for pod in scene.pending] == ["waiting"]
    assert scene.pending[0]["spec"]["schedulerName"] == "kvaware-scheduler"
    assert scene.left_out == 1


def test_pods_of_another_folder_join_the_cluster(tmp_path: Path) -> None:
    cluster = write(tmp_path / "c", all=f"{NODE}\n---\n{BOUND}")
    scene = read_scene(cluster, write(tmp_path / "p", pod=PENDING))
    assert [pod["metadata"]["name"] for pod in scene.pending] == ["waiting"]
    assert len(scene.objects) == 2
    scene.write(tmp_path)
    assert len(read_documents(tmp_path / "cluster.yaml")) == 2
    assert len(read_documents(tmp_path / "pods.yaml")) == 1


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        pytest.param("", "expected objects of kind Node", id="nothing"),
        pytest.param(PENDING, "expected objects of kind Node", id="no nodes"),
        pytest.param(NODE, "expected pods without spec.nodeName", id="nothing to place"),
        pytest.param(f"{NODE}\n---\n{WEB}", "that ask for GPUs or name a model, found none among 1", id="no GPUs"),
        pytest.param("{kind: Node, metadata: {}}", "expected metadata.name in every object", id="no name"),
    ],
)
def test_a_folder_that_is_no_cluster_says_what_is_missing(tmp_path: Path, cluster: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read_scene(write(tmp_path / "c", all=cluster), None)


def test_the_same_pod_in_both_folders_is_refused(tmp_path: Path) -> None:
    cluster = write(tmp_path / "c", all=f"{NODE}\n---\n{PENDING}")
    with pytest.raises(InputError, match="pod default/waiting is in"):
        read_scene(cluster, write(tmp_path / "p", pod=PENDING))


def test_a_missing_or_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a folder with YAML files, got"):
        documents_in(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"expected \*\.yaml files"):
        documents_in(tmp_path)
