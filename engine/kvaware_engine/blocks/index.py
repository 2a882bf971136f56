"""Which worker holds how much of a prompt: the block-group index of one model.

``match`` is one walk down the compressed prefix tree (groups.py): per group one comparison, and one write for all its
holders at once (holdings.py). Workers are slots: small integers, columns of the model's fleet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from struct import Struct
from types import MappingProxyType
from typing import Final

import numpy as np

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.groups import MAX_GROUP_BLOCKS, NO_GROUP, ROW_BITS, GroupTable
from kvaware_engine.blocks.hashing import HASH_BYTES, packed
from kvaware_engine.blocks.holdings import Holdings
from kvaware_engine.blocks.views import GroupView, views_of
from kvaware_engine.observations import Tier
from kvaware_engine.requests.words import FloatArray

__all__ = ["BlockIndex", "Expectation", "Match", "Run"]

FEW_HOLDERS: Final = 5
"""So many are written one by one, 60 ns each; for more, one assignment of a whole array takes 0.35 us."""
GROUP_BYTES: Final = 600
HOLDER_BYTES: Final = 100
"""What a new group takes beside its hashes, and one more holder of it, roughly: the exact sizes are added up when the
budget nears its end."""
MAX_GROUP_BYTES: Final = MAX_GROUP_BLOCKS * HASH_BYTES
VICTIMS: Final = 1024
"""Groups that are looked for at once when memory is short: looking takes 3 ms among 200,000."""

HASH: Final = Struct(">Q").unpack_from

Run = tuple[int, int, int]
"""Blocks that stand side by side in one group: its row, the first's offset and the one after the last's."""
NOTHING_LOWER: Final[Mapping[int, tuple[int, int]]] = MappingProxyType({})


class Match:
    """How far a prompt is known. The holders' depths are in the column that was filled.

    Plain: one is made per decision. Never changed once made; what it found is used until the tree changes.
    """

    __slots__ = ("deepest_blocks", "known_blocks", "lower", "path", "version")

    def __init__(self, path: list[int], version: int) -> None:
        self.deepest_blocks: int = 0
        """The most that anybody holds."""
        self.lower: Mapping[int, tuple[int, int]] = NOTHING_LOWER
        """Slot → of its matched blocks, how many lie only in CPU memory and how many only on SSD."""
        self.known_blocks: int = 0
        """Blocks that are in the tree, whoever holds them: where an insert goes on."""
        self.path = path
        """The groups that the prompt runs through."""
        self.version = version
        """The tree's, when it was walked."""


class Expectation:
    """Blocks that are assumed to be with a worker until ``end`` is called. Opaque to others."""

    __slots__ = ("covered", "ended", "slot")

    def __init__(self, slot: int, covered: list[tuple[int, int]]) -> None:
        self.slot = slot
        self.covered = covered
        """Handles of groups and up to which block."""
        self.ended = False


