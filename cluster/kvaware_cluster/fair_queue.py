"""A queue from which those take their turn first who have the fewest of it under way."""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

G = TypeVar("G", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[G, T]):
    """Entries of groups. While others wait no group has more under way than they have, or one more.

    Alone a group may have everything: a place that nobody wants is not kept free. It is as long as its owner makes it.
    """

    def __init__(self) -> None:
        self._waiting: dict[G, deque[T]] = {}
        """Groups in the order of their turns."""
        self._under_way: dict[G, int] = {}
        self._entries = asyncio.Semaphore(0)

    def put(self, entry: T, *, group: G) -> None:
        """Add an entry behind those of its group."""
        self._waiting.setdefault(group, deque()).append(entry)
        self._entries.release()

    async def get(self) -> T:
        """The next entry, which is under way from now on, until its group is ``done``."""
        await self._entries.acquire()
        group = min(self._waiting, key=lambda group: self._under_way.get(group, 0))
        waiting = self._waiting.pop(group)
        entry = waiting.popleft()
        if waiting:
            self._waiting[group] = waiting  # behind the others
        self._under_way[group] = self._under_way.get(group, 0) + 1
        return entry

    def done(self, group: G) -> None:
        """One entry of the group is under way no more."""
        left = self._under_way[group] - 1
        if left:
            self._under_way[group] = left
        else:
            del self._under_way[group]
