"""A model server's side of KV events, with the real protocol on 127.0.0.1: a publisher and its replay."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from kvaware_testing.repository import REPOSITORY

__all__ = ["KvPublisher", "cleared", "publishing", "publishing_ranks", "recorded", "removed", "stored"]

END = (-1).to_bytes(8, "big", signed=True)
RECORDINGS = REPOSITORY / "tests" / "fixtures" / "vllm-0.32"
BLOCK_TOKENS = 16


def stored(hashes: Sequence[int | bytes], *, parent: int | bytes | None = None, **fields: Any) -> dict[str, Any]:
    """A ``BlockStored`` as vLLM 0.32 sends it; the tokens of block ``h`` are 16 times ``h``."""
    tokens = [int(block) % 2**31 for block in hashes if isinstance(block, int) for _ in range(BLOCK_TOKENS)]
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **fields,
    }


def removed(*hashes: int, **fields: Any) -> dict[str, Any]:
    """A ``BlockRemoved``."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **fields}


def cleared() -> dict[str, Any]:
    """An ``AllBlocksCleared``."""
    return {"type": "AllBlocksCleared"}


def recorded(name: str) -> list[list[bytes]]:
    """The messages of a recording of a real vLLM: three frames each."""
    lines = (RECORDINGS / f"{name}.jsonl").read_text("ascii").splitlines()
    return [
        [each["topic"].encode(), each["seq"].to_bytes(8, "big"), bytes.fromhex(each["payload_hex"])]
        for each in map(json.loads, lines)
    ]


class KvPublisher:
    """One rank of a server. Its buffer and its silence are switches."""

    _clock = count(1)
    """Batches of all servers: a server that starts again has a later time."""

    def __init__(self, context: zmq.asyncio.Context, *, port: int = 0, replay_port: int = 0) -> None:
        """Listen; on any free port where none is named. Raises: ZMQError where it is taken."""
        self._live = context.socket(zmq.XPUB)  # a PUB that tells of its subscribers
        self._live.xpub_verbose = True  # of each of them, not of the first alone
        self._live.sndhwm = 0
        self._live.linger = 0
        self._router = context.socket(zmq.ROUTER)
        self._router.linger = 0
        try:
            self.port = bound(self._live, port)
            self.replay_port = bound(self._router, replay_port)
        except zmq.ZMQError:
            self.close()
            raise
        self.sequence = 0
        self.buffer: list[tuple[int, bytes]] = []
        """What a replay brings."""
        self.answers = True
        """False: the replay accepts and never answers."""
        self.ends = True
        """False: a replay stops before its end."""
        self.asked: list[int] = []
        """From where replays were asked for."""

    async def subscribed(self) -> None:
        """Wait until a follower is there."""
        async with asyncio.timeout(30):
            while (await self._live.recv())[:1] != b"\x01":
                pass  # somebody left

    async def publish(self, *events: dict[str, Any], lost: bool = False, kept: bool = True) -> None:
        """Send one batch; ``lost``: on its way, ``kept``: for replays."""
        await self.send(msgspec.msgpack.encode([float(next(self._clock)), list(events), 0]), lost=lost, kept=kept)

    async def send(self, payload: bytes, *, lost: bool = False, kept: bool = True) -> None:
        """Send a payload as it is."""
        sequence, self.sequence = self.sequence, self.sequence + 1
        if kept:
            self.buffer.append((sequence, payload))
        if not lost:
            await self._live.send_multipart([b"kv@w@m", sequence.to_bytes(8, "big"), payload])

    async def play(self, messages: Iterable[Sequence[bytes]]) -> None:
        """Send recorded messages, with the sequences that they have."""
        for message in messages:
            await self._live.send_multipart(list(message))

    def restart(self) -> None:
        """The server process starts again; whoever is connected stays so, as through a Service that moves on."""
        self.sequence = 0
        self.buffer.clear()

    async def serve_replays(self) -> None:
        """Answer, until cancelled."""
        while True:
            sender, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if not self.answers:
                continue
            for sequence, payload in tuple(self.buffer):
                if sequence >= self.asked[-1]:
                    await self._router.send_multipart([sender, b"", b"kv@w@m", sequence.to_bytes(8, "big"), payload])
            if self.ends:
                await self._router.send_multipart([sender, b"", b"", END, b""])

    def close(self) -> None:
        self._live.close()
        self._router.close()


def bound(socket: zmq.asyncio.Socket, port: int) -> int:
    """Listen on this port, or on a free one. Returns: which."""
    socket.bind(f"tcp://127.0.0.1:{port or '*'}")
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(endpoint.rpartition(":")[2])


@asynccontextmanager
async def publishing(number: int = 1) -> AsyncIterator[list[KvPublisher]]:
    """So many servers at work."""
    context = zmq.asyncio.Context()
    async with at_work(context, [KvPublisher(context) for _ in range(number)]) as publishers:
        yield publishers


@asynccontextmanager
async def publishing_ranks() -> AsyncIterator[list[KvPublisher]]:
    """Two ranks of one server, the second on the ports after those of the first."""
    context = zmq.asyncio.Context()
    while True:
        first = KvPublisher(context)
        try:
            second = KvPublisher(context, port=first.port + 1, replay_port=first.replay_port + 1)
        except zmq.ZMQError:  # somebody else has one of them
            first.close()
            continue
        break
    async with at_work(context, [first, second]) as publishers:
        yield publishers


@asynccontextmanager
async def at_work(context: zmq.asyncio.Context, publishers: list[KvPublisher]) -> AsyncIterator[list[KvPublisher]]:
    """Answer replays, and end in order."""
    tasks = [asyncio.create_task(each.serve_replays()) for each in publishers]
    try:
        yield publishers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for each in publishers:
            each.close()
        context.destroy(linger=0)
