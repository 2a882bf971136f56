"""The least that an extender can do: what ours is measured against, and a first proof that the profile works.

``json.loads`` of the request, every node admitted, every node scored 0, ``json.dumps`` of the names; it binds too, as
an extender with a bind verb must. Without a kubeconfig it only says that it did (for benches without an API server).
Run it as ``python -m kvaware_testing.noop_extender --port 8901 [--kubeconfig FILE]``.
"""

import argparse
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from kvaware_testing.controlplane.kubeconfig import Access, read_access

__all__ = ["noop_app"]

_MAX_BODY_BYTES = 32 * 2**20
_CALLS: web.AppKey[dict[str, int]] = web.AppKey("calls", dict)
_ACCESS: web.AppKey[Access] = web.AppKey("access", Access)
_SESSION: web.AppKey[aiohttp.ClientSession] = web.AppKey("session", aiohttp.ClientSession)


def noop_app(access: Access | None = None) -> web.Application:
    """Return the app; ``GET /calls`` counts the calls per verb."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app[_CALLS] = dict.fromkeys(("filter", "prioritize", "bind"), 0)
    app.router.add_post("/scheduler/filter", _filter)
    app.router.add_post("/scheduler/prioritize", _prioritize)
    app.router.add_post("/scheduler/bind", _bind)
    app.router.add_get("/calls", _calls)
    app.router.add_get("/readyz", _ready)
    if access is not None:
        app[_ACCESS] = access
        app.cleanup_ctx.append(_session)
    return app


async def _session(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(ssl=app[_ACCESS].tls, limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=app[_ACCESS].headers) as session:
        app[_SESSION] = session
        yield


async def _filter(request: web.Request) -> web.Response:
    request.app[_CALLS]["filter"] += 1
    names = _names(json.loads(await request.read()))
    reply = {"NodeNames": names, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
    return _json(reply)


async def _prioritize(request: web.Request) -> web.Response:
    request.app[_CALLS]["prioritize"] += 1
    names = _names(json.loads(await request.read()))
    return _json([{"Host": name, "Score": 0} for name in names])


async def _bind(request: web.Request) -> web.Response:
    request.app[_CALLS]["bind"] += 1
    asked = json.loads(await request.read())
    if _ACCESS not in request.app:
        return _json({"Error": ""})
    namespace, name = asked["PodNamespace"], asked["PodName"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": namespace, "name": name, "uid": asked["PodUID"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": asked["Node"]},
    }
    url = f"{request.app[_ACCESS].server}/api/v1/namespaces/{namespace}/pods/{name}/binding"
    async with request.app[_SESSION].post(url, data=json.dumps(binding), headers=_JSON_HEADERS) as answer:
        error = "" if answer.status < 300 else f"binding answered {answer.status}: {(await answer.text())[:300]}"
    return _json({"Error": error})


async def _calls(request: web.Request) -> web.Response:
    return _json(request.app[_CALLS])


async def _ready(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


_JSON_HEADERS = {"Content-Type": "application/json"}


def _names(asked: dict[str, Any]) -> list[str]:
    names: list[str] | None = asked.get("NodeNames")
    if names is not None:
        return names
    return [node["metadata"]["name"] for node in (asked.get("Nodes") or {}).get("items") or []]


def _json(content: object) -> web.Response:
    return web.Response(body=json.dumps(content).encode(), content_type="application/json")


def main() -> None:
    """Serve on 127.0.0.1 until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path)
    options = parser.parse_args()
    access = None if options.kubeconfig is None else read_access(options.kubeconfig)
    web.run_app(noop_app(access), host="127.0.0.1", port=options.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
