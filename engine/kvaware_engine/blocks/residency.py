"""What workers tell of their KV blocks → who holds which blocks of which prompts.

An engine's hashes are names of its own: here every block gets our hash, from its tokens and its parent's, and the
engine's name is kept per worker and cache group as long as any tier holds the block. Residency is a set: a block that
is told twice is there once, and its first removal ends it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt

from kvaware_engine.blocks.events import DENSE_KINDS, BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from kvaware_engine.blocks.groups import NO_GROUP
from kvaware_engine.blocks.hashing import chain_bytes, root_hash
from kvaware_engine.blocks.index import BlockIndex
from kvaware_engine.blocks.orphans import Orphans
from kvaware_engine.blocks.places import Places
from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.settings import IndexSettings

__all__ = ["Applied", "Residency"]

# A place in 64 bits: generation of the group's row, offset in the group, row.
ROW_BITS: Final = 32
OFFSET_BITS: Final = 16
ROW_MASK: Final = 2**ROW_BITS - 1
OFFSET_MASK: Final = 2**OFFSET_BITS - 1
GENERATION_SHIFT: Final = ROW_BITS + OFFSET_BITS
NEXT_BLOCK: Final = 1 << ROW_BITS

ROOTS: Final = 4096
"""Pairs of adapter and salt whose root is remembered."""
STALE_SHARE: Final = 4
"""Names of blocks that the index forgot are cleaned when they may be one of so many."""
NAME_BYTES: Final = 130
"""Of a block's name while it is new: an entry of a dictionary with its key and value."""
ORPHAN_BYTES: Final = 700
"""Of one block that waits for its parent, its tokens included."""


@dataclass(init=False)
class Applied:
    """What became of events, in blocks: counted for metrics.

    One is made per batch. Zeros are the class's: to set nine of them took longer than to apply a removal.
    """

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    """Times that the worker emptied its cache."""
    unknown_removed: int = 0
    """Removed, but not known to be there."""
    unknown_stored: int = 0
    """Told by their hashes alone, and these are not known."""
    orphaned: int = 0
    """Stored after a block that is not known: they wait for it."""
    orphans_dropped: int = 0
    """Of those, given up because too many wait."""
    skipped: int = 0
    """Of cache groups that are not dense."""
    malformed: int = 0
    """Hashes and tokens do not fit together."""


class WorkerBlocks:
    """What one worker told."""

    __slots__ = ("block_tokens", "orphans", "places", "sparse_groups", "stale")

    def __init__(self, settings: IndexSettings) -> None:
        self.block_tokens: int | None = None
        """As its last event said; None: none has."""
        self.places: dict[int | None, Places] = {}
        """Cache group → engine hash → place."""
        self.sparse_groups: set[int | None] = set()
        """Cache groups that are not dense: removals do not say what they are of."""
        self.orphans = Orphans(settings.orphans_max)
        self.stale = 0
        """Blocks that the index forgot, whose names are still here."""


