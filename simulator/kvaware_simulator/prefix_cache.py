"""A modelled worker's KV pool: blocks of running requests, and blocks kept for whoever asks for them again."""

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["PrefixCache"]


class PrefixCache:
    """A pool of so many blocks; of those that nobody uses the least recently used one goes first.

    As vLLM's: the blocks of a finished request are let go from its end, so that prefixes live longer than what followed
    them. Methods say in blocks what they take, and never take more than there is: ask ``has_room`` before.
    """

    def __init__(self, blocks: int) -> None:
        """An empty pool of ``blocks``, 1 or more."""
        if blocks < 1:
            raise ValueError(f"expected a pool of 1 block or more, got {blocks}")
        self.blocks = blocks
        self._used: dict[int, int] = {}
        """Hash → running requests that use the block."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Kept, least recently used first."""
        self._private = 0
        """Blocks without a hash: not computed yet, or of answers."""

    @property
    def free_blocks(self) -> int:
        """Blocks that no running request holds: empty, or kept."""
        return self.blocks - len(self._used) - self._private

    def matched(self, hashes: Sequence[int]) -> int:
        """Blocks from the prompt's beginning that are there without a gap. Changes nothing."""
        for number, each in enumerate(hashes):
            if each not in self._used and each not in self._idle:
                return number
        return len(hashes)

    def has_room(self, hashes: Sequence[int], *, more_blocks: int) -> bool:
        """Whether a request can begin.

        Args:
            hashes: Of its prompt's whole blocks.
            more_blocks: For the rest of its prompt and its answer.
        """
        matched = self.matched(hashes)
        kept = sum(each in self._idle for each in hashes[:matched])  # in use from then on
        return len(hashes) - matched + more_blocks <= self.free_blocks - kept

    def take(self, hashes: Sequence[int], *, more_blocks: int) -> int:
        """Begin a request: hold what is there of its prompt, and make room for the rest.

        Returns: Blocks that were there.
        Raises: ValueError without room.
        """
        if not self.has_room(hashes, more_blocks=more_blocks):
            raise ValueError(f"expected room for {len(hashes)} + {more_blocks} blocks, {self.free_blocks} are free")
        matched = self.matched(hashes)
        for each in hashes[:matched]:
            self._hold(each)
        self._private += len(hashes) - matched + more_blocks
        while len(self._used) + len(self._idle) + self._private > self.blocks:
            self._idle.popitem(last=False)
        return matched

    def computed(self, hashes: Sequence[int]) -> None:
        """Blocks that ``take`` made room for hold what they are for: they can be found from now on."""
        for each in hashes:
            self._hold(each)
            self._private -= 1

    def leave(self, hashes: Sequence[int], *, more_blocks: int) -> None:
        """End a request: its blocks are kept until the room is needed, its other blocks are empty.

        Args:
            hashes: What it holds by hash: matched or computed.
            more_blocks: What it holds besides.
        """
        for each in reversed(hashes):
            self._used[each] -= 1
            if not self._used[each]:
                del self._used[each]
                self._idle[each] = None
        self._private -= more_blocks

    def _hold(self, each: int) -> None:
        self._idle.pop(each, None)
        self._used[each] = self._used.get(each, 0) + 1
