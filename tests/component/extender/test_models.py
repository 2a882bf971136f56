"""``/v1/models``: a model's load, and whether more of its replicas would fit."""

import asyncio

import pytest

from kvaware_cluster import Kind, WorkerScrapeSettings
from kvaware_testing.extender_harness import MemoryCluster, serving
from kvaware_testing.fake_api import Raw, raw_model, raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually

SCRAPING = WorkerScrapeSettings(interval_s=0.05, interval_jitter_ratio=0.0)
ROUTES = ["load", "headroom", "headroom?replicas=3"]


def worker_pod(name: str = "w0", *, ip: str = "10.0.0.7") -> Raw:
    """A Ready pod of the model, on the network."""
    return raw_pod(
        name,
        node="n1",
        labels={"kvaware.io/model": "llama"},
        podIP=ip,
        conditions=[{"type": "Ready", "status": "True"}],
    )


def metrics_text(*, waiting: float, running: float = 1.0, finished: float = 0.0) -> str:
    """What vLLM's ``/metrics`` say."""
    labels = '{engine="0",model_name="m"}'
    return (
        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} {waiting}\n"
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}\n"
        f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{labels} 0.25\n"
        f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{labels} {finished * 100}\n"
    )


async def test_the_load_is_what_the_workers_metrics_say():
    """Two workers are scraped; their queues add up, their pools' use is the mean."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    for index, waiting in enumerate((3, 4)):
        cluster.add_pod(worker_pod(f"w{index}", ip=f"10.0.0.{index}"))
        cluster.metrics[f"10.0.0.{index}:8000"] = metrics_text(waiting=waiting)
    async with serving(cluster, worker_scrape=SCRAPING) as caller:
        await eventually(lambda: all(view.reporting for view in caller.extender.workers.views(now_s=0)))
        status, load = await caller.get("/v1/models/ml/llama/load")
        assert (status, load["model"]) == (200, {"namespace": "ml", "name": "llama"})
        [role] = load["roles"]
        assert (role["role"], role["workers"], role["reporting"]) == ("both", 2, 2)
        assert (role["waiting"], role["running"], role["kv_usage_ratio"]) == (7, 2, 0.25)
        assert role["ttft_p99_ms"] is None, "nobody tells"
        assert role["product"] == "NVIDIA-H100-80GB-HBM3"


async def test_nobody_who_answers_is_unknown_and_not_zero():
    """dynamo#6985: no answer is no load of 0; the operator holds the number of replicas then."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    cluster.add_pod(worker_pod())
    async with serving(cluster, worker_scrape=SCRAPING) as caller:
        await eventually(lambda: bool(caller.extender.scraper.troubles()))
        _, load = await caller.get("/v1/models/ml/llama/load")
        [role] = load["roles"]
        assert (role["workers"], role["reporting"], role["waiting"]) == (1, 0, None)


async def test_a_worker_that_fell_silent_leaves_its_model_where_it_is():
    """gpustack#6030: a worker silent for 20 s turned its models into 404."""
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    token = cluster.token_of(cluster.add_pod(worker_pod()))
    async with serving(
        cluster, clock=clock, worker_scrape=WorkerScrapeSettings(enabled=False), max_view_age_s=1e6
    ) as caller:
        await caller.beat("ml:w0:0", token=token, model="ml/llama", waiting=3)
        clock.now_s += 1000
        status, load = await caller.get("/v1/models/ml/llama/load")
        assert (status, load["roles"][0]["reporting"], load["roles"][0]["waiting"]) == (200, 0, None)
        _, workers = await caller.get("/v1/workers?model=ml/llama")
        assert [(each["reporting"], each["age_s"], each["confidence_ratio"]) for each in workers["items"]] == [
            (False, 1000, 0)
        ]


async def test_all_models_with_their_loads():
    """For people; programs ask about one."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("b"), raw_model("a"), raw_model("a", namespace="other"))
    async with serving(cluster) as caller:
        status, reply = await caller.get("/v1/models")
        assert status == 200
        assert [tuple(item["model"].values()) for item in reply["items"]] == [("ml", "a"), ("ml", "b"), ("other", "a")]
        assert reply["items"][0] == (await caller.get("/v1/models/ml/a/load"))[1]


@pytest.mark.parametrize("route", ROUTES)
async def test_an_unknown_model_is_a_404(route):
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    async with serving(cluster) as caller:
        assert (await caller.get(f"/v1/models/ml/llama/{route}"))[0] == 200
        for path in ("ml/other", "other/llama"):
            status, reply = await caller.get(f"/v1/models/{path}/{route}")
            assert (status, reply["error"]["code"]) == (404, "ModelNotFound")
            assert path.partition("/")[0] in reply["error"]["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_before_the_cluster_is_known_no_model_is_unknown(route):
    """gpustack#6030: either one before the store has synced is 503, to be tried again."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    cluster.unlistable = dict.fromkeys(Kind, OSError("no answer"))
    async with serving(cluster, synced=False) as caller:
        for name in ("llama", "none"):
            status, reply = await caller.get(f"/v1/models/ml/{name}/{route}")
            assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (503, "StaleView", True)


