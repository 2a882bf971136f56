"""``PUT /v1/workers/{id}/heartbeat``: a worker is believed about itself, and nobody else is."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import aiohttp
import pytest

from kvaware_cluster import TokenIdentity, WorkerScrapeSettings
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_extender import HeartbeatSettings
from kvaware_testing.extender_harness import API_SERVER, MemoryCluster, serving
from kvaware_testing.fake_api import Raw, raw_model, raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually

W0 = "ml:w0:0"
SILENT = WorkerScrapeSettings(enabled=False)
"""What is known is what heartbeats tell."""
TOKEN = "a-token-of-the-gateway"


def worker_pod(name: str = "w0", *, model: str = "llama", ready: bool = True) -> Raw:
    """A pod that runs a model server."""
    return raw_pod(
        name,
        node="n1",
        labels={"kvaware.io/model": model},
        podIP="10.0.0.7",
        conditions=[{"type": "Ready", "status": "True" if ready else "False"}],
    )


@pytest.fixture
def cluster() -> MemoryCluster:
    """Two models; each has a worker."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"), raw_model("other"))
    cluster.add_pod(worker_pod())
    cluster.add_pod(worker_pod("w1", model="other"))
    return cluster


async def figures(caller, worker: str = W0) -> Raw:
    """What is known of a worker."""
    _, reply = await caller.get("/v1/workers")
    return next(item for item in reply["items"] if item["worker"] == worker)


async def test_what_a_worker_says_of_itself_is_what_is_known_of_it(cluster):
    """Signed with its pod's own token, which needs no configuration in a cluster."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        before = await figures(caller)
        assert (before["reporting"], before["waiting"], before["age_s"]) == (False, None, None)
        status, reply = await caller.beat(
            W0, token=token, seq=1, model="ml/llama", waiting=4, running=2, kv_blocks_total=100, kv_blocks_free=25
        )
        assert (status, reply) == (202, None)
        after = await figures(caller)
        assert (after["reporting"], after["waiting"], after["running"], after["kv_usage_ratio"]) == (True, 4, 2, 0.75)
        assert after["batch_size"] is None, "left out is unknown, not 0"
        _, load = await caller.get("/v1/models/ml/llama/load")
        assert (load["roles"][0]["reporting"], load["roles"][0]["waiting"]) == (1, 4)
        assert await caller.metric("kvaware_heartbeats_total", '{result="taken"}') == 1


async def test_an_older_heartbeat_changes_nothing(cluster):
    """dynamo#7753: the last writer won; here the later observation does."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        assert (await caller.beat(W0, token=token, seq=10, model="ml/llama", waiting=5))[0] == 202
        for seq in (10, 9):
            status, reply = await caller.beat(W0, token=token, seq=seq, model="ml/llama", waiting=99)
            assert (status, reply["error"]["code"]) == (409, "Outdated")
            assert f"got {seq}" in reply["error"]["message"]
        assert (await figures(caller))["waiting"] == 5


async def test_a_container_that_started_again_starts_over(cluster):
    """Its numbers begin at 0 and its KV pool is empty: another incarnation, which the API server shows."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        await caller.beat(W0, token=token, seq=10, model="ml/llama", waiting=5, running=1)
        pod = cluster.raw_pod("w0")
        started = [{"state": {"running": {"startedAt": "2026-03-01T00:00:00Z"}}}]
        cluster._change({**pod, "status": {**pod["status"], "containerStatuses": started}})
        store = caller.extender.store
        await eventually(lambda: any(each.started_at for each in store.worker_pods.values()))
        status, _ = await caller.beat(W0, token=token, seq=0, model="ml/llama", waiting=1)
        assert status == 202
        known = await figures(caller)
        assert (known["waiting"], known["running"]) == (1, None)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        pytest.param({"model": "ml/llama", "waiting": -1}, "waiting", id="below zero"),
        pytest.param({"model": "ml/llama", "waiting": 1.5}, "waiting", id="half a request"),
        pytest.param(
            {"model": "ml/llama", "gpu_utilization_ratio": 3}, "gpu_utilization_ratio", id="three GPUs in one"
        ),
        pytest.param(
            {"model": "ml/llama", "kv_blocks_total": 1, "kv_blocks_free": 2}, "kv_blocks_free", id="more free than all"
        ),
        pytest.param({"model": "ml/other"}, "ml/llama", id="another worker's model"),
        pytest.param({"model": "ml/llama", "no_such_field": 1}, "no_such_field", id="unknown field"),
        pytest.param({}, "model", id="nothing"),
        pytest.param([], "expected a JSON object", id="a list"),
        pytest.param(b"\xff{", "expected a JSON object", id="bytes"),
        pytest.param(b'{"model":"ml/llama","seq":NaN}', "expected a JSON object", id="not a number"),
    ],
)
async def test_lies_and_nonsense_are_refused_by_name(cluster, sent, says):
    """The message tells what was expected; nothing of it is believed."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        for worker in (W0, "ml:w0:7"):
            status, reply = await caller.beat(worker, token=token, body=sent)
            assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (400, "InvalidRequest", False)
            assert says in reply["error"]["message"]
        _, known = await caller.get("/v1/workers?model=ml/llama")
        assert [(item["worker"], item["reporting"]) for item in known["items"]] == [(W0, False)]
        assert await caller.metric("kvaware_heartbeats_total", '{result="unreadable"}') == 2


