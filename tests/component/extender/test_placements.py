"""``/v1/placements`` over real HTTP: bodies in, bodies out, and that nobody's mistake is a 5xx."""

import asyncio
import gzip
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from kvaware_engine import CostTerms
from kvaware_engine.requests.limits import Limit, LimitRefusal
from kvaware_engine.requests.words import EventType, PlacementEvent, PlacementReason, PlacementRefusal, RequestDemand
from kvaware_extender.gateway_auth import GatewayAuth, token_and_tenant
from kvaware_extender.token_file import TokenFile
from kvaware_testing import placement_harness
from kvaware_testing.placement_harness import LLAMA, PLACED, FakeView, SimplePlacer, demand, gateway
from kvaware_testing.store_harness import FakeClock

TOKEN = "a-token-of-the-gateway"
SOMEBODY = RequestDemand(request_id="r", model=LLAMA, tenant="default", input_tokens=1)


def refusal(reason: PlacementReason, **more) -> PlacementRefusal:
    return PlacementRefusal(demand=SOMEBODY, reason=reason, message="why", **more)


async def in_parts(body: bytes) -> AsyncIterator[bytes]:
    """Chunked: its length is not told."""
    for start in range(0, len(body), 50_000):
        yield body[start : start + 50_000]


@pytest.fixture(params=[True, False], ids=["express", "router"], autouse=True)
def _way(request, monkeypatch) -> None:
    """Every answer is the same, whoever gives it."""
    monkeypatch.setattr(placement_harness, "EXPRESS", request.param)


@pytest.fixture
def placer() -> SimplePlacer:
    return SimplePlacer()


async def test_a_demand_is_answered_by_a_placement_as_promised(placer):
    """design.md §6, key for key."""
    async with gateway(placer) as caller:
        assert await caller.place(demand()) == (200, PLACED)
    assert placer.demands[0].tenant == "default"


async def test_the_same_request_id_gets_the_same_placement_and_another_demand_a_conflict(placer):
    async with gateway(placer) as caller:
        assert await caller.place(demand()) == (200, PLACED)
        assert await caller.place(demand()) == (200, PLACED)
        status, reply = await caller.place(demand(priority=1))
    assert (status, reply["error"]["code"]) == (409, "DuplicateRequest")
    assert len(placer.reserved) == 1


async def test_with_split_roles_both_workers_are_told(placer):
    async with gateway(placer) as caller:
        await caller.place(demand())
        placement = placer.reserved["p0"]
        placement.prefill = replace(placement.option, worker="ml:w1:0")
        placement.prefill_address = None
        placement.runner_up = None
        _, reply = await caller.place(demand())
    assert reply["worker"] == {"id": "ml:w0:0", "address": "10.0.0.7:8000"}
    assert reply["runner_up"] is None
    prefill = reply["prefill_worker"]
    assert (prefill["id"], prefill["address"], prefill["kv"]) == ("ml:w1:0", None, PLACED["kv"])
    assert prefill["cost_ms"] == PLACED["cost_ms"]


async def test_figures_of_numpy_are_figures(placer):
    """Columns are numpy's, and so may be what is taken from them."""
    np = pytest.importorskip("numpy")
    async with gateway(placer) as caller:
        await caller.place(demand())
        option = placer.reserved["p0"].option
        option.terms = CostTerms(compute_wait=np.float64(1.5), risk=np.float64(float("nan")))
        option.matched_tokens = np.int64(16)
        _, reply = await caller.place(demand())
    assert (reply["cost_ms"]["compute_wait"], reply["cost_ms"]["risk"]) == (1.5, None)
    assert reply["kv"]["matched_tokens"] == 16


