import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvaware_cluster import ExtenderClient, ExtenderClientSettings, NotFoundError
from kvaware_crds.errors import ConfigError, StaleViewError, UpstreamError
from kvaware_engine import (
    ModelHeadroom,
    ModelLoad,
    ObjectKey,
    Reason,
    RoleHeadroom,
    RoleLoad,
    TenantView,
    WorkerView,
)

LLAMA = ObjectKey("ml", "llama")
KEY = {"namespace": "ml", "name": "llama"}


def plain(words: type, **fields: Any) -> dict[str, Any]:
    """One of the engine's words as JSON has it; what is not named is null."""
    return {each.name: None for each in dataclasses.fields(words)} | fields


LOAD = {"model": KEY, "roles": [plain(RoleLoad, role="both", workers=2, reporting=1, waiting=7, ttft_p99_ms=431)]}
FULL = plain(
    RoleHeadroom, role="both", asked_replicas=3, fits_replicas=1, nodes=["n1"], reason="NotEnoughHBM", text="kvaware: x"
)
HEADROOM = {"model": KEY, "roles": [FULL]}
TENANT = plain(
    TenantView,
    tenant="a",
    quotas=["team-a"],
    namespaces=["ml"],
    used_gpus=3,
    used_hbm_bytes=2**40,
    intended_gpus=0,
    intended_hbm_bytes=0,
    conflicts=[],
)
WORKER = plain(
    WorkerView,
    worker="ml:llama-0:0",
    model=KEY,
    role="both",
    ready=True,
    reporting=False,
    confidence_ratio=0.5,
    draining=False,
    asleep=False,
    capabilities=["pin"],
    incarnation="uid-1/start-1",
)


