"""In turn: whoever was chosen least recently."""

from dataclasses import dataclass
from typing import ClassVar

from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.words import FloatArray, Option, PlacementReason

__all__ = ["RoundRobin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(Policy):
    """All cost the same, and of equal ones the least recently chosen goes first (``choose``)."""

    name: ClassVar[str] = "round_robin"
    reads: ClassVar[frozenset[Figure]] = frozenset()

    def costs_ms(self, candidates: Candidates) -> FloatArray:
        """0 for everybody."""
        return candidates.barred.copy()

    def reason(self, candidates: Candidates, chosen: Option, *, alone: bool = False) -> PlacementReason:
        """Its turn."""
        del candidates, chosen
        return PlacementReason.ONLY_CANDIDATE if alone else PlacementReason.IN_TURN