@pytest.mark.parametrize(
    ("told", "status", "error", "retry_after"),
    [
        pytest.param(
            refusal(PlacementReason.TENANT_QUOTA_EXCEEDED, retryable=True, retry_after_s=0.2501, details={"left": 3}),
            429,
            {"retryable": True, "retry_after_ms": 251, "details": {"left": 3}},
            "1",
            id="over its rate",
        ),
        pytest.param(
            refusal(PlacementReason.TENANT_QUOTA_EXCEEDED), 429, {"retryable": False}, None, id="a limit of 0"
        ),
        pytest.param(
            refusal(PlacementReason.SATURATED, retryable=True, retry_after_s=2.1),
            429,
            {"retryable": True, "retry_after_ms": 2100},
            "3",
            id="saturated",
        ),
        pytest.param(refusal(PlacementReason.PROMPT_TOO_LONG), 400, {"retryable": False}, None, id="too long"),
        pytest.param(refusal(PlacementReason.NO_WORKER, retryable=True), 503, {"retryable": True}, None, id="nobody"),
        pytest.param(refusal(PlacementReason.MODEL_NOT_FOUND), 404, {"retryable": False}, None, id="model gone"),
        pytest.param(
            refusal(PlacementReason.DEADLINE_UNREACHABLE), 429, {"retryable": False}, None, id="deadline too near"
        ),
    ],
)
async def test_a_refusal_has_the_one_error_shape_and_a_truthful_retry_after(placer, told, status, error, retry_after):
    """HAMi#2312: where waiting does not help nobody is told to wait. Times are rounded up: earlier is too early."""
    placer.refusal = told
    async with gateway(placer) as caller:
        got, reply, headers = await caller.call("POST", "/v1/placements", demand())
    assert got == status
    assert reply == {"error": {"code": str(told.reason), "message": "why", **error}}
    assert headers.get("Retry-After") == retry_after


async def test_models_are_unknown_only_where_the_cluster_is_known(placer):
    """gpustack#6030: absent and unavailable are different answers."""
    view = FakeView()
    view.fresh = False
    async with gateway(placer, view=view) as caller:
        for model in ("llama", "unheard-of"):
            status, reply = await caller.place(demand(model=model))
            assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (503, "StaleView", True)
        view.fresh = True
        assert (await caller.place(demand(model="llama")))[0] == 200
        assert (await caller.place(demand("r1", model="ml/llama")))[0] == 200
        status, reply = await caller.place(demand(model="unheard-of"))
        assert (status, reply["error"]["code"]) == (404, "ModelNotFound")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"\xff\xfe", id="no UTF-8"),
        pytest.param({"request_id": "r"}, id="no model"),
        pytest.param(demand(token_ids=[]), id="no tokens"),
        pytest.param(b'{"request_id":"r","model":"llama","deadline_ms":NaN}', id="NaN"),
        pytest.param(demand(input_tokens=-1), id="negative"),
        pytest.param(demand(block_hashes=["abc"]), id="hash in words"),
    ],
)
async def test_a_wrong_body_is_a_400_and_reserves_nothing(placer, body):
    async with gateway(placer) as caller:
        status, reply = await caller.place(body)
    assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (400, "InvalidRequest", False)
    assert placer.demands == []


async def test_a_prompt_of_two_million_tokens_reaches_the_engine_which_says_how_long_it_may_be(placer):
    """14 MB fit the limit of a body: the answer is the engine's 400, not a 413. Others are answered meanwhile."""
    placer.refusal = refusal(PlacementReason.PROMPT_TOO_LONG)
    body = orjson.dumps(demand(token_ids=[100_000] * 2_000_000))
    async with gateway(placer) as caller:
        long = asyncio.create_task(caller.place(body))
        while not long.done():
            assert (await caller.event("p0", {"type": "progress"}))[0] == 404
        status, reply = await long
    assert (status, reply["error"]["code"]) == (400, "PromptTooLong")
    assert (placer.demands[0].input_tokens, len(placer.demands[0].block_hashes)) == (2_000_000, 125_000)
    assert len(placer.events) > 3, "it was read and hashed in slices"


async def test_a_body_beyond_the_limit_is_a_413_that_names_it(placer):
    async with gateway(placer, most_bytes=100_000) as caller:
        for path, limit in (("", 100_000), (":batch", 200_000), ("/p0/events", 16_384)):
            body = b'{"prompt":"' + b"a" * 200_001
            status, reply, _ = await caller.call("POST", f"/v1/placements{path}", body)
            assert (status, reply["error"]["code"]) == (413, "RequestEntityTooLarge")
            assert str(limit) in reply["error"]["message"]
            async with caller.session.post(f"{caller.url}/v1/placements{path}", data=in_parts(body)) as answer:
                assert answer.status == 413, "without a length beforehand"


