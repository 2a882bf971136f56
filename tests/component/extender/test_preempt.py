"""``POST /scheduler/preempt``: both forms of the request, one form of the reply, and nobody dies by mistake."""

import json

import pytest

from kvaware_cluster import Kind, NotFoundError
from kvaware_testing.extender_harness import MemoryCluster, serving, shared_node
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod, raw_quota
from kvaware_testing.store_harness import FakeClock, eventually

HBM = "kvaware.io/hbm-per-gpu"
NOBODY = {"NodeNameToMetaVictims": {}}


def ranked(raw, priority):
    """The pod with a priority."""
    return {**raw, "spec": {**raw["spec"], "priority": priority}}


def meta(pod, violations=0, **victims):
    """What kube-scheduler posts with its node cache: node to victims."""
    by_node = {
        node: {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": violations}
        for node, pods in victims.items()
    }
    return {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": by_node}


def whole(pod, **victims):
    """What it posts without: whole pods."""
    by_node = {node: {"Pods": pods, "NumPDBViolations": 0} for node, pods in victims.items()}
    return {"Pod": pod, "NodeNameToVictims": by_node, "NodeNameToMetaVictims": None}


def answered(**victims):
    """The reply that keeps these nodes."""
    return {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": violations}
            for node, (pods, violations) in victims.items()
        }
    }


async def preempt(caller, body):
    status, reply = await caller.post("/scheduler/preempt", body)
    assert status == 200, reply
    return reply


@pytest.mark.parametrize("form", [meta, whole])
async def test_both_forms_are_answered_in_the_meta_form(form):
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1, labels={"nvidia.com/gpu.memory": "40960"}))
    victims = [cluster.add_pod(raw_pod(name, node=node)) for name, node in (("a", "n1"), ("b", "n2"))]
    vip = cluster.add_pod(ranked(raw_pod("vip", annotations={HBM: "60Gi"}), 1000))
    async with serving(cluster) as caller:
        await caller.until_seen(vip)
        reply = await preempt(caller, form(vip, n1=[victims[0]], n2=[victims[1]]))
        assert reply == answered(n1=([victims[0]], 0)), "n2's GPU is too small"
        assert await caller.metric("kvaware_preempt_total", '{result="kept"}') == 1
        assert await caller.metric("scheduler_latency_count", '{verb="preempt"}') == 1


async def test_victims_are_added_for_hbm_and_what_kube_scheduler_counted_is_kept():
    cluster = MemoryCluster(shared_node("n1", replicas=8))
    hungry, large = (
        cluster.add_pod(ranked(raw_pod(name, annotations={HBM: hbm}), 1)) for name, hbm in (("a", "1Gi"), ("b", "70Gi"))
    )
    vip = cluster.add_pod(ranked(raw_pod("vip", annotations={HBM: "60Gi"}), 1000))
    async with serving(cluster) as caller:
        for each in (hungry, large):
            await caller.until_seen(each)
            assert await caller.bind(each, "n1") == ""
            await caller.until_bound(each["metadata"]["name"])
        await caller.until_seen(vip)
        reply = await preempt(caller, meta(vip, violations=2, n1=[hungry]))
        assert reply == answered(n1=([hungry, large], 3))
        assert await caller.metric("kvaware_preempt_added_victims_total") == 1


async def test_a_quota_refusal_is_an_empty_answer():
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_quota(gpus=0))
    victim = cluster.add_pod(raw_pod("a", namespace="b", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))
    async with serving(cluster) as caller:
        await caller.until_seen(vip)
        assert await preempt(caller, meta(vip, n1=[victim])) == NOBODY
        assert await caller.metric("kvaware_preempt_total", '{result="vetoed"}') == 1


async def test_a_pod_that_is_not_ours_is_kube_schedulers_business():
    """Its offers come back in the meta form, without the empty lists that are an error there."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    web = cluster.add_pod(ranked(raw_pod("web", gpus=0), 1000))
    async with serving(cluster) as caller:
        assert await preempt(caller, whole(web, n1=[victim], n2=[])) == answered(n1=([victim], 0))
        assert await caller.metric("kvaware_not_ours_total", '{verb="preempt"}') == 1


async def test_a_stale_view_kills_nobody():
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))
    async with serving(cluster, clock=clock) as caller:
        await caller.until_seen(vip)
        assert await preempt(caller, meta(vip, n1=[victim])) == answered(n1=([victim], 0))
        clock.now_s += 61
        assert await preempt(caller, meta(vip, n1=[victim])) == NOBODY
        assert await caller.metric("kvaware_preempt_total", '{result="stale"}') == 1


async def test_unknown_quotas_are_not_no_quotas():
    """The kind cannot be listed: nobody becomes unlimited, and nobody dies."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))
    cluster.unlistable[Kind.TENANT_QUOTA] = NotFoundError("no such kind", status=404, reason="NotFound")
    async with serving(cluster, synced=False) as caller:
        await caller.until_seen(vip)
        assert await preempt(caller, meta(vip, n1=[victim])) == NOBODY


