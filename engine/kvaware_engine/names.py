"""Node names as bytes: thousands of names become rows of the fleet by a handful of numpy calls.

A Python string per name is what costs: at 5,000 nodes making the strings, looking each up in a dict and building the
answer's list and map took 3 times as long as everything else in a filter call (cache misses, mostly). So names that
stand one after another in some text stay there; equal lengths are looked up together, eight bytes at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

__all__ = ["NameTable", "PackedNames"]

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint64]

_WORD_BYTES: Final = 8
_PADDING: Final = b"\0" * _WORD_BYTES
_ROOM: Final = 4
"""Slots per name: one look finds seven names of eight."""
_MULTIPLIERS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd 64-bit constants of well-known integer hashes; any would do."""


class PackedNames(Sequence[str]):
    """ASCII names at known places of one text. A sequence of strings to whoever needs strings."""

    __slots__ = ("_groups", "_lengths", "_starts", "_text")

    def __init__(self, text: bytes, starts: IntArray, lengths: IntArray) -> None:
        """Keep the text.

        Args:
            text: Holds the names, one byte per character.
            starts: Offset of each name, shape (names,).
            lengths: Bytes of each name, shape (names,), each >= 1.
        """
        self._text = np.frombuffer(text + _PADDING, dtype=np.uint8)
        self._starts = starts
        self._lengths = lengths
        self._groups: tuple[tuple[int, IntArray], ...] | None = None

    @classmethod
    def of(cls, names: Sequence[str]) -> "PackedNames":
        """Pack strings. Raises: ValueError when a name is not ASCII."""
        lengths = np.fromiter(map(len, names), dtype=np.int64, count=len(names))
        starts = np.cumsum(lengths) - lengths
        return cls("".join(names).encode("ascii"), starts, lengths)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        start = int(self._starts[index])
        return self._text[start : start + int(self._lengths[index])].tobytes().decode("ascii")

    def __iter__(self) -> Iterator[str]:
        whole = self._text.tobytes().decode("latin-1")
        for start, length in zip(self._starts.tolist(), self._lengths.tolist(), strict=True):
            yield whole[start : start + length]

    def groups(self) -> tuple[tuple[int, IntArray], ...]:
        """Each length with the positions of the names of that length, in order."""
        if self._groups is None:
            lengths = np.flatnonzero(np.bincount(self._lengths)).tolist() if len(self) else []
            self._groups = tuple((length, np.flatnonzero(self._lengths == length)) for length in lengths)
        return self._groups

    def characters(self, positions: IntArray, length: int) -> npt.NDArray[np.void]:
        """The names at some positions, all of one length, each one item of ``length`` bytes. Shape (positions,)."""
        return self._view(f"V{length}", length)[self._starts[positions]]

    def words(self, positions: IntArray, length: int) -> list[WordArray]:
        """The same, eight characters to a word, the rest of the last word zero. Words, each of shape (positions,)."""
        starts = self._starts[positions]
        view = self._view("<u8", _WORD_BYTES)
        columns: list[WordArray] = [view[starts + offset] for offset in range(0, length, _WORD_BYTES)]
        beyond = len(columns) * _WORD_BYTES - length
        if beyond:
            columns[-1] &= np.uint64((1 << 8 * (_WORD_BYTES - beyond)) - 1)
        return columns

    def _view(self, dtype: str, size: int) -> npt.NDArray[Any]:
        """The text as overlapping items, one from every byte on: gathering these copies a name in one step."""
        return np.ndarray(len(self._text) - size + 1, dtype=dtype, buffer=self._text.data, strides=(1,))


class _Bucket:
    """The names of one length: an open-addressed table of 2^n slots."""

    __slots__ = ("_entries", "_looks", "_mask", "_rows", "_shift", "_words")

    def __init__(self, words: list[WordArray], rows: IntArray) -> None:
        bits = max(1, (len(rows) * _ROOM - 1).bit_length())
        self._words, self._rows = words, rows
        self._mask, self._shift = (1 << bits) - 1, np.uint64(64 - bits)
        self._entries = np.full(1 << bits, -1, dtype=np.int64)
        self._looks = 0
        for entry, slot in enumerate(self._slots(words).tolist()):
            looks = 1
            at = slot
            while self._entries[at] >= 0:
                at = (at + 1) & self._mask
                looks += 1
            self._entries[at] = entry
            self._looks = max(self._looks, looks)

    def _slots(self, words: list[WordArray]) -> IntArray:
        mixed = np.zeros(len(words[0]), dtype=np.uint64)
        for number, column in enumerate(words):
            mixed ^= column
            mixed *= np.uint64(_MULTIPLIERS[number % len(_MULTIPLIERS)])
            mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(_MULTIPLIERS[0])
        return (mixed >> self._shift).astype(np.int64)

    def find(self, words: list[WordArray], *, missing: int) -> IntArray:
        """The row of each name. Shape (names,)."""
        found = np.full(len(words[0]), missing, dtype=np.int64)
        slots = self._slots(words)
        waiting: IntArray | None = None  # None: all of them
        for _ in range(self._looks):
            entries = self._entries[slots]
            same = entries >= 0
            going_on = same.copy()
            for mine, theirs in zip(self._words, words, strict=True):
                same &= mine[entries] == theirs
            at = same if waiting is None else waiting[same]
            found[at] = self._rows[entries[same]]
            going_on &= ~same
            if not going_on.any():
                break
            waiting = np.flatnonzero(going_on) if waiting is None else waiting[going_on]
            slots = (slots[going_on] + 1) & self._mask
            words = [column[going_on] for column in words]
        return found


class NameTable:
    """Names to rows; made anew when the names change."""

    def __init__(self, rows: Mapping[str, int], *, missing: int) -> None:
        """Index the names.

        Args:
            rows: Name to row. Names that are not ASCII are left out: no Kubernetes node has one.
            missing: What ``find`` says of a name that is not in the table.
        """
        self._missing = missing
        names = [name for name in rows if name and name.isascii()]
        numbers = np.fromiter((rows[name] for name in names), dtype=np.int64, count=len(names))
        packed = PackedNames.of(names)
        self._buckets = {
            length: _Bucket(packed.words(positions, length), numbers[positions])
            for length, positions in packed.groups()
        }

    def find(self, names: PackedNames) -> IntArray:
        """The row of each name. Shape (names,)."""
        found = np.full(len(names), self._missing, dtype=np.int64)
        for length, positions in names.groups():
            bucket = self._buckets.get(length)
            if bucket is not None:
                found[positions] = bucket.find(names.words(positions, length), missing=self._missing)
        return found