async def test_a_body_may_be_compressed_but_not_to_get_around_the_limit(placer):
    headers = {"Content-Encoding": "gzip"}
    async with gateway(placer, most_bytes=100_000) as caller:
        small, bomb = gzip.compress(orjson.dumps(demand())), gzip.compress(b" " * 10_000_000)
        assert (await caller.call("POST", "/v1/placements", small, headers=headers))[0] == 200
        assert (await caller.call("POST", "/v1/placements", bomb, headers=headers))[0] == 413
        assert (await caller.call("POST", "/v1/placements", b"abcd", headers=headers))[0] == 400


async def test_in_a_batch_one_wrong_item_fails_alone(placer):
    """Answers are in order, each with the error that it would have got alone."""
    demands = [demand("a"), {"model": "llama"}, demand("b", model="unheard-of"), demand("c"), demand("a"), 7]
    async with gateway(placer) as caller:
        status, reply, _ = await caller.call("POST", "/v1/placements:batch", {"demands": demands})
    assert status == 200
    first, unread, unknown, other, again, number = reply["answers"]
    assert first == {**PLACED, "request_id": "a"}
    assert (unread["index"], unread["error"]["code"]) == (1, "InvalidRequest")
    assert "request_id" not in unread
    assert (unknown["request_id"], unknown["error"]["code"]) == ("b", "ModelNotFound")
    assert (other["request_id"], other["placement_id"]) == ("c", "p1")
    assert again == first, "a repeated id is the same request"
    assert number["index"] == 5
    assert len(placer.reserved) == 2


async def test_in_a_batch_a_mistake_of_ours_fails_alone(placer, monkeypatch):
    """Else the others would keep places of which nobody is told."""
    place = placer.place

    def sometimes(demand, **more):
        if demand.request_id == "b":
            raise RuntimeError("a mistake")
        return place(demand, **more)

    monkeypatch.setattr(placer, "place", sometimes)
    demands = [demand(each) for each in "abc"]
    async with gateway(placer) as caller:
        status, reply, _ = await caller.call("POST", "/v1/placements:batch", {"demands": demands})
    assert status == 200
    assert [each["request_id"] for each in reply["answers"]] == ["a", "b", "c"]
    error = reply["answers"][1]["error"]
    assert (error["code"], error["retryable"]) == ("InternalError", True)
    assert "a mistake" not in error["message"]
    assert len(placer.reserved) == 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="no demands"),
        pytest.param({"demands": []}, id="none"),
        pytest.param({"demands": [{}] * 1001}, id="too many"),
        pytest.param({"demands": {}}, id="no list"),
        pytest.param({"demands": [demand()], "items": []}, id="more"),
        pytest.param(b'{"demands":[{]}', id="half"),
    ],
)
async def test_what_is_no_batch_is_a_400(placer, body):
    async with gateway(placer) as caller:
        status, reply, _ = await caller.call("POST", "/v1/placements:batch", body)
    assert (status, reply["error"]["code"]) == (400, "InvalidRequest")
    assert placer.demands == []


async def test_a_whole_batch_is_placed_with_others_in_between(placer):
    demands = [demand(f"r{i}", input_tokens=100) for i in range(1000)]
    async with gateway(placer) as caller:
        batch = asyncio.create_task(caller.call("POST", "/v1/placements:batch", {"demands": demands}))
        while not batch.done():
            assert (await caller.event("unknown", {"type": "progress"}))[0] == 404
        _, reply, _ = await batch
    assert [answer["request_id"] for answer in reply["answers"]] == [f"r{i}" for i in range(1000)]
    assert len(placer.reserved) == 1000


