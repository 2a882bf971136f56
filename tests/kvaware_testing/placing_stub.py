"""An extender that places in turn and remembers what it was told: for programs that speak to ``/v1/placements``."""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

from aiohttp import web

__all__ = ["PlacingStub"]


class PlacingStub:
    """Real HTTP, no decisions."""

    def __init__(self, workers: Sequence[str], *, token: str) -> None:
        """``workers`` get requests in turn; heartbeats need ``token``."""
        self.demands: list[Any] = []
        self.events: dict[str, list[Any]] = defaultdict(list)
        """Placement → its events, in order."""
        self.beats: dict[str, list[Any]] = defaultdict(list)
        self.refusal: tuple[int, str] | None = None
        """Status and code of every answer to a demand from now on."""
        self._turns = cycle(workers)
        self._token = token

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Listen until the block ends; gives the URL."""
        app = web.Application()
        app.router.add_post("/v1/placements", self._place)
        app.router.add_post("/v1/placements/{id}/events", self._event)
        app.router.add_put("/v1/workers/{id}/heartbeat", self._beat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _place(self, request: web.Request) -> web.Response:
        demand = await request.json()
        self.demands.append(demand)
        if self.refusal is not None:
            status, code = self.refusal
            return web.json_response({"error": {"code": code, "message": "no", "retryable": False}}, status=status)
        return web.json_response(self._answer(f"p-{demand['request_id']}"))

    async def _event(self, request: web.Request) -> web.Response:
        event = await request.json()
        placement_id = request.match_info["id"]
        self.events[placement_id].append(event)
        following = self._answer(placement_id) if event["type"] == "refused" else None
        return web.json_response({"result": "taken", **({"placement": following} if following else {})})

    async def _beat(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            return web.json_response({"error": {"code": "Unauthorized", "message": "no"}}, status=401)
        self.beats[request.match_info["id"]].append(await request.json())
        return web.Response(status=202)

    def _answer(self, placement_id: str) -> Any:
        return {"placement_id": placement_id, "worker": {"id": next(self._turns), "address": None}}
