"""``/v1/workers`` and what ``/metrics`` say of workers: of those that there are, as long as there are."""

import asyncio

import pytest

from kvaware_cluster import Kind, WorkerScrapeSettings
from kvaware_engine import ObjectKey, ReportSource, ReportVerdict, WorkerReport
from kvaware_extender.worker_figures import WORKERS_AT_A_TIME
from kvaware_testing.extender_harness import SCRAPED, MemoryCluster, in_use, serving
from kvaware_testing.fake_api import Raw, raw_model, raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually

SILENT = WorkerScrapeSettings(enabled=False)


def worker_pod(name: str, *, model: str = "llama") -> Raw:
    """A Ready pod of a model."""
    return raw_pod(
        name, node="n1", labels={"kvaware.io/model": model}, conditions=[{"type": "Ready", "status": "True"}]
    )


@pytest.fixture
def cluster() -> MemoryCluster:
    """Two models and three workers."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"), raw_model("qwen"))
    for name, model in (("b", "llama"), ("a", "llama"), ("c", "qwen")):
        cluster.add_pod(worker_pod(name, model=model))
    return cluster


async def test_all_workers_or_one_models(cluster):
    async with serving(cluster, worker_scrape=SILENT) as caller:
        _, everybody = await caller.get("/v1/workers")
        assert [item["worker"] for item in everybody["items"]] == ["ml:a:0", "ml:b:0", "ml:c:0"]
        _, some = await caller.get("/v1/workers?model=ml/llama")
        assert [item["worker"] for item in some["items"]] == ["ml:a:0", "ml:b:0"]
        assert some["items"][0]["model"] == {"namespace": "ml", "name": "llama"}


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("model=ml/none", 404, "ModelNotFound"),
        ("model=llama", 400, "InvalidRequest"),
        ("model=", 400, "InvalidRequest"),
        ("model=a/b/c", 400, "InvalidRequest"),
    ],
)
async def test_a_model_that_is_none(cluster, query, status, code):
    async with serving(cluster, worker_scrape=SILENT) as caller:
        got, reply = await caller.get(f"/v1/workers?{query}")
        assert (got, reply["error"]["code"]) == (status, code)


async def test_a_stale_view_lists_nobody(cluster):
    """A list without those who came since would look complete."""
    clock = FakeClock()
    async with serving(cluster, clock=clock, worker_scrape=SILENT) as caller:
        clock.now_s += 61
        for path in ("/v1/workers", "/v1/workers?model=ml/none"):
            status, reply = await caller.get(path)
            assert (status, reply["error"]["code"]) == (503, "StaleView")


async def test_figures_of_workers_are_metrics_and_end_with_them(cluster):
    """openvox#554: gauges of deleted objects lived on; their alerts too."""
    tokens = {name: cluster.token_of(cluster.raw_pod(name)) for name in ("a", "b", "c")}
    async with serving(cluster, worker_scrape=SILENT) as caller:
        for name, model in (("a", "llama"), ("b", "llama"), ("c", "qwen")):
            await caller.beat(f"ml:{name}:0", token=tokens[name], model=f"ml/{model}", waiting=3, running=5)
        assert await caller.metric("worker_queue_length", '{model="ml/llama",worker="ml:a:0"}') == 3
        assert await caller.metric("batch_size", '{model="ml/llama",worker="ml:a:0"}') == 5
        assert await caller.metric("kvaware_workers_reporting", '{model="ml/llama",role="both"}') == 2
        store = caller.extender.store
        cluster.delete_pod("ml", "a")
        cluster.delete(Kind.INFERENCE_MODEL, "qwen", "ml")
        await eventually(lambda: len(store.worker_pods) == 2 and len(store.objects(Kind.INFERENCE_MODEL)) == 1)
        _, text = await caller.get("/metrics")
        assert "ml:a:0" not in text
        assert "ml/qwen" not in text
        assert await caller.metric("worker_queue_length", '{model="ml/llama",worker="ml:b:0"}') == 3
        assert await caller.metric("kvaware_heartbeats_total", '{result="taken"}') == 3, "no counter goes down"