async def test_events_are_handed_on_and_told_what_became_of_them(placer):
    async with gateway(placer) as caller:
        await caller.place(demand())
        told = {"output_tokens": 120, "cached_tokens": 16, "queue_wait_ms": 4, "ttft_ms": 230.5, "reason": None}
        assert await caller.event("p0", {"type": "first_token"}) == (200, {"result": "taken"})
        assert await caller.event("p0", {"type": "finished", **told}) == (200, {"result": "taken"})
        assert await caller.event("p0", {"type": "started"}) == (200, {"result": "late"})
    assert placer.events[1] == ("p0", PlacementEvent(type=EventType.FINISHED, **told))
    assert placer.reserved == {}


async def test_a_request_may_finish_before_it_is_said_to_have_started(placer):
    """Events travel on several connections."""
    async with gateway(placer) as caller:
        await caller.place(demand())
        assert await caller.event("p0", {"type": "finished"}) == (200, {"result": "taken"})
        assert await caller.event("p0", {"type": "started"}) == (200, {"result": "late"})
        assert await caller.event("p0", {"type": "finished"}) == (200, {"result": "late"})


async def test_after_a_refusal_the_next_worker_is_told_and_in_the_end_that_there_is_none(placer):
    async with gateway(placer) as caller:
        await caller.place(demand())
        status, reply = await caller.event("p0", {"type": "refused", "reason": "full"})
        assert (status, reply["result"], reply["placement"]["worker"]["id"]) == (200, "taken", "ml:w1:0")
        status, reply = await caller.event("p0", {"type": "refused"})
        assert (status, reply["result"]) == (200, "taken")
        assert reply["error"]["code"] == "TooManyRefusals"
        assert "placement" not in reply


async def test_an_event_about_nothing_is_a_404(placer):
    async with gateway(placer) as caller:
        await caller.place(demand())
        status, reply = await caller.event("p7", {"type": "started"})
        assert (status, reply["error"]["code"]) == (404, "PlacementNotFound")
        status, reply = await caller.event("p0", {"type": "started", "worker": "\x1b]0;\n"})
        assert (status, reply["error"]["code"]) == (404, "WorkerNotFound")
        assert "\x1b" not in reply["error"]["message"]
        status, reply = await caller.event("%00%0a" + "x" * 3000, {"type": "started"})
        assert (status, reply["error"]["code"]) == (404, "PlacementNotFound")
        assert len(reply["error"]["message"]) < 400


async def test_what_ends_is_taken_while_the_view_is_stale_but_nobody_is_sent_elsewhere(placer):
    """Else reservations would stay because the API server is away."""
    view, clock = FakeView(), FakeClock()
    async with gateway(placer, view=view, clock=clock) as caller:
        await caller.place(demand())
        await caller.place(demand("r1"))
        view.fresh = False
        view.ages = lambda: {"pods": None}
        clock.now_s += 1
        status, reply = await caller.event("p0", {"type": "refused"})
        assert (status, reply["error"]["code"]) == (503, "StaleView")
        assert await caller.event("p0", {"type": "finished"}) == (200, {"result": "taken"})
        assert (await caller.place(demand("r2")))[0] == 503
    assert list(placer.reserved) == ["p1"]


async def test_the_tenant_is_the_one_that_the_gateway_names(placer, tmp_path):
    (tmp_path / "tokens").write_text(TOKEN)
    auth = GatewayAuth(TokenFile(tmp_path / "tokens", line=token_and_tenant), default_tenant="default")
    await auth.open()
    bearer = {"Authorization": f"Bearer {TOKEN}", "x-kvaware-tenant": "team-a"}
    async with gateway(placer, auth=auth) as caller:
        for number, headers in enumerate(({}, {"x-kvaware-tenant": "team-a"}, bearer)):
            await caller.call("POST", "/v1/placements", demand(f"r{number}"), headers=headers)
        status, reply, got = await caller.call(
            "POST", "/v1/placements", demand(), headers={"Authorization": "Bearer nothing"}
        )
    assert [demand.tenant for demand in placer.demands] == ["default", "default", "team-a"]
    assert (status, reply["error"]["code"], got["WWW-Authenticate"]) == (401, "Unauthorized", 'Bearer realm="kvaware"')


