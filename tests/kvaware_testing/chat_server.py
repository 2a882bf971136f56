"""A model server's chat endpoint: streams some words as vLLM does, and refuses when told to."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

__all__ = ["WORDS", "ChatServer"]

WORDS = ("Once", " upon", " a", " time", " there", " was", " none.")


class ChatServer:
    """One worker's HTTP API. Every answer is ``WORDS``; a prompt seen before is found in its cache, up to the end."""

    def __init__(self, *, refuses: bool = False) -> None:
        """``refuses``: every request gets 409, as from a worker that checks admission itself."""
        self.refuses = refuses
        self.bodies: list[Any] = []
        """What it was asked, refused or not."""
        self._seen: set[str] = set()

    @asynccontextmanager
    async def serve(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
        """Listen until the block ends; gives the port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.refuses:
            return web.json_response(
                {"error": "no room"}, status=409, headers={"x-kvaware-refusal": "no room in the KV pool"}
            )
        prompt = json.dumps(body["messages"])
        tokens = len(prompt) // 4
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": len(WORDS),
            "prompt_tokens_details": {"cached_tokens": tokens - 1 if prompt in self._seen else 0},
        }
        self._seen.add(prompt)
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in WORDS:
            await response.write(_chunk({"choices": [{"index": 0, "delta": {"content": word}}], "usage": None}))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_chunk({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _chunk(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