class BlockIndex:
    """Changed by its owner alone, between decisions."""

    __slots__ = (
        "_limit",
        "_offset",
        "_on_clear",
        "_victims",
        "budget",
        "holdings",
        "tree",
    )

    def __init__(self, budget: IndexBudget) -> None:
        self.budget = budget
        self.tree = GroupTable()
        """Read by who keeps places of blocks: history and residency."""
        self._limit, self._offset = np.zeros(1), np.zeros(1)
        """For one number each: as an array it costs a third of what it costs numpy as a Python number."""
        self.holdings = Holdings(self.tree)
        """Changed by them as well."""
        self._on_clear: list[Callable[[int], None]] = []
        self._victims: list[tuple[int, int]] = []
        """(tick, row) of what is forgotten next, the last first."""
        budget.join(self)

    # ── asking ──

    def match(self, hashes: Sequence[int], out: FloatArray) -> Match:
        """Find how many blocks from the prompt's beginning each worker holds without a gap, in any tier.

        Args:
            hashes: The prompt's, chained, first block first.
            out: Shape (slots,), one for each slot that was ever inserted or more. All of it is written.
        """
        groups, shapes, total = self.tree, self.holdings.shapes, len(hashes)
        path: list[int] = []
        match = Match(path, groups.version)
        find, slots_all = groups.heads.get, len(out)
        row = find(hashes[0]) if total else None
        if row is None or shapes.covers(row) != slots_all:
            out.fill(0.0)  # else everybody holds something of the first group, and gets its depth there
        if row is None:
            return match
        budget = self.budget
        budget.tick = tick = budget.tick + 1
        start = deepest = 0
        while row is not None:
            path.append(row)
            end = start + groups.length[row]
            if end > total and HASH(groups.hashes[row], (total - start - 1) * HASH_BYTES)[0] == hashes[-1]:
                end = total
            elif end > total or hashes[end - 1] != groups.last[row]:
                end = start + groups.common(row, hashes, start)
            holders = groups.holders[row]
            if len(holders) <= FEW_HOLDERS:
                whole = end - start
                for slot, count in holders.items():
                    if count >= whole:
                        out[slot] = deepest = end
                    else:
                        out[slot] = depth = start + count
                        deepest = max(deepest, depth)
            else:
                slots, counts, depths, least, most = shapes.made.get(row) or shapes.make(row, holders)
                if least < end - start:
                    self._limit[0], self._offset[0] = end - start, start
                    np.minimum(counts, self._limit, out=depths)
                    np.add(depths, self._offset, out=depths)
                    out[slots] = depths
                    deepest = max(deepest, min(end, start + most))
                elif len(counts) == slots_all:
                    out.fill(end)  # 0.2 us instead of 0.4
                    deepest = end
                else:
                    out[slots] = deepest = end
            start = end
            if end == total:
                break
            row = find(hashes[end])
        last = path[-1]  # what comes before it was used no less lately, nor less often: groups.py
        groups.tick[last] = tick
        groups.hits[last] += 1
        match.known_blocks = start
        match.deepest_blocks = deepest
        if self.holdings.loose:
            self._correct(match, out)
        if self.holdings.lower:
            match.lower = self._lower(match, out)
        return match

    def held_blocks(self, slot: int, tier: Tier) -> int:
        """Blocks that the slot holds in the tier; what is only expected does not count."""
        held = self.holdings.held[tier]
        return held[slot] if slot < len(held) else 0

    def groups(self, *, most: int, name_of: Callable[[int], str | None]) -> Iterator[GroupView]:
        """Give the block groups that most prompts ran through, one by one: the index may change in between.

        What is gone by its turn is left out, and what came since is not seen. A row of the tree may be many groups: all
        of one row are as they were at one moment. How long it takes: views.py.

        Args:
            most: How many at most; what comes after them is not looked at.
            name_of: Slot → the worker that has it now; None: none has.
        """
        return islice(self._groups(most, name_of), most)

    @property
    def blocks(self) -> int:
        """Blocks that are known, each once, whoever holds it."""
        return self.tree.blocks

    @property
    def size_bytes(self) -> int:
        """Memory of all of it."""
        return self.tree.size_bytes + self.holdings.size_bytes

    # ── what is resident ──

    def insert(self, slot: int, hashes: Sequence[int], *, first: int = 0, tier: Tier = Tier.HBM) -> None:
        """Say that a worker holds a prompt's blocks.

        Args:
            slot: The worker.
            hashes: The prompt's from its beginning.
            first: The first block that it holds, counted from 0.
            tier: Where.
        """
        data = packed(hashes)
        runs, at = self.lay(slot, NO_GROUP, 0, data), 0
        for row, begin, end in runs:
            begin_held = max(begin, begin + first - at)
            if begin_held < end:
                self.holdings.add(slot, row, begin_held, end, tier)
            at += end - begin
        for row, _, _ in reversed(runs):
            self.holdings.drop_if_unused(row)
        self.budget.settle()

    def remove(self, slot: int, hashes: Sequence[int], *, first: int = 0, tier: Tier = Tier.HBM) -> int:
        """Say that a worker holds blocks of a prompt no longer, each by itself.

        Args:
            slot: The worker.
            hashes: The prompt's from its beginning.
            first: The first block that it lost, counted from 0; and all after it.
            tier: Where.
        Returns: How many of them it was not known to hold there.
        """
        self.holdings.know(slot)
        known = at = 0
        for row, end in reversed(self._walk(hashes)):  # tail first, as servers do
            at = self.tree.start[row]
            if at + end > first:
                known += self.holdings.remove(slot, row, max(0, first - at), end, tier)
        return max(0, len(hashes) - first) - known

    def clear(self, slot: int) -> None:
        """The worker holds nothing any more, nothing is expected of it, and who keeps places of it hears of it."""
        self.holdings.clear(slot)
        for told in self._on_clear:
            told(slot)

    def on_clear(self, told: Callable[[int], None]) -> None:
        """Have it called with the slot of a worker that was cleared."""
        self._on_clear.append(told)

    # ── what is expected ──

    def expect(self, slot: int, hashes: Sequence[int], match: Match) -> Expectation:
        """Assume that a worker holds a prompt's blocks, from now until ``end``.

        Args:
            slot: The worker.
            hashes: The prompt's.
            match: As ``match`` gave it for them.
        """
        groups, holdings = self.tree, self.holdings
        covered = [
            (groups.generation[row] << ROW_BITS | row, end)
            for row, end in self.cover(slot, hashes, match)
            if holdings.expect(slot, row, end)
        ]
        self.budget.settle()
        return Expectation(slot, covered)

    def end(self, expectation: Expectation, *, keep: bool) -> None:
        """End it, once: a second time changes nothing.

        Args:
            expectation: As ``expect`` gave it.
            keep: Whether the blocks are held from now on; else those that no insert has confirmed are dropped.
        """
        if expectation.ended:
            return
        expectation.ended = True
        slot, holdings = expectation.slot, self.holdings
        for handle, end in reversed(expectation.covered):
            row = self.tree.row_of(handle)
            if row is None:
                continue
            if keep:
                holdings.add(slot, row, 0, end, Tier.HBM)
            holdings.end_expectation(slot, row, end)

    # ── for those who keep places of their own: history and residency ──

    def cover(self, slot: int, hashes: Sequence[int], match: Match) -> list[tuple[int, int]]:
        """Give a prompt's groups and up to which block it runs through each; what is new of it is added to the tree."""
        groups, holdings = self.tree, self.holdings
        if not 0 <= slot < len(holdings.slots):
            holdings.know(slot)
        self.budget.spare_bytes -= HOLDER_BYTES
        if match.version == groups.version:
            start, path, known = groups.start, match.path, match.known_blocks
            covered = []
            end = known
            for row in reversed(path):
                begin = start[row]
                covered.append((row, end - begin))
                end = begin
            covered.reverse()
        else:
            covered = self._walk(hashes)
            known = groups.start[covered[-1][0]] + covered[-1][1] if covered else 0
        if known < len(hashes):
            row, offset = covered[-1] if covered else (NO_GROUP, 0)
            for grown, _, end in self._grow(slot, row, offset, packed(hashes[known:] if known else hashes)):
                if grown == row:  # it goes on in the same group
                    covered.pop()
                covered.append((grown, end))
        return covered

    def lay(self, slot: int, row: int, offset: int, data: bytes) -> list[Run]:
        """Find the place of blocks in the tree; those that are new get one.

        Args:
            slot: Who is to hold them.
            row: The group of the block before the first; NO_GROUP: the first begins a prompt.
            offset: How many blocks of that group come before.
            data: The blocks' hashes.
        """
        groups, at, blocks = self.tree, 0, len(data) // HASH_BYTES
        if not 0 <= slot < len(self.holdings.slots):
            self.holdings.know(slot)
        budget = self.budget
        budget.spare_bytes -= HOLDER_BYTES
        budget.tick = tick = budget.tick + 1
        if row >= 0 and offset == groups.length[row] and HASH(data)[0] not in groups.heads:
            if self._goes_on(slot, row) and offset + blocks <= MAX_GROUP_BLOCKS:  # an answer: most of what is told
                budget.spare_bytes -= len(data)
                groups.extend(row, data)
                groups.tick[row] = tick
                return [(row, offset, offset + blocks)]
            return self._grow(slot, row, offset, data)
        runs: list[Run] = []
        while at < blocks:
            if row >= 0 and offset < groups.length[row]:
                common = groups.common_bytes(row, offset, data, at)
                if common:
                    groups.tick[row] = tick
                    runs.append((row, offset, offset + common))
                    at, offset = at + common, offset + common
                    continue
            place = at * HASH_BYTES
            child = groups.heads.get(HASH(data, place)[0])
            if child is None:
                return runs + self._grow(slot, row, offset, data[place:] if place else data)
            row, offset = child, 0
        return runs

    def settle(self) -> None:
        """Keep to the budget; called when nothing is half done: groups may be forgotten here."""
        self.budget.settle()

    # ── for the budget ──

    def oldest_tick(self) -> int | None:
        """When the group that goes first was matched or stored last."""
        groups = self.tree
        while True:
            while self._victims:
                tick, row = self._victims[-1]
                if groups.tick[row] == tick and groups.hashes[row] is not None and not groups.children[row]:
                    return tick
                self._victims.pop()
            if not len(groups):
                return None
            self._victims = groups.oldest_leaves(VICTIMS)[::-1]

    def forget_oldest(self) -> None:
        """Forget it."""
        _, row = self._victims.pop()
        self.holdings.drop(row)

    def tidy(self) -> None:
        """Do nothing: a forgotten group leaves nothing here."""

    # ── inside ──

    def _walk(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """Give the groups that a prompt runs through and up to which block, without counting it as a match."""
        groups, start, total = self.tree, 0, len(hashes)
        path: list[tuple[int, int]] = []
        while start < total and (row := groups.heads.get(hashes[start])) is not None:
            blocks = groups.common(row, hashes, start)
            path.append((row, blocks))
            start += blocks
        return path

    def _grow(self, slot: int, row: int, offset: int, data: bytes) -> list[Run]:
        """Add new blocks after a group's first ``offset`` blocks."""
        groups, tick = self.tree, self.budget.tick
        self.budget.spare_bytes -= len(data) + GROUP_BYTES
        runs: list[Run] = []
        start = 0
        if row >= 0:
            start = groups.start[row] + offset
            if offset == groups.length[row] < MAX_GROUP_BLOCKS and self._goes_on(slot, row):
                room = (MAX_GROUP_BLOCKS - offset) * HASH_BYTES
                groups.extend(row, data if len(data) <= room else data[:room])
                groups.tick[row] = tick
                runs.append((row, offset, groups.length[row]))
                start += groups.length[row] - offset
                data = data[room:]
        while data:
            row = groups.create(row, start, data if len(data) <= MAX_GROUP_BYTES else data[:MAX_GROUP_BYTES])
            groups.tick[row] = tick
            runs.append((row, 0, groups.length[row]))
            start += groups.length[row]
            data = data[MAX_GROUP_BYTES:]
        return runs

    def _goes_on(self, slot: int, row: int) -> bool:
        """Whether new blocks at a group's end belong to it: nobody else holds it, and nothing goes on from there."""
        groups = self.tree
        holders = groups.holders[row]
        return groups.reach[row] < groups.length[row] and (not holders or (len(holders) == 1 and slot in holders))

    def _correct(self, match: Match, out: FloatArray) -> None:
        """Write the depths of workers that hold later groups without all before them."""
        groups = self.tree
        ends = [groups.start[row] for row in match.path[1:]] + [match.known_blocks]
        for slot in self.holdings.loose:
            depth = 0
            for row, end in zip(match.path, ends, strict=True):
                depth = min(end, depth + groups.holders[row].get(slot, 0))
                if depth < end:
                    break
            out[slot] = depth
        match.deepest_blocks = int(out.max())

    def _lower(self, match: Match, out: FloatArray) -> Mapping[int, tuple[int, int]]:
        """Count the matched blocks that lie only in lower tiers."""
        found: dict[int, tuple[int, int]] = {}
        starts = [self.tree.start[row] for row in match.path]
        for row, start, end in zip(match.path, starts, [*starts[1:], match.known_blocks], strict=True):
            for slot, (cpu, ssd) in self.holdings.lower.get(row, {}).items():
                matched = min(int(out[slot]), end) - start
                if matched <= 0:
                    continue
                within = (1 << matched) - 1
                cpu_blocks, ssd_blocks = (cpu & within).bit_count(), (ssd & within).bit_count()
                if cpu_blocks or ssd_blocks:
                    before = found.get(slot, (0, 0))
                    found[slot] = (before[0] + cpu_blocks, before[1] + ssd_blocks)
        return found or NOTHING_LOWER

    def _groups(self, rows: int, name_of: Callable[[int], str | None]) -> Iterator[GroupView]:
        tree = self.tree
        for handle, hits in [(tree.handle(row), hits) for row, hits in tree.most_hit(rows)]:
            row = tree.row_of(handle)
            if row is not None:
                yield from views_of(self.holdings, row, hits, name_of)
