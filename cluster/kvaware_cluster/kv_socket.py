"""Sockets to one worker's KV events: bounded, watched, and emptied without the loop as long as there is something."""

import asyncio
import random
import struct
from collections.abc import Callable
from errno import ENOENT
from itertools import count
from typing import Final, Never, cast

import zmq
import zmq.asyncio

from kvaware_cluster.backoff import Backoff

__all__ = ["Inbox", "LiveSocket", "bounded_socket"]

RECONNECT_FIRST_MS: Final = 100
RECONNECT_MAX_MS: Final = 10_000
"""Doubling in between: a server that loads its weights for minutes is not there yet."""
PING_MS: Final = 10_000
SILENT_MS: Final = 30_000
"""A host that is gone sends no reset: without pings its connection would seem open for hours. Publishers answer them by
themselves."""
ANEW_FIRST_S: Final = 1.0
ANEW_MAX_S: Final = 60.0
MONITOR_EVENT: Final = struct.Struct("=hi")
CONNECTED: Final = zmq.Event.HANDSHAKE_SUCCEEDED
DISCONNECTED: Final = (
    zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)

_monitors: Final = count()


def bounded_socket(context: zmq.asyncio.Context, kind: int, *, high_water: int, frame_bytes: int) -> zmq.asyncio.Socket:
    """Make one: ``high_water`` messages may wait; who sends a frame of more bytes is disconnected."""
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.IPV6, 1),
        (zmq.RCVHWM, high_water),
        (zmq.MAXMSGSIZE, frame_bytes),
        (zmq.RECONNECT_IVL, RECONNECT_FIRST_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
        (zmq.HEARTBEAT_IVL, PING_MS),
        (zmq.HEARTBEAT_TIMEOUT, SILENT_MS),
    ):
        socket.setsockopt(option, value)
    return socket


class Inbox:
    """Messages of a socket: waited for in the loop, and taken without it as long as there are any.

    Through the loop a message costs 30 us, without it 4 us; both ways may be mixed.
    """

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._plain: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        self._held: list[bytes] | None = None

    async def wait(self) -> None:
        """Until there is one."""
        if self._held is None:
            self._held = await self._socket.recv_multipart()

    def take(self) -> list[bytes] | None:
        """The next one; None: there is none yet."""
        held, self._held = self._held, None
        if held is not None:
            return held
        return _take(self._plain)


class LiveSocket:
    """A subscription to all that a worker publishes: its port says whose it is, whatever the topic.

    ZeroMQ connects again by itself when a connection is lost, but not after an error of the protocol, such as a frame
    that is too long: then the subscription would be silent for ever (tried with libzmq 4.3.5). So whoever is not back
    after a while is connected anew.

    It is read without ``zmq.asyncio``, which takes 30 us to wake a task: of 64 workers that publish at each of their
    steps, the loop would do little else. The file descriptor of a socket says only that something happened, once; what
    did, ``EVENTS`` says, and whoever begins to take has to go on until there is nothing.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoint: str,
        *,
        high_water: int,
        frame_bytes: int,
        readable: Callable[[], None],
        rng: random.Random,
    ) -> None:
        """Connect.

        Args:
            context: Of all sockets.
            endpoint: Of the publisher.
            high_water: Messages that may wait.
            frame_bytes: Who sends a longer frame is disconnected.
            readable: Told when there may be something to take.
            rng: For jitter.
        """
        self._endpoint = endpoint
        self._readable = readable
        self._socket = bounded_socket(context, zmq.SUB, high_water=high_water, frame_bytes=frame_bytes)
        self._socket.subscribe(b"")
        self._plain: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
        self._descriptor = self._plain.FD
        self._monitor = self._socket.get_monitor_socket(
            CONNECTED | DISCONNECTED, addr=f"inproc://kv-events-{next(_monitors)}"
        )
        asyncio.get_running_loop().add_reader(self._descriptor, self._signalled)
        self._socket.connect(endpoint)  # watched from the beginning
        self._backoff = Backoff(ANEW_FIRST_S, ANEW_MAX_S, rng)
        self._anew: asyncio.TimerHandle | None = None
        self._since_s = 0.0
        self.connected = False

    async def watch(self) -> Never:
        """Keep ``connected`` true, and connect anew where ZeroMQ does not, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            [head, *_] = await self._monitor.recv_multipart()
            event, _ = MONITOR_EVENT.unpack_from(head)
            was, self.connected = self.connected, bool(event & CONNECTED)
            if was and loop.time() - self._since_s > ANEW_MAX_S:
                self._backoff.reset()
            self._since_s = loop.time()
            if self._anew is not None:
                self._anew.cancel()
                self._anew = None
            if not self.connected:
                self._anew = loop.call_later(self._backoff.next_s(), self._connect_anew)

    def take(self) -> list[bytes] | None:
        """The next message; None: there is none yet, and ``readable`` will tell."""
        return _take(self._plain)

    def close(self) -> None:
        """End it."""
        self.connected = False
        asyncio.get_running_loop().remove_reader(self._descriptor)
        if self._anew is not None:
            self._anew.cancel()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _signalled(self) -> None:
        if (
            cast("int", self._plain.get(zmq.EVENTS)) & zmq.POLLIN
        ):  # asking also takes the signal back, or it would come again
            self._readable()

    def _connect_anew(self) -> None:
        self._anew = None
        try:
            self._socket.disconnect(self._endpoint)
        except zmq.ZMQError as error:
            if error.errno != ENOENT:  # it has given up, and nothing is left to disconnect
                raise
        self._socket.connect(self._endpoint)


def _take(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
