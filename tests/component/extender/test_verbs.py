"""Filter and prioritize over real HTTP: bodies in, bodies out."""

import pytest

from kvaware_testing.extender_harness import MemoryCluster, offer, serving, shared_node
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod

SHORT = "kvaware: not enough free HBM on a GPU that the pod could get"


async def test_filter_splits_the_offered_nodes_and_refuses_as_unresolvable_only():
    """FailedNodes makes kube-scheduler hot-loop beside lower-priority pods."""
    cluster = MemoryCluster(raw_node("big"), shared_node("small"))
    cluster.add_pod(raw_pod("full", node="small", annotations={"kvaware.io/hbm-per-gpu": "70Gi"}))
    pod = cluster.add_pod(raw_pod("p", annotations={"kvaware.io/hbm-per-gpu": "60Gi"}))
    async with serving(cluster) as caller:
        reply = await caller.filter(pod, "big", "small", "nowhere")
    assert reply == {
        "Nodes": None,
        "NodeNames": ["big"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {
            "small": SHORT,
            "nowhere": "kvaware: this node is not in kvaware's view of the cluster",
        },
        "Error": "",
    }


async def test_whole_nodes_come_back_as_whole_nodes():
    """``nodeCacheCapable: false``: the reply must carry the Nodes that were admitted, and no names."""
    nodes = [raw_node("n1"), raw_node("n2", ready=False)]
    cluster = MemoryCluster(*nodes)
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        body = {"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
        status, reply = await caller.post("/scheduler/filter", body)
        scores_status, scores = await caller.post("/scheduler/prioritize", body)
    assert (status, scores_status) == (200, 200)
    assert reply["NodeNames"] is None
    assert reply["Nodes"] == {"metadata": {}, "items": [nodes[0]]}
    assert reply["FailedAndUnresolvableNodes"] == {"n2": "kvaware: the node is not Ready"}
    assert [entry["Host"] for entry in scores] == ["n1", "n2"]


async def test_the_first_choice_alone_scores_ten_and_scores_are_integer_literals():
    """``7.0`` does not decode in Go, and kube-scheduler adds other plugins' scores: the first must stand out."""
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"), raw_node("n3"))
    cluster.add_pod(raw_pod("other", gpus=4, node="n2"))
    pod = cluster.add_pod(raw_pod("p", gpus=4))
    async with serving(cluster) as caller:
        scores = await caller.prioritize(pod, "n1", "n2", "n3")
        async with caller._session.post(caller.scheduler + "/scheduler/prioritize", json=offer(pod, ["n1"])) as answer:
            raw = await answer.read()
    assert max(scores, key=lambda node: scores[node]) == "n2"  # fills the half-used node
    assert max(scores.values()) == 10
    assert all(score <= 9 for node, score in scores.items() if node != "n2")
    assert raw == b'[{"Host":"n1","Score":10}]'


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(raw_pod("web", gpus=0), id="no GPU"),
        pytest.param(
            {**raw_pod("other"), "spec": {**raw_pod()["spec"], "schedulerName": "default"}}, id="not our scheduler"
        ),
        pytest.param({"metadata": {"name": "bare", "namespace": "ml"}}, id="no containers"),
    ],
)
async def test_a_pod_that_is_not_ours_passes_everywhere(pod):
    """Also to nodes that nobody knows, and before anything of the cluster was read."""
    pod = {**pod, "metadata": {**pod["metadata"], "uid": "u"}}
    cluster = MemoryCluster()
    async with serving(cluster, synced=False) as caller:
        reply = await caller.filter(pod, "n1", "n2")
        scores = await caller.prioritize(pod, "n1", "n2")
    assert reply["NodeNames"] == ["n1", "n2"]
    assert reply["FailedAndUnresolvableNodes"] == {}
    assert scores == {"n1": 0, "n2": 0}


async def test_a_model_that_does_not_exist_refuses_the_pod_with_one_entry():
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"), raw_model("llama"))
    known = cluster.add_pod(raw_pod("known", labels={"kvaware.io/model": "llama"}))
    unknown = cluster.add_pod(raw_pod("unknown", labels={"kvaware.io/model": "nobody"}))
    async with serving(cluster) as caller:
        assert (await caller.filter(known, "n1", "n2"))["NodeNames"] == ["n1", "n2"]
        refused = await caller.filter(unknown, "n2", "n1")
    assert refused["NodeNames"] == []
    assert refused["FailedAndUnresolvableNodes"] == {
        "n1": "kvaware: no InferenceModel has the name in the label kvaware.io/model"
    }


async def test_a_repeated_filter_is_answered_from_the_last_verdict_until_something_changes():
    """kube-scheduler brings a refused pod back whenever any pod changes: the same bytes, and cheap."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1))
    cluster.add_pod(raw_pod("a", node="n1"))
    cluster.add_pod(raw_pod("b", node="n2"))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        first = await caller.filter(pod, "n1", "n2")
        assert await caller.filter(pod, "n2", "n1") == first
        assert await caller.filter(pod, "n1", "n2") == first
        assert await caller.metric("kvaware_filter_repeats_total") == 2
        await caller.filter(pod, "n1")
        assert await caller.metric("kvaware_filter_repeats_total") == 2
        other = cluster.add_pod(raw_pod("new", node="n2"))
        await caller.until_seen(other)
        await caller.filter(pod, "n1")
        assert await caller.metric("kvaware_filter_repeats_total") == 2
        assert await caller.metric("kvaware_refusals_total", '{reason="NotEnoughGPUs"}') == 3


async def test_filter_and_prioritize_make_no_call_that_leaves_the_process():
    """libopenstorage/stork#99: filter fetched node data per call; at 48 nodes everything timed out."""
    names = [f"n{i}" for i in range(200)]
    cluster = MemoryCluster(*(raw_node(name) for name in names))
    async with serving(cluster) as caller:
        for i in range(20):
            pod = raw_pod(f"p{i}", gpus=9)
            pod["metadata"]["uid"] = f"u{i}"
            assert (await caller.filter(pod, *names))["NodeNames"] == []
            await caller.prioritize(pod, *names)
    assert cluster.calls == []