class Residency:
    """Of one model's workers. It is in the budget of the index."""

    __slots__ = ("_block_sizes", "_index", "_model", "_revision", "_roots", "_settings", "_workers", "block_tokens")

    def __init__(self, index: BlockIndex, *, model: ObjectKey, revision: str, settings: IndexSettings) -> None:
        self.block_tokens: int | None = None
        """As the events of most workers say, of each its last; None: none has. One that differs from the others changes
        nothing for them."""
        self._block_sizes: Counter[int] = Counter()
        self._index = index
        self._model = model
        self._revision = revision
        self._settings = settings
        self._workers: dict[int, WorkerBlocks] = {}
        self._roots: dict[tuple[str | None, str | None], int] = {}
        index.budget.join(self)
        index.on_clear(self._cleared)

    def apply(self, slot: int, events: Iterable[BlockEvent]) -> Applied:
        """Apply a worker's events, in order; what is unknown is counted, and the rest is applied all the same.

        Args:
            slot: The worker.
            events: Of one batch.
        """
        applied = Applied()
        for event in events:
            if isinstance(event, BlocksStored):
                self._stored(slot, event, applied)
            elif isinstance(event, BlocksRemoved):
                self._removed(slot, event, applied)
            elif isinstance(event, BlocksCleared):
                applied.cleared += 1
                self._index.clear(slot)
            else:
                assert_never(event)
        self._index.settle()
        return applied

    def forget(self, slot: int) -> None:
        """A gap or a restart: nothing is known of the worker any more."""
        self._index.clear(slot)

    @property
    def size_bytes(self) -> int:
        """Memory of all of it."""
        return sum(
            own.orphans.blocks * ORPHAN_BYTES + sum(places.size_bytes for places in own.places.values())
            for own in self._workers.values()
        )

    def oldest_tick(self) -> int | None:
        """Say that it has no groups of its own: those of the index are forgotten, and then their names here."""
        return None

    def forget_oldest(self) -> None:
        """Do nothing: there is none."""

    def tidy(self) -> None:
        """Forget the names of blocks that the index has forgotten, once they are many."""
        dropped = self._index.holdings.dropped
        while dropped:
            slot, blocks = dropped.popitem()
            own = self._workers.get(slot)
            if own is None:
                continue
            own.stale += blocks
            if own.stale * STALE_SHARE > sum(map(len, own.places.values())):
                own.stale = 0
                for places in own.places.values():
                    places.forget(self._gone)

    def _gone(self, places: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Whether the groups of these places are gone."""
        rows = (places & np.uint64(ROW_MASK)).astype(np.int64)
        generations = np.frombuffer(self._index.tree.generation, np.uint16)[rows]
        gone: npt.NDArray[np.bool_] = generations != places >> np.uint64(GENERATION_SHIFT)
        return gone

    def _row(self, place: int) -> int | None:
        """Give the row of a place; None: its group is gone."""
        row = place & ROW_MASK
        return row if self._index.tree.generation[row] == place >> GENERATION_SHIFT else None

    def _cleared(self, slot: int) -> None:
        own = self._workers.pop(slot, None)
        if own is not None and own.block_tokens is not None:
            self._count_size(own, None)

    def _count_size(self, own: WorkerBlocks, tokens: int | None) -> None:
        """A worker's blocks have another size; None: it tells nothing any more. The last size known holds for all."""
        sizes = self._block_sizes
        if own.block_tokens is not None:
            sizes[own.block_tokens] -= 1
        if tokens is not None:
            sizes[tokens] += 1
        own.block_tokens = tokens
        self._block_sizes = +sizes
        if self._block_sizes and self._block_sizes[self.block_tokens or 0] < max(self._block_sizes.values()):
            self.block_tokens = self._block_sizes.most_common(1)[0][0]

    def _stored(self, slot: int, event: BlocksStored, applied: Applied) -> None:
        own = self._workers.get(slot)
        if own is None:
            own = self._workers[slot] = WorkerBlocks(self._settings)
        blocks = len(event.engine_hashes)
        if event.kind is not None and event.kind not in DENSE_KINDS:
            own.sparse_groups.add(event.group_index)
        if own.sparse_groups and event.group_index in own.sparse_groups:
            applied.skipped += blocks
            return
        if not event.token_ids:
            self._stored_again(slot, own, event, applied)
            return
        if not blocks or event.block_tokens < 1 or len(event.token_ids) != blocks * event.block_tokens:
            applied.malformed += max(1, blocks)
            return
        if event.block_tokens != own.block_tokens:
            self._count_size(own, event.block_tokens)
        placed = self._placed(slot, own, event, applied)
        if placed and own.orphans.blocks:
            self._adopt(slot, own, event, applied)

    def _adopt(self, slot: int, own: WorkerBlocks, parent: BlocksStored, applied: Applied) -> None:
        """Give what waited for these blocks its place, and what waited for that."""
        pending = [parent]
        while pending:
            run = pending.pop()
            for block in run.engine_hashes:
                waited = own.orphans.take(run.group_index, block)
                pending += [each for each in waited if self._placed(slot, own, each, applied)]

    def _placed(self, slot: int, own: WorkerBlocks, event: BlocksStored, applied: Applied) -> bool:
        """Give a run its place. Returns: False: it has none, or waits for its parent."""
        index, names = self._index, event.engine_hashes
        tree, blocks = index.tree, len(names)
        places = own.places.get(event.group_index)
        if places is None:
            places = own.places[event.group_index] = Places()
        salt, keys = salt_and_keys(event) if event.extra_keys else (None, ())
        row, offset = NO_GROUP, 0
        if event.parent is None:
            parent = self._root(event.adapter, salt)
        else:
            place = places.get(event.parent)
            if place is None or tree.generation[place & ROW_MASK] != place >> GENERATION_SHIFT:
                applied.orphaned += blocks
                applied.orphans_dropped += own.orphans.add(event, event.parent)
                return False
            row, offset = place & ROW_MASK, (place >> ROW_BITS) & OFFSET_MASK
            parent = tree.hash_at(row, offset)
            offset += 1
        try:
            data = chain_bytes(parent, event.token_ids, block_tokens=event.block_tokens, extra_keys=keys)
        except ValueError:
            applied.malformed += blocks
            return False
        at = 0
        for group, first, end in index.lay(slot, row, offset, data):
            index.holdings.add(slot, group, first, end, event.tier)
            place = tree.generation[group] << GENERATION_SHIFT | first << ROW_BITS | group
            if blocks == 1:
                places.set(names[0], place)
            else:
                places.set_run(names if end - first == blocks else names[at : at + end - first], place, NEXT_BLOCK)
                at += end - first
        applied.stored += blocks
        index.budget.spare_bytes -= blocks * NAME_BYTES
        return True

    def _stored_again(self, slot: int, own: WorkerBlocks, event: BlocksStored, applied: Applied) -> None:
        """Blocks that are known by their names lie in one more tier."""
        places = own.places.get(event.group_index)
        for block in event.engine_hashes:
            place = None if places is None else places.get(block)
            row = None if place is None else self._row(place)
            if place is None or row is None:
                applied.unknown_stored += 1
                continue
            offset = (place >> ROW_BITS) & OFFSET_MASK
            self._index.holdings.add(slot, row, offset, offset + 1, event.tier)
            applied.stored += 1

    def _removed(self, slot: int, event: BlocksRemoved, applied: Applied) -> None:
        own = self._workers.get(slot)
        if own is not None and event.group_index in own.sparse_groups:
            applied.skipped += len(event.engine_hashes)
            return
        places = None if own is None else own.places.get(event.group_index)
        for block in event.engine_hashes:
            place = None if places is None else places.pop(block)
            if place is not None and places is not None:
                self._released(slot, places, block, place, event, applied)
            elif own is not None and own.orphans.remove(event.group_index, block):
                applied.removed += 1
            else:
                applied.unknown_removed += 1

    def _released(
        self, slot: int, places: Places, block: int, place: int, event: BlocksRemoved, applied: Applied
    ) -> None:
        """A block whose place is known is gone from a tier."""
        row = self._row(place)
        if row is None:  # forgotten for want of memory before its worker removed it
            applied.removed += 1
            return
        offset = (place >> ROW_BITS) & OFFSET_MASK
        known = self._index.holdings.remove(slot, row, offset, offset + 1, event.tier)
        applied.removed += known
        applied.unknown_removed += 1 - known
        # Its group may be gone with it, and the row is nobody's or another's then.
        if self._row(place) is not None and self._index.holdings.resident(slot, row, offset):
            places.set(block, place)  # another tier still has it

    def _root(self, adapter: str | None, salt: str | None) -> int:
        root = self._roots.get((adapter, salt))
        if root is None:
            if len(self._roots) >= ROOTS:
                self._roots.clear()
            root = root_hash(model=self._model, revision=self._revision, adapter=adapter, salt=salt)
            self._roots[adapter, salt] = root
        return root


def salt_and_keys(event: BlocksStored) -> tuple[str | None, Sequence[Sequence[Any] | None]]:
    """Tell apart what a server sends untagged: its adapter's name on every block, the salt last on a prompt's first.

    The adapter is the event's own field. What is left on a first block is taken for the salt, as far as it is text:
    vLLM puts it after the hashes of images, and a prompt with an image but no salt is nothing that a demand asks for.
    Returns: The salt, and per block the keys that are neither.
    """
    if not any(event.extra_keys):
        return None, ()
    keys = [list(of_block) if of_block else [] for of_block in event.extra_keys]
    if event.adapter is not None:
        for of_block in keys:
            if event.adapter in of_block:
                of_block.remove(event.adapter)
    salt = None
    if event.parent is None and keys[0] and isinstance(keys[0][-1], str):
        salt = keys[0].pop()
    return salt, keys