async def test_a_worker_that_does_not_report_has_no_figures(cluster):
    """Unknown is not 0, and an old figure is not a new one."""
    clock = FakeClock()
    token = cluster.token_of(cluster.raw_pod("a"))
    async with serving(cluster, clock=clock, worker_scrape=SILENT, max_view_age_s=1e6) as caller:
        await caller.beat("ml:a:0", token=token, model="ml/llama", waiting=3)
        assert await caller.metric("worker_queue_length", '{model="ml/llama",worker="ml:b:0"}') is None
        assert await caller.metric("batch_size", '{model="ml/llama",worker="ml:a:0"}') is None
        clock.now_s += 1000
        assert await caller.metric("worker_queue_length", '{model="ml/llama",worker="ml:a:0"}') is None
        assert await caller.metric("kvaware_workers_ready", '{model="ml/llama",role="both"}') == 2


async def test_others_come_between_when_many_workers_are_scraped():
    """1,000 workers of one model: looked at in one go they held up kube-scheduler and requests for 0.1 s."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    pods = [cluster.add_pod(worker_pod(f"p{number}")) for number in range(200)]
    async with serving(cluster, worker_scrape=SILENT) as caller:
        extender = caller.extender
        now_s = extender.clock()
        for pod in pods:
            report = WorkerReport(
                worker=f"ml:{pod['metadata']['name']}:0",
                model=ObjectKey("ml", "llama"),
                incarnation="",
                source=ReportSource.HEARTBEAT,
                observed_at_s=now_s,
                seq=1,
                waiting=1,
            )
            assert extender.worker_feed.beat(report, now_s=now_s) is ReportVerdict.TAKEN
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await extender.figures.read()
        task.cancel()
        assert turns >= 2 * 200 // WORKERS_AT_A_TIME - 1, "each worker is looked at twice"
        assert await caller.metric("kvaware_workers_reporting", '{model="ml/llama",role="both"}') == 200
        assert await caller.metric("worker_queue_length", '{model="ml/llama",worker="ml:p199:0"}') == 1


async def test_names_that_callers_make_up_never_become_series(cluster):
    """llm-d-router#1625: a client could grow memory without end."""

    async def series(caller) -> set[str]:
        _, text = await caller.get("/metrics")
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    token = cluster.token_of(cluster.raw_pod("a"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        before = await series(caller)
        for i in range(50):
            await caller.beat(f"ml:made-up-{i}:0", token=token, model=f"ml/made-up-{i}", waiting=1)
            await caller.beat("ml:a:0", token=token, model=f"ml/made-up-{i}", waiting=1)
            await caller.get(f"/v1/models/ml/made-up-{i}/load")
        assert await series(caller) == before


async def test_the_use_of_gpus_is_a_metric_of_their_node_while_the_exporter_tells(cluster):
    """Mean over its GPUs, 0..1; blank is unknown."""
    gpu = '{gpu="0",UUID="GPU-0"}'
    cluster.add_exporter("n1", in_use(1024) + f"DCGM_FI_DEV_GPU_UTIL{gpu} 40\n")
    async with serving(cluster, store=SCRAPED, worker_scrape=SILENT) as caller:
        assert await caller.metric("gpu_utilization", '{node="n1"}') == 0.4
        cluster.add_exporter("n1", in_use(1024))
        asked = cluster.scrapes
        await eventually(lambda: cluster.scrapes >= asked + 2)
        assert await caller.metric("gpu_utilization", '{node="n1"}') is None


async def test_a_workers_gpus_are_known_whatever_is_listed_first(cluster):
    """Its hardware profile is found by product, model and number of GPUs."""
    cluster.deliver[Kind.NODE].clear()
    cluster.delete(Kind.NODE, "n1")
    async with serving(cluster, synced=False, worker_scrape=SILENT) as caller:
        feed = caller.extender.worker_feed
        await eventually(lambda: len(feed._places) == 3)
        state = caller.extender.workers._workers["ml:a:0"]
        assert (state.place.product, state.place.gpus) == (None, 1)
        cluster.put(raw_node("n1"))
        cluster.deliver[Kind.NODE].set()
        await eventually(lambda: state.place.product is not None)
        assert (state.place.product, state.place.model_id) == (
            "NVIDIA-H100-80GB-HBM3",
            "meta-llama/Llama-3.3-70B-Instruct",
        )
