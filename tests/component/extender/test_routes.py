"""Everything that is not a scheduler verb: one call of each route through a real client."""

import io

import aiohttp
import orjson
import pytest

from kvaware_engine import Engine
from kvaware_testing.extender_harness import MemoryCluster, serving
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod, raw_quota

TERMS = {"total", "compute_wait", "cache_access", "migration", "memory_pressure", "network", "risk", "locality_gain"}


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(raw_node("n1"), raw_node("n2", gpus=1), raw_model("llama"), raw_quota(gpus=4))


async def test_explain_says_where_a_pod_of_a_manifest_would_go(cluster):
    """A manifest has no UID and no namespace; nothing is reserved."""
    pod = raw_pod("p", gpus=2)
    del pod["metadata"]["namespace"]
    async with serving(cluster) as caller:
        status, explanation = await caller.post("/v1/pods:explain", pod)
        assert caller.extender.engine.holder("dry-run") == ()
    assert status == 200
    assert (explanation["verdict"], explanation["chosen"]) == ("admitted", "n1")
    assert explanation["demand"]["namespace"] == "default"
    first, second = explanation["candidates"]
    assert first["cost"].keys() == TERMS
    assert second["refusal"] == "NotEnoughGPUs"
    assert len(explanation["answers"]) == 6


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(b"{", "InvalidRequest", id="half"),
        pytest.param({"spec": {}}, "InvalidRequest", id="no metadata"),
        pytest.param({"metadata": {"name": "p"}, "spec": {"containers": 7}}, "InvalidRequest", id="wrong types"),
        pytest.param(raw_pod("web", gpus=0), "NotOurs", id="no GPU and no model"),
    ],
)
async def test_explain_of_what_is_no_pod_of_ours_is_a_400(cluster, sent, code):
    async with serving(cluster) as caller:
        status, reply = await caller.post("/v1/pods:explain", sent)
    assert (status, reply["error"]["code"]) == (400, code)


async def test_the_explanation_of_a_pending_pod_is_of_now(cluster):
    pod = cluster.add_pod(raw_pod("p", gpus=9))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        status, explanation = await caller.get("/v1/pods/ml/p/explanation")
    assert status == 200
    assert (explanation["verdict"], explanation["chosen"]) == ("refused", None)
    assert explanation["reason"] == "TenantGPULimit"


async def test_a_choice_that_came_to_nothing_does_not_answer_for_a_pod_that_is_pending(cluster):
    """It was once sent to n2, others were faster, and now nothing is free: that is what people ask about."""
    pod = cluster.add_pod(raw_pod("p", gpus=1))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        await caller.prioritize(pod, "n1", "n2")
        for other in (raw_pod("x", gpus=8, node="n1"), raw_pod("y", gpus=1, node="n2")):
            await caller.until_seen(cluster.add_pod({**other, "metadata": {**other["metadata"], "namespace": "b"}}))
        _, explanation = await caller.get("/v1/pods/ml/p/explanation")
    assert (explanation["verdict"], explanation["chosen"], explanation["reason"]) == ("refused", None, "NotEnoughGPUs")
    assert not explanation["answers"]["Where should it go?"].startswith("At ")


async def test_the_explanation_of_a_placed_pod_is_its_decision_with_the_figures_of_then(cluster):
    """Figures of now would show the pod's own GPUs as taken and its node as full."""
    pod = cluster.add_pod(raw_pod("p", gpus=1))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        await caller.prioritize(pod, "n1", "n2")
        assert await caller.bind(pod, "n2") == ""
        await caller.until_bound("p")
        status, explanation = await caller.get("/v1/pods/ml/p/explanation")
    assert status == 200
    assert explanation["chosen"] == "n2"
    assert explanation["runner_up"] == "n1"
    assert explanation["candidates"][0]["free_gpus"] == 1
    assert all(answer.startswith("At ") for answer in explanation["answers"].values())


async def test_the_only_node_left_is_a_decision_too(cluster):
    """kube-scheduler then asks for no priorities; people ask all the same."""
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.filter(pod, "n1")
        assert (await caller.bind(pod, "n1")) == ""
        await caller.until_bound("p")
        _, explanation = await caller.get("/v1/pods/ml/p/explanation")
    assert (explanation["chosen"], explanation["reason"]) == ("n1", "OnlyCandidate")
    assert explanation["answers"]["Where should it go?"].startswith("At ")


