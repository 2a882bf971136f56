"""``GET /v1/placements/stream``: what is wrong with a frame is said in a frame, and nobody fills our memory."""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType

from kvaware_extender.gateway_auth import GatewayAuth, token_and_tenant
from kvaware_extender.routes import stream as stream_module
from kvaware_extender.token_file import TokenFile
from kvaware_testing.placement_harness import PLACED, FakeView, Gateway, SimplePlacer, demand, gateway
from kvaware_testing.store_harness import FakeClock, eventually

TOKEN = "a-token-of-the-gateway"


@pytest.fixture
def placer() -> SimplePlacer:
    return SimplePlacer()


class Stream:
    """A gateway's end of a stream."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws

    async def ask(self, frame: Any) -> Any:
        """Send a frame and read one; bytes go as a binary frame, texts as they are."""
        if isinstance(frame, bytes):
            await self.ws.send_bytes(frame)
        else:
            await self.ws.send_str(frame if isinstance(frame, str) else orjson.dumps(frame).decode())
        return await self.read()

    async def read(self) -> Any:
        """The next frame."""
        message = await self.ws.receive(timeout=10)
        assert message.type in {WSMsgType.TEXT, WSMsgType.BINARY}, message
        return orjson.loads(message.data)


@asynccontextmanager
async def opened(caller: Gateway, **headers: str) -> AsyncIterator[Stream]:
    """One stream."""
    async with caller.session.ws_connect(f"{caller.url}/v1/placements/stream", headers=headers) as ws:
        yield Stream(ws)


async def test_demands_and_events_of_a_frame_are_answered_by_their_ids(placer):
    async with gateway(placer) as caller, opened(caller) as stream:
        assert await stream.ask({"demands": [demand("a"), demand("b")]}) == {
            "answers": [
                {**PLACED, "request_id": "a"},
                {**PLACED, "request_id": "b", "placement_id": "p1"},
            ]
        }
        frame = {
            "demands": [demand("c")],
            "events": [{"placement_id": "p0", "type": "finished"}, {"placement_id": "p1", "type": "refused"}],
        }
        reply = await stream.ask(orjson.dumps(frame))
    assert [answer["request_id"] for answer in reply["answers"]] == ["c"]
    finished, refused = reply["events"]
    assert finished == {"placement_id": "p0", "result": "taken"}
    assert (refused["placement_id"], refused["placement"]["worker"]["id"]) == ("p1", "ml:w1:0")


async def test_what_has_ended_makes_room_for_what_comes_in_the_same_frame(placer):
    """Events are taken first."""
    async with gateway(placer) as caller, opened(caller) as stream:
        await stream.ask({"demands": [demand()]})
        reply = await stream.ask(
            {"demands": [demand(priority=1)], "events": [{"placement_id": "p0", "type": "finished"}]}
        )
    assert reply["answers"][0]["placement_id"] == "p1", "not a conflict with the one that has just finished"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="half"),
        pytest.param("[]", id="a list"),
        pytest.param("7", id="a number"),
        pytest.param(b"\xff\x00", id="bytes"),
        pytest.param({"demand": []}, id="unknown field"),
        pytest.param({"demands": 3}, id="no list"),
        pytest.param({"demands": [demand()] * 1001}, id="too many"),
        pytest.param("[" * 50_000, id="deep"),
        pytest.param('{"demands":[' + "[" * 60_000, id="deep inside"),
        pytest.param('{"demands":' + "[" * 500_000, id="deep and long"),
    ],
)
async def test_a_frame_that_cannot_be_read_gets_an_error_and_the_stream_goes_on(placer, frame):
    async with gateway(placer) as caller, opened(caller) as stream:
        reply = await stream.ask(frame)
        assert (reply["error"]["code"], reply["error"]["retryable"]) == ("InvalidRequest", False)
        assert reply.keys() == {"error"}
        assert (await stream.ask({"demands": [demand()]}))["answers"][0]["placement_id"] == "p0"


async def test_an_empty_frame_is_answered_by_an_empty_frame(placer):
    async with gateway(placer) as caller, opened(caller) as stream:
        assert await stream.ask({}) == {}


async def test_one_wrong_item_of_a_frame_fails_alone(placer):
    async with gateway(placer) as caller, opened(caller) as stream:
        frame = {
            "demands": [demand("a"), demand("b", token_ids=[-1]), demand("c", model="unheard-of"), demand("d")],
            "events": [
                {"placement_id": "p9", "type": "finished"},
                {"placement_id": "p0"},
                {"placement_id": "p0", "type": "progress", "output_tokens": "many"},
            ],
        }
        reply = await stream.ask(frame)
    a, wrong, unknown, d = reply["answers"]
    assert (a["request_id"], d["request_id"]) == ("a", "d")
    assert (wrong["index"], wrong["error"]["code"]) == (1, "InvalidRequest")
    assert (unknown["request_id"], unknown["error"]["code"]) == ("c", "ModelNotFound")
    gone, untyped, mistyped = reply["events"]
    assert (gone["placement_id"], gone["error"]["code"]) == ("p9", "PlacementNotFound")
    assert (untyped["index"], mistyped["index"]) == (1, 2)
    assert "output_tokens" in mistyped["error"]["message"]


async def test_a_long_demand_is_read_in_slices_here_too(placer):
    async with gateway(placer) as caller, opened(caller) as stream:
        reply = await stream.ask({"demands": [demand("a", token_ids=list(range(100_000))), demand("b")]})
    assert [answer["request_id"] for answer in reply["answers"]] == ["a", "b"]
    assert placer.demands[0].input_tokens == 100_000


async def test_a_stale_view_is_said_of_each_demand_and_events_are_taken(placer):
    view, clock = FakeView(), FakeClock()
    async with gateway(placer, view=view, clock=clock) as caller, opened(caller) as stream:
        await stream.ask({"demands": [demand()]})
        view.ages = lambda: {"pods": None}
        clock.now_s += 1
        frame = {"demands": [demand("b")], "events": [{"placement_id": "p0", "type": "finished"}]}
        reply = await stream.ask(frame)
    assert reply["answers"][0]["error"]["code"] == "StaleView"
    assert reply["events"] == [{"placement_id": "p0", "result": "taken"}]


async def test_an_unforeseen_error_is_said_and_logged_and_the_stream_goes_on(placer, logs):
    whole = placer.place
    placer.place = lambda demand, **_: 1 / 0
    async with gateway(placer) as caller, opened(caller) as stream:
        (answer,) = (await stream.ask({"demands": [demand()]}))["answers"]
        assert (answer["request_id"], answer["error"]["code"]) == ("r0", "InternalError")
        assert answer["error"]["retryable"]
        placer.place = whole
        assert "answers" in await stream.ask({"demands": [demand()]})
    assert [event["event"] for event in logs] == ["unforeseen error"]


async def test_a_frame_beyond_the_limit_closes_the_stream_by_the_code_that_says_so(placer):
    """1009: to answer it we would have to read it to its end, however long it is."""
    async with gateway(placer) as caller:
        async with opened(caller) as stream:
            await stream.ws.send_str(" " * (2**20 + 1))
            message = await stream.ws.receive(timeout=10)
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1009)
        async with opened(caller) as stream:
            assert "answers" in await stream.ask({"demands": [demand()]})


async def test_who_asks_for_no_stream_is_told_so(placer):
    async with gateway(placer) as caller:
        status, reply, headers = await caller.call("GET", "/v1/placements/stream")
        assert (status, reply["error"]["code"], headers["Upgrade"]) == (426, "UpgradeRequired", "websocket")
        half = {"Connection": "Upgrade", "Upgrade": "websocket"}
        status, reply, _ = await caller.call("GET", "/v1/placements/stream", headers=half)
        assert (400 <= status < 500, "error" in reply) == (True, True)


async def test_streams_are_counted(placer):
    async with gateway(placer, streams_max=1) as caller:
        async with opened(caller) as stream:
            status, reply, _ = await caller.call("GET", "/v1/placements/stream", headers=handshake())
            assert (status, reply["error"]["code"], reply["error"]["retryable"]) == (503, "TooManyStreams", True)
            assert "answers" in await stream.ask({"demands": [demand()]})
        async with opened(caller) as stream:
            assert await stream.ask({}) == {}


async def test_a_token_is_looked_at_when_the_stream_begins_and_with_every_frame(placer, tmp_path):
    path, clock = tmp_path / "tokens", FakeClock()
    path.write_text(f"{TOKEN} team-a\n")
    auth = GatewayAuth(TokenFile(path, clock=clock, line=token_and_tenant), default_tenant="default")
    await auth.open()
    async with gateway(placer, auth=auth) as caller:
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            async with opened(caller, Authorization="Bearer wrong"):
                pass
        assert error.value.status == 401
        async with opened(caller, Authorization=f"Bearer {TOKEN}") as stream:
            await stream.ask({"demands": [demand()]})
            assert placer.demands[0].tenant == "team-a"
            path.write_text("another-token-of-a-gateway\n")
            clock.now_s += 1
            reply = await stream.ask({"demands": [demand("b")]})
    assert reply["error"]["code"] == "Unauthorized"
    assert len(placer.demands) == 1


async def test_a_half_closed_stream_gets_the_answers_to_what_it_sent(placer):
    """The caller's side is shut after its last frame; what was asked until then is answered, or ends by itself."""
    async with gateway(placer) as caller:
        reader, writer = await raw_stream(caller)
        for number in range(3):
            writer.write(masked(orjson.dumps({"demands": [demand(f"r{number}")]})))
        writer.write_eof()
        async with asyncio.timeout(10):
            received = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert (await caller.place(demand("after")))[0] == 200
    answered = received.count(b'"placement_id"')
    assert len(placer.reserved) >= answered
    placer.tick(1000.0 + 31)
    assert placer.reserved == {}


