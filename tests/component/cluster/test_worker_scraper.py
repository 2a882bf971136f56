"""Fake model servers with real sockets, a scraper at work, and what it tells; only its clock is a fake one."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from kvaware_cluster import (
    Change,
    DirectorySource,
    Kind,
    KubernetesSource,
    TokenIdentity,
    WorkerError,
    WorkerMembership,
    WorkerPod,
    WorkerScraper,
    WorkerScrapeSettings,
)
from kvaware_cluster.manifests import Folder
from kvaware_cluster.metrics_reader import MetricsReader
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_engine.observations import ModelObservation, ModelWorkers, ObjectKey, RoleFootprint
from kvaware_engine.reports import WorkerPlace, WorkerReport
from kvaware_testing.fake_api import raw_model, raw_pod
from kvaware_testing.fake_worker import FakeWorker, Load
from kvaware_testing.store_harness import running

POD = ObjectKey("ml", "p-0")
READ = {"what": "worker ml/p-0", "timeout_s": 5.0, "body_bytes": 100_000}


class Scraping:
    """A scraper with its membership, and all that they told."""

    def __init__(self, read: Any, clock: Callable[[], float], **settings: Any) -> None:
        quick = {"interval_s": 0.01, "slow_after_misses_interval_s": 0.02, "timeout_s": 5.0}
        self.places: dict[str, WorkerPlace] = {}
        self.reports: list[WorkerReport] = []
        self.news = asyncio.Event()
        self.before: Callable[[WorkerReport], None] = lambda report: None
        self.membership = WorkerMembership(placed=self._placed)
        self.scraper = WorkerScraper(
            read,
            membership=self.membership,
            settings=WorkerScrapeSettings(**quick | settings),
            clock=clock,
            rng=random.Random(1),  # noqa: S311  # jitter
            reported=self._reported,
        )

    def model(self, port: int, *, namespace: str = "ml") -> None:
        """The model llama, whose workers say on this port what they do."""
        model = ModelObservation(
            key=ObjectKey(namespace, "llama"),
            uid="u-m",
            model_id="m",
            revision="",
            roles=(RoleFootprint(name="both", gpus_per_pod=1, hbm_per_gpu_bytes=None),),
            workers=ModelWorkers(metrics_port=port),
        )
        self.membership.changed(Change(Kind.INFERENCE_MODEL, model.key, None, model))

    def pod(self, name: str = "p-0", *, namespace: str = "ml", started_at: str = "t1", **changes: Any) -> None:
        """A Ready pod of that model on this machine."""
        pod = WorkerPod(
            uid=f"u-{name}",
            key=ObjectKey(namespace, name),
            role=None,
            node="n1",
            finished=False,
            terminating=False,
            unschedulable=False,
            labels={"kvaware.io/model": "llama"},
            started_at=started_at,
            **{"model": "llama", "ip": "127.0.0.1", "ready": True} | changes,
        )
        self.membership.pod_changed(Change("workerpod", pod.key, None, pod))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.news.clear()
                await self.news.wait()

    def _placed(self, worker: str, place: WorkerPlace | None) -> None:
        if place is None:
            del self.places[worker]
        else:
            self.places[worker] = place

    def _reported(self, report: WorkerReport) -> None:
        self.news.set()
        self.before(report)
        assert self.places[report.worker].incarnation == report.incarnation, "the worker is known before it reports"
        self.reports.append(report)


@asynccontextmanager
async def scraping(read: Any, clock: Callable[[], float], **settings: Any) -> AsyncIterator[Scraping]:
    made = Scraping(read, clock, **settings)
    task = asyncio.create_task(made.scraper.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def reader() -> AsyncIterator[MetricsReader]:
    made = MetricsReader()
    yield made
    await made.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Any], path: str = "/metrics") -> AsyncIterator[str]:
    """A server with one handler; gives its ``ip:port``."""
    app = web.Application()
    app.router.add_route("*", path, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("server", ["vLLM", "SGLang"])
async def test_a_ready_worker_is_scraped_again_and_again(server: str, reader, clock):
    """Its time is when the scrape began: what happens while it answers may be missing in the answer."""
    fake = FakeWorker(server=server, clock=clock, load=Load(waiting=3, running=2, kv_usage_ratio=0.5, requests_per_s=2))
    async with fake.serve() as url, scraping(reader.read, clock) as seen:
        seen.model(port_of(url))
        seen.pod()
        await seen.until(lambda: len(seen.reports) >= 2)
        clock.now_s += 10
        fake.set_load(waiting=9)
        await seen.until(lambda: seen.reports[-1].waiting == 9)
    first, last = seen.reports[0], seen.reports[-1]
    assert (first.worker, first.waiting, first.running, first.kv_usage_ratio) == ("ml:p-0:0", 3, 2, 0.5)
    assert (first.observed_at_s, last.observed_at_s) == (1000.0, 1010.0)
    assert first.incarnation == "u-p-0/t1"
    assert last.counters is not None
    assert last.counters.finished_requests == 20


async def test_ranks_show_themselves_by_the_first_scrape(reader, clock):
    async with FakeWorker(ranks=2, clock=clock).serve() as url, scraping(reader.read, clock) as seen:
        seen.model(port_of(url))
        seen.pod()
        assert set(seen.places) == {"ml:p-0:0"}
        await seen.until(lambda: len(seen.reports) >= 2)
    assert set(seen.places) == {"ml:p-0:0", "ml:p-0:1"}
    assert [report.worker for report in seen.reports[:2]] == ["ml:p-0:0", "ml:p-0:1"]


async def test_a_trouble_is_told_once_and_its_end_once(reader, clock, logs):
    """The figure grows old meanwhile; nothing is made up for it."""
    fake = FakeWorker(clock=clock)
    async with fake.serve() as url, scraping(reader.read, clock, missed_limit=2) as seen:
        seen.model(port_of(url))
        seen.pod()
        await seen.until(lambda: bool(seen.reports))
        fake.failure_status = 500
        asked = fake.scrapes
        while fake.scrapes < asked + 5:  # noqa: ASYNC110  # a miss is told to nobody
            await asyncio.sleep(0.002)
        told = len(seen.reports)
        assert "got 500" in seen.scraper.troubles()[POD]
        fake.failure_status = None
        await seen.until(lambda: len(seen.reports) > told)
        assert not seen.scraper.troubles()
    events = [(each["event"], each.get("problem", "").rpartition(": ")[2]) for each in logs]
    assert events == [("worker cannot be scraped", "expected 200, got 500"), ("worker answers again", "")]


async def test_dead_workers_do_not_starve_the_others(reader, clock):
    """With as many dead ones as places for scrapes, a live one is scraped at its pace once they are slowed down."""
    gone = asyncio.Event()

    async def read(address: str, **how: Any) -> str:
        if address.startswith("127.0.0.2"):
            gone.set()
            raise WorkerError("no answer")
        return await reader.read(address, **how)

    async with (
        FakeWorker(clock=clock).serve() as url,
        scraping(read, clock, concurrency=2, missed_limit=1, slow_after_misses_interval_s=3600) as seen,
    ):
        seen.model(port_of(url))
        for number in range(4):
            seen.pod(f"dead-{number}", ip="127.0.0.2")
        await gone.wait()
        seen.pod()
        await seen.until(lambda: len(seen.reports) >= 5)
        assert {key.name for key in seen.scraper.troubles()} <= {f"dead-{number}" for number in range(4)}


async def test_a_worker_that_answers_every_third_time_is_slowed_down(reader, clock):
    """Its good answers would start a count of failures in a row over, and it takes a place for two time-outs of three.

    2 missed, less half for the answer, 2 missed: 3.5, above the limit of 3.
    """
    asked = 0

    async def read(address: str, **how: Any) -> str:
        nonlocal asked
        if address.startswith("127.0.0.2"):
            asked += 1
            if asked % 3:
                raise WorkerError("no whole answer")
            return "vllm:num_requests_running 1\n"
        return await reader.read(address, **how)

    async with (
        FakeWorker(clock=clock).serve() as url,
        scraping(read, clock, missed_limit=3, slow_after_misses_interval_s=3600) as seen,
    ):
        seen.model(port_of(url))
        seen.pod("flaky", ip="127.0.0.2")
        seen.pod()
        async with asyncio.timeout(30):
            while asked < 5:  # noqa: ASYNC110  # a miss is told to nobody
                await asyncio.sleep(0.002)
        told = len(seen.reports)
        await seen.until(lambda: len(seen.reports) >= told + 10)
    assert asked == 5


async def test_a_namespace_of_slow_pods_leaves_places_to_others(clock):
    """Some 100 pods that answer at the last moment, or not, held every place for scrapes."""
    full = asyncio.Event()
    ends: list[asyncio.Event] = []

    async def read(address: str, **how: Any) -> str:
        if address.startswith("127.0.0.2"):
            ends.append(asyncio.Event())
            if len(ends) == 4:
                full.set()
            await ends[-1].wait()
        return "vllm:num_requests_running 1\n"

    async with scraping(read, clock, concurrency=4) as seen:
        seen.model(8000)
        seen.model(8000, namespace="slow")
        for number in range(100):
            seen.pod(f"p-{number}", namespace="slow", ip="127.0.0.2")
        async with asyncio.timeout(30):
            await full.wait()
            seen.pod()
            while "ml" not in seen.scraper._loop._due._waiting:  # noqa: ASYNC110  # that one is due is told to nobody
                await asyncio.sleep(0.002)
        ends[0].set()
        await seen.until(lambda: any(report.worker == "ml:p-0:0" for report in seen.reports))


async def test_only_so_many_are_asked_at_a_time(clock):
    at_once, most = 0, 0
    hold = asyncio.Event()
    full = asyncio.Event()

    async def read(address: str, **how: Any) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 4:
            full.set()
        await hold.wait()
        at_once -= 1
        return "vllm:num_requests_running 1\n"

    async with scraping(read, clock, concurrency=4) as seen:
        seen.model(8000)
        for number in range(20):
            seen.pod(f"p-{number}")
        async with asyncio.timeout(30):
            await full.wait()
        hold.set()
        await seen.until(lambda: len({report.worker for report in seen.reports}) == 20)
    assert most == 4


async def test_what_an_incarnation_said_that_is_gone_meanwhile_is_dropped(clock):
    """ai-dynamo/dynamo#13513: the new server holds nothing of it."""
    asked, answer = asyncio.Event(), asyncio.Event()
    texts = iter(["vllm:num_requests_running 7\n"])

    async def read(address: str, **how: Any) -> str:
        asked.set()
        await answer.wait()
        return next(texts, "vllm:num_requests_running 1\n")

    async with scraping(read, clock) as seen:
        seen.model(8000)
        seen.pod(started_at="t1")
        await asked.wait()
        seen.pod(started_at="t2")
        answer.set()
        await seen.until(lambda: bool(seen.reports))
    assert {(report.incarnation, report.running) for report in seen.reports} == {("u-p-0/t2", 1)}


