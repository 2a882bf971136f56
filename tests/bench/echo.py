"""A server that does nothing: aiohttp on uvloop that sends each body back. ``python tests/bench/echo.py --port P``."""

import argparse

import uvloop
from aiohttp import web


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read(), content_type="application/json")


async def _ready(_request: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    app = web.Application()
    app.router.add_post("/v1/placements", _echo)
    app.router.add_post("/v1/placements/{id}/events", _echo)
    app.router.add_get("/readyz", _ready)
    web.run_app(
        app,
        host="127.0.0.1",
        port=parser.parse_args().port,
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
