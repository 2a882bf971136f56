"""What ``/metrics`` shows, and that it cannot grow with what callers send."""

import asyncio
import re

from kvaware_cluster import Kind
from kvaware_testing.extender_harness import SCRAPED, MemoryCluster, in_use, serving
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod, raw_quota
from kvaware_testing.repository import REPOSITORY
from kvaware_testing.store_harness import eventually

PROMISED = [
    "scheduler_qps",
    "scheduler_queue_length",
    "schedule_reject_count",
    "scheduler_latency_bucket",
    "gpu_hbm_used_bytes",
]


async def series(caller):
    _, text = await caller.get("/metrics")
    return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}


async def test_the_promised_names_are_there_exactly():
    """Dashboards are written against these names; the client library would rename a counter to ``…_total``."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("unwatched", gpus=1))
    cluster.add_exporter("n1", in_use(1024))
    pod = cluster.add_pod(raw_pod("p", gpus=2))
    async with serving(cluster, store=SCRAPED) as caller:
        await caller.filter(pod, "n1")
        names = {name.split("{")[0] for name in await series(caller)}
        assert names.issuperset(PROMISED)
        assert await caller.metric("schedule_reject_count") == 1
        assert await caller.metric("scheduler_latency_count", '{verb="filter"}') == 1
        assert await caller.metric("gpu_hbm_used_bytes", '{node="n1"}') == 2**30
        assert await caller.metric("gpu_hbm_used_bytes", '{node="unwatched"}') is None, "unknown is not zero"
        assert await caller.metric("kvaware_ready") == 1
        assert await caller.metric("kvaware_node_refusals_total", '{reason="NotEnoughGPUs"}') == 1


async def test_the_page_of_metrics_names_all_of_them_and_no_other():
    """``kvaware_gc_pause_seconds`` is of the process, which no test is."""
    page = (REPOSITORY / "docs" / "metrics.md").read_text("utf-8")
    described = {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    async with serving(MemoryCluster(raw_node("n1"), raw_model("llama"), raw_quota(gpus=2))) as caller:
        _, text = await caller.get("/metrics")
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert described == families | {"kvaware_gc_pause_seconds"}


async def test_names_from_requests_never_become_series():
    """llm-d-router#1625: a client could grow memory without end."""
    cluster = MemoryCluster(raw_node("n1"))
    async with serving(cluster) as caller:
        before = await series(caller)
        for i in range(300):
            pod = raw_pod(f"p{i}", namespace=f"ns{i}", labels={"kvaware.io/model": f"model{i}"})
            pod["metadata"]["uid"] = f"u{i}"
            await caller.filter(pod, f"node{i}")
            await caller.prioritize(pod, f"node{i}")
        assert await series(caller) == before


async def test_series_of_deleted_objects_are_gone_at_the_next_scrape_and_no_counter_goes_down():
    """openvox-operator#554: gauges of deleted objects lived on; their alerts too."""
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"), raw_model("llama"), raw_quota(gpus=2))
    cluster.add_exporter("n1", in_use(1024))
    pod = cluster.add_pod(raw_pod("p", gpus=3))
    async with serving(cluster, store=SCRAPED) as caller:
        await caller.filter(pod, "n1")
        assert await caller.metric("gpu_hbm_used_bytes", '{node="n1"}') == 2**30
        refused = await caller.metric("schedule_reject_count")
        assert await caller.metric("kvaware_tenant_limit_gpus", '{tenant="a"}') == 2
        store = caller.extender.store
        cluster.delete(Kind.TENANT_QUOTA, raw_quota()["metadata"]["name"])
        cluster.delete(Kind.NODE, "n1")
        cluster.delete_pod("ml", "p")
        await eventually(lambda: not store.objects(Kind.TENANT_QUOTA) and len(store.objects(Kind.NODE)) == 1)
        await eventually(lambda: not caller.seen(pod))
        asked = cluster.scrapes
        await eventually(lambda: cluster.scrapes >= asked + 2)  # the exporter still answers
        assert not [name for name in await series(caller) if 'tenant="a"' in name or 'node="n1"' in name]
        assert await caller.metric("schedule_reject_count") == refused
        assert await caller.metric("scheduler_queue_length") == 0


async def test_bind_results_are_counted():
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pods = [cluster.add_pod(raw_pod(f"p{i}")) for i in range(3)]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        await asyncio.gather(*(caller.bind(pod, "n1") for pod in pods))
        assert await caller.metric("kvaware_bind_total", '{result="bound"}') == 1
        assert await caller.metric("kvaware_bind_total", '{result="refused"}') == 2
        assert await caller.metric("kvaware_refusals_total", '{reason="NotEnoughGPUs"}') == 2
