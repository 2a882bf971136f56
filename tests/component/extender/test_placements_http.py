"""The two calls of each request as bytes on a socket: whatever HTTP a caller speaks, the answer is as the router's."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import orjson
import pytest

from kvaware_testing import placement_harness
from kvaware_testing.placement_harness import PLACED, Gateway, SimplePlacer, demand, gateway

WITHIN_S = 10
PLACE = "/v1/placements"
EVENTS = "/v1/placements/p0/events"
FINISHED = {"type": "finished"}
TAKEN = {"result": "taken"}


@pytest.fixture(params=[True, False], ids=["express", "router"], autouse=True)
def _way(request, monkeypatch) -> None:
    """Every answer is the same, whoever gives it."""
    monkeypatch.setattr(placement_harness, "EXPRESS", request.param)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer."""

    status: str
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """A caller that says exactly what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, path: str, body: object, *headers: str, version: str = "1.1") -> None:
        """One call."""
        raw = orjson.dumps(body)
        lines = (f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(raw)}", *headers, "", "")
        self.writer.write("\r\n".join(lines).encode() + raw)

    async def reply(self) -> Reply:
        """The next answer."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            return Reply(
                status=status, headers=headers, body=await self.reader.readexactly(int(headers["Content-Length"]))
            )

    async def closed(self) -> bool:
        """Whether the other side says no more."""
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read() == b""


@asynccontextmanager
async def connection(caller: Gateway) -> AsyncIterator[Connection]:
    """One connection to the routes."""
    reader, writer = await asyncio.open_connection(urlsplit(caller.url).hostname, urlsplit(caller.url).port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def test_both_calls_are_answered_with_the_same_head_on_a_connection_that_stays():
    async with gateway(SimplePlacer()) as caller, connection(caller) as connected:
        for path, body, answer in ((PLACE, demand(), PLACED), (EVENTS, FINISHED, TAKEN)):
            connected.send(path, body)
            reply = await connected.reply()
            assert (reply.status, orjson.loads(reply.body)) == ("HTTP/1.1 200 OK", answer)
            assert sorted(reply.headers) == ["Content-Length", "Content-Type", "Date", "Server"]
            assert reply.headers["Content-Type"] == "application/json"
            assert reply.headers["Server"].startswith("Python/")
            assert reply.headers["Date"].endswith(" GMT")
            assert parsedate_to_datetime(reply.headers["Date"]).year > 2000


async def test_calls_sent_without_waiting_are_answered_in_order():
    async with gateway(SimplePlacer()) as caller, connection(caller) as connected:
        for number in range(40):
            connected.send(PLACE, demand(f"r{number}"))
        replies = [await connected.reply() for _ in range(40)]
    assert [orjson.loads(reply.body)["placement_id"] for reply in replies] == [f"p{i}" for i in range(40)]


@pytest.mark.parametrize(
    ("headers", "version", "connection_header", "stays"),
    [
        pytest.param(("Connection: close",), "1.1", "close", False, id="said to be the last"),
        pytest.param((), "1.0", None, False, id="HTTP/1.0"),
        pytest.param(("Connection: keep-alive",), "1.0", "keep-alive", True, id="HTTP/1.0 that stays"),
        pytest.param(("Connection: keep-alive",), "1.1", None, True, id="said what goes without saying"),
    ],
)
async def test_a_connection_stays_where_the_caller_says_so(headers, version, connection_header, stays):
    async with gateway(SimplePlacer()) as caller, connection(caller) as connected:
        for path, body in ((PLACE, demand()), (EVENTS, FINISHED)) if stays else ((PLACE, demand()),):
            connected.send(path, body, *headers, version=version)
            reply = await connected.reply()
            assert reply.status == f"HTTP/{version} 200 OK"
            assert reply.headers.get("Connection") == connection_header
        if not stays:
            assert await connected.closed()


async def test_who_asks_whether_to_go_on_is_told_so():
    """Although the body is there already: some callers wait for both answers."""
    async with gateway(SimplePlacer()) as caller, connection(caller) as connected:
        connected.send(PLACE, demand(), "Expect: 100-continue")
        async with asyncio.timeout(WITHIN_S):
            assert await connected.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert orjson.loads((await connected.reply()).body) == PLACED


async def test_a_body_that_comes_late_or_in_chunks_is_waited_for():
    body = orjson.dumps(demand())
    async with gateway(SimplePlacer()) as caller, connection(caller) as connected:
        connected.writer.write(f"POST {PLACE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        await connected.writer.drain()
        assert (await caller.event("p0", FINISHED))[0] == 404  # the head is read by then
        connected.writer.write(body)
        assert orjson.loads((await connected.reply()).body) == PLACED
        head = f"POST {PLACE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        connected.writer.write(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert orjson.loads((await connected.reply()).body) == PLACED


async def test_after_a_wrong_body_the_connection_goes_on():
    async with gateway(SimplePlacer()) as caller, connection(caller) as connected:
        connected.send(PLACE, [])
        assert (await connected.reply()).status == "HTTP/1.1 400 Bad Request"
        connected.send(PLACE, demand())
        assert orjson.loads((await connected.reply()).body) == PLACED


async def test_who_hangs_up_before_the_answer_disturbs_nobody():
    """What was placed expires."""
    placer = SimplePlacer()
    async with gateway(placer) as caller:
        async with connection(caller) as connected:
            for number in range(8):
                connected.send(PLACE, demand(f"gone{number}"))
            await connected.writer.drain()
            connected.writer.transport.abort()
        status, _ = await caller.place(demand("here"))
    assert status == 200


async def test_who_reads_nothing_is_answered_no_further_than_buffers_reach():
    """Answers would fill the memory. Here one takes 100 kB, and sockets some MB."""
    placer, calls, seen = SimplePlacer(), 400, -1
    placer.workers = ("a" * 50_000, "b" * 50_000)
    async with gateway(placer) as caller, connection(caller) as connected:
        connected.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
        for _ in range(calls):
            connected.send(PLACE, demand())
        while seen != (seen := len(placer.demands)):
            for _ in range(20):
                assert (await caller.event("p7", FINISHED))[0] == 404  # others are answered
    assert 0 < seen < calls