async def test_a_worker_that_is_not_ready_any_more_is_not_asked(reader, clock):
    fake = FakeWorker(clock=clock)
    async with fake.serve() as url, scraping(reader.read, clock) as seen:
        seen.model(port_of(url))
        seen.pod()
        seen.pod("p-1")
        await seen.until(lambda: len({report.worker for report in seen.reports}) == 2)
        seen.pod("p-1", ready=False)
        count = len(seen.reports)
        await seen.until(lambda: len(seen.reports) >= count + 5)
    assert {report.worker for report in seen.reports[count + 1 :]} == {"ml:p-0:0"}  # one may have been on its way


async def test_a_listener_that_raises_does_not_end_the_scrapes(reader, clock, logs):
    def raise_once(report: WorkerReport) -> None:
        seen.before = lambda _report: None
        raise RuntimeError("listener")

    async with FakeWorker(clock=clock).serve() as url, scraping(reader.read, clock) as seen:
        seen.before = raise_once
        seen.model(port_of(url))
        seen.pod()
        await seen.until(lambda: bool(seen.reports))
    assert [each["event"] for each in logs] == ["scrape failed unforeseen"]


async def test_a_long_text_is_read_in_a_thread(clock, monkeypatch):
    """66 kB, more than one rank of a vLLM writes: lines of others would hold the loop that answers kube-scheduler."""
    threads: list[str] = []
    to_thread = asyncio.to_thread

    async def noting(function: Callable[..., Any], *arguments: Any) -> Any:
        threads.append(function.__name__)
        return await to_thread(function, *arguments)

    async def read(address: str, **how: Any) -> str:
        return "# a comment\n" * 5_500 + "vllm:num_requests_running 1\n"

    monkeypatch.setattr(asyncio, "to_thread", noting)
    async with scraping(read, clock) as seen:
        seen.model(8000)
        seen.pod()
        await seen.until(lambda: bool(seen.reports))
    assert threads
    assert seen.reports[0].running == 1


