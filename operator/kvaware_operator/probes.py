"""``/livez``, ``/readyz`` and ``/metrics``: answered by the loop whatever the looks at objects wait for."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from kvaware_operator.metrics import Metrics

__all__ = ["serving_probes"]

SHUTDOWN_S: Final = 1.0


@asynccontextmanager
async def serving_probes(
    host: str, port: int, *, ready: Callable[[], tuple[bool, str]], metrics: Metrics
) -> AsyncIterator[int]:
    """Answer until the block ends. Yields: the port. Raises: OSError when it cannot listen."""

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        is_ready, text = ready()
        return web.Response(status=200 if is_ready else 503, text=text)

    async def metrics_text(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_text)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound: int = runner.addresses[0][1]
        yield bound
    finally:
        await runner.cleanup()
