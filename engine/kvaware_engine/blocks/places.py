"""Engine hash → place of the block, for one worker and cache group: 21 bytes a block.

A dictionary takes 90 to 130 bytes a block with its keys and values, and pauses while it grows. This is linear hashing
over byte arrays: a bucket is searched by ``bytearray.find`` (0.2 us), and split when its turn comes; the garbage
collector sees none of it.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct, pack
from sys import getsizeof
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Places"]

ENTRY: Final = Struct("<QQ")
ENTRY_BYTES: Final = 16
KEY_BYTES: Final = 8
BUCKET_ENTRIES: Final = 16
"""On average at most; more is less memory and a longer search."""
FIRST_BUCKETS: Final = 2
ENTRY_ROOM_RATIO: Final = 1.06
"""What a byte array has allocated for each byte that it holds, on average: an eighth more when it grew last."""
BUCKET_BYTES: Final = getsizeof(bytearray()) + 8
"""Of an empty bucket, rounded up as it is allocated."""


class Places:
    """A map from 64-bit integers, evenly distributed as hashes are, to 64-bit integers."""

    __slots__ = ("_buckets", "_count", "_entries", "_level", "_mask", "_swept")

    def __init__(self) -> None:
        self._count = self._level = FIRST_BUCKETS
        """Buckets now, and when the present round of splits began: level <= count < 2 * level."""
        self._mask = 2 * FIRST_BUCKETS - 1
        self._buckets: npt.NDArray[Any] = np.empty(2 * FIRST_BUCKETS, dtype=object)
        self._entries = 0
        self._swept = 0
        for number in range(FIRST_BUCKETS):
            self._buckets[number] = bytearray()

    def __len__(self) -> int:
        return self._entries

    @property
    def size_bytes(self) -> int:
        """Memory of all of it, but for what the last growth of each bucket happened to leave: within a few percent."""
        entries = int(self._entries * ENTRY_BYTES * ENTRY_ROOM_RATIO)
        return entries + self._count * BUCKET_BYTES + getsizeof(self._buckets)

    def get(self, key: int) -> int | None:
        """Give the key's value; None: it has none."""
        number = (key ^ key >> 32) & self._mask
        bucket = self._buckets[number if number < self._count else number - self._level]
        at = find(bucket, key.to_bytes(KEY_BYTES, "little"))
        return None if at < 0 else int(ENTRY.unpack_from(bucket, at)[1])

    def set_run(self, keys: Sequence[int], value: int, step: int) -> None:
        """Give the first key this value and each other one ``step`` more than the one before it."""
        mask, count, level, buckets = self._mask, self._count, self._level, self._buckets
        added = 0
        for key in keys:
            number = (key ^ key >> 32) & mask
            bucket = buckets[number if number < count else number - level]
            entry = pack("<QQ", key, value)
            value += step
            at = bucket.find(entry[:KEY_BYTES])
            if at % ENTRY_BYTES and at >= 0:
                at = find(bucket, entry[:KEY_BYTES])
            if at < 0:
                bucket += entry
                added += 1
            else:
                bucket[at : at + ENTRY_BYTES] = entry
        self._entries += added
        while self._entries > self._count * BUCKET_ENTRIES:
            self._split()

    def pop(self, key: int) -> int | None:
        """Forget the key. Returns: its value; None: it had none."""
        number = (key ^ key >> 32) & self._mask
        bucket = self._buckets[number if number < self._count else number - self._level]
        at = find(bucket, key.to_bytes(KEY_BYTES, "little"))
        if at < 0:
            return None
        value = int(ENTRY.unpack_from(bucket, at)[1])
        del bucket[at : at + ENTRY_BYTES]
        self._entries -= 1
        return value

    def sweep(self, keep: Callable[[int], bool], buckets: int) -> None:
        """Forget the keys in the next so many buckets whose values are not to be kept: all of them, call by call."""
        for _ in range(min(buckets, self._count)):
            number = self._swept = (self._swept + 1) % self._count
            bucket = self._buckets[number]
            kept = [entry for entry in ENTRY.iter_unpack(bucket) if keep(entry[1])]
            if len(kept) * ENTRY_BYTES < len(bucket):
                self._entries -= len(bucket) // ENTRY_BYTES - len(kept)
                self._buckets[number] = bytearray(b"".join(ENTRY.pack(*entry) for entry in kept))

    def values(self) -> Iterator[int]:
        """Give all values, in no order that means anything."""
        for number in range(self._count):
            for _, value in ENTRY.iter_unpack(self._buckets[number]):
                yield value

    def _split(self) -> None:
        """Share the entries of the next bucket in turn with a new one."""
        old, new, mask = self._count - self._level, self._count, self._mask
        bucket, stays, goes = self._buckets[old], bytearray(), bytearray()
        for at, (key, _) in enumerate(ENTRY.iter_unpack(bucket)):
            entry = bucket[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES]
            if (key ^ key >> 32) & mask == new:
                goes += entry
            else:
                stays += entry
        self._buckets[old], self._buckets[new] = stays, goes
        self._count += 1
        if self._count == 2 * self._level:
            self._level *= 2
            self._mask = 2 * self._level - 1
            grown = np.empty(2 * self._level, dtype=object)
            grown[: self._count] = self._buckets
            self._buckets = grown


def find(bucket: bytearray, key: bytes) -> int:
    """Give where the key's entry begins; -1: nowhere. The key's bytes may stand across two others by chance."""
    at: int = bucket.find(key)
    while at % ENTRY_BYTES and at >= 0:
        at = bucket.find(key, at + 1)
    return at