async def drip(request: web.Request) -> web.StreamResponse:
    """A body without an end, a little at a time."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"#")
        await asyncio.sleep(0.005)


async def pour(request: web.Request) -> web.StreamResponse:
    """A body without an end, as fast as it goes."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"#" * 2**16)


async def packed(request: web.Request) -> web.Response:
    response = web.Response(text="vllm:num_requests_running 1\n" * 1000)
    response.enable_compression(web.ContentCoding.gzip)
    response.headers["Content-Encoding"] = "gzip"
    return response


async def elsewhere(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/metrics")


async def broken(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        pytest.param(drip, "no whole answer in 0.1 s", id="slow loris"),
        pytest.param(pour, "at most 100000 bytes", id="too long"),
        pytest.param(packed, "expected a plain body", id="packed"),
        pytest.param(elsewhere, "got 302", id="a redirect"),
        pytest.param(broken, "no answer: ", id="cut off"),
    ],
)
async def test_what_is_no_answer_is_a_worker_error_in_time(handler: Any, expected: str, reader):
    async with answering(handler) as address:
        timeout_s = 0.1 if handler is drip else 5.0
        with pytest.raises(WorkerError, match=expected) as raised:
            await reader.read(address, **READ | {"timeout_s": timeout_s})
    assert str(raised.value).startswith("worker ml/p-0: ")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1", "not an address", "127.0.0.1:99999"])