async def test_an_unknown_pod_is_a_404_with_a_message(cluster):
    async with serving(cluster) as caller:
        status, reply = await caller.get("/v1/pods/ml/nobody/explanation")
    assert (status, reply["error"]["code"]) == (404, "PodNotFound")
    assert "ml/nobody" in reply["error"]["message"]


async def test_nodes_and_tenants_are_wrapped_lists(cluster):
    cluster.add_pod(raw_pod("p", gpus=2, node="n1"))
    async with serving(cluster) as caller:
        _, nodes = await caller.get("/v1/nodes")
        _, tenants = await caller.get("/v1/tenants")
    assert [(node["name"], node["pools"][0]["free"]) for node in nodes["items"]] == [("n1", 6), ("n2", 1)]
    assert [(tenant["tenant"], tenant["used_gpus"], tenant["limit_gpus"]) for tenant in tenants["items"]] == [
        ("a", 2, 4)
    ]


async def test_a_list_of_many_nodes_leaves_room_for_calls_of_kube_scheduler(cluster, monkeypatch):
    """All 5,000 at once would be half a second in which no pod is placed."""
    cluster = MemoryCluster(*(raw_node(f"n{i:03}") for i in range(100)))
    slices = []
    whole = Engine.nodes

    def nodes(self, names=None, *, now_s):
        slices.append(len(names))
        return whole(self, names, now_s=now_s)

    monkeypatch.setattr(Engine, "nodes", nodes)
    async with serving(cluster) as caller:
        _, listed = await caller.get("/v1/nodes")
    assert [node["name"] for node in listed["items"]] == [f"n{i:03}" for i in range(100)]
    assert slices == [32, 32, 32, 4]


async def test_probes_answer(cluster):
    async with serving(cluster) as caller:
        assert await caller.get("/livez") == (200, "ok\n")
        assert await caller.get("/readyz") == (200, "ok\n")


async def test_unknown_paths_and_wrong_methods_have_the_error_shape(cluster):
    async with serving(cluster) as caller:
        assert (await caller.get("/v2"))[0] == 404
        status, reply = await caller.get("/v1/pods:explain")
        assert (status, reply["error"]["code"]) == (405, "MethodNotAllowed")
        status, reply = await caller.post("/scheduler/reserve", {})
        assert (status, reply["error"]["code"]) == (404, "NotFound")
        status, reply = await caller.get("/scheduler/filter")
        assert status == 404, "the verbs are on their own listener alone"


async def test_what_can_be_got_can_be_probed_by_head(cluster):
    async with serving(cluster) as caller, aiohttp.ClientSession() as session:
        for path in ("/livez", "/readyz", "/metrics", "/v1/nodes"):
            async with session.head(caller.api + path) as answer:
                assert (answer.status, await answer.read()) == (200, b""), path


async def test_the_description_lists_every_route_of_both_listeners(cluster):
    async with serving(cluster) as caller:
        status, description = await caller.get("/openapi.json")
        extender = caller.extender
        served = {
            (route.method, route.resource.canonical)
            for listener in ("scheduler", "api")
            for route in extender.app(listener).router.routes()
            if route.method != "HEAD"
        }
    assert status == 200
    told = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert told == served
    assert ("POST", "/scheduler/bind") in told
    assert (
        description["paths"]["/v1/pods/{namespace}/{name}/explanation"]["get"]["parameters"][0]["name"] == "namespace"
    )


@pytest.mark.parametrize("path", ["/scheduler/filter", "/scheduler/bind", "/v1/pods:explain"])
async def test_a_body_that_is_not_encoded_as_it_says_is_a_400(cluster, path):
    """A client's mistake is never a 5xx, whichever layer finds it."""
    async with serving(cluster) as caller:
        base = caller.scheduler if path.startswith("/scheduler") else caller.api
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with caller._session.post(base + path, data=b"abcd", headers=headers) as answer:
            error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["retryable"]) == (400, "InvalidRequest", False)


async def test_a_pod_to_explain_is_no_longer_than_an_object_may_be():
    """The API is on the pod's address: 32 MB of JSON would hold up kube-scheduler's calls for half a second."""
    async with serving(MemoryCluster(raw_node("n1"))) as caller:
        body = io.BytesIO(orjson.dumps(raw_pod("p", annotations={"note": "x" * 2**20})))
        async with caller._session.post(f"{caller.api}/v1/pods:explain", data=body) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (413, "RequestEntityTooLarge")