class Extender:
    """Answers by path, with a real socket."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/models/ml/llama/load": (200, LOAD),
            "/v1/models/ml/llama/headroom": (200, HEADROOM),
            "/v1/tenants": (200, {"items": [TENANT]}),
            "/v1/workers": (200, {"items": [WORKER]}),
        }
        self.asked: list[str] = []
        self.peers: set[Any] = set()
        self.answering = asyncio.Event()
        self.answering.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.raw_path)
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        await self.answering.wait()
        status, body = self.answers.get(request.path, (404, {"error": {"code": "NotFound", "message": "no route"}}))
        body = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Location": "/v1/tenants"} if status == 302 else {}
        return web.Response(status=status, body=body, content_type="application/json", headers=headers)


@pytest.fixture
def extender() -> Extender:
    return Extender()


@pytest.fixture
async def server(extender: Extender) -> AsyncIterator[TestServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", extender.answer)
    async with TestServer(app) as running:
        yield running
        extender.answering.set()


@pytest.fixture
async def client(server: TestServer) -> AsyncIterator[ExtenderClient]:
    made = ExtenderClient(str(server.make_url("/")))
    yield made
    await made.close()


async def test_answers_become_the_engines_words(client, extender):
    load = await client.load(LLAMA)
    assert isinstance(load, ModelLoad)
    assert load.model == LLAMA
    role = load.roles[0]
    assert (role.role, role.workers, role.waiting, role.ttft_p99_ms) == ("both", 2, 7, 431.0)
    assert role.running is None  # unknown stays unknown, never 0
    headroom = await client.headroom(LLAMA, replicas=3)
    assert isinstance(headroom, ModelHeadroom)
    assert headroom.roles[0] == RoleHeadroom(
        role="both", asked_replicas=3, fits_replicas=1, nodes=("n1",), reason=Reason.HBM_SHORT, text="kvaware: x"
    )
    (tenant,) = await client.tenants()
    assert (tenant.tenant, tenant.namespaces, tenant.limit_gpus) == ("a", ("ml",), None)
    (worker,) = await client.workers(LLAMA)
    assert (worker.model, worker.capabilities, worker.cache_value_ms) == (LLAMA, ("pin",), None)
    assert extender.asked == [
        "/v1/models/ml/llama/load",
        "/v1/models/ml/llama/headroom?replicas=3",
        "/v1/tenants",
        "/v1/workers?model=ml/llama",
    ]


async def test_one_connection_serves_one_question_after_another(client, extender):
    """A poll of a thousand models is not a thousand connections."""
    for _ in range(20):
        await client.load(LLAMA)
    assert len(extender.peers) == 1


async def test_many_questions_at_once_share_few_connections(client, extender):
    await asyncio.gather(*(client.load(LLAMA) for _ in range(50)))
    assert len(extender.peers) <= ExtenderClientSettings().connections


async def test_fields_of_a_newer_extender_are_passed_over(client, extender):
    role = {**LOAD["roles"][0], "wanted_by_2027": 1}
    extender.answers["/v1/models/ml/llama/load"] = (200, {**LOAD, "roles": [role], "more": {"x": []}})
    assert (await client.load(LLAMA)).roles[0].waiting == 7


@pytest.mark.parametrize(
    ("role", "words"),
    [
        pytest.param({"waiting": "7"}, "roles.0.waiting: .* got '7'", id="text for a number"),
        pytest.param({"waiting": True}, "roles.0.waiting", id="true is no number"),
        pytest.param({"waiting": 1.5}, "roles.0.waiting", id="half a request"),
        pytest.param({"role": None}, "roles.0.role: .* got None", id="null where a word must be"),
        pytest.param({"ttft_p99_ms": [1]}, "roles.0.ttft_p99_ms: .* got list", id="a list"),
    ],
)
async def test_a_wrong_field_is_named(client, extender, role: dict[str, Any], words: str):
    extender.answers["/v1/models/ml/llama/load"] = (200, {"model": KEY, "roles": [{**LOAD["roles"][0], **role}]})
    with pytest.raises(UpstreamError, match=words):
        await client.load(LLAMA)


async def test_a_missing_field_is_named(client, extender):
    """An older extender: its silence must not read as 0, nor as unknown."""
    role = {key: value for key, value in LOAD["roles"][0].items() if key != "queued_tokens"}
    extender.answers["/v1/models/ml/llama/load"] = (200, {"model": KEY, "roles": [role]})
    with pytest.raises(UpstreamError, match=r"roles\.0\.queued_tokens: required, and missing"):
        await client.load(LLAMA)
    extender.answers["/v1/tenants"] = (200, {"tenants": []})
    with pytest.raises(UpstreamError, match="items: required, and missing"):
        await client.tenants()


async def test_an_unknown_reason_is_an_error_that_names_it(client, extender):
    role = {**HEADROOM["roles"][0], "reason": "MoonPhase"}
    extender.answers["/v1/models/ml/llama/headroom"] = (200, {"model": KEY, "roles": [role]})
    with pytest.raises(UpstreamError, match=r"roles\.0\.reason: .* got 'MoonPhase'"):
        await client.headroom(LLAMA, replicas=1)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b'{"model":', b"\xff\xfe"])
async def test_garbage_is_an_upstream_error(client, extender, body: bytes):
    extender.answers["/v1/models/ml/llama/load"] = (200, body)
    with pytest.raises(UpstreamError, match="load of model ml/llama"):
        await client.load(LLAMA)


@pytest.mark.parametrize("figure", [b"NaN", b"Infinity", b"-Infinity"])
async def test_a_figure_that_is_none_is_garbage(client, extender, figure: bytes):
    """ai-dynamo/dynamo#6985: 0/0 became a figure, and all that was computed from it was skipped for ever."""
    body = orjson.dumps(LOAD).replace(b"431", figure)
    extender.answers["/v1/models/ml/llama/load"] = (200, body)
    with pytest.raises(UpstreamError, match="expected JSON"):
        await client.load(LLAMA)


async def test_an_answer_for_another_model_is_not_taken(client, extender):
    """A proxy that mixes answers up would scale the wrong model."""
    extender.answers["/v1/models/ml/llama/load"] = (200, {**LOAD, "model": {"namespace": "ml", "name": "qwen"}})
    with pytest.raises(UpstreamError, match="answered for ml/qwen"):
        await client.load(LLAMA)


def error(code: str, message: str = "why") -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "retryable": True}}


async def test_a_stale_view_is_that(client, extender):
    extender.answers["/v1/models/ml/llama/load"] = (503, error("StaleView", "these kinds cannot be listed: node"))
    with pytest.raises(StaleViewError, match="cannot be listed: node"):
        await client.load(LLAMA)