@pytest.mark.parametrize("body", [b" " * 16_385, gzip.compress(b" " * 10_000_000)], ids=["long", "long once unpacked"])
async def test_a_long_body_is_not_read_to_its_end(cluster, body):
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        headers = {"Authorization": f"Bearer {token}"}
        if len(body) < 16_384:
            headers["Content-Encoding"] = "gzip"
        async with caller._session.put(f"{caller.api}/v1/workers/{W0}/heartbeat", data=body, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic dTpw", "nonsense"])
async def test_without_a_token_nobody_is_believed(cluster, header):
    """The answer says how to authenticate, as HTTP wants it, and asks nobody."""
    async with serving(cluster, worker_scrape=SILENT) as caller:
        headers = {} if header is None else {"Authorization": header}
        async with caller._session.put(
            f"{caller.api}/v1/workers/{W0}/heartbeat", json={"model": "ml/llama"}, headers=headers
        ) as answer:
            reply = await answer.json()
            assert (answer.status, reply["error"]["code"]) == (401, "Unauthorized")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert "service account token of the worker's pod, for the audience kvaware" in reply["error"]["message"]
        assert "review_token" not in cluster.calls
        assert await caller.metric("kvaware_heartbeats_total", '{result="unauthorized"}') == 1


async def test_a_token_that_nobody_knows_is_asked_about_once(cluster):
    """Made-up tokens must not become a stream of reviews; a good one is remembered for two minutes."""
    clock = FakeClock()
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, clock=clock, worker_scrape=SILENT, max_view_age_s=1e6) as caller:
        for _ in range(3):
            status, _ = await caller.beat(W0, token="made-up", model="ml/llama")
            assert status == 401
        assert cluster.calls.count("review_token") == 1
        clock.now_s += 6
        assert (await caller.beat(W0, token="made-up", model="ml/llama"))[0] == 401
        assert cluster.calls.count("review_token") == 2
        for _ in range(3):
            clock.now_s += 1
            assert (await caller.beat(W0, token=token, model="ml/llama", waiting=1))[0] == 202
        assert cluster.calls.count("review_token") == 3
        clock.now_s += 120
        assert (await caller.beat(W0, token=token, model="ml/llama", waiting=1))[0] == 202
        assert cluster.calls.count("review_token") == 4


async def test_a_worker_that_beats_too_often_is_told_when_to_come_again(cluster):
    """A loop without a pause in it would hold up kube-scheduler's calls; each worker has its own time."""
    clock = FakeClock()
    token, other = (cluster.token_of(cluster.raw_pod(name)) for name in ("w0", "w1"))
    settings = {"worker_scrape": SILENT, "heartbeat": HeartbeatSettings(), "max_view_age_s": 1e6}
    async with serving(cluster, clock=clock, **settings) as caller:
        path = f"/v1/workers/{W0}/heartbeat"
        body = {"model": "ml/llama", "waiting": 1}
        assert (await caller.put(path, body, token=other))[0] == 403, "somebody else's does not count"
        assert (await caller.put(path, body, token=token))[0] == 202
        clock.now_s += 0.1505
        status, reply, headers = await caller.put(path, {"model": "ml/llama", "waiting": 9}, token=token)
        assert (status, headers["Retry-After"]) == (429, "1")
        error = reply["error"]
        assert (error["code"], error["retryable"], error["retry_after_ms"]) == ("TooManyRequests", True, 50)
        assert "setting heartbeat.minIntervalS" in error["message"]
        assert (await figures(caller))["waiting"] == 1
        assert (await caller.beat("ml:w1:0", token=other, model="ml/other", waiting=1))[0] == 202
        clock.now_s += 0.06
        assert (await caller.put(path, {"model": "ml/llama", "waiting": 2}, token=token))[0] == 202
        assert await caller.metric("kvaware_heartbeats_total", '{result="too_soon"}') == 1


