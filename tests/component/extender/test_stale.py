"""An old view is never answered from as if it were fresh."""

import pytest

from kvaware_cluster import Kind, NotFoundError
from kvaware_extender import StaleView
from kvaware_testing.extender_harness import SCRAPED, MemoryCluster, serving
from kvaware_testing.fake_api import raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually

STALE = "kvaware: the view of the cluster is stale"


def web(pod):
    return {**raw_pod("web", gpus=0), "metadata": {**pod["metadata"], "uid": "web", "name": "web"}}


async def test_an_old_view_refuses_our_pods_with_a_constant_text_and_nobody_else():
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster, clock=clock) as caller:
        assert (await caller.filter(pod, "n1", "n2"))["NodeNames"] == ["n1", "n2"]
        clock.now_s += 61
        reply = await caller.filter(pod, "n2", "n1")
        assert reply == {
            "Nodes": None,
            "NodeNames": [],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {"n1": STALE},
            "Error": "",
        }
        clock.now_s += 100
        assert await caller.filter(pod, "n1", "n2") == reply, "no age in the text: it would be a hot loop"
        assert await caller.prioritize(pod, "n1", "n2") == {"n1": 0, "n2": 0}
        assert await caller.bind(pod, "n1") == STALE
        assert (await caller.filter(web(pod), "n1"))["NodeNames"] == ["n1"]
        status, error = await caller.get("/v1/nodes")
        assert (status, error["error"]["code"], error["error"]["retryable"]) == (503, "StaleView", True)
        status, error = await caller.get("/readyz")
        assert status == 503
        assert "older than 60 s" in error["error"]["message"]
    assert cluster.node_of("p") is None
    assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ()


async def test_with_admit_an_old_view_is_used():
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster, clock=clock, stale_view=StaleView.ADMIT) as caller:
        await caller.until_seen(pod)
        clock.now_s += 10_000
        assert (await caller.filter(pod, "n1", "n2"))["NodeNames"] == ["n1", "n2"]
        assert await caller.bind(pod, "n1") == ""
        assert (await caller.get("/v1/nodes"))[0] == 200
        assert (await caller.get("/readyz"))[0] == 200


@pytest.mark.parametrize("rule", list(StaleView))
async def test_a_kind_that_cannot_be_listed_refuses_whatever_the_rule(rule):
    """nolar/kopf#1094: no TenantQuota kind is unknown, not "no quotas": nobody becomes unlimited."""
    cluster = MemoryCluster(raw_node("n1"))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.unlistable[Kind.TENANT_QUOTA] = NotFoundError("no such kind", status=404, reason="NotFound")
    async with serving(cluster, synced=False, stale_view=rule) as caller:
        await caller.until_seen(pod)
        assert (await caller.filter(pod, "n1"))["FailedAndUnresolvableNodes"] == {"n1": STALE}
        assert await caller.bind(pod, "n1") == STALE
        assert (await caller.filter(web(pod), "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("rule", list(StaleView))
async def test_before_every_exporter_was_asked_our_pods_wait(rule):
    """After a restart a GPU that a foreign program fills would look free until its exporter has answered."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    cluster.add_exporter("n1", "")
    pod = cluster.add_pod(raw_pod("p"))
    cluster.answer_exporters.clear()
    async with serving(cluster, synced=False, stale_view=rule, store=SCRAPED) as caller:
        await caller.until_seen(pod)
        await eventually(lambda: cluster.scrapes == 1)
        assert (await caller.get("/readyz"))[0] == 503
        assert (await caller.filter(pod, "n1"))["FailedAndUnresolvableNodes"] == {"n1": STALE}
        assert await caller.bind(pod, "n1") == STALE
        cluster.answer_exporters.set()
        await eventually(caller.extender.store.synced)
        assert (await caller.get("/readyz"))[0] == 200
        assert (await caller.filter(pod, "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("path", ["/v1/pods/ml/nobody/explanation", "/v1/nodes", "/v1/tenants", "/readyz"])
async def test_before_the_first_complete_view_the_answer_is_503_not_404(path):
    """gpustack/gpustack#6030: what is not known yet was answered as if it did not exist."""
    cluster = MemoryCluster()
    cluster.unlistable[Kind.POD] = NotFoundError("not yet", status=404, reason="NotFound")
    async with serving(cluster, synced=False) as caller:
        status, error = await caller.get(path)
    assert status == 503
    assert error["error"]["retryable"] is True
    assert "not been read completely" in error["error"]["message"]
