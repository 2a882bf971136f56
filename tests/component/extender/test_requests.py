"""Requests placed by the whole extender: from the cluster's objects and workers' heartbeats to answers and metrics."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from kvaware_cluster import Kind, WorkerScrapeSettings
from kvaware_extender import GatewaySettings, run_extender
from kvaware_testing.extender_harness import Caller, MemoryCluster, quiet_settings, serving
from kvaware_testing.fake_api import Raw, raw_model, raw_node, raw_pod, raw_quota
from kvaware_testing.store_harness import FakeClock, eventually

SILENT = WorkerScrapeSettings(enabled=False)
ID = "meta-llama/Llama-3.3-70B-Instruct"
TOKENS = list(range(2000))
PROMISED = {
    "scheduler_qps",
    "scheduler_queue_length",
    "worker_queue_length",
    "gpu_utilization",
    "gpu_hbm_used_bytes",
    "batch_size",
    "p99_decode_latency",
    "cache_local_hit_rate",
    "scheduler_latency",
    "batch_wait_time",
    "request_ttft",
    "request_tpot",
    "remote_cache_read_count",
    "cache_migration_triggered_by_schedule",
    "schedule_reject_count",
    "worker_assignment_failure_count",
}
"""Design, §8."""


def worker_pod(name: str, *, model: str = "llama") -> Raw:
    """A Ready pod of a model."""
    return raw_pod(
        name, node="n1", labels={"kvaware.io/model": model}, conditions=[{"type": "Ready", "status": "True"}], ip="::1"
    )


def model(name: str = "llama", **spec: Any) -> Raw:
    raw = raw_model(name)
    raw["spec"].update({"kvCache": {"bytesPerToken": "320Ki"}, **spec})
    return raw


def demand(number: int = 0, **sent: Any) -> dict[str, Any]:
    return {"request_id": f"r{number}", "model": ID, "token_ids": TOKENS, "expected_output_tokens": 100, **sent}


class Requests:
    """A gateway and the workers, over a running extender."""

    def __init__(self, caller: Caller, cluster: MemoryCluster) -> None:
        self.caller = caller
        self.extender = caller.extender
        self._cluster = cluster
        self._seq = 0

    async def beat(self, *names: str, model: str = "llama", **figures: Any) -> None:
        self._seq += 1
        told = {"seq": self._seq, "kv_blocks_total": 10_000, "kv_blocks_free": 10_000, "waiting": 0, "running": 0}
        for name in names:
            token = self._cluster.token_of(self._cluster.raw_pod(name))
            status, reply = await self.caller.beat(
                f"ml:{name}:0",
                token=token,
                model=f"ml/{model}",
                address=f"10.0.0.{ord(name)}:8000",
                **{**told, **figures},
            )
            assert status == 202, reply

    async def place(self, number: int = 0, **sent: Any) -> Any:
        status, reply = await self.caller.post("/v1/placements", demand(number, **sent))
        assert status == 200, reply
        return reply

    async def tell(self, placement: Any, **event: Any) -> Any:
        status, reply = await self.caller.post(f"/v1/placements/{placement['placement_id']}/events", event)
        assert status == 200, reply
        return reply

    async def families(self) -> dict[str, str]:
        """Metric families and their types."""
        _, text = await self.caller.get("/metrics")
        lines = (line.split() for line in text.splitlines() if line.startswith("# TYPE "))
        return {line[2]: line[3] for line in lines}

    async def series(self) -> set[str]:
        _, text = await self.caller.get("/metrics")
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.fixture
def cluster() -> MemoryCluster:
    """A model and two workers."""
    cluster = MemoryCluster(raw_node("n1"), model())
    for name in ("a", "b"):
        cluster.add_pod(worker_pod(name))
    return cluster


@asynccontextmanager
async def requests(cluster: MemoryCluster, **settings: Any) -> AsyncIterator[Requests]:
    async with serving(cluster, worker_scrape=SILENT, **settings) as caller:
        yield Requests(caller, cluster)


async def test_a_request_goes_to_a_worker_and_the_next_of_its_prompt_to_the_same(cluster):
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        first = await gateway.place(1)
        assert first["worker"]["id"] in {"ml:a:0", "ml:b:0"}
        assert first["worker"]["address"].endswith(":8000")
        await gateway.tell(first, type="finished", output_tokens=100, cached_tokens=0, ttft_ms=200)
        second = await gateway.place(2)
        assert second["worker"]["id"] == first["worker"]["id"]
        assert second["kv"]["matched_tokens"] > 1900
        status, explanation = await gateway.caller.get(f"/v1/placements/{second['placement_id']}/explanation")
        assert (status, explanation["chosen"]) == (200, second["worker"]["id"])


async def test_every_promised_metric_is_there_under_its_name_and_type(cluster):
    """Dashboards are written against them."""
    async with requests(cluster) as gateway:
        families = await gateway.families()
        assert set(families) >= PROMISED
        histograms = {"scheduler_latency", "batch_wait_time", "request_ttft", "request_tpot"}
        assert {name for name in PROMISED if families[name] == "histogram"} == histograms


async def test_what_became_of_requests_is_measured(cluster):
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        placed = await gateway.place(1)
        told = {"output_tokens": 100, "cached_tokens": 500, "ttft_ms": 200, "queue_wait_ms": 4}
        await gateway.tell(placed, type="finished", **told)
        metric, of_model = gateway.caller.metric, '{model="ml/llama"}'
        assert await metric("request_ttft_sum", of_model) == 0.2
        assert await metric("batch_wait_time_sum", of_model) == 0.004
        assert await metric("cache_local_hit_rate", of_model) == 0.25
        assert await metric("scheduler_latency_count", '{verb="place"}') == 1
        assert await metric("kvaware_placement_events_total", '{result="taken",type="finished"}') == 1
        assert await metric("kvaware_reservations") == 0
        status, reply = await gateway.caller.post("/v1/placements", demand(2, candidates=["ml:none:0"]))
        assert status == 503, reply
        assert await metric("schedule_reject_count") == 1
        assert await metric("kvaware_placement_refusals_total", '{reason="NoWorker"}') == 1


async def test_a_refused_assignment_is_counted_and_the_next_worker_is_told(cluster):
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        placed = await gateway.place(1)
        reply = await gateway.tell(placed, type="refused", reason="pool full")
        assert reply["placement"]["worker"]["id"] != placed["worker"]["id"]
        assert await gateway.caller.metric("worker_assignment_failure_count") == 1
        assert await gateway.caller.metric("kvaware_reservations") == 1


async def test_names_that_requests_make_up_never_become_series(cluster):
    """llm-d/llm-d-router#1625: 5,000 placements, each with a new model name and a new unauthenticated tenant header."""
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        await gateway.place(0)
        before = await gateway.series()
        async with aiohttp.ClientSession() as session:
            for number in range(0, 5000, 500):
                demands = [
                    demand(each, model=f"made-up-{each}" if each % 2 else ID, token_ids=[each], session=f"s{each}")
                    for each in range(number + 1, number + 501)
                ]
                headers = {"x-kvaware-tenant": f"tenant-{number}", "Authorization": f"Bearer {number:032}"}
                url = f"{gateway.caller.api}/v1/placements:batch"
                async with session.post(url, json={"demands": demands}, headers=headers) as answer:
                    assert answer.status == 200
        for number in range(20):
            headers = {"x-kvaware-tenant": f"made-up-{number}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                body = demand(6000 + number, model=f"other-{number}")
                async with session.post(f"{gateway.caller.api}/v1/placements", json=body) as answer:
                    assert answer.status == 404
        counts = gateway.extender.requests.placing.counts
        assert counts.placed + counts.refused == 5021
        assert await gateway.series() == before


async def test_series_of_deleted_models_workers_and_tenants_are_gone_and_no_counter_goes_down(cluster):
    """openvox-operator#554: gauges of deleted objects lived on; their alerts too."""
    cluster.put(raw_quota("q", requestsPerSecond=100, concurrentRequests=5))
    cluster.put(model("other", servedNames=["other"]))
    cluster.add_pod(worker_pod("c", model="other"))
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        await gateway.beat("c", model="other")
        for number, name in enumerate((ID, "other")):
            placed = await gateway.place(number, model=name)
            await gateway.tell(placed, type="finished", output_tokens=10, cached_tokens=1, ttft_ms=5)
        metric = gateway.caller.metric
        assert await metric("request_ttft_count", '{model="ml/other"}') == 1
        limit = '{limit="requestsPerSecond",quota="q",tenant="a"}'
        assert await metric("kvaware_tenant_request_limit", limit) == 100
        store = gateway.extender.store
        cluster.delete(Kind.TENANT_QUOTA, "q")
        cluster.delete(Kind.INFERENCE_MODEL, "other", "ml")
        cluster.delete_pod("ml", "b")
        await eventually(lambda: not store.objects(Kind.TENANT_QUOTA) and len(store.worker_pods) == 2)
        await eventually(lambda: len(store.objects(Kind.INFERENCE_MODEL)) == 1)
        for _ in range(2):
            gone = [name for name in await gateway.series() if "ml/other" in name or "ml:b:0" in name or '"q"' in name]
            assert not gone
        assert await metric("request_ttft_count", '{model="ml/llama"}') == 1
        assert await metric("kvaware_placement_events_total", '{result="taken",type="finished"}') == 2


async def test_tenants_show_their_requests_too(cluster, tmp_path):
    cluster.put(raw_quota("q", concurrentRequests=5))
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-16-or-more-characters\n")
    async with requests(cluster, gateway=GatewaySettings(token_file=str(tokens))) as gateway:
        await gateway.beat("a", "b")
        headers = {"Authorization": "Bearer a-token-of-16-or-more-characters", "x-kvaware-tenant": "a"}
        url = f"{gateway.caller.api}/v1/placements"
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=demand()) as answer:
            assert answer.status == 200
        _, tenants = await gateway.caller.get("/v1/tenants")
        [tenant] = tenants["items"]
        assert (tenant["tenant"], tenant["used_gpus"]) == ("a", 2)
        assert tenant["requests"]["concurrent_requests"] == 1
        assert [(each["limit"], each["at_most"], each["left"]) for each in tenant["requests"]["limits"]] == [
            ("concurrentRequests", 5, 4)
        ]


