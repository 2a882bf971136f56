"""How far what is known of a worker's blocks agrees with what is seen: self-verifying (design §5)."""

from typing import Final

__all__ = ["Trust"]

_SHARE: Final = 1 / 16
"""Weight of one request: some dozen that find nothing bring the trust below one half."""
_TOLERANCE_TOKENS: Final = 64
"""Blocks at the end of a match may be evicted, or not be whole, without anything being wrong."""
_REBUILD_BELOW: Final = 0.5
"""Less is found than half of what was predicted: what is known of the worker's blocks is wrong, not merely old."""
_LEAST: Final = 0.05
"""Nothing is trusted less: else it could not be seen that it is right again."""


class Trust:
    """Of one worker's index."""

    __slots__ = ("hit_ratio",)

    def __init__(self) -> None:
        self.hit_ratio = 1.0
        """Found tokens as a share of those that were predicted, running mean of requests; more than predicted is 1."""

    @property
    def ratio(self) -> float:
        """0..1, by which its confidence is multiplied."""
        return max(_LEAST, self.hit_ratio)

    def verify(self, predicted_tokens: float, cached_tokens: float) -> bool:
        """A request found so many tokens in the cache.

        Args:
            predicted_tokens: As matched in the index, before any confidence is applied; 0 says nothing.
            cached_tokens: As the server told.
        Returns: Whether its index is to be built anew: once, when the share that is found falls below one half. It is
            not believed more for that: what is found has to say so.
        """
        if predicted_tokens <= 0:
            return False
        enough = predicted_tokens - min(_TOLERANCE_TOKENS, predicted_tokens / 2)
        found = 1.0 if cached_tokens >= enough else cached_tokens / predicted_tokens
        before = self.hit_ratio
        self.hit_ratio += _SHARE * (found - before)
        return before >= _REBUILD_BELOW > self.hit_ratio

    def start_over(self) -> None:
        """Its index was built anew."""
        self.hit_ratio = 1.0
