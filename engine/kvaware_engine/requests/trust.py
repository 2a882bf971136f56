"""How far what is known of a worker's blocks agrees with what is seen: self-verifying (design §5)."""

from typing import Final

__all__ = ["Trust"]

_SHARE: Final = 1 / 16
"""Weight of one request: some dozen that find nothing bring the trust below one half."""
_TOLERANCE_TOKENS: Final = 64
"""Blocks at the end of a match may be evicted, or not be whole, without anything being wrong."""
_LEAST: Final = 0.05
"""Nothing is trusted less: else it could not be seen that it is right again."""


class Trust:
    """Of one worker's index."""

    __slots__ = ("_lowered", "hit_ratio", "verified")

    def __init__(self) -> None:
        self.hit_ratio = 1.0
        """Found tokens as a share of those that were predicted, running mean of requests; more than predicted is 1."""
        self.verified = 0
        """Requests that were compared."""
        self._lowered = 1.0

    @property
    def ratio(self) -> float:
        """0..1, by which its confidence is multiplied."""
        return max(_LEAST, self._lowered * self.hit_ratio)

    def verify(self, predicted_tokens: float, cached_tokens: float) -> None:
        """A request found so many tokens in the cache.

        Args:
            predicted_tokens: As matched in the index, before any confidence is applied; 0 says nothing.
            cached_tokens: As the server told.
        """
        if predicted_tokens <= 0:
            return
        enough = predicted_tokens - min(_TOLERANCE_TOKENS, predicted_tokens / 2)
        found = 1.0 if cached_tokens >= enough else cached_tokens / predicted_tokens
        self.hit_ratio += _SHARE * (found - self.hit_ratio)
        self.verified += 1
        # What was lowered by a gap is raised again by what is seen.
        self._lowered += _SHARE * found * (1 - self._lowered)

    def lower(self, ratio: float) -> None:
        """Something is wrong with its events: it is trusted by no more than this, 0..1."""
        self._lowered = min(self._lowered, ratio)

    def start_over(self) -> None:
        """Its index was built anew."""
        self.hit_ratio, self._lowered = 1.0, 1.0