async def test_nonsense_counts_as_a_heartbeat_too(cluster):
    """It has to be read all the same."""
    clock = FakeClock()
    token = cluster.token_of(cluster.raw_pod("w0"))
    settings = {"worker_scrape": SILENT, "heartbeat": HeartbeatSettings(), "max_view_age_s": 1e6}
    async with serving(cluster, clock=clock, **settings) as caller:
        got = [(await caller.beat(W0, token=token, model="ml/llama", waiting=-1))[0] for _ in range(3)]
        assert got == [400, 429, 429]


async def test_made_up_tokens_do_not_shut_out_workers_that_are_known(cluster):
    """Their reviews run out; a worker's does not, even when its token has to be looked at again."""
    clock = FakeClock()
    token, new = (cluster.token_of(cluster.raw_pod(name)) for name in ("w0", "w1"))
    settings = {"worker_scrape": SILENT, "max_view_age_s": 1e6}
    heartbeat = HeartbeatSettings(min_interval_s=0, review_burst=6, reviews_per_s=1)
    async with serving(cluster, clock=clock, heartbeat=heartbeat, **settings) as caller:
        assert (await caller.beat(W0, token=token, model="ml/llama"))[0] == 202
        clock.now_s += 121  # what was known of it has ended
        got = [(await caller.beat(W0, token=f"made-up-{number}", model="ml/llama"))[0] for number in range(9)]
        assert got == [401] * 3 + [503] * 6
        assert cluster.calls.count("review_token") == 4
        status, reply, headers = await caller.put("/v1/workers/ml:w1:0/heartbeat", {"model": "ml/other"}, token=new)
        assert (status, reply["error"]["code"], reply["error"]["retry_after_ms"]) == (503, "TooManyReviews", 1000)
        assert headers["Retry-After"] == "1"
        for _ in range(3):
            clock.now_s += 0.01
            assert (await caller.beat(W0, token=token, model="ml/llama"))[0] == 202
        clock.now_s += 2
        assert (await caller.beat("ml:w1:0", token=new, model="ml/other"))[0] == 202


@pytest.mark.parametrize(
    ("audience", "settings", "status", "says"),
    [
        pytest.param(API_SERVER, {}, 401, "for the audience kvaware", id="the token that every pod gets"),
        pytest.param(API_SERVER, {"audiences": ()}, 202, None, id="asked for"),
        pytest.param("kvaware", {"audiences": ()}, 401, "for the audience of the API server", id="meant for another"),
        pytest.param("b", {"audiences": ("a", "b")}, 202, None, id="one of two"),
    ],
)
async def test_a_token_is_meant_for_us(cluster, audience, settings, status, says):
    """Heartbeats are plain HTTP: a token that opens the API server should not be in them."""
    cluster.audience = audience
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT, heartbeat=HeartbeatSettings(**settings)) as caller:
        got, reply = await caller.beat(W0, token=token, model="ml/llama", waiting=1)
        assert got == status
        assert says is None or says in reply["error"]["message"]


async def test_another_pods_token_is_not_the_workers(cluster):
    """Nor is that of an earlier pod of the same name, nor one of no pod."""
    other = cluster.token_of(cluster.raw_pod("w1"))
    cluster.tokens["earlier"] = TokenIdentity(
        username="system:serviceaccount:ml:default", pod=cluster.tokens[other].pod._replace(name="w0"), pod_uid="gone"
    )
    cluster.tokens["account"] = TokenIdentity(username="system:serviceaccount:ml:gateway", pod=None, pod_uid=None)
    async with serving(cluster, worker_scrape=SILENT) as caller:
        for token, whose in ((other, "of pod ml/w1"), ("earlier", "of an earlier pod"), ("account", "of no pod")):
            status, reply = await caller.beat(W0, token=token, model="ml/llama", waiting=99)
            assert (status, reply["error"]["code"]) == (403, "Forbidden")
            assert whose in reply["error"]["message"]
        assert (await figures(caller))["waiting"] is None
        assert await caller.metric("kvaware_heartbeats_total", '{result="forbidden"}') == 3