async def test_placements_are_logged_under_the_promised_names(cluster, tmp_path):
    path = tmp_path / "decisions.jsonl"
    async with requests(cluster, decision_log=str(path)) as gateway:
        await gateway.beat("a", "b")
        placed = await gateway.place(1, priority=3)
        await gateway.caller.post("/v1/placements", demand(2, candidates=["ml:none:0"]))
    chosen, refused = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert (chosen["request_id"], chosen["model_id"], chosen["priority"]) == ("r1", ID, 3)
    assert (chosen["selected_worker"], chosen["placement_id"]) == (placed["worker"]["id"], placed["placement_id"])
    assert chosen["terms_ms"]["total"] == pytest.approx(placed["cost_ms"]["total"])
    assert (refused["request_id"], refused["selected_worker"], refused["schedule_reason"]) == ("r2", None, "NoWorker")


async def test_a_name_that_two_models_claim_goes_to_the_older(cluster):
    """The operator tells the younger one NameConflict."""
    elder = model("elder", servedNames=["chat"])
    elder["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    younger = model("llama", servedNames=["chat", "mine"])
    younger["metadata"]["creationTimestamp"] = "2021-01-01T00:00:00Z"
    cluster.put(younger)
    cluster.put(elder)
    cluster.add_pod(worker_pod("e", model="elder"))
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        await gateway.beat("e", model="elder")
        assert (await gateway.place(1, model="chat"))["worker"]["id"] == "ml:e:0"
        assert (await gateway.place(2, model="mine"))["worker"]["id"] != "ml:e:0"
        cluster.delete(Kind.INFERENCE_MODEL, "elder", "ml")
        await eventually(lambda: len(gateway.extender.store.objects(Kind.INFERENCE_MODEL)) == 1)
        assert (await gateway.place(3, model="chat"))["worker"]["id"] != "ml:e:0"


async def test_a_worker_may_be_named_by_its_address(cluster):
    """Which is what a gateway knows of it."""
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        for number, name in enumerate(("a", "b", "a")):
            placed = await gateway.place(number, candidates=[f"10.0.0.{ord(name)}:8000"])
            assert placed["worker"]["id"] == f"ml:{name}:0"
        cluster.delete_pod("ml", "b")
        await eventually(lambda: len(gateway.extender.store.worker_pods) == 1)
        status, _ = await gateway.caller.post("/v1/placements", demand(9, candidates=[f"10.0.0.{ord('b')}:8000"]))
        assert status == 503


async def test_models_without_workers_are_503_unknown_ones_404_and_both_503_before_the_view_is_complete(cluster):
    """gpustack/gpustack#6030: a worker silent for 20 s turned its models into 404."""
    clock = FakeClock()
    cluster.deliver[Kind.NODE].clear()

    async def asked(gateway: Requests, number: int, **sent: Any) -> tuple[int, str]:
        status, reply = await gateway.caller.post("/v1/placements", demand(number, **sent))
        return status, reply["error"]["code"] if status != 200 else ""

    async with requests(cluster, clock=clock, synced=False, max_view_age_s=1e9) as gateway:
        if not gateway.extender.store.synced():
            assert await asked(gateway, 1) == (503, "StaleView")
            assert await asked(gateway, 2, model="none") == (503, "StaleView")
        await eventually(gateway.extender.store.synced)
        await gateway.beat("a", "b")
        assert await asked(gateway, 3) == (200, "")
        assert await asked(gateway, 4, model="none") == (404, "ModelNotFound")
        clock.now_s += 1000
        assert await asked(gateway, 5) == (503, "NoWorker")
        await gateway.beat("a")
        assert await asked(gateway, 6) == (200, "")


async def test_who_asks_for_a_model_that_is_not_there_is_counted_and_logged(cluster, tmp_path):
    """A gateway with a misspelt name must not be invisible."""
    async with requests(cluster, decision_log=str(tmp_path / "log")) as gateway:
        status, _ = await gateway.caller.post("/v1/placements", demand(1, model="lama"))
        assert status == 404
        assert await gateway.caller.metric('kvaware_placement_refusals_total{reason="ModelNotFound"}') == 1
        assert await gateway.caller.metric("schedule_reject_count") == 1
    (told,) = [orjson.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert (told["event"], told["schedule_reason"], told["model"]) == ("request_refused", "ModelNotFound", "lama")


async def test_who_refuses_too_late_is_told_to_place_again(cluster):
    """A connection that hangs takes longer to be given up than a placement lives."""
    clock = FakeClock()
    async with requests(cluster, clock=clock, max_view_age_s=1e9) as gateway:
        await gateway.beat("a", "b")
        placed = await gateway.place(1)
        clock.now_s += gateway.extender.settings.requests.ledger.ttl_s + 1
        reply = await gateway.tell(placed, type="refused", worker=placed["worker"]["id"])
        assert (reply["result"], reply["error"]["code"], reply["error"]["retryable"]) == (
            "late",
            "PlacementEnded",
            True,
        )
        assert "error" not in await gateway.tell(placed, type="finished")


async def test_times_that_cannot_be_are_not_believed(cluster):
    """Seconds since 1970 for milliseconds since the request: one gateway must not spoil the histograms of all."""
    async with requests(cluster) as gateway:
        await gateway.beat("a", "b")
        placed = await gateway.place(1)
        await gateway.tell(placed, type="finished", output_tokens=9, ttft_ms=86_400_000, queue_wait_ms=86_400_000)
        assert await gateway.caller.metric('request_ttft_count{model="ml/llama"}') == 0
        assert await gateway.caller.metric('batch_wait_time_count{model="ml/llama"}') == 0


async def test_a_placement_of_which_nothing_is_heard_ends_with_its_time(cluster):
    clock = FakeClock()
    async with requests(cluster, clock=clock, max_view_age_s=1e9) as gateway:
        await gateway.beat("a", "b")
        placed = await gateway.place(1)
        assert await gateway.caller.metric("kvaware_reservations") == 1
        clock.now_s += gateway.extender.settings.requests.ledger.ttl_s + 1
        gateway.extender.requests.tick(clock.now_s)
        assert await gateway.caller.metric("kvaware_reservations") == 0
        status, _ = await gateway.caller.post(f"/v1/placements/{placed['placement_id']}/events", {"type": "finished"})
        assert status in {200, 404}


async def test_sigterm_says_good_bye_to_streams(cluster, logs):
    """An open WebSocket must not hold up the end of the process for its whole time limit."""
    running = asyncio.create_task(run_extender(quiet_settings(worker_scrape=SILENT), cluster))
    await eventually(lambda: any(event["event"] == "listening" for event in logs))
    port = next(event for event in logs if event["event"] == "listening")["api_port"]
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/v1/placements/stream") as stream,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        message = await stream.receive()
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.data == aiohttp.WSCloseCode.GOING_AWAY
    await running


async def test_a_token_file_that_is_missing_ends_the_start(cluster, tmp_path):
    with pytest.raises(Exception, match=r"token file .*cannot be read"):
        async with requests(cluster, gateway=GatewaySettings(token_file=str(tmp_path / "none"))):
            pytest.fail("it started")
