"""Stored blocks of one worker whose parent is not known yet: kept, within a bound, until it is stored as well.

They never begin a prompt: at the root they would match whatever else begins with their tokens.
"""

from collections import OrderedDict
from dataclasses import replace

from kvaware_engine.blocks.events import BlocksStored

__all__ = ["Orphans"]

Name = tuple[int | None, int]
"""Cache group and engine hash."""


class Orphans:
    """Changed by ``Residency`` alone."""

    __slots__ = ("_parent_of", "_waiting", "blocks", "most")

    def __init__(self, most: int) -> None:
        """Begin empty.

        Args:
            most: Blocks that are kept.
        """
        self.most = most
        self.blocks = 0
        self._waiting: OrderedDict[Name, list[BlocksStored]] = OrderedDict()
        """Parent → runs that wait for it, those that wait longest first."""
        self._parent_of: dict[Name, Name] = {}
        """Block → the parent that its run waits for."""

    def add(self, run: BlocksStored, parent: int) -> int:
        """Let a run wait for its parent. Returns: How many blocks were dropped for it, the oldest first."""
        known = self._parent_of.get((run.group_index, run.engine_hashes[0]))
        if known == (run.group_index, parent):  # told again
            self.remove(run.group_index, run.engine_hashes[0])
        name = (run.group_index, parent)
        self._waiting.setdefault(name, []).append(run)
        for block in run.engine_hashes:
            self._parent_of[run.group_index, block] = name
        self.blocks += len(run.engine_hashes)
        dropped = 0
        while self.blocks > self.most:
            oldest = next(iter(self._waiting))
            dropped += sum(len(gone.engine_hashes) for gone in self.take(*oldest))
        return dropped

    def take(self, group_index: int | None, parent: int) -> list[BlocksStored]:
        """Give the runs that waited for this block; they wait no longer."""
        runs = self._waiting.pop((group_index, parent), [])
        for run in runs:
            self._forget(run)
        return runs

    def remove(self, group_index: int | None, block: int) -> bool:
        """Take a block, and what comes after it in its run, out. Returns: Whether it was there."""
        name = self._parent_of.get((group_index, block))
        if name is None:
            return False
        kept: list[BlocksStored] = []
        for run in self._waiting[name]:
            if block not in run.engine_hashes:
                kept.append(run)
                continue
            self._forget(run)
            at = list(run.engine_hashes).index(block)
            if at:
                left = replace(
                    run, engine_hashes=run.engine_hashes[:at], token_ids=run.token_ids[: at * run.block_tokens]
                )
                kept.append(left)
                self.blocks += at
                for before in left.engine_hashes:
                    self._parent_of[group_index, before] = name
        if kept:
            self._waiting[name] = kept
        else:
            del self._waiting[name]
        return True

    def _forget(self, run: BlocksStored) -> None:
        self.blocks -= len(run.engine_hashes)
        for block in run.engine_hashes:
            self._parent_of.pop((run.group_index, block), None)
