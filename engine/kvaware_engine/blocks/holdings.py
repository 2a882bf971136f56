"""Which worker holds which blocks of which group, in which tier, and what is only expected to be there.

A worker is a slot. Nearly always it holds a group from its start up to some block, in HBM: one number says it, and the
server that evicts one tail block at a time lowers it. Whatever is not so (a hole, blocks in CPU memory or on SSD,
blocks that are only expected) is kept as bit masks, bit n for the group's block n, for as long as it is not so.
"""

from sys import getsizeof
from typing import Final, NamedTuple, assert_never

from kvaware_engine.blocks.groups import GroupTable
from kvaware_engine.blocks.shapes import Shapes
from kvaware_engine.blocks.sizes import DICT_GROWTH, ENTRY_BYTES, INT_BYTES
from kvaware_engine.observations import Tier

__all__ = ["MAX_SLOTS", "Holdings", "Masks"]

SLOT_BITS: Final = 16
MAX_SLOTS: Final = 2**SLOT_BITS
REACH_BITS: Final = 16
REACH_MASK: Final = 2**REACH_BITS - 1
ONE_CHILD: Final = 1 << REACH_BITS
TRIM_BLOCKS: Final = 16
"""A group's end that nobody holds is forgotten when it is so long."""
TRIM_HOLDERS: Final = 8
"""With more holders it is not looked for: somebody will have it, and looking takes 0.1 us each."""
MASK_BYTES: Final = ENTRY_BYTES + INT_BYTES
"""Of a mask's entry, without the mask."""
PAIR_BYTES: Final = ENTRY_BYTES + INT_BYTES
"""Of a group at one slot."""
SLOT_BYTES: Final = getsizeof({}) + 8 * (1 + len(Tier))
NO_MASK_BYTES: Final = MASK_BYTES + getsizeof(0)
EXPECTED_BYTES: Final = MASK_BYTES + getsizeof([0]) + 8
"""Of what is expected of one group at one slot, mostly once."""


class Masks(NamedTuple):
    """The blocks of one group that one worker holds."""

    hbm: int
    cpu: int
    ssd: int
    expected: int

    @property
    def any(self) -> int:
        """In any tier, or expected."""
        return self.hbm | self.cpu | self.ssd | self.expected


