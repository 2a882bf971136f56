"""``GET /v1/placements/stream``: a WebSocket over which demands and events come in frames, and answers go back.

A frame is answered by one frame, and the next is read when the answer is on its way: who does not read is not read from
either. What is wrong with a frame, or with one demand in it, is said in a frame; the connection stays. Only frames
beyond the limit, which would have to be read to their end, close it, with the code that WebSockets have for it (1009).
"""

import asyncio
from typing import Final

import msgspec
import structlog
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from kvaware_crds.errors import WireError
from kvaware_extender.answering import LONG_BYTES, Answering
from kvaware_extender.demand_wire import MOST_ITEMS, Frame, RawFrame, read
from kvaware_extender.errors import ApiError
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_extender.placement_wire import AnsweredFrame, encode, error_body
from kvaware_extender.replies import api_error, unforeseen
from kvaware_extender.routes.placements import TENANT_PROBLEM, UNKNOWN_CALLER, received, sent
from kvaware_extender.routes.scheduler import trace_id
from kvaware_extender.routes.table import Route

__all__ = ["Streams", "stream_routes"]

log = structlog.get_logger(__name__)

PING_S: Final = 30.0
"""Who does not answer a ping within half of this is gone."""
SEND_WITHIN_S: Final = 30.0
"""Who does not read for so long is cut off: its answers would be kept for ever."""
CLOSE_WITHIN_S: Final = 2.0
"""At the end of the process, for saying good-bye."""
LONG_AT_A_TIME: Final = 16
"""Long frames that are read together, of all streams. The others wait in memory: a stream has one frame at a time, so
all of them hold ``streams_max * frame_max_bytes`` at worst, and those that are read twice that."""

FRAME: Final = msgspec.json.Decoder(Frame)
RAW_FRAME: Final = msgspec.json.Decoder(RawFrame)


class Streams:
    """The streams that are open."""

    def __init__(self, *, answering: Answering, auth: GatewayAuth, frame_max_bytes: int, streams_max: int) -> None:
        self._answering = answering
        self._auth = auth
        self._frame_max_bytes = frame_max_bytes
        self._streams_max = streams_max
        self._open: set[web.WebSocketResponse] = set()
        self._long_frames = asyncio.Semaphore(LONG_AT_A_TIME)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One stream, to its end. Raises: ApiError before it begins."""
        await self._auth.tenant(request.headers)
        socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=self._frame_max_bytes, compress=False)
        if not socket.can_prepare(request):
            raise ApiError(
                status=426,
                code="UpgradeRequired",
                message="expected a WebSocket handshake",
                headers={"Upgrade": "websocket", "Connection": "Upgrade"},
            )
        if len(self._open) >= self._streams_max:
            message = f"{self._streams_max} streams are open already (setting gateway.streamsMax)"
            raise ApiError(status=503, code="TooManyStreams", message=message, retryable=True)
        self._open.add(socket)
        try:
            await socket.prepare(request)
            await self._talk(request, socket)
        except ConnectionError:
            log.debug("stream broke off")
        finally:
            self._open.discard(socket)
        return socket

    async def close(self, _app: web.Application | None = None) -> None:
        """Say good-bye to all: the process ends."""
        sockets = list(self._open)

        async def say(socket: web.WebSocketResponse) -> None:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the extender stops")

        await asyncio.gather(*map(say, sockets), return_exceptions=True)

    async def _talk(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        trace = trace_id(request)
        while True:
            message = await socket.receive()
            if message.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                return  # closed by either side, or broken
            answered = await self._answer(request, message, trace)
            try:
                async with asyncio.timeout(SEND_WITHIN_S):
                    await socket.send_frame(encode(answered), message.type)
            except TimeoutError:
                log.warning("a stream's caller does not read, cut off", after_s=SEND_WITHIN_S)
                if request.transport is not None:
                    request.transport.abort()
                return

    async def _answer(self, request: web.Request, message: WSMessage, trace: str | None) -> AnsweredFrame:
        try:
            tenant = await self._auth.tenant(request.headers)  # the token may have been withdrawn since
            if len(message.data) > LONG_BYTES:
                async with self._long_frames:
                    return await self._take(read(RAW_FRAME, _bytes_of(message)), tenant, trace)
            body = _bytes_of(message)
            try:
                frame: Frame | RawFrame = read(FRAME, body)
            except WireError:
                frame = read(RAW_FRAME, body)  # perhaps one part of it is wrong; then the others are not
            return await self._take(frame, tenant, trace)
        except (WireError, ApiError) as e:
            return AnsweredFrame(error=error_body(api_error(e)))
        except Exception as e:  # noqa: BLE001 - it is logged there
            return AnsweredFrame(error=error_body(unforeseen(e, path=request.path)))

    async def _take(self, frame: Frame | RawFrame, tenant: str, trace: str | None) -> AnsweredFrame:
        """Events first: what has ended makes room."""
        events = await self._answering.take_many(frame.events, trace_id=trace)
        answers = await self._answering.place_many(frame.demands, tenant=tenant, trace_id=trace)
        return AnsweredFrame(answers=answers, events=events)


def _bytes_of(message: WSMessage) -> bytes:
    data = message.data
    return data.encode() if isinstance(data, str) else bytes(data)


def stream_routes(streams: Streams) -> tuple[Route, ...]:
    """The route of streams."""
    return (
        Route(
            method="GET",
            path="/v1/placements/stream",
            handler=streams.serve,
            summary=f"A WebSocket. Each frame is JSON with up to {MOST_ITEMS} demands and as many events. It is "
            "answered by a frame with their answers, demands by request_id and events by placement_id, or by the error "
            "of a frame that cannot be read.",
            listener="api",
            answers={
                101: "The stream begins.",
                400: f"The handshake is none, or {TENANT_PROBLEM}.",
                **UNKNOWN_CALLER,
                426: "No WebSocket was asked for (code UpgradeRequired).",
                503: "Too many streams are open (code TooManyStreams, retryable).",
            },
            frames={"received": received("Frame"), "sent": sent("AnsweredFrame")},
            gateway=True,
        ),
    )
