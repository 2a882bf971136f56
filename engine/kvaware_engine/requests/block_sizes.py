"""Tokens per KV block, as most of a model's workers tell."""

from collections import Counter
from typing import Final

from kvaware_engine.reports import WorkerView

__all__ = ["BlockSizes"]

_USUAL_TOKENS: Final = 16
"""Of vLLM; until the spec is known."""


class BlockSizes:
    """Of one fleet."""

    __slots__ = ("_told", "spec_tokens")

    def __init__(self) -> None:
        self.spec_tokens = _USUAL_TOKENS
        """As the spec says: for those that do not tell."""
        self._told: Counter[int] = Counter()
        """Size → workers that tell it."""

    def count(self, before: WorkerView | None, after: WorkerView | None) -> None:
        """A worker came (no view before), tells something else, or went (none after)."""
        for view, more in ((before, -1), (after, 1)):
            size = None if view is None else view.block_size_tokens
            if size:
                self._told[size] += more
                if not self._told[size]:
                    del self._told[size]

    @property
    def common_tokens(self) -> int:
        """What most tell, of as many the larger; else what the spec says."""
        told = self._told
        return max(told, key=lambda size: (told[size], size), default=self.spec_tokens)
