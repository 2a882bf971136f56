from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from kvaware_cluster import (
    ConflictError,
    DcgmSettings,
    DirectorySource,
    GoneError,
    Kind,
    NotFoundError,
    StoreSettings,
)
from kvaware_cluster.manifests import load_folder
from kvaware_crds.errors import ConfigError, WireError
from kvaware_engine.observations import ObjectKey
from kvaware_testing.fake_api import raw_pod
from kvaware_testing.store_harness import drain, running

DATA = Path(__file__).parent / "data"

NODE = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {nvidia.com/gpu.count: "8", nvidia.com/gpu.memory: "81559", nvidia.com/gpu.product: NVIDIA-H100}
status:
  allocatable: {nvidia.com/gpu: 8}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p1, namespace: ml, creationTimestamp: 2026-05-01T00:00:00Z}
spec:
  nodeName: n1
  containers: [{name: c, resources: {limits: {nvidia.com/gpu: "2"}}}]
"""
MODEL = """
apiVersion: kvaware.io/v1alpha1
kind: InferenceModel
metadata: {name: llama, namespace: ml}
spec: {modelId: meta-llama/Llama-3.3-70B-Instruct, roles: [{name: both, footprint: {gpusPerPod: 1, hbmPerGPU: 40Gi}}]}
"""
QUOTA = """
apiVersion: kvaware.io/v1alpha1
kind: TenantQuota
metadata: {name: team-a}
spec: {tenant: a, namespaces: [ml], limits: {gpus: 4}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def make(**files: str) -> Path:
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return make


async def test_a_folder_is_a_cluster(folder, make_store, recorder):
    # given: several documents, a List, a kind that is none of ours, and an exporter's text
    path = folder(
        nodes=NODE,
        pods=POD + "---\n" + "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\n",
        kinds="apiVersion: v1\nkind: List\nitems:\n"
        + "".join("- " + text.strip().replace("\n", "\n  ") + "\n" for text in (MODEL, QUOTA)),
    )
    (path / "notes.md").write_text("not YAML: {")
    (path / "dcgm").mkdir()
    (path / "dcgm" / "n1.txt").write_text((DATA / "dcgm-h100-whole.txt").read_text())
    source = await DirectorySource.load(path)
    # when
    store = make_store(source, StoreSettings(dcgm=DcgmSettings(interval_s=0.02)))
    async with running(store):
        await recorder.until(lambda: store.synced() and bool(recorder.uses))
    # then
    node = store.objects(Kind.NODE)[ObjectKey("", "n1")]
    assert (node.ready, node.pools[0].devices) == (True, 8)
    pod = store.pod("ml", "p1")
    assert (pod.node, pod.ready, pod.gpu_requests) == ("n1", True, (("nvidia.com/gpu", 2),))
    assert store.objects(Kind.INFERENCE_MODEL)[ObjectKey("ml", "llama")].roles[0].gpus_per_pod == 1
    assert store.objects(Kind.TENANT_QUOTA)[ObjectKey("", "team-a")].limits.gpus == 4
    name, use = recorder.uses[0]
    assert (name, len(use.gpus)) == ("n1", 8)


def test_two_loads_are_equal(folder):
    """UIDs and times are made from names: a demo prints the same thing each time."""
    path = folder(nodes=NODE, pods=POD)
    first = load_folder(path)
    assert first == load_folder(path)
    pod = first.objects[Kind.POD][ObjectKey("ml", "p1")]
    assert pod["metadata"]["creationTimestamp"] == "2026-05-01T00:00:00Z"
    assert len(pod["metadata"]["uid"]) == 36


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("a: [1", r"bad\.yaml, document 1, line \d+: expected YAML", id="no YAML"),
        pytest.param(
            NODE + "---\n- a\n", r"bad\.yaml, document 2: expected a Kubernetes object, got list", id="a list"
        ),
        pytest.param("kind: Node\n", r"bad\.yaml, document 1: expected apiVersion and kind", id="no version"),
        pytest.param(
            NODE + "---\n" + NODE,
            r"bad\.yaml, document 2: expected one node n1, it is in bad\.yaml, document 1",
            id="twice",
        ),
        pytest.param(
            "apiVersion: v1\nkind: List\nitems: [{}, 3]\n", r"document 1: expected a list of objects", id="items"
        ),
        pytest.param("apiVersion: v1\nkind: Node\nmetadata: {}\n", r"document 1: .*expected a name", id="no name"),
        pytest.param(
            "apiVersion: v1\nkind: Node\nmetadata: {name: n, labels: {a: 1}}\n",
            r"document 1: node\.metadata\.labels\['a'\]: expected a text in quotes, got 1",
            id="number as label",
        ),
        pytest.param(MODEL.replace("gpusPerPod: 1", "gpusPerPod: 0"), r"document 1: .*gpusPerPod", id="out of bounds"),
        pytest.param(QUOTA.replace("limits", "limitz"), r"document 1: .*limitz: unknown field", id="typing mistake"),
        pytest.param(
            QUOTA.replace("TenantQuota", "TenantQuotas"), r"document 1: expected a kind of kvaware", id="unknown kind"
        ),
        pytest.param(
            POD.replace("[{name: c", "{name: c").replace("}}}]", "}}}"), r"document 1: .*list", id="containers"
        ),
    ],
)
def test_a_bad_file_is_a_config_error_that_says_where(folder, text: str, told: str):
    with pytest.raises(ConfigError, match=told):
        load_folder(folder(bad=text))


