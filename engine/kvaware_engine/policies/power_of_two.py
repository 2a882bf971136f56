"""The less loaded of two workers drawn at random: nearly as even as the least loaded, and no herd follows old data."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np
import xxhash

from kvaware_engine.policies.base import Policy
from kvaware_engine.policies.least_loaded import Measure, load
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.columns import costs_ms
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.words import FloatArray, IntArray, Option, PlacementReason

__all__ = ["DrawnFrom", "PowerOfTwo"]

_NOT_DRAWN: Final = 1e9
"""Added to those that were not drawn: they are still candidates, after the drawn ones."""
_FULL_CONFIDENCE: Final = 1.0


class DrawnFrom(StrEnum):
    """Among whom lots are drawn."""

    WORKERS = "workers"
    """Two of all candidates; the one with fewer requests wins."""
    HOLDERS = "holders"
    """One of those that hold some of the prompt, one of all that run the model, and one of those whose state is fully
    believed; the one with the least estimated delay wins. Where a group is empty nobody is drawn from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOfTwo(Policy):
    """Lots are drawn by a hash of ``request_id``: the same demand draws the same of the same candidates.

    Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001).
    """

    name: ClassVar[str] = "power_of_two"
    reads: ClassVar[frozenset[Figure]] = frozenset(set(Figure) - {Figure.LAST_CHOSEN, Figure.BARRED})
    drawn_from: DrawnFrom = DrawnFrom.WORKERS

    def costs_ms(self, candidates: Candidates) -> FloatArray:
        """Requests, or milliseconds where holders are drawn; more by a constant for who was not drawn."""
        weighed = load(candidates, Measure.REQUESTS) if self.drawn_from is DrawnFrom.WORKERS else costs_ms(candidates)
        rest = candidates.barred + _NOT_DRAWN
        rest[self._drawn(candidates)] -= _NOT_DRAWN
        weighed += rest
        return weighed

    def reason(self, candidates: Candidates, chosen: Option, *, alone: bool = False) -> PlacementReason:
        """Less loaded than the other that was drawn."""
        del candidates, chosen
        return PlacementReason.ONLY_CANDIDATE if alone else PlacementReason.LESS_LOADED_OF_TWO

    def _drawn(self, candidates: Candidates) -> IntArray:
        lots = xxhash.xxh3_64_intdigest(candidates.demand.request_id.encode())
        everybody: IntArray = (candidates.barred == 0).nonzero()[0]
        if self.drawn_from is DrawnFrom.WORKERS:
            if len(everybody) <= 2:
                return everybody
            first = lots % len(everybody)
            second = (first + 1 + (lots >> 32) % (len(everybody) - 1)) % len(everybody)  # another than the first
            return everybody.take([first, second])
        confidence = candidates.figures[Figure.CONFIDENCE_RATIO].take(everybody)
        groups = (
            everybody[candidates.matched_tokens.take(everybody) > 0],
            everybody,
            everybody[confidence >= _FULL_CONFIDENCE],
        )
        drawn = [int(group[(lots >> 20 * at) % len(group)]) for at, group in enumerate(groups) if len(group)]
        return np.array(drawn, dtype=np.int64)