async def test_an_unknown_model_is_not_found(client, extender):
    extender.answers["/v1/models/ml/llama/load"] = (404, error("ModelNotFound"))
    with pytest.raises(NotFoundError) as missing:
        await client.load(LLAMA)
    assert (missing.value.status, missing.value.reason) == (404, "ModelNotFound")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(404, error("NotFound"), id="no such route: an older extender"),
        pytest.param(404, b"404 page not found", id="no extender at all"),
        pytest.param(503, b"upstream connect error", id="a proxy in between"),
        pytest.param(500, error("InternalError"), id="a fault of the extender"),
        pytest.param(200, error("StaleView"), id="an error that says 200"),
        pytest.param(302, b"", id="a redirect is not followed"),
        pytest.param(503, {"error": []}, id="an error of another shape"),
    ],
)
async def test_everything_else_is_an_upstream_error(client, extender, status: int, body: Any):
    """Above all it is no statement about the model: nothing is cleaned up because of it."""
    extender.answers["/v1/models/ml/llama/load"] = (status, body)
    with pytest.raises(UpstreamError) as failed:
        await client.load(LLAMA)
    assert not isinstance(failed.value, NotFoundError)
    assert len(extender.asked) == 1


async def test_an_extender_that_is_not_there_is_an_upstream_error():
    client = ExtenderClient("http://127.0.0.1:1")
    with pytest.raises(UpstreamError, match="no answer"):
        await client.load(LLAMA)
    await client.close()


async def test_an_extender_that_restarts_is_asked_again(client, extender, server):
    """The kept connection is dead; the next question makes another one."""
    await client.load(LLAMA)
    for connection in list(server.handler.connections):
        connection.transport.abort()
    assert (await client.load(LLAMA)).model == LLAMA


async def test_a_slow_answer_is_given_up(extender, server):
    client = ExtenderClient(str(server.make_url("")), settings=ExtenderClientSettings(timeout_s=0.1))
    extender.answering.clear()
    with pytest.raises(UpstreamError, match="no answer in time"):
        await client.load(LLAMA)
    await client.close()


async def test_a_body_without_end_is_not_read(extender, server):
    client = ExtenderClient(str(server.make_url("")), settings=ExtenderClientSettings(body_bytes=1024))
    extender.answers["/v1/tenants"] = (200, {"items": [TENANT] * 10})
    with pytest.raises(UpstreamError, match="at most 1024 bytes"):
        await client.tenants()
    extender.answers["/v1/tenants"] = (200, {"items": [TENANT]})
    assert len(await client.tenants()) == 1
    await client.close()


async def test_a_long_list_is_read_beside_the_loop(client, extender):
    extender.answers["/v1/workers"] = (200, {"items": [WORKER] * 600})  # 0.3 MB
    assert len(await client.workers(LLAMA)) == 600
    extender.answers["/v1/workers"] = (200, {"items": [*[WORKER] * 600, {}]})
    with pytest.raises(UpstreamError, match=r"items\.600\.worker: required, and missing"):
        await client.workers(LLAMA)


async def test_the_environments_proxy_is_not_asked(client, extender, monkeypatch):
    """It is for the world outside; the extender is a neighbour."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert (await client.load(LLAMA)).model == LLAMA


async def test_names_stay_inside_their_part_of_the_path(client, extender):
    with pytest.raises(UpstreamError):
        await client.load(ObjectKey("ml", "a/../../tenants?x="))
    assert extender.asked == ["/v1/models/ml/a%2F..%2F..%2Ftenants%3Fx=/load"]


async def test_a_url_may_have_a_path_and_a_closed_client_opens_again(server, extender):
    extender.answers = {f"/kvaware{path}": answer for path, answer in extender.answers.items()}
    client = ExtenderClient(str(server.make_url("/kvaware/")))
    await client.close()
    await client.tenants()
    await client.close()
    assert len(await client.tenants()) == 1
    await client.close()
    await client.close()


@pytest.mark.parametrize(
    "url",
    ["", "extender:8900", "ftp://extender", "http://", "http://h:99999", "http://h:0", "http://h/?q", "http://h/#f"],
)
async def test_what_is_no_url_is_a_config_error(url: str):
    with pytest.raises(ConfigError, match="the extender's URL"):
        ExtenderClient(url)