async def test_a_caller_who_never_reads_is_not_read_from_either_and_cut_off(placer, monkeypatch, logs):
    """Its answers would fill our memory, as fast as it asks."""
    monkeypatch.setattr(stream_module, "SEND_WITHIN_S", 0.3)
    async with gateway(placer) as caller:
        reader, writer = await raw_stream(caller, receive_bytes=4096, limit=1024)
        frame = masked(orjson.dumps({"demands": [demand(f"r{number}", input_tokens=5) for number in range(500)]}))
        sent = 0

        async def ask_on() -> None:
            nonlocal sent
            while True:
                writer.write(frame)
                await writer.drain()
                sent += 1

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask_on(), 20)
        writer.transport.abort()
        assert reader.at_eof() is False
        await eventually(lambda: any(event["event"].startswith("a stream's caller does not read") for event in logs))
        assert (await caller.place(demand("after")))[0] == 200
    assert len(placer.demands) < 500 * (sent + 1), "frames that it could not answer were left in the socket"


async def test_the_end_of_the_process_is_told(placer):
    async with aiohttp.ClientSession() as session:
        async with gateway(placer) as caller:
            ws = await session.ws_connect(f"{caller.url}/v1/placements/stream")
            assert await Stream(ws).ask({}) == {}
            listening = asyncio.create_task(ws.receive(timeout=10))
        message = await listening
    assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)


def handshake() -> dict[str, str]:
    """Headers that ask for a WebSocket."""
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
    }


async def raw_stream(
    caller: Gateway, *, receive_bytes: int | None = None, limit: int = 2**20
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream without a library that would answer by itself."""
    sock = socket.create_connection(("127.0.0.1", int(caller.url.rsplit(":", 1)[1])))
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    lines = "".join(f"{name}: {value}\r\n" for name, value in handshake().items())
    writer.write(f"GET /v1/placements/stream HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
    answered = await reader.readuntil(b"\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 101")
    return reader, writer


def masked(payload: bytes) -> bytes:
    """A text frame from a client; masked by zeros, so as it is."""
    length = len(payload)
    if length < 126:
        head = bytes((0x81, 0x80 | length))
    elif length < 65536:
        head = bytes((0x81, 0xFE)) + length.to_bytes(2, "big")
    else:
        head = bytes((0x81, 0xFF)) + length.to_bytes(8, "big")
    return head + bytes(4) + payload