class Holdings:
    """Changed by the block index alone."""

    __slots__ = (
        "_cpu",
        "_expected",
        "_hbm",
        "_hbm_blocks",
        "_mask_bytes",
        "_ssd",
        "dropped",
        "groups",
        "held",
        "loose",
        "lower",
        "shapes",
        "slots",
    )

    def __init__(self, groups: GroupTable) -> None:
        """Begin with nobody.

        Args:
            groups: The tree.
        """
        self.groups = groups
        self.shapes = Shapes()
        self.slots: list[dict[int, int]] = []
        """By slot: row → held children of it * 2^16 + the most blocks of it that one of them needs, at least. A row is
        there while the slot holds blocks of it or of a child."""
        self.held: dict[Tier, list[int]] = {tier: [] for tier in Tier}
        """By slot: blocks resident in the tier."""
        self._hbm_blocks = self.held[Tier.HBM]
        self.loose: dict[int, dict[int, None]] = {}
        """Slot → groups that it holds blocks of without all before them: they do not match."""
        self.lower: dict[int, dict[int, tuple[int, int]]] = {}
        """Row → slot → masks of the blocks that lie in CPU memory but not in HBM, and on SSD alone."""
        self.dropped: dict[int, int] = {}
        """Slot → blocks that were forgotten of it for want of memory; emptied by who keeps places of them."""
        # (row << SLOT_BITS | slot) → mask. A pair that is not in _hbm holds what its count says, in HBM.
        self._hbm: dict[int, int] = {}
        self._cpu: dict[int, int] = {}
        self._ssd: dict[int, int] = {}
        self._expected: dict[int, list[int]] = {}
        """The same → for each expectation, up to which block."""
        self._mask_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Memory of all of it but the counts, which are the groups' own."""
        pairs = sum(map(len, self.slots))
        masks = sum(map(getsizeof, (self._hbm, self._cpu, self._ssd, self._expected, self.lower)))
        masks += self._mask_bytes + len(self._expected) * EXPECTED_BYTES
        return pairs * PAIR_BYTES + len(self.slots) * SLOT_BYTES + masks + self.shapes.size_bytes

    def know(self, slot: int) -> None:
        """Make room for a slot."""
        if not 0 <= slot < MAX_SLOTS:
            raise ValueError(f"slot: expected 0 to {MAX_SLOTS - 1}, got {slot}")
        while len(self.slots) <= slot:
            self.slots.append({})
            for counts in self.held.values():
                counts.append(0)

    def count(self, slot: int, row: int) -> int:
        """Blocks of the group that the slot holds or is expected to hold, from its start."""
        count: int = self.groups.holders[row].get(slot, 0)
        return count

    def masks(self, slot: int, row: int) -> Masks:
        """What the slot holds of the group."""
        key = row << SLOT_BITS | slot
        hbm = self._hbm.get(key)
        if hbm is None:
            return Masks((1 << self.count(slot, row)) - 1, 0, 0, 0)
        expected = self._expected.get(key)
        return Masks(hbm, self._cpu.get(key, 0), self._ssd.get(key, 0), (1 << max(expected)) - 1 if expected else 0)

    def masked(self, slot: int, row: int) -> bool:
        """Whether what the slot holds of the group is anything but its first blocks, as many as its count, in HBM."""
        return (row << SLOT_BITS | slot) in self._hbm

    def add(self, slot: int, row: int, first: int, end: int, tier: Tier) -> None:
        """The slot holds blocks ``first`` to before ``end`` of the group in the tier."""
        if tier is Tier.HBM and self._add_to_hbm(slot, row, first, end):
            return
        masks = self.masks(slot, row)
        bits = (1 << end) - (1 << first)
        match tier:
            case Tier.HBM:
                masks = masks._replace(hbm=masks.hbm | bits)
            case Tier.CPU:
                masks = masks._replace(cpu=masks.cpu | bits)
            case Tier.SSD:
                masks = masks._replace(ssd=masks.ssd | bits)
            case _:
                assert_never(tier)
        self._set(slot, row, masks)

    def add_first(self, slot: int, row: int, end: int) -> None:
        """The slot, which held nothing of the group, holds it in HBM to before ``end``."""
        self._hbm_blocks[slot] += end
        self._gain(slot, row, end)

    def _gain(self, slot: int, row: int, count: int) -> None:
        groups = self.groups
        holders = groups.holders[row]
        groups.holder_bytes += DICT_GROWTH.get(len(holders), 0)
        holders[slot] = count
        if row in self.shapes.made:
            self.shapes.forget(row)
        self._join(slot, row)
        if self.loose:
            self._fasten(slot, row, count)

    def take_out(self, slot: int, row: int) -> None:
        """The slot holds nothing of the group, in any tier, and is not expected to."""
        self._strip(slot, row)
        self._leave(slot, row)
        if not self.groups.holders[row]:
            self.drop_if_unused(row)

    def _add_to_hbm(self, slot: int, row: int, first: int, end: int) -> bool:
        """Do it without masks, or with those of HBM alone. Returns: False: that is not how it is."""
        key = row << SLOT_BITS | slot
        holders = self.groups.holders[row]
        count: int = holders.get(slot, 0)
        mask = self._hbm.get(key)
        if mask is None:
            if not first <= count < end:
                return first <= count
            self._hbm_blocks[slot] += end - count
            if not count:
                self._gain(slot, row, end)
                return True
            holders[slot] = end
            if row in self.shapes.made:
                self.shapes.forget(row)
            if self.loose:
                self._fasten(slot, row, end)
            return True
        expected = self._expected.get(key)
        if expected is None or key in self._cpu or key in self._ssd:
            return False
        after = mask | (1 << end) - (1 << first)
        if after != mask:  # mostly: what was expected is there
            self._hbm_blocks[slot] += after.bit_count() - mask.bit_count()
            self._hbm[key] = after
            self._mask_bytes += getsizeof(after) - getsizeof(mask)
            if end > count:
                self._set_count(slot, row, lowest_ones(after | (1 << max(expected)) - 1))
        return True

    def remove(self, slot: int, row: int, first: int, end: int, tier: Tier) -> int:
        """The slot holds these blocks no longer in the tier. Returns: How many of them it held there."""
        holders = self.groups.holders[row]
        if tier is Tier.HBM and (row << SLOT_BITS | slot) not in self._hbm:
            count = holders.get(slot, 0)
            if first >= count:
                return 0
            if end >= count:
                self._hbm_blocks[slot] -= count - first
                self._set_count(slot, row, first)
                return int(count - first)
        masks = self.masks(slot, row)
        bits = (1 << end) - (1 << first)
        match tier:
            case Tier.HBM:
                known, masks = masks.hbm & bits, masks._replace(hbm=masks.hbm & ~bits)
            case Tier.CPU:
                known, masks = masks.cpu & bits, masks._replace(cpu=masks.cpu & ~bits)
            case Tier.SSD:
                known, masks = masks.ssd & bits, masks._replace(ssd=masks.ssd & ~bits)
            case _:
                assert_never(tier)
        if known:
            self._set(slot, row, masks)
        return known.bit_count()

    def lower_to(self, slot: int, row: int, count: int) -> None:
        """The slot holds no more than the group's first ``count`` blocks in HBM."""
        if count:
            self.remove(slot, row, count, max(count, self.groups.length[row]), Tier.HBM)
        elif (row << SLOT_BITS | slot) in self._hbm:
            self.remove(slot, row, 0, self.groups.length[row], Tier.HBM)
        elif slot in self.groups.holders[row]:
            self.take_out(slot, row)

    def resident(self, slot: int, row: int, offset: int) -> bool:
        """Whether the slot holds this block in any tier."""
        if (row << SLOT_BITS | slot) not in self._hbm:
            return offset < self.count(slot, row)
        masks = self.masks(slot, row)
        return bool((masks.hbm | masks.cpu | masks.ssd) >> offset & 1)

    def expect(self, slot: int, row: int, end: int) -> bool:
        """Assume that the slot holds the group's first blocks, to before ``end``. Returns: False: it does."""
        key = row << SLOT_BITS | slot
        if slot not in self.groups.holders[row]:  # nearly always
            self._expected[key] = [end]
            self._hbm[key] = 0
            self._mask_bytes += NO_MASK_BYTES
            self._gain(slot, row, end)
            return True
        expected = self._expected.get(key)
        if expected is None and self.count(slot, row) >= end:
            return False
        masks = self.masks(slot, row)
        if expected is None:
            expected = self._expected[key] = []
        expected.append(end)
        self._set(slot, row, masks._replace(expected=masks.expected | (1 << end) - 1))
        return True

    def end_expectation(self, slot: int, row: int, end: int) -> None:
        """Assume it no longer; nothing happens where it was not assumed, or was forgotten."""
        key = row << SLOT_BITS | slot
        expected = self._expected.get(key)
        if expected is None or end not in expected:
            return
        if len(expected) == 1 and not self._hbm[key] and key not in self._cpu and key not in self._ssd:
            del self._expected[key], self._hbm[key]  # nothing was confirmed
            self._mask_bytes -= NO_MASK_BYTES
            before = self.groups.holders[row][slot]
            self._lose(slot, row)
            self._leave(slot, row)
            if not self.groups.holders[row]:
                self.drop_if_unused(row)
            else:
                self._trim(row, before, 0)
            return
        masks = self.masks(slot, row)
        expected.remove(end)
        if not expected:
            del self._expected[key]
        self._set(slot, row, masks._replace(expected=(1 << max(expected)) - 1 if expected else 0))

    def clear(self, slot: int) -> None:
        """The slot holds nothing and is expected to hold nothing."""
        rows = list(self.slots[slot]) if slot < len(self.slots) else []
        for row in rows:
            if slot in self.groups.holders[row]:
                self._strip(slot, row)
        if rows:
            self.slots[slot] = {}
            self.loose.pop(slot, None)
        for row in rows:
            self.drop_if_unused(row)

    def drop(self, row: int) -> None:
        """Forget a group without children, whoever holds it."""
        holders = self.groups.holders[row]
        for slot, count in list(holders.items()):
            self.dropped[slot] = self.dropped.get(slot, 0) + count
            self.take_out(slot, row)

    def drop_if_unused(self, row: int) -> None:
        """Forget the group if nobody holds it and nothing goes on from it, and then what it went on from."""
        groups = self.groups
        while row >= 0 and groups.holders[row] is not None and not groups.holders[row] and not groups.children[row]:
            row = groups.free(row)

    def children(self, slot: int, row: int) -> tuple[int, int]:
        """Give how many children of the group the slot holds, and at most how many blocks of it they need."""
        kept = self.slots[slot].get(row, 0)
        return kept >> REACH_BITS, kept & REACH_MASK

    def _lose(self, slot: int, row: int) -> None:
        groups = self.groups
        holders = groups.holders[row]
        del holders[slot]
        groups.holder_bytes -= DICT_GROWTH.get(len(holders), 0)
        if row in self.shapes.made:
            self.shapes.forget(row)

    def _strip(self, slot: int, row: int) -> None:
        """Take the slot from the group's holders; its children stay what they are."""
        key = row << SLOT_BITS | slot
        if key in self._hbm:
            self._book(slot, self.masks(slot, row), Masks(0, 0, 0, 0))
            self._forget_masks(slot, row, key)
            self._expected.pop(key, None)
        else:
            self._hbm_blocks[slot] -= self.groups.holders[row][slot]
        self._lose(slot, row)

    def _set(self, slot: int, row: int, masks: Masks) -> None:
        """Make this what the slot holds of the group."""
        key = row << SLOT_BITS | slot
        before = self.masks(slot, row) if key in self._hbm else None
        union = masks.any
        count = lowest_ones(union)
        if before is None:
            held = self.groups.holders[row].get(slot, 0)
            self._hbm_blocks[slot] -= held
            self._book(slot, Masks(0, 0, 0, 0), masks)
        else:
            self._book(slot, before, masks)
        self._forget_masks(slot, row, key)
        if masks.hbm != (1 << count) - 1 or masks.cpu or masks.ssd or masks.expected:
            self._keep_masks(slot, row, key, masks)
        self._set_count(slot, row, count if union else -1)

    def _book(self, slot: int, before: Masks, after: Masks) -> None:
        for tier, was, now in (
            (Tier.HBM, before.hbm, after.hbm),
            (Tier.CPU, before.cpu, after.cpu),
            (Tier.SSD, before.ssd, after.ssd),
        ):
            if was != now:
                self.held[tier][slot] += now.bit_count() - was.bit_count()

    def _keep_masks(self, slot: int, row: int, key: int, masks: Masks) -> None:
        for kept, mask in ((self._hbm, masks.hbm), (self._cpu, masks.cpu), (self._ssd, masks.ssd)):
            if mask or kept is self._hbm:
                kept[key] = mask
                self._mask_bytes += MASK_BYTES + getsizeof(mask)
        present = masks.hbm | masks.expected
        cpu, ssd = masks.cpu & ~present, masks.ssd & ~present & ~masks.cpu
        if cpu or ssd:
            self.lower.setdefault(row, {})[slot] = (cpu, ssd)

    def _forget_masks(self, slot: int, row: int, key: int) -> None:
        for kept in (self._hbm, self._cpu, self._ssd):
            mask = kept.pop(key, None)
            if mask is not None:
                self._mask_bytes -= MASK_BYTES + getsizeof(mask)
        lower = self.lower.get(row)
        if lower is not None and lower.pop(slot, None) is not None and not lower:
            del self.lower[row]

    def _set_count(self, slot: int, row: int, count: int) -> None:
        """Set up to where the slot holds the group; less than 0, or 0 without masks: it holds nothing of it."""
        groups = self.groups
        holders = groups.holders[row]
        before = holders.get(slot)
        if count <= 0 and (count < 0 or (row << SLOT_BITS | slot) not in self._hbm):
            if before is not None:
                self._lose(slot, row)
                self._leave(slot, row)
                if not holders:
                    self.drop_if_unused(row)
                else:
                    self._trim(row, before, 0)
            return
        if before == count:
            return
        if before is None:
            self._gain(slot, row, count)
            return
        holders[slot] = count
        if row in self.shapes.made:
            self.shapes.forget(row)
        if count < before:
            if self.slots[slot][row]:
                self._find_loose(slot, row, count)
            self._trim(row, before, count)
        elif self.loose:
            self._fasten(slot, row, count)

    def _join(self, slot: int, row: int) -> None:
        """The slot holds something of the group, as it did not before."""
        groups, own = self.groups, self.slots[slot]
        if row not in own:
            own[row] = 0
        parent = groups.parent[row]
        if parent < 0:
            return
        attached = groups.start[row] - groups.start[parent]
        kept = own.get(parent, 0) + ONE_CHILD
        own[parent] = kept if kept & REACH_MASK >= attached else kept & ~REACH_MASK | attached
        if groups.holders[parent].get(slot, 0) < attached:
            self.loose.setdefault(slot, {})[row] = None

    def _leave(self, slot: int, row: int) -> None:
        """The slot holds nothing of the group any more."""
        groups, own = self.groups, self.slots[slot]
        if self.loose:
            self._fasten_one(slot, row)
        if own[row] < ONE_CHILD:
            del own[row]
        else:
            self._find_loose(slot, row, 0)
        parent = groups.parent[row]
        if parent < 0:
            return
        kept = own[parent] - ONE_CHILD
        if kept >= ONE_CHILD:
            own[parent] = kept
        elif slot in groups.holders[parent]:
            own[parent] = 0
        else:
            del own[parent]

    def _find_loose(self, slot: int, row: int, count: int) -> None:
        """The slot holds no more than ``count`` blocks of the group: which children does it hold that need more?"""
        groups, own = self.groups, self.slots[slot]
        kept = own.get(row, 0)
        if kept < ONE_CHILD or kept & REACH_MASK <= count:
            return
        reach = 0
        for child in own:
            if groups.parent[child] == row and slot in groups.holders[child]:
                attached = groups.start[child] - groups.start[row]
                reach = max(reach, attached)
                if attached > count:
                    self.loose.setdefault(slot, {})[child] = None
        own[row] = kept & ~REACH_MASK | reach

    def _fasten(self, slot: int, row: int, count: int) -> None:
        """The slot holds ``count`` blocks of the group: its children that need no more are loose no longer."""
        groups = self.groups
        for child in list(self.loose.get(slot, ())):
            if groups.parent[child] == row and groups.start[child] - groups.start[row] <= count:
                self._fasten_one(slot, child)

    def _fasten_one(self, slot: int, row: int) -> None:
        loose = self.loose.get(slot)
        if loose is not None and row in loose:
            del loose[row]
            if not loose:
                del self.loose[slot]

    def _trim(self, row: int, before: int, count: int) -> None:
        """A slot held ``before`` blocks of the group and holds ``count``: forget its end if nobody needs it."""
        groups = self.groups
        holders, length = groups.holders[row], groups.length[row]
        unheld = length - count
        if unheld < TRIM_BLOCKS or len(holders) > TRIM_HOLDERS:
            return
        if before - count < TRIM_BLOCKS and unheld % TRIM_BLOCKS:
            return  # one by one it is looked for now and then
        kept = max(1, groups.reach[row])
        for slot, held in holders.items():
            masked = (row << SLOT_BITS | slot) in self._hbm
            kept = max(kept, self.masks(slot, row).any.bit_length() if masked else held)
        if length - kept >= TRIM_BLOCKS:
            groups.trim(row, kept)


def lowest_ones(mask: int) -> int:
    """Count the ones below a mask's lowest zero."""
    return (~mask & (mask + 1)).bit_length() - 1