async def test_an_address_where_nobody_is_is_a_worker_error(address: str, reader):
    with pytest.raises(WorkerError):
        await reader.read(address, **READ)


async def test_nothing_of_ours_is_sent_along_and_no_proxy_is_asked(reader, monkeypatch):
    """It is somebody else's program: no credentials, no cookies."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    heads: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        heads.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response(text="vllm:x 1\n", headers={"Set-Cookie": "a=b"})

    async with answering(answer) as address:
        for _ in range(2):
            assert await reader.read(address, **READ) == "vllm:x 1\n"
    assert [set(head) for head in heads] == [{"host", "accept", "accept-encoding", "user-agent", "connection"}] * 2


async def test_the_store_tells_of_worker_pods_and_their_reports_follow(api, source, make_store, clock):
    """From the API server's objects to a report, nothing told by hand."""
    fake = FakeWorker(clock=clock, load=Load(waiting=4))
    async with fake.serve() as url, scraping(source.read_metrics, clock) as seen:
        raw = raw_model()
        raw["spec"]["workers"] = {"ports": {"metrics": port_of(url)}}
        await api.put("inferencemodel", raw)
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "127.0.0.1"}
        pod = raw_pod("p-0", node="n1", labels={"kvaware.io/model": "llama"}, **ready)
        await api.put("pod", pod)
        await api.put("pod", raw_pod("other", gpus=0))
        store = make_store(source)
        store.subscribe(seen.membership)
        store.on_worker_pod(seen.membership.pod_changed)
        async with running(store):
            await seen.until(lambda: bool(seen.reports))
            assert {key.name for key in store.worker_pods} == {"p-0"}
            await api.delete("pod", "ml", "p-0")
            async with asyncio.timeout(30):
                while seen.places:  # noqa: ASYNC110  # places are told, reports only while there are some
                    await asyncio.sleep(0.002)
            assert not store.worker_pods
    assert (seen.reports[0].worker, seen.reports[0].waiting) == ("ml:p-0:0", 4)