def test_bytes_that_are_no_text_are_a_config_error(tmp_path: Path):
    (tmp_path / "bad.yml").write_bytes(b"\xff\xfe\x00kind")
    with pytest.raises(ConfigError, match=r"bad\.yml"):
        load_folder(tmp_path)


def test_a_missing_folder_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="expected a folder"):
        load_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(("name", "text"), [("n2", "x"), ("n1", "<html>")])
def test_exporter_texts_must_be_of_a_node_and_readable(folder, name: str, text: str):
    path = folder(nodes=NODE)
    (path / "dcgm").mkdir()
    (path / "dcgm" / f"{name}.txt").write_text(text)
    with pytest.raises(ConfigError, match=f"dcgm/{name}.txt"):
        load_folder(path)


@pytest.fixture
async def small(folder) -> DirectorySource:
    return await DirectorySource.load(folder(nodes=NODE, pods=POD))


async def test_bind_behaves_as_an_api_server(small):
    pod = small.add_pod(raw_pod("p2"))
    uid = pod["metadata"]["uid"]

    async def bind(uid: str = uid, name: str = "p2") -> None:
        await small.bind(namespace="ml", name=name, uid=uid, node="n1", annotations={"kvaware.io/reservation": "{}"})

    with pytest.raises(ConflictError):
        await bind(uid="another")
    with pytest.raises(NotFoundError):
        await bind(name="nobody")
    await bind()
    with pytest.raises(ConflictError):
        await bind()
    bound = await small.get_pod("ml", "p2")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"]["kvaware.io/reservation"] == "{}"
    assert pod["spec"].get("nodeName") is None  # what was handed out before is not changed under its holder


async def test_a_terminating_pod_is_not_bound(small):
    raw = raw_pod("p2")
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pod = small.add_pod(raw)
    with pytest.raises(ConflictError):
        await small.bind(namespace="ml", name="p2", uid=pod["metadata"]["uid"], node="n1", annotations={})


async def test_writes_are_seen_by_a_store(small, make_store, recorder):
    store = make_store(small)
    async with running(store):
        await recorder.until(store.synced)
        pod = small.add_pod(raw_pod("p2"))
        await recorder.until(lambda: store.pod("ml", "p2") is not None)
        await small.bind(namespace="ml", name="p2", uid=pod["metadata"]["uid"], node="n1", annotations={})
        await recorder.until(lambda: store.pod("ml", "p2").node == "n1")
        small.delete_pod("ml", "p2")
        await recorder.until(lambda: store.pod("ml", "p2") is None)
        again = small.add_pod(raw_pod("p2"))
        await recorder.until(lambda: store.pod("ml", "p2") is not None)
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]


async def test_a_condition_is_merged_by_type_and_checked_by_uid(small):
    pod = small.add_pod(raw_pod("p2", conditions=[{"type": "Ready", "status": "False"}]))
    uid = pod["metadata"]["uid"]
    condition = {"type": "kvaware.io/Placeable", "status": "True"}
    for _ in range(2):
        await small.patch_pod_condition(namespace="ml", name="p2", uid=uid, condition=condition)
    patched = await small.get_pod("ml", "p2")
    assert patched is not None
    assert patched["status"]["conditions"] == [{"type": "Ready", "status": "False"}, condition]
    with pytest.raises(ConflictError):
        await small.patch_pod_condition(namespace="ml", name="p2", uid="another", condition=condition)


async def test_an_unchanged_condition_is_no_event(small):
    pod = small.add_pod(raw_pod("p2"))
    condition = {"type": "kvaware.io/Placeable", "status": "True"}
    versions = []
    for _ in range(2):
        await small.patch_pod_condition(namespace="ml", name="p2", uid=pod["metadata"]["uid"], condition=condition)
        stored = await small.get_pod("ml", "p2")
        assert stored is not None
        versions.append(stored["metadata"]["resourceVersion"])
    assert versions[0] == versions[1]


async def test_duplicate_and_invalid_pods_are_refused(small):
    small.add_pod(raw_pod("p2"))
    with pytest.raises(ConflictError):
        small.add_pod(raw_pod("p2"))
    with pytest.raises(WireError):
        small.add_pod({"metadata": {}})
    with pytest.raises(WireError):
        small.add_pod([])  # type: ignore[arg-type]  # what a user may hand in
    with pytest.raises(NotFoundError):
        small.delete_pod("ml", "nobody")


async def test_a_watch_from_too_long_ago_is_gone(small, monkeypatch):
    for number in range(10_050):
        small.add_pod(raw_pod(f"x{number}"))
    with pytest.raises(GoneError):
        await drain(small.watch(Kind.POD, "1"))


async def test_a_silent_watch_proves_its_freshness(small, make_store, recorder, clock, monkeypatch):
    """Without bookmarks a demo that does nothing for a minute would look stale."""
    monkeypatch.setattr("kvaware_cluster.directory_source.BOOKMARK_EVERY_S", 0.01)
    store = make_store(small)
    async with running(store):
        await recorder.until(store.synced)
        stream = small.watch(Kind.NODE, "1")
        async with aclosing(stream):
            assert [(await anext(stream)).type for _ in range(3)] == ["BOOKMARK"] * 3