async def test_what_was_agreed_is_kept_until_the_pod_is_bound():
    """Agreed, nominated, victim gone, somebody quicker refused, bound, nothing left behind."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))
    thief = cluster.add_pod(raw_pod("thief"))
    async with serving(cluster) as caller:
        await caller.until_seen(thief)
        await preempt(caller, meta(vip, n1=[victim]))
        nominated = {**vip, "status": {**vip["status"], "nominatedNodeName": "n1"}}
        refused = await caller.filter(nominated, "n1")
        assert refused["FailedNodes"] == {
            "n1": "kvaware: the pods that make room for this pod on its nominated node are not gone yet"
        }
        assert refused["FailedAndUnresolvableNodes"] == {}
        cluster.delete_pod("ml", "a")
        await eventually(lambda: not caller.seen(victim))
        assert (await caller.filter(thief, "n1"))["NodeNames"] == []
        assert (await caller.filter(nominated, "n1"))["NodeNames"] == ["n1"]
        assert await caller.bind(vip, "n1") == ""
        await caller.until_bound("vip")
        assert caller.extender.engine.holder(vip["metadata"]["uid"]) == ("n1",)
        cluster.delete_pod("ml", "vip")
        await eventually(lambda: not caller.seen(vip))
        assert (await caller.filter(thief, "n1"))["NodeNames"] == ["n1"]


async def test_whole_nodes_get_the_same_refusal_as_names():
    """Without the node cache kube-scheduler posts Node objects; the map to wait for is the same."""
    node = raw_node("n1", gpus=1)
    cluster = MemoryCluster(node)
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))
    async with serving(cluster) as caller:
        await caller.until_seen(vip)
        await preempt(caller, whole(vip, n1=[victim]))
        body = {"Pod": vip, "Nodes": {"items": [node]}, "NodeNames": None}
        _, reply = await caller.post("/scheduler/filter", body)
        assert (reply["Nodes"]["items"], list(reply["FailedNodes"])) == ([], ["n1"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"[", "expected a JSON object", id="half"),
        pytest.param({}, "Pod: expected an object, got null", id="no pod"),
        pytest.param({"Pod": {"metadata": {"uid": "u"}}, "NodeNameToMetaVictims": []}, "got a list", id="a list"),
        pytest.param(
            {"Pod": {"metadata": {"uid": "u"}}, "NodeNameToMetaVictims": {"n1": 7}},
            "n1: expected an object",
            id="no map",
        ),
        pytest.param(
            {"Pod": {"metadata": {"uid": "u"}}, "NodeNameToMetaVictims": {"n1": {"Pods": [{}]}}},
            "expected pods with a UID",
            id="no UID",
        ),
        pytest.param(
            {"Pod": {"metadata": {"uid": "u"}}, "NodeNameToVictims": {"n1": {"Pods": [{"metadata": None}]}}},
            "expected pods with a UID",
            id="no metadata",
        ),
        pytest.param(
            {"Pod": {"metadata": {"uid": "u"}}, "NodeNameToMetaVictims": {"n1": {"Pods": {}}}},
            "n1.Pods: expected a list",
            id="pods as a map",
        ),
        pytest.param(
            {"Pod": {"metadata": {"uid": "u"}}, "NodeNameToMetaVictims": {"n1": {"NumPDBViolations": "1"}}},
            "NumPDBViolations: expected an integer",
            id="violations as text",
        ),
    ],
)
async def test_what_is_no_such_request_is_a_400(body, message):
    async with serving(MemoryCluster(raw_node("n1"))) as caller:
        status, reply = await caller.post("/scheduler/preempt", body)
    assert (status, reply["error"]["code"]) == (400, "InvalidRequest")
    assert message in reply["error"]["message"]


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param({"NodeNameToVictims": None, "NodeNameToMetaVictims": None}, id="null, as Go writes empty maps"),
        pytest.param({"NodeNameToMetaVictims": {"n1": None}}, id="no victims of a node"),
        pytest.param({"NodeNameToMetaVictims": {"n1": {"Pods": None, "NumPDBViolations": 0}}}, id="null list"),
        pytest.param({"NodeNameToMetaVictims": {"x": {"Pods": [{"UID": "u"}]}}}, id="a node that we do not know"),
    ],
)
async def test_offers_of_nothing_are_answered_with_nothing(victims):
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))
    async with serving(cluster) as caller:
        await caller.until_seen(vip)
        assert await preempt(caller, {"Pod": vip, **victims}) == NOBODY


async def test_an_unforeseen_error_kills_nobody(monkeypatch):
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip"), 1000))

    def broken(*_args, **_options):
        raise RuntimeError("broken")

    async with serving(cluster) as caller:
        monkeypatch.setattr(caller.extender.engine, "keep_victims", broken)
        assert await preempt(caller, meta(vip, n1=[victim])) == NOBODY
        assert await caller.metric("kvaware_internal_errors_total", '{verb="preempt"}') == 1


async def test_the_decision_log_tells_who_is_to_die(tmp_path):
    """Somebody will ask why their pod was killed."""
    path = tmp_path / "decisions"
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_model("llama"))
    victim = cluster.add_pod(raw_pod("a", node="n1"))
    vip = cluster.add_pod(ranked(raw_pod("vip", labels={"kvaware.io/model": "llama"}), 1000))
    async with serving(cluster, decision_log=str(path)) as caller:
        await caller.until_seen(vip)
        await preempt(caller, meta(vip, n1=[victim]))
    (record,) = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert (record["event"], record["schedule_reason"], record["priority"]) == ("preempt", "kept", 1000)
    assert record["victims"] == {"n1": [victim["metadata"]["uid"]]}
    assert record["candidate_workers"] == ["n1"]
    assert record["model_id"] == "meta-llama/Llama-3.3-70B-Instruct"
