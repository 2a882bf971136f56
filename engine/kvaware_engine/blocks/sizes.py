"""What Python's containers take, by how much they hold: asking each one costs more than what is done with it."""

from sys import getsizeof
from typing import Final

__all__ = [
    "BYTEARRAY_BYTES",
    "DICT_GROWTH",
    "EMPTY_DICT_BYTES",
    "ENTRY_BYTES",
    "HASH_INT_BYTES",
    "INT_BYTES",
    "ROOM_RATIO",
]

BYTEARRAY_BYTES: Final = getsizeof(bytearray()) + 16
"""Of a byte array, without what it holds: the object and what its own allocation is rounded up by."""
ROOM_RATIO: Final = 1.06
"""What a byte array that grows has allocated for each byte that it holds, on average: an eighth when it grew last."""
HASH_INT_BYTES: Final = 48
"""Of an integer above 2^60, with what its allocation is rounded up by."""
INT_BYTES: Final = 32
EMPTY_DICT_BYTES: Final = getsizeof({})
ENTRY_BYTES: Final = 48
"""Of an entry of a large dictionary, on average: 30 to 60, as full as it is."""
LARGEST: Final = 2**14


def growth() -> dict[int, int]:
    """Give by how much a dictionary grows when one more is put to so many; where it does not, there is no entry."""
    grown, found, before = {}, {}, EMPTY_DICT_BYTES
    for size in range(LARGEST):
        grown[size] = size
        after = getsizeof(grown)
        if after != before:
            found[size] = after - before
        before = after
    return found


DICT_GROWTH: Final = growth()
"""Entries before → bytes that the next one takes."""
