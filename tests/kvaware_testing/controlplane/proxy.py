"""A reverse proxy in the test's hand: it records calls, holds requests and delays replies, of http or https.

Put between kube-scheduler and the extender, or between the extender and the API server, it makes the late and lost
answers of a real network happen when the test wants them.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import web

__all__ = ["Call", "Hold", "Proxy"]

_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length"})
_START_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that went through, once its reply was known."""

    method: str
    path: str
    request: bytes
    reply: bytes
    """What the upstream answered; empty for a watch, which is passed on piece by piece."""
    status: int
    began_at_s: float
    """Monotonic."""
    answered_after_s: float
    """Until the upstream had answered, what the proxy waited not counted."""
    watch: bool = False
    """It is answered piece by piece for as long as both sides like."""


@dataclass(slots=True)
class Hold:
    """Requests that stop at the proxy until they are let go."""

    method: str
    ending: str
    _loop: asyncio.AbstractEventLoop
    _arrived: threading.Event = field(default_factory=threading.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: bool = False

    def wait_arrived(self, timeout_s: float) -> None:
        """Wait until a request is held.

        Raises: AssertionError.
        """
        if not self._arrived.wait(timeout_s):
            raise AssertionError(f"no {self.method} …{self.ending} came within {timeout_s:g} s")

    def release(self) -> None:
        """Let everything go, from now on."""
        self._loop.call_soon_threadsafe(self._released.set)

    def lose(self) -> None:
        """Let go without passing on what is held: it was lost on its way, and the upstream never hears of it."""
        self._lost = True
        self.release()

    async def stop_here(self) -> bool:
        """Wait until released; called by the proxy.

        Returns: Whether to pass it on.
        """
        self._arrived.set()
        await self._released.wait()
        return not self._lost


class Proxy:
    """Serves on a free port of 127.0.0.1 in a thread of its own; use it as a context manager.

    Args:
        upstream: Where calls go, scheme and port, such as ``https://127.0.0.1:6443``.
        upstream_ca: Who signed the upstream's certificate; None for http.
        serving: Certificate and key for https on our side; None serves http.
    """

    def __init__(
        self, upstream: str, *, upstream_ca: Path | None = None, serving: tuple[Path, Path] | None = None
    ) -> None:
        self._upstream = upstream.rstrip("/")
        self._upstream_tls = None if upstream_ca is None else ssl.create_default_context(cafile=upstream_ca)
        self._serving_tls: ssl.SSLContext | None = None
        if serving is not None:
            self._serving_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._serving_tls.load_cert_chain(*serving)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._holds: list[Hold] = []
        self._delays: list[tuple[str, str, float]] = []
        self._watch_delays: list[tuple[str, float]] = []
        self._calls: list[Call] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hold in self._holds:
            hold.release()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_TIMEOUT_S)

    def calls(self, ending: str, *, method: str = "POST") -> list[Call]:
        """Return the calls so far whose path ends so, oldest answer first."""
        return [call for call in list(self._calls) if call.method == method and call.path.endswith(ending)]

    def calls_since(self, began_at_s: float) -> list[Call]:
        """Return every call that began at or after a time, watches and failures included, oldest answer first."""
        return [call for call in list(self._calls) if call.began_at_s >= began_at_s]

    @contextmanager
    def held(self, ending: str, *, method: str = "POST") -> Iterator[Hold]:
        """Hold requests whose path ends so, before the upstream sees them; leaving lets them go."""
        hold = Hold(method, ending, self._loop)
        self._holds.append(hold)
        try:
            yield hold
        finally:
            hold.release()
            self._holds.remove(hold)

    @contextmanager
    def replies_delayed(self, ending: str, delay_s: float, *, method: str = "POST") -> Iterator[None]:
        """Do what is asked at once and answer late: the upstream has acted, the caller does not know."""
        rule = (method, ending, delay_s)
        self._delays.append(rule)
        try:
            yield
        finally:
            self._delays.remove(rule)

    @contextmanager
    def events_delayed(self, ending: str, delay_s: float) -> Iterator[None]:
        """Pass on what watches of such a path bring only after a while, in order: a view that lags behind."""
        rule = (ending, delay_s)
        self._watch_delays.append(rule)
        try:
            yield
        finally:
            self._watch_delays.remove(rule)

    def _watch_delay_s(self, path: str) -> float:
        return max((delay_s for ending, delay_s in self._watch_delays if path.endswith(ending)), default=0.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            left = asyncio.all_tasks(self._loop)  # connections that their clients keep open
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._upstream_tls or True, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)  # a watch lasts; whoever calls has a limit of its own
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:

            async def forward(request: web.Request) -> web.StreamResponse:
                return await self._forward(request, session)

            app = web.Application(client_max_size=64 * 2**20)
            app.router.add_route("*", "/{path:.*}", forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._serving_tls)
            await site.start()
            scheme = "http" if self._serving_tls is None else "https"
            self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
            self._started.set()
            try:
                await self._stop.wait()
            finally:
                await runner.cleanup()

    async def _forward(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        body = await request.read()
        for hold in list(self._holds):
            concerned = request.method == hold.method and request.path.endswith(hold.ending)
            if concerned and not await hold.stop_here():
                return web.Response(status=502, text="lost on its way")
        began_at_s = time.monotonic()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = f"{self._upstream}{request.raw_path}"
        try:
            async with session.request(request.method, url, data=body or None, headers=headers) as answer:
                passed = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
                if "watch=" in request.query_string:
                    self._record(request, body, b"", answer.status, began_at_s)
                    return await _stream(request, answer, passed, lambda: self._watch_delay_s(request.path))
                reply = await answer.read()
        except aiohttp.ClientError as error:
            self._record(request, body, b"", 502, began_at_s)
            return web.Response(status=502, text=str(error))
        self._record(request, body, reply, answer.status, began_at_s)
        for method, ending, delay_s in list(self._delays):
            if request.method == method and request.path.endswith(ending):
                await asyncio.sleep(delay_s)
        return web.Response(status=answer.status, headers=passed, body=reply)

    def _record(self, request: web.Request, body: bytes, reply: bytes, status: int, began_at_s: float) -> None:
        self._calls.append(
            Call(
                method=request.method,
                path=request.path,
                request=body,
                reply=reply,
                status=status,
                began_at_s=began_at_s,
                answered_after_s=time.monotonic() - began_at_s,
                watch="watch=" in request.query_string,
            )
        )


async def _stream(
    request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str], delay_s: Callable[[], float]
) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        async for chunk in answer.content.iter_any():
            late.put_nowait((time.monotonic() + delay_s(), chunk))
        late.put_nowait((time.monotonic(), b""))

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(), name="read-watch")
            while True:
                at_s, chunk = await late.get()
                await asyncio.sleep(max(0.0, at_s - time.monotonic()))
                if not chunk:
                    break
                await response.write(chunk)
        await response.write_eof()
    except* (aiohttp.ClientError, ConnectionError):
        # One side broke off in the middle: the other must see a broken stream as well, not a tidy end.
        if request.transport is not None:
            request.transport.abort()
    return response