async def test_a_named_account_speaks_for_every_worker(cluster):
    """A gateway or a sidecar elsewhere may tell what it sees."""
    cluster.tokens["account"] = TokenIdentity(username="system:serviceaccount:ml:gateway", pod=None, pod_uid=None)
    heartbeat = HeartbeatSettings(service_accounts=("ml/gateway",), min_interval_s=0)
    async with serving(cluster, worker_scrape=SILENT, heartbeat=heartbeat) as caller:
        assert (await caller.beat(W0, token="account", model="ml/llama", waiting=3))[0] == 202
        assert (await caller.beat("ml:w1:0", token="account", model="ml/other", waiting=1))[0] == 202


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        pytest.param("ml:none:0", 404, id="no such pod"),
        pytest.param("ml:plain:0", 404, id="a pod of no model"),
        pytest.param("ml:w0", 400, id="no rank"),
        pytest.param("ml:w0:x", 400, id="a rank that is no number"),
        pytest.param("ml:w0:00", 400, id="a rank in another spelling"),
        pytest.param("ml:w0:9999", 400, id="a rank that nobody has"),
    ],
)
async def test_workers_that_are_none_are_not_made(cluster, worker, status):
    """Whoever has a token cannot fill the memory with workers."""
    cluster.add_pod(raw_pod("plain", node="n1"))
    cluster.tokens["account"] = TokenIdentity(username="system:serviceaccount:ml:gateway", pod=None, pod_uid=None)
    heartbeat = HeartbeatSettings(service_accounts=("ml/gateway",), min_interval_s=0)
    async with serving(cluster, worker_scrape=SILENT, heartbeat=heartbeat) as caller:
        got, reply = await caller.beat(worker, token="account", model="ml/llama", waiting=1)
        assert (got, reply["error"]["code"]) == (status, "WorkerNotFound" if status == 404 else "InvalidRequest")
        _, known = await caller.get("/v1/workers")
        assert [item["worker"] for item in known["items"]] == [W0, "ml:w1:0"]


async def test_a_rank_that_beats_is_a_worker_of_its_own(cluster):
    """Data-parallel ranks have a KV pool each; none of them shows in the pod's spec."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        for rank in (0, 1):
            assert (await caller.beat(f"ml:w0:{rank}", token=token, model="ml/llama", waiting=rank))[0] == 202
        _, load = await caller.get("/v1/models/ml/llama/load")
        assert (load["roles"][0]["workers"], load["roles"][0]["waiting"]) == (2, 1)


async def test_a_body_that_does_not_come_is_not_waited_for(cluster, monkeypatch):
    """Whoever has a token could hold any number of places with half a heartbeat each."""
    monkeypatch.setattr("kvaware_extender.routes.bodies.BODY_WITHIN_S", 0.05)
    token = cluster.token_of(cluster.raw_pod("w0"))
    never = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with serving(cluster, worker_scrape=SILENT) as caller, aiohttp.ClientSession() as session:
        url = f"{caller.api}/v1/workers/{W0}/heartbeat"
        async with session.put(url, data=half(), headers={"Authorization": f"Bearer {token}"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (408, "RequestTimeout")


async def test_while_the_view_is_not_known_nobody_is_unknown():
    """gpustack#6030: absent and unavailable are two things."""
    cluster = MemoryCluster(raw_node("n1"), raw_model("llama"))
    token = cluster.token_of(cluster.add_pod(worker_pod()))
    for gate in cluster.deliver.values():
        gate.clear()
    async with serving(cluster, synced=False, worker_scrape=SILENT, max_view_age_s=1e-9) as caller:
        for worker in (W0, "ml:none:0"):
            status, reply = await caller.beat(worker, token=token, model="ml/llama", waiting=1)
            assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (503, "StaleView", True)
        assert await caller.metric("kvaware_heartbeats_total", '{result="unavailable"}') == 2


