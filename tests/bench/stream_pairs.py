"""A gateway that places over streams, as a process of its own: frames of 32 demands and the ends of the last 32.

``python tests/bench/stream_pairs.py URL BODIES PREFIX SECONDS``; prints one JSON object. BODIES as for wrk/pairs.lua.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import aiohttp
import msgspec
import uvloop

STREAMS = 4
"""While one's answer is on its way, another's frame is there."""
PER_FRAME = 32


class Kv(msgspec.Struct):
    matched_tokens: int = 0


class Answer(msgspec.Struct):
    placement_id: str = ""
    """Empty: it was not placed."""
    kv: Kv | None = None


class Event(msgspec.Struct):
    result: str = ""


class AnsweredFrame(msgspec.Struct):
    answers: list[Answer] = []
    events: list[Event] = []


DECODER = msgspec.json.Decoder(AnsweredFrame)


def demands(bodies: Path, prefix: str) -> Iterator[bytes]:
    """The bodies again and again, each under an id of its own."""
    parts = [line.split("@ID@") for line in bodies.read_text("utf-8").splitlines()]
    cut = [(head.encode(), tail.encode()) for head, tail in parts]
    for number, (head, tail) in enumerate(cycle(cut)):
        yield b"%b%b%d%b" % (head, prefix.encode(), number, tail)


class Count:
    """Of all streams."""

    def __init__(self) -> None:
        self.placed = self.finished = self.failed = self.matched_tokens = 0


async def stream(url: str, session: aiohttp.ClientSession, waiting: Iterator[bytes], until_s: float) -> Count:
    """One stream until it is time; then the last are finished."""
    count = Count()
    ends: list[bytes] = []
    async with session.ws_connect(url, max_msg_size=0) as socket:
        over = False
        while not over:
            over = time.perf_counter() >= until_s
            asked = [] if over else list(islice(waiting, PER_FRAME))
            await socket.send_bytes(b'{"demands":[%b],"events":[%b]}' % (b",".join(asked), b",".join(ends)))
            answered = DECODER.decode(await socket.receive_bytes())
            placed = [each for each in answered.answers if each.placement_id]
            ends = [
                b'{"placement_id":"%b","type":"finished","output_tokens":128}' % each.placement_id.encode()
                for each in placed
            ]
            count.placed += len(placed)
            count.failed += len(asked) - len(placed) + sum(each.result != "taken" for each in answered.events)
            count.finished += sum(each.result == "taken" for each in answered.events)
            count.matched_tokens += sum(each.kv.matched_tokens for each in placed if each.kv is not None)
    return count


async def main(url: str, bodies: Path, prefix: str, lasts_s: float) -> None:
    """All streams."""
    waiting = demands(bodies, prefix)
    async with aiohttp.ClientSession() as session:
        began_s = time.perf_counter()
        counts = await asyncio.gather(*(stream(url, session, waiting, began_s + lasts_s) for _ in range(STREAMS)))
        took_s = time.perf_counter() - began_s
    total = {name: sum(getattr(each, name) for each in counts) for name in vars(Count())}
    print(json.dumps({"per_s": total["finished"] / took_s, **total}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
