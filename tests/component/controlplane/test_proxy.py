"""The proxy that e2e tests put between two processes: here between a client and a small server of our own."""

import asyncio
import concurrent.futures
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvaware_testing.controlplane.certificates import Authority
from kvaware_testing.controlplane.proxy import Proxy


@pytest.fixture
async def upstream() -> AsyncIterator[TestServer]:
    """A server that repeats what it gets, and streams lines for ``?watch=1``."""

    async def echo(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(body=await request.read(), status=201, headers={"X-Told": request.path})
        response = web.StreamResponse()
        await response.prepare(request)
        for line in (b"one\n", b"two\n"):
            await response.write(line)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", echo)
    async with TestServer(app) as server:
        yield server


@pytest.fixture
async def proxy(upstream: TestServer) -> AsyncIterator[Proxy]:
    with Proxy(str(upstream.make_url(""))) as running:
        yield running


async def test_calls_pass_unchanged_and_are_recorded(proxy: Proxy) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{proxy.url}/a/bind?x=1", data=b"body") as answer:
        assert (answer.status, await answer.read(), answer.headers["X-Told"]) == (201, b"body", "/a/bind")
    (call,) = proxy.calls("/bind")
    assert (call.request, call.reply, call.status) == (b"body", b"body", 201)
    assert proxy.calls("/filter") == []


async def test_a_watch_is_passed_on_as_it_comes(proxy: Proxy) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{proxy.url}/pods?watch=1") as answer:
        assert await answer.read() == b"one\ntwo\n"


async def test_what_a_watch_brings_can_come_late(proxy: Proxy) -> None:
    """A view that lags: everything arrives, in order, after a while."""
    with proxy.events_delayed("/pods", 0.2):
        began_s = time.monotonic()
        async with aiohttp.ClientSession() as session, session.get(f"{proxy.url}/pods?watch=1") as answer:
            assert await answer.read() == b"one\ntwo\n"
        assert time.monotonic() - began_s >= 0.2


def post(url: str) -> int:
    request = urllib.request.Request(url, data=b"{}", method="POST")  # noqa: S310  own URL
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310  own URL
        status: int = reply.status
        return status


async def test_a_held_request_reaches_nobody_until_it_is_let_go(proxy: Proxy) -> None:
    """What happens in between is what the test is about."""
    async with aiohttp.ClientSession() as session:
        with proxy.held("/bind") as hold:
            async with session.post(f"{proxy.url}/filter", data=b"{}") as answer:
                assert answer.status == 201  # others pass
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                held = pool.submit(post, f"{proxy.url}/bind")
                hold.wait_arrived(10)
                assert proxy.calls("/bind") == []
                hold.release()
                # the upstream serves in this loop, so the loop may not be blocked while it does
                while not held.done():
                    async with session.post(f"{proxy.url}/other", data=b"{}"):
                        pass
                assert held.result() == 201
    assert len(proxy.calls("/bind")) == 1


async def test_a_request_that_is_lost_on_its_way_is_never_passed_on(proxy: Proxy) -> None:
    """Whoever asked died meanwhile, or hears a 502; the upstream never heard of it."""
    async with aiohttp.ClientSession() as session:
        with proxy.held("/scale", method="PUT") as hold:
            asked = asyncio.create_task(session.put(f"{proxy.url}/scale", data=b"{}"))
            await asyncio.to_thread(hold.wait_arrived, 10)
            hold.lose()
            async with await asked as answer:
                assert answer.status == 502
    assert proxy.calls("/scale", method="PUT") == []


async def test_every_call_is_counted_from_a_moment_on_watches_and_failures_too(proxy: Proxy) -> None:
    """What a client does while its server is away is what a test of that looks at."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{proxy.url}/before"):
            pass
        since_s = time.monotonic()
        async with session.get(f"{proxy.url}/pods?watch=1") as answer:
            await answer.read()
    (call,) = proxy.calls_since(since_s)
    assert (call.path, call.watch, call.status) == ("/pods", True, 200)
    with Proxy("http://127.0.0.1:9") as away:
        async with aiohttp.ClientSession() as session, session.get(f"{away.url}/pods"):
            pass
        assert [call.status for call in away.calls_since(0.0)] == [502]


async def test_a_delayed_reply_comes_after_the_deed(proxy: Proxy) -> None:
    async with aiohttp.ClientSession() as session:
        with proxy.replies_delayed("/bind", 0.2):
            began_s = time.monotonic()
            async with session.post(f"{proxy.url}/bind", data=b"{}") as answer:
                assert answer.status == 201
        took_s = time.monotonic() - began_s
    (call,) = proxy.calls("/bind")
    assert took_s >= call.answered_after_s + 0.2


async def test_it_speaks_https_on_either_side(tmp_path: Path, upstream: TestServer) -> None:
    """The extender believes only the authority of its kubeconfig, through the proxy as without it."""
    # given
    authority = Authority()
    serving = authority.issue("127.0.0.1", serves_loopback=True).write(tmp_path, "server")
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(authority.certificate)
    with (
        Proxy(str(upstream.make_url("")), serving=serving) as inner,
        Proxy(inner.url, upstream_ca=ca_file, serving=serving) as outer,
    ):
        trust = ssl.create_default_context(cafile=ca_file)
        connector = aiohttp.TCPConnector(ssl=trust)
        # when
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"{outer.url}/x", data=b"1") as answer,
        ):
            # then
            assert await answer.read() == b"1"


async def test_an_upstream_that_is_away_is_a_502(tmp_path: Path) -> None:
    with Proxy("http://127.0.0.1:9") as proxy:
        async with aiohttp.ClientSession() as session, session.get(f"{proxy.url}/") as answer:
            assert answer.status == 502
