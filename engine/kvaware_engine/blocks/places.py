"""Engine hash → place of the block, for one worker and cache group: some 20 bytes a block.

A dictionary takes 110 to 140 bytes a block with its keys and values. Here only what came lately is in one: it takes a
run of blocks at once, at C's speed. The rest is in two sorted arrays, that numpy merges it into. The garbage collector
sees none of it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvaware_engine.blocks.sizes import HASH_INT_BYTES, INT_BYTES

__all__ = ["Places"]

Words = npt.NDArray[np.uint64]

RECENT: Final = 8192
RECENT_SHARE: Final = 16
"""The dictionary is merged when it has so many entries and this share of the others': a millisecond for 150,000."""
GONE: Final = 2**64 - 1
"""The value of a key that was forgotten, until the next merge."""


class Sorted:
    """Sorted keys and their values. Values change in place, keys only by a merge."""

    __slots__ = ("_key_view", "_value_view", "keys", "values")

    def __init__(self, keys: Words, values: Words) -> None:
        self.keys = keys
        self.values = values
        self._key_view: memoryview[Any] = keys.data
        """Python's bisect over it takes half of what one call of numpy does."""
        self._value_view: memoryview[Any] = values.data

    def __len__(self) -> int:
        return len(self._key_view)

    @property
    def size_bytes(self) -> int:
        """Memory of both arrays."""
        return self.keys.nbytes + self.values.nbytes

    def get(self, key: int) -> int:
        """Give the key's value; GONE: it has none."""
        at = bisect_left(self._key_view, key)
        return int(self._value_view[at]) if at < len(self._key_view) and self._key_view[at] == key else GONE

    def pop(self, key: int) -> int:
        """Forget the key. Returns: its value; GONE: it had none."""
        at = bisect_left(self._key_view, key)
        if at == len(self._key_view) or self._key_view[at] != key:
            return GONE
        value = int(self._value_view[at])
        self._value_view[at] = GONE
        return value

    def only(self, kept: npt.NDArray[np.bool_]) -> "Sorted":
        """Give the entries of the mask."""
        return self if kept.all() else Sorted(self.keys[kept], self.values[kept])

    def with_newer(self, newer: "Sorted") -> "Sorted":
        """Give both; where they have a key in common, the newer value counts."""
        older = self.only(self.values != GONE)
        newer = newer.only(newer.values != GONE)
        if not len(older):
            return newer
        at = np.searchsorted(older.keys, newer.keys)
        common = older.keys[np.minimum(at, len(older) - 1)] == newer.keys
        if common.any():
            older.values[at[common]] = newer.values[common]
            newer, at = newer.only(~common), at[~common]
        return Sorted(np.insert(older.keys, at, newer.keys), np.insert(older.values, at, newer.values))


class Places:
    """A map from 64-bit integers to 64-bit integers below GONE."""

    __slots__ = ("_most_recent", "_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        self._most_recent = RECENT
        self._sorted = Sorted(np.zeros(0, np.uint64), np.zeros(0, np.uint64))

    def __len__(self) -> int:
        """Entries, those that were forgotten and not yet merged away included."""
        return len(self._recent) + len(self._sorted)

    @property
    def size_bytes(self) -> int:
        """Memory of all of it."""
        recent = getsizeof(self._recent) + len(self._recent) * (HASH_INT_BYTES + INT_BYTES)
        return recent + self._sorted.size_bytes

    def get(self, key: int) -> int | None:
        """Give the key's value; None: it has none."""
        value = self._recent.get(key)
        if value is None:
            value = self._sorted.get(key)
            if value == GONE:
                return None
            self.set(key, value)  # most are asked for again: prompts go on from where others did
        return value

    def set(self, key: int, value: int) -> None:
        """Give the key this value."""
        self._recent[key] = value
        if len(self._recent) >= self._most_recent:
            self._merge()

    def set_run(self, keys: Sequence[int], value: int, step: int) -> None:
        """Give the first key this value and each other one ``step`` more than the one before it."""
        self._recent.update(zip(keys, range(value, value + step * len(keys), step), strict=True))
        if len(self._recent) >= self._most_recent:
            self._merge()

    def pop(self, key: int) -> int | None:
        """Forget the key. Returns: its value; None: it had none."""
        recent, older = self._recent.pop(key, GONE), self._sorted.pop(key)  # it may have been told twice
        value = older if recent == GONE else recent
        return None if value == GONE else value

    def forget(self, gone: Callable[[Words], npt.NDArray[np.bool_]]) -> None:
        """Forget the keys whose values, asked all at once, are said to be gone."""
        self._merge()
        self._sorted = self._sorted.only(~gone(self._sorted.values))

    def _merge(self) -> None:
        size = len(self._recent)
        keys = np.fromiter(self._recent, np.uint64, size)
        values = np.fromiter(self._recent.values(), np.uint64, size)
        self._recent = {}
        order = np.argsort(keys)
        self._sorted = self._sorted.with_newer(Sorted(keys[order], values[order]))
        self._most_recent = max(RECENT, len(self._sorted) // RECENT_SHARE)