def body(**changes):
    pod = raw_pod("p")
    pod["metadata"]["uid"] = "u"
    return {"Pod": pod, "Nodes": None, "NodeNames": ["n1"], **changes}


BAD = [
    pytest.param(b"", "expected a JSON object", id="nothing"),
    pytest.param(b'{"Pod":', "expected a JSON object", id="half"),
    pytest.param(b'{"Pod":"\xff"}', "UTF-8", id="not UTF-8"),
    pytest.param(b"[" * 100_000, "expected a JSON object", id="deep"),
    pytest.param(b"[]", "expected a JSON object, got a list", id="a list"),
    pytest.param(b"7", "expected a JSON object, got a number", id="a number"),
    pytest.param(body(Pod=None), "Pod: expected an object, got null", id="no pod"),
    pytest.param(body(Pod=[]), "Pod: expected an object, got a list", id="pod is a list"),
    pytest.param(body(Pod={}), "Pod.metadata", id="pod without metadata"),
    pytest.param(body(Pod={"metadata": {"name": "p"}}), "Pod.metadata.uid", id="pod without UID"),
    pytest.param(body(Pod={"metadata": {"uid": 7}}), "Pod.metadata.uid", id="UID is a number"),
    pytest.param(body(NodeNames=None), "expected one of them, got null for both", id="no nodes at all"),
    pytest.param(body(NodeNames="n1"), "NodeNames: expected a list of strings", id="names are text"),
    pytest.param(body(NodeNames=["n1", 2]), "NodeNames: expected a list of strings", id="a name is a number"),
    pytest.param(body(NodeNames=None, Nodes=[]), "Nodes: expected an object", id="nodes are a list"),
    pytest.param(body(NodeNames=None, Nodes={"items": {}}), "Nodes.items: expected a list", id="items are an object"),
    pytest.param(body(NodeNames=None, Nodes={"items": [7]}), "Nodes.items: expected nodes", id="an item is a number"),
    pytest.param(
        body(NodeNames=None, Nodes={"items": [{"metadata": {"name": 7}}]}), "expected a string", id="a node's name"
    ),
]


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize(("sent", "message"), BAD)
async def test_what_is_no_request_is_a_400_that_says_what_was_expected(verb, sent, message):
    """Never a 500 for somebody else's mistake."""
    async with serving(MemoryCluster()) as caller:
        status, reply = await caller.post(f"/scheduler/{verb}", sent)
        assert status == 400
        assert reply["error"]["code"] == "InvalidRequest"
        assert reply["error"]["retryable"] is False
        assert message in reply["error"]["message"]
        assert await caller.metric("kvaware_internal_errors_total", f'{{verb="{verb}"}}') == 0


@pytest.mark.parametrize("part", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [None, "", 7, ["x"]])
async def test_a_bind_with_a_part_missing_is_a_400(part, value):
    whole = {"PodName": "p", "PodNamespace": "ml", "PodUID": "u", "Node": "n1"}
    cluster = MemoryCluster()
    async with serving(cluster) as caller:
        status, reply = await caller.post("/scheduler/bind", {**whole, part: value})
    assert status == 400
    assert part in reply["error"]["message"]
    assert cluster.calls == []


@pytest.mark.parametrize("annotation", ["", "0", "-1Gi", "1e300", "lots"])
async def test_an_hbm_request_that_cannot_be_used_is_refused_by_a_text_that_names_it(annotation):
    """Project-HAMi/HAMi#1781: such a pod fitted nowhere and nobody said why."""
    cluster = MemoryCluster(raw_node("n1"))
    pod = cluster.add_pod(raw_pod("p", annotations={"kvaware.io/hbm-per-gpu": annotation}))
    async with serving(cluster) as caller:
        reply = await caller.filter(pod, "n1")
    [refusal] = reply["FailedAndUnresolvableNodes"].values()
    assert "kvaware.io/hbm-per-gpu" in refusal


async def test_a_body_over_the_limit_is_a_413_in_the_error_shape():
    async with serving(MemoryCluster(), max_body_bytes=1000) as caller:
        status, reply = await caller.post("/scheduler/filter", b" " * 2000)
    assert status == 413
    assert "1000 bytes" in reply["error"]["message"]


async def test_an_unforeseen_error_is_an_answer_that_kube_scheduler_retries(monkeypatch):
    """Our own fault: filter says Error, prioritize gives no preference, bind says Error; each is counted."""
    cluster = MemoryCluster(raw_node("n1"))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)

        def fails(*_args, **_kwargs):
            raise ZeroDivisionError

        for name in ("filter_nodes", "choose_node", "reserve"):
            monkeypatch.setattr(type(caller.extender.engine), name, fails)
        assert "unforeseen" in (await caller.filter(pod, "n1"))["Error"]
        assert await caller.prioritize(pod, "n1") == {"n1": 0}
        assert "unforeseen" in await caller.bind(pod, "n1")
        for verb in ("filter", "prioritize", "bind"):
            assert await caller.metric("kvaware_internal_errors_total", f'{{verb="{verb}"}}') == 1
