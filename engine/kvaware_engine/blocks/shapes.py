"""A group's holders as arrays, so that all depths are written at once; made when needed, kept until they change."""

from typing import Final

import numpy as np

from kvaware_engine.requests.words import FloatArray, IntArray

__all__ = ["Shape", "Shapes"]

MOST_SLOTS: Final = 2**20
"""In all arrays that are kept: 24 MiB."""
SLOT_BYTES: Final = 24
SHAPE_BYTES: Final = 600

Shape = tuple[IntArray | slice, FloatArray, FloatArray, int, int]
"""The holders' slots, up to which block each holds the group, an array of the same shape to compute in, and the least
and the most of the counts. Slots that are all of a range are a slice: at 7,000 workers 1 us instead of 10."""


class Shapes:
    """By row of the group."""

    __slots__ = ("made", "slots")

    def __init__(self) -> None:
        self.made: dict[int, Shape] = {}
        self.slots = 0
        """In all of them."""

    @property
    def size_bytes(self) -> int:
        """Memory of all of them."""
        return self.slots * SLOT_BYTES + len(self.made) * SHAPE_BYTES

    def covers(self, row: int) -> int:
        """Up to which slot all hold something of the group, none left out; 0: that is not known, or not so."""
        shape = self.made.get(row)
        if shape is None:
            return 0
        slots = shape[0]
        return int(slots.stop) if isinstance(slots, slice) and slots.start == 0 else 0

    def make(self, row: int, holders: dict[int, int]) -> Shape:
        """Make a group's and keep it; when too much is kept, everything else goes."""
        size = len(holders)
        if self.slots + size > MOST_SLOTS:
            self.made.clear()
            self.slots = 0
        slots = np.fromiter(holders, np.int64, size)
        counts = np.fromiter(holders.values(), np.float64, size)
        order = np.argsort(slots)
        slots, counts = slots[order], counts[order]
        first, last = int(slots[0]), int(slots[-1])
        places: IntArray | slice = slice(first, last + 1) if last - first + 1 == size else slots
        shape = self.made[row] = (places, counts, np.empty(size), int(counts.min()), int(counts.max()))
        self.slots += size
        return shape

    def forget(self, row: int) -> None:
        """The group's holders changed."""
        shape = self.made.pop(row, None)
        if shape is not None:
            self.slots -= len(shape[1])
