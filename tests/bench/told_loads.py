"""An extender that answers the operator alone, and says of each model's load what it was told: as a process.

``python tests/bench/told_loads.py --port P``. ``POST /told/{ns}/{name}`` with ``{"waiting": 400}`` changes one model's
load; every model has five workers with two running requests each.
"""

import argparse
from collections import defaultdict

from aiohttp import web

from kvaware_engine import ModelHeadroom, ModelLoad, ObjectKey, RoleHeadroom, RoleLoad
from kvaware_extender.render import render_json

WORKERS = 5
_TOLD: web.AppKey[dict[ObjectKey, int]] = web.AppKey("told", dict)


def _app() -> web.Application:
    app = web.Application()
    app[_TOLD] = defaultdict(int)
    app.router.add_get("/readyz", _ready)
    app.router.add_post("/told/{namespace}/{name}", _tell)
    app.router.add_get("/v1/models/{namespace}/{name}/load", _load)
    app.router.add_get("/v1/models/{namespace}/{name}/headroom", _headroom)
    app.router.add_get("/v1/tenants", _nothing)
    app.router.add_get("/v1/workers", _nothing)
    return app


def _key(request: web.Request) -> ObjectKey:
    return ObjectKey(request.match_info["namespace"], request.match_info["name"])


async def _ready(_: web.Request) -> web.Response:
    return web.Response()


async def _nothing(_: web.Request) -> web.Response:
    return web.json_response({"items": []})


async def _tell(request: web.Request) -> web.Response:
    request.app[_TOLD][_key(request)] = (await request.json())["waiting"]
    return web.Response()


async def _load(request: web.Request) -> web.Response:
    key = _key(request)
    role = RoleLoad(
        role="both",
        workers=WORKERS,
        reporting=WORKERS,
        waiting=request.app[_TOLD][key],
        running=2 * WORKERS,
        queued_tokens=None,
        kv_usage_ratio=0.3,
        requests_per_s=2.0,
        prompt_tokens_per_s=500.0,
        generation_tokens_per_s=200.0,
        preemptions_per_s=0.0,
        prefix_hit_ratio=0.4,
        ttft_p99_ms=None,
        tpot_p99_ms=None,
        age_s=1.0,
    )
    return _json(ModelLoad(model=key, roles=(role,)))


async def _headroom(request: web.Request) -> web.Response:
    asked = int(request.query["replicas"])
    nodes = tuple(f"free-{index}" for index in range(asked))
    role = RoleHeadroom(role="both", asked_replicas=asked, fits_replicas=asked, nodes=nodes, reason=None, text="")
    return _json(ModelHeadroom(model=_key(request), roles=(role,)))


def _json(value: object) -> web.Response:
    return web.Response(body=render_json(value), content_type="application/json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    web.run_app(_app(), host="127.0.0.1", port=parser.parse_args().port, access_log=None, print=None)
