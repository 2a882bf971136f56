"""The no-op extender that ours is measured against: it speaks the protocol, and does nothing else."""

import json
import ssl
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvaware_testing.controlplane.kubeconfig import Access
from kvaware_testing.noop_extender import noop_app

NAMES = {"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": ["b", "a"]}
WHOLE = {"Pod": {}, "NodeNames": None, "Nodes": {"items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "a"}}]}}
BIND = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "a"}


async def call(client: TestClient[web.Request, web.Application], verb: str, body: object) -> Any:
    async with client.post(f"/scheduler/{verb}", data=json.dumps(body)) as answer:
        assert answer.status == 200
        return await answer.json()


@pytest.mark.parametrize("body", [pytest.param(NAMES, id="names"), pytest.param(WHOLE, id="whole nodes")])
async def test_every_node_is_admitted_with_score_zero(body: dict[str, Any]) -> None:
    async with TestClient(TestServer(noop_app())) as client:
        assert (await call(client, "filter", body))["NodeNames"] == ["b", "a"]
        assert await call(client, "prioritize", body) == [{"Host": "b", "Score": 0}, {"Host": "a", "Score": 0}]
        assert await call(client, "bind", BIND) == {"Error": ""}
        async with client.get("/calls") as answer:
            assert await answer.json() == {"filter": 1, "prioritize": 1, "bind": 1}


@pytest.mark.parametrize(
    ("status", "error"),
    [pytest.param(201, "", id="bound"), pytest.param(409, "binding answered 409: taken", id="refused")],
)
async def test_bind_tells_the_api_server_and_repeats_its_refusal(status: int, error: str) -> None:
    # given
    seen: list[tuple[str, str | None, Any]] = []

    async def binding(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers.get("Authorization"), await request.json()))
        return web.Response(status=status, text="taken")

    api = web.Application()
    api.router.add_post("/api/v1/namespaces/ns/pods/p/binding", binding)
    async with TestServer(api) as server:
        access = Access(
            str(server.make_url("")).rstrip("/"), ssl.create_default_context(), {"Authorization": "Bearer t"}
        )
        async with TestClient(TestServer(noop_app(access))) as client:
            # when
            answer = await call(client, "bind", BIND)
    # then
    assert answer == {"Error": error}
    ((path, authorization, body),) = seen
    assert (path, authorization) == ("/api/v1/namespaces/ns/pods/p/binding", "Bearer t")
    assert body["metadata"]["uid"] == "u"
    assert body["target"]["name"] == "a"