async def test_an_api_server_that_cannot_be_asked_is_no_refusal(cluster, logs):
    """503, to be tried again; said once in the log, not with each heartbeat. Known tokens go on."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        assert (await caller.beat(W0, token=token, seq=1, model="ml/llama"))[0] == 202
        cluster.review_error = UpstreamError("connection refused")
        for _ in range(3):
            status, reply = await caller.beat(W0, token="another", model="ml/llama", waiting=1)
            assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (
                503,
                "TokenReviewUnavailable",
                True,
            )
        assert [event["event"] for event in logs].count("worker tokens cannot be reviewed") == 1
        assert (await caller.beat(W0, token=token, seq=2, model="ml/llama"))[0] == 202


async def test_where_nothing_is_configured_the_refusal_says_what_to_configure(cluster):
    """A folder of YAML has nobody who knows tokens."""
    cluster.review_error = ConfigError("no TokenReview without a cluster")
    async with serving(cluster, worker_scrape=SILENT) as caller:
        for _ in range(2):
            status, reply = await caller.beat(W0, token="some-token-or-other", model="ml/llama")
            assert status == 401
            assert "setting heartbeat.tokenFile" in reply["error"]["message"]
        assert cluster.calls.count("review_token") == 1


async def test_a_token_file_is_enough_without_a_cluster(cluster, tmp_path):
    """Who has one of its tokens may speak for every worker; a changed file is in force within a second."""
    clock = FakeClock()
    path = tmp_path / "tokens"
    path.write_text(f"# of the gateway\n{TOKEN}\n\n")
    cluster.review_error = ConfigError("no TokenReview without a cluster")
    heartbeat = HeartbeatSettings(token_file=str(path))
    async with serving(cluster, clock=clock, worker_scrape=SILENT, heartbeat=heartbeat, max_view_age_s=1e6) as caller:
        assert (await caller.beat(W0, token=TOKEN, model="ml/llama", waiting=1))[0] == 202
        assert (await caller.beat(W0, token=f"{TOKEN}!", model="ml/llama"))[0] == 401
        path.write_text("another-token-of-the-gateway\n")
        clock.now_s += 1
        status, reply = await caller.beat(W0, token=TOKEN, model="ml/llama", waiting=2)
        assert status == 401
        assert TOKEN not in reply["error"]["message"]
        assert (await caller.beat(W0, token="another-token-of-the-gateway", model="ml/llama", waiting=3))[0] == 202


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "cannot be read", id="none"),
        pytest.param("# nothing\n\n", "expected a token per line", id="empty"),
        pytest.param("short\n", "16 characters", id="guessable"),
        pytest.param("x" * 70_000, "at most", id="another file"),
    ],
)
async def test_a_token_file_that_cannot_be_used_stops_the_start(cluster, tmp_path, content, says):
    """Better than an extender that refuses every worker."""
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        async with serving(cluster, heartbeat=HeartbeatSettings(token_file=str(path))):
            pass


async def test_a_file_that_breaks_later_leaves_its_last_tokens_in_force(cluster, tmp_path, logs):
    """A secret is replaced in several steps; a look between two of them must not lock everybody out."""
    clock = FakeClock()
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    heartbeat = HeartbeatSettings(token_file=str(path), review_tokens=False)
    async with serving(cluster, clock=clock, worker_scrape=SILENT, heartbeat=heartbeat, max_view_age_s=1e6) as caller:
        path.unlink()
        for _ in range(3):
            clock.now_s += 2
            assert (await caller.beat(W0, token=TOKEN, model="ml/llama", waiting=1))[0] == 202
        assert [event["event"] for event in logs].count("token file cannot be read, its last tokens hold") == 1


async def test_reports_are_nothing_that_places_pods(cluster):
    """Filter's answers are kept while nothing changes; heartbeats come a thousand times a second."""
    token = cluster.token_of(cluster.raw_pod("w0"))
    async with serving(cluster, worker_scrape=SILENT) as caller:
        version = caller.extender.engine.version
        for seq in range(5):
            assert (await caller.beat(W0, token=token, seq=seq, model="ml/llama", waiting=seq))[0] == 202
        assert caller.extender.engine.version == version
