"""Placements in the whole extender: what the API server shows is where requests go."""

import pytest

from kvaware_extender.express import express
from kvaware_testing.extender_harness import MemoryCluster, serving
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod
from kvaware_testing.placement_harness import demand
from kvaware_testing.store_harness import eventually

READY = [{"type": "Ready", "status": "True"}]


@pytest.fixture
def cluster() -> MemoryCluster:
    """A model with one worker."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    cluster.add_pod(raw_pod("w0", node="n1", labels={"kvaware.io/model": "llama"}, podIP="10.0.0.7", conditions=READY))
    return cluster


async def test_a_request_is_placed_told_about_and_explained(cluster):
    async with serving(cluster) as caller:
        token = cluster.token_of(cluster.raw_pod("w0"))
        assert (await caller.beat("ml:w0:0", token=token, seq=1, model="ml/llama", waiting=0, running=0))[0] == 202
        status, placed = await caller.post("/v1/placements", demand(model="ml/llama"))
        assert (status, placed["worker"]) == (200, {"id": "ml:w0:0", "address": "10.0.0.7:8000"})
        status, explained = await caller.get(f"/v1/placements/{placed['placement_id']}/explanation")
        assert (status, explained["chosen"], len(explained["answers"])) == (200, "ml:w0:0", 6)
        events = f"/v1/placements/{placed['placement_id']}/events"
        assert await caller.post(events, {"type": "finished", "output_tokens": 3}) == (200, {"result": "taken"})
        assert await caller.metric("kvaware_reservations") == 0
        status, listed = await caller.get("/v1/block-groups?model=ml/llama")
        assert (status, [group["tokens"] for group in listed["items"]]) == (200, [16])


async def test_a_worker_may_be_named_by_its_address(cluster):
    async with serving(cluster) as caller:
        token = cluster.token_of(cluster.raw_pod("w0"))
        await caller.beat("ml:w0:0", token=token, seq=1, model="ml/llama", waiting=0)
        status, placed = await caller.post("/v1/placements", demand(model="ml/llama", candidates=["10.0.0.7:8000"]))
        assert (status, placed["worker"]["id"]) == (200, "ml:w0:0")
        status, reply = await caller.post(
            "/v1/placements", demand("r1", model="ml/llama", candidates=["10.0.0.8:8000"])
        )
        assert (status, reply["error"]["code"]) == (503, "NoWorker")


async def test_absent_unavailable_and_not_yet_known_are_told_apart(cluster):
    """gpustack#6030: a silent worker turned its models into 404."""
    async with serving(cluster) as caller:
        status, reply = await caller.post("/v1/placements", demand(model="ml/unheard-of"))
        assert (status, reply["error"]["code"]) == (404, "ModelNotFound")
        cluster.put(raw_model("asleep"))
        await eventually(lambda: caller.extender.requests.placer.resolve("ml/asleep") is not None)
        status, reply = await caller.post("/v1/placements", demand(model="ml/asleep"))
        assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (503, "NoWorker", True)


async def test_the_two_calls_of_each_request_do_not_pass_the_router(cluster, monkeypatch):
    """They are answered before it: an eighth of their time."""
    seen = []

    def watched(otherwise, **parts):
        async def passed_on(request):
            seen.append(request.path)
            return await otherwise(request)

        return express(passed_on, **parts)

    monkeypatch.setattr("kvaware_extender.requests_part.express", watched)
    async with serving(cluster) as caller:
        await caller.post("/v1/placements", demand(model="ml/unheard-of"))
        await caller.post("/v1/placements/x/events", {"type": "finished"})
        await caller.get("/livez")
    assert seen == ["/livez"]