async def test_a_pod_that_is_no_worker_pod_for_its_status_alone_is_told_as_read_in_part(
    api, source, make_store, recorder
):
    """The engine's view of it stands, and the fault is counted once."""
    pod = raw_pod("p-0", labels={"kvaware.io/model": "llama"})
    pod["status"]["containerStatuses"] = [7]
    await api.put("pod", pod)
    store = make_store(source)
    async with running(store):
        await recorder.until(lambda: recorder.names(Kind.POD) == {"p-0"} and bool(store.unreadable()[Kind.POD]))
        assert not store.worker_pods
        assert store.unreadable()[Kind.POD] == 1


def reviewing(status: dict[str, Any], *, code: int = 201) -> tuple[Callable[[web.Request], Any], list[dict[str, Any]]]:
    """An API server's token review, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def review(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"kind": "TokenReview", "status": status}, status=code)

    return review, asked


REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


@asynccontextmanager
async def token_source(handler: Callable[[web.Request], Any]) -> AsyncIterator[KubernetesSource]:
    async with answering(handler, REVIEWS) as address:
        made = KubernetesSource(Configuration(host=f"http://{address}"))
        try:
            yield made
        finally:
            await made.close()


async def test_a_workers_token_is_reviewed_by_the_api_server():
    extra = {"authentication.kubernetes.io/pod-name": ["p-0"], "authentication.kubernetes.io/pod-uid": ["u-1"]}
    user = {"username": "system:serviceaccount:ml:default", "extra": extra}
    handler, asked = reviewing({"authenticated": True, "audiences": ["kvaware"], "user": user})
    async with token_source(handler) as source:
        identity = await source.review_token("secret", audiences=["kvaware"])
        assert await source.review_token("", audiences=["kvaware"]) is None
        assert await source.review_token("x" * 20_000, audiences=["kvaware"]) is None
    assert identity == TokenIdentity(username="system:serviceaccount:ml:default", pod=POD, pod_uid="u-1")
    assert [each["spec"] for each in asked] == [{"token": "secret", "audiences": ["kvaware"]}]


@pytest.mark.parametrize(("status", "code"), [({"user": 5, "authenticated": True}, 201), ({}, 500)])
async def test_an_api_server_that_cannot_say_is_an_upstream_error_without_the_token(status: dict[str, Any], code: int):
    handler, _ = reviewing(status, code=code)
    async with token_source(handler) as source:
        with pytest.raises(UpstreamError) as raised:
            await source.review_token("secret", audiences=[])
    assert "secret" not in str(raised.value)


async def test_a_folder_has_neither_tokens_nor_servers():
    """The addresses in it may be somebody else's: nothing is sent there."""
    source = DirectorySource(Folder(objects={}, exporters={}))
    with pytest.raises(ConfigError, match="no TokenReview without a cluster"):
        await source.review_token("secret", audiences=["kvaware"])
    with pytest.raises(WorkerError, match="worker ml/p-0"):
        await source.read_metrics("127.0.0.1:1", **READ)


async def test_the_fake_workers_load_can_be_set_over_http(clock):
    """As end-to-end tests do."""
    fake = FakeWorker(clock=clock)
    async with fake.serve() as url, aiohttp.ClientSession() as session:
        async with session.put(f"{url}/load", json={"waiting": 7, "asleep": True}) as answer:
            assert answer.status == 200
        async with session.put(f"{url}/load", json={"wating": 7}) as answer:
            assert (answer.status, await answer.json()) == (400, {"error": "unknown fields: wating"})
        async with session.put(f"{url}/load", json={"waiting": "7"}) as answer:
            assert answer.status == 400
        async with session.get(f"{url}/load") as answer:
            assert (await answer.json())["waiting"] == 7
    assert fake.load == Load(waiting=7, asleep=True)
