"""How much of all workers' KV events is applied in one turn of the loop: what else waits runs in between."""

import asyncio
from collections import deque
from typing import Never, Protocol

__all__ = ["Sliced", "Turns"]


class Sliced(Protocol):
    """A stream that may have something to apply."""

    def slice(self, room: int) -> int:
        """Apply what is there, at most about so many blocks. Returns: how much room is left."""
        ...


class Turns:
    """Of all streams. It has one owner, which awaits ``run``; the rest is called in the same loop.

    Live streams share the room of a turn, in the order in which they had something; a task of its own for each would
    take a turn for each. Replays, which wait for their worker, take a slice of the same size in a turn, one of them.
    """

    def __init__(self, slice_blocks: int) -> None:
        self._slice_blocks = slice_blocks
        self._ready: deque[Sliced] = deque()
        self._some = asyncio.Event()
        self._replays = asyncio.Lock()  # fair: who waits longest is next

    def add(self, stream: Sliced) -> None:
        """It may have something. It is to be added once at a time."""
        self._ready.append(stream)
        self._some.set()

    async def run(self) -> Never:
        """Apply until cancelled."""
        while True:
            await self._some.wait()
            room = self._slice_blocks
            while room > 0 and self._ready:
                room = self._ready.popleft().slice(room)
            if not self._ready:
                self._some.clear()
            await asyncio.sleep(0)

    async def __aenter__(self) -> None:
        await self._replays.acquire()

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            self._replays.release()