@pytest.mark.parametrize("route", ROUTES)
async def test_while_the_view_is_stale_nothing_is_said(route):
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    async with serving(cluster, clock=clock) as caller:
        clock.now_s += 61
        for name in ("llama", "none"):
            status, reply = await caller.get(f"/v1/models/ml/{name}/{route}")
            assert (status, reply["error"]["code"]) == (503, "StaleView")


async def test_headroom_says_how_many_fit_where_and_why_no_more():
    cluster = MemoryCluster(raw_node("n1", gpus=2), raw_node("n2", gpus=1), raw_model("llama"))
    async with serving(cluster) as caller:
        version = caller.extender.engine.version
        status, found = await caller.get("/v1/models/ml/llama/headroom?replicas=4")
        assert (status, found["model"]) == (200, {"namespace": "ml", "name": "llama"})
        [role] = found["roles"]
        assert (role["asked_replicas"], role["fits_replicas"], sorted(role["nodes"])) == (4, 3, ["n1", "n1", "n2"])
        assert (role["reason"], role["text"]) == ("NotEnoughGPUs", "kvaware: not enough free GPUs")
        _, one = await caller.get("/v1/models/ml/llama/headroom")
        assert (one["roles"][0]["asked_replicas"], one["roles"][0]["reason"], one["roles"][0]["text"]) == (1, None, "")
        assert caller.extender.engine.version == version, "asking leaves no trace"


@pytest.mark.parametrize("asked", ["0", "65", "-1", "1.5", "x", "", "%C2%B2", "9" * 5000, "1e1", " 1", "0x1"])
async def test_a_number_of_replicas_that_is_none_is_a_400(asked):
    """Before the view is looked at, and whatever the model is."""
    async with serving(MemoryCluster(raw_node("n1"), raw_model("llama"))) as caller:
        status, reply = await caller.get(f"/v1/models/ml/llama/headroom?replicas={asked}")
        assert (status, reply["error"]["code"]) == (400, "InvalidRequest")
        assert "from 1 to 64" in reply["error"]["message"]


async def test_kube_schedulers_calls_come_between_the_steps_of_a_headroom():
    """And what they take is gone for the pods that follow: nothing is promised twice."""
    cluster = MemoryCluster(raw_node("n1", gpus=8), raw_model("llama"))
    pods = [cluster.add_pod(raw_pod(f"p{i}")) for i in range(8)]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        binds = [caller.bind(pod, "n1") for pod in pods[:4]]
        asked = [caller.get("/v1/models/ml/llama/headroom?replicas=8") for _ in range(4)]
        *bound, _, _, _, _ = await asyncio.gather(*binds, *asked)
        assert bound == ["", "", "", ""]
        _, found = await caller.get("/v1/models/ml/llama/headroom?replicas=8")
        assert found["roles"][0]["fits_replicas"] == 4
        assert [await caller.bind(pod, "n1") for pod in pods[4:]] == ["", "", "", ""]


async def test_questions_that_wait_are_bounded_and_asked_again_when_their_turn_comes(monkeypatch):
    """Each can be seconds of work, and anybody may ask; the view may have gone stale in the queue."""
    monkeypatch.setattr("kvaware_extender.routes.models.MOST_WAITING", 2)
    cluster = MemoryCluster(raw_node("n1", gpus=64), raw_model("llama"))
    async with serving(cluster) as caller:
        asked = [caller.get("/v1/models/ml/llama/headroom?replicas=64") for _ in range(12)]
        answers = await asyncio.gather(*asked)
        told = {(status, reply.get("error", {}).get("code")) for status, reply in answers}
        assert told == {(200, None), (503, "TooManyQuestions")}
        assert (await caller.get("/v1/models/ml/llama/headroom"))[0] == 200, "places become free again"
