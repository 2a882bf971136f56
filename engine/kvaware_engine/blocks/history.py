"""What was sent where: all that is known of the caches of workers without KV events, or of prompts without token ids.

What a worker was sent is assumed to be in its cache until as many blocks as its pool has were sent after it. Only ends
of prompts are put in order of use: what comes before an end was used no less lately. So blocks go tail first, as model
servers evict.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from kvaware_engine.blocks.groups import ROW_BITS
from kvaware_engine.blocks.index import BlockIndex, Match
from kvaware_engine.observations import Tier
from kvaware_engine.requests.settings import IndexSettings

__all__ = ["History", "Sent"]

STEP_BLOCKS: Final = 64
STEP_SHARE: Final = 8
"""At least so many blocks of a group are forgotten at once, or all of it, but no more than this share of the pool."""
ENTRY_BYTES: Final = 250
"""Of one group at one worker: an entry of a dictionary and one of an ordered one, their keys and values."""


class Sent:
    """What was sent to one worker by one request. Opaque to others."""

    __slots__ = ("covered", "slot")

    def __init__(self, slot: int, covered: list[tuple[int, int, int]]) -> None:
        self.slot = slot
        self.covered = covered
        """Handles of the groups that it added blocks to: how many were kept of each before, and how many since."""


class WorkerHistory:
    """What one worker was sent, as far as it is remembered."""

    __slots__ = ("blocks", "kept", "order")

    def __init__(self) -> None:
        self.blocks = 0
        self.kept: dict[int, int] = {}
        """Handle of a group → how many of its blocks are remembered, from its start."""
        self.order: OrderedDict[int, None] = OrderedDict()
        """Groups that prompts ended in, the one used longest ago first."""


class History:
    """Of one model's workers. It is in the budget of the index."""

    __slots__ = ("_entries", "_index", "_settings", "_workers")

    def __init__(self, index: BlockIndex, settings: IndexSettings) -> None:
        self._index = index
        self._settings = settings
        self._workers: dict[int, WorkerHistory] = {}
        self._entries = 0
        """Groups in all of them."""
        index.budget.join(self)
        index.on_clear(self._cleared)

    def sent(self, slot: int, hashes: Sequence[int], match: Match, *, pool_blocks: int | None = None) -> Sent:
        """Remember that a worker was sent a prompt.

        Args:
            slot: The worker.
            hashes: The prompt's.
            match: As the index gave it for them.
            pool_blocks: Size of the worker's KV pool; None: unknown, the setting ``history_pool_blocks`` holds.
        Returns: What ``unsent`` takes back.
        """
        own = self._workers.get(slot)
        if own is None:
            own = self._workers[slot] = WorkerHistory()
        index, kept = self._index, own.kept
        tree, holdings = index.tree, index.holdings
        added: list[tuple[int, int, int]] = []
        handle = -1
        for row, end in index.cover(slot, hashes, match):
            handle = tree.generation[row] << ROW_BITS | row
            before = kept.get(handle, 0)
            if before >= end:
                continue
            if slot in tree.holders[row]:
                holdings.add(slot, row, 0, end, Tier.HBM)
            else:
                holdings.add_first(slot, row, end)
            self._entries += not before
            kept[handle] = end
            own.blocks += end - before
            added.append((handle, before, end))
        if handle >= 0:
            own.order[handle] = None
            own.order.move_to_end(handle)
        pool = self._settings.history_pool_blocks if pool_blocks is None else pool_blocks
        if own.blocks > pool:
            self._shrink(slot, own, pool)
        index.settle()
        return Sent(slot, added)

    def unsent(self, sent: Sent) -> None:
        """Take back what a request added, where the worker refused it and nobody else was sent it since."""
        own = self._workers.get(sent.slot)
        if own is None:
            return
        for handle, before, end in reversed(sent.covered):
            row = self._index.tree.row_of(handle)
            if row is not None and own.kept.get(handle) == end:
                left = max(before, min(end, self._needed(sent.slot, row)))
                self._lower(sent.slot, own, handle, row, left)

    def forget(self, slot: int) -> None:
        """Nothing that was sent to the worker counts any more, even of blocks that it told as well.

        The index keeps a block once, whoever spoke of it, and cannot tell the two apart. So this is for the moment when
        a worker begins to tell, before its first events are applied. Later nothing comes here that it could tell as
        well: blocks of token ids are expected there instead, and those of texts have hashes of their own.
        """
        own = self._workers.get(slot)
        self._cleared(slot)
        if own is None:
            return
        for handle in reversed(own.kept):  # children came after their parents
            row = self._index.tree.row_of(handle)
            if row is not None:
                self._index.holdings.lower_to(slot, row, 0)

    def blocks(self, slot: int) -> int:
        """How many blocks are remembered of the worker."""
        own = self._workers.get(slot)
        return 0 if own is None else own.blocks

    @property
    def size_bytes(self) -> int:
        """Memory of all of it."""
        return self._entries * ENTRY_BYTES

    def oldest_tick(self) -> int | None:
        """Say that it has no groups of its own: those of the index are forgotten, and then these."""
        return None

    def forget_oldest(self) -> None:
        """Do nothing: there is none."""

    def tidy(self) -> None:
        """Do nothing: what the index has forgotten is found when its turn comes."""

    def _cleared(self, slot: int) -> None:
        own = self._workers.pop(slot, None)
        if own is not None:
            self._entries -= len(own.kept)

    def _shrink(self, slot: int, own: WorkerHistory, pool_blocks: int) -> None:
        """Forget what was used longest ago until the rest fits."""
        tree, order = self._index.tree, own.order
        while own.blocks > pool_blocks and (order or self._put_all(slot, own)):
            handle = next(iter(order))
            row = tree.row_of(handle)
            if row is None:  # the index has forgotten it for want of memory
                own.blocks -= own.kept.pop(handle)
                del order[handle]
                self._entries -= 1
                continue
            count = own.kept[handle]
            floor = min(count, self._needed(slot, row))
            left = max(floor, count - max(own.blocks - pool_blocks, min(STEP_BLOCKS, pool_blocks // STEP_SHARE)))
            if left == floor:
                del order[handle]
            self._lower(slot, own, handle, row, left)

    def _needed(self, slot: int, row: int) -> int:
        """Blocks of a group that others need which the worker holds, at most."""
        children, reach = self._index.holdings.children(slot, row)
        return reach if children else 0

    def _lower(self, slot: int, own: WorkerHistory, handle: int, row: int, left: int) -> None:
        """Remember no more than the first ``left`` blocks of a group."""
        own.blocks -= own.kept[handle] - left
        if left:
            own.kept[handle] = left
            self._index.holdings.lower_to(slot, row, left)
            return
        del own.kept[handle]
        own.order.pop(handle, None)
        self._entries -= 1
        tree = self._index.tree
        parent = tree.parent[row]
        before = tree.handle(parent) if parent >= 0 else None
        self._index.holdings.lower_to(slot, row, 0)
        if before in own.kept and before not in own.order:  # it is the end of a prompt now, unused for as long
            own.order[before] = None
            own.order.move_to_end(before, last=False)

    def _put_all(self, slot: int, own: WorkerHistory) -> bool:
        """Put in order what was left out because somebody else's blocks went on from it. Returns: If there is any."""
        for handle in own.kept:
            row = self._index.tree.row_of(handle)
            if row is None or not self._index.holdings.children(slot, row)[0]:
                own.order[handle] = None
        return bool(own.order)