async def test_a_trace_is_kept(placer):
    traced = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    async with gateway(placer) as caller:
        await caller.call("POST", "/v1/placements", demand(), headers=traced)
        await caller.call("POST", "/v1/placements", demand("r1"), headers={"traceparent": "nonsense"})
    assert placer.traces == ["a" * 32, None]


async def test_explaining_holds_up_nobody_and_is_done_one_at_a_time(placer, monkeypatch):
    """It takes some 30 ms: in the loop kube-scheduler would wait, many threads would keep the interpreter."""
    loop_thread, threads, together = threading.get_ident(), [], []
    explain = placer.explain

    def watched(placement_id: str):
        threads.append(threading.get_ident())
        together.append(placement_id)
        at_once = len(together)
        time.sleep(0.01)  # in a thread; a second one would come in here
        together.pop()
        assert at_once == 1
        return explain(placement_id)

    monkeypatch.setattr(placer, "explain", watched)
    async with gateway(placer) as caller:
        await caller.place(demand())
        answers = await asyncio.gather(
            *(caller.call("GET", "/v1/placements/p0/explanation") for _ in range(4)), caller.place(demand())
        )
    assert [answer[0] for answer in answers] == [200] * 5
    assert len(threads) == 4
    assert loop_thread not in threads


async def test_explanations_and_lists_are_charged_to_the_tenant(placer):
    """The limit ``controlRequestsPerSecond``."""
    refusals = [None, None, None]

    def control(tenant: str) -> LimitRefusal | None:
        assert tenant == "default"
        if refusals:
            return refusals.pop()
        return LimitRefusal(
            tenant=tenant,
            limit=Limit.CONTROL,
            quota="q",
            at_most=1,
            came=1,
            left=0,
            retry_after_s=0.4,
        )

    async with gateway(placer, control=control) as caller:
        await caller.place(demand())
        status, reply, _ = await caller.call("GET", "/v1/placements/p0/explanation")
        assert (status, reply["placement_id"]) == (200, "p0")
        status, reply, _ = await caller.call("GET", "/v1/placements/p1/explanation")
        assert (status, reply["error"]["code"]) == (404, "PlacementNotFound")
        status, reply, _ = await caller.call("GET", "/v1/block-groups?model=ml/llama&limit=3")
        assert (status, reply) == (200, {"items": [{"model": {"namespace": "ml", "name": "llama"}, "limit": 3}]})
        for path in ("/v1/placements/p0/explanation", "/v1/block-groups?model=ml/llama"):
            status, reply, headers = await caller.call("GET", path)
            assert (status, reply["error"]["code"]) == (429, "TenantQuotaExceeded")
            assert (reply["error"]["retry_after_ms"], headers["Retry-After"]) == (400, "1")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        pytest.param("", 400, "InvalidRequest", id="no model"),
        pytest.param("?model=llama", 400, "InvalidRequest", id="no namespace"),
        pytest.param("?model=ml/llama&limit=0", 400, "InvalidRequest", id="none"),
        pytest.param("?model=ml/llama&limit=1001", 400, "InvalidRequest", id="too many"),
        pytest.param("?model=ml/llama&limit=x", 400, "InvalidRequest", id="no number"),
        pytest.param("?model=ml/other", 404, "ModelNotFound", id="unknown model"),
    ],
)
async def test_block_groups_of_no_model_are_refused(placer, query, status, code):
    async with gateway(placer) as caller:
        got, reply, _ = await caller.call("GET", f"/v1/block-groups{query}")
    assert (got, reply["error"]["code"]) == (status, code)


async def test_a_caller_who_hangs_up_in_the_middle_of_a_body_reserves_nothing(placer):
    async with gateway(placer) as caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(caller.url.rsplit(":", 1)[1]))
        writer.write(b'POST /v1/placements HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"request_id":')
        await writer.drain()
        writer.write_eof()
        answered = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert not answered.startswith(b"HTTP/1.1 5")
        assert (await caller.place(demand()))[0] == 200
    assert len(placer.demands) == 1
