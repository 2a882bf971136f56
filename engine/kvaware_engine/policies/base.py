"""What a policy is: a column of costs over the candidates, the options of one of them, and a reason."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.options import best_option, options
from kvaware_engine.requests.words import FloatArray, Option, PlacementReason

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(ABC):
    """How a worker is chosen for a request. Each policy is one file of this folder; what can be tuned is its fields.

    All policies see the same candidates: healthy, fitting, within quota. A stale figure is as good as it was; what is
    unknown (NaN) is never read as "full".
    """

    name: ClassVar[str]
    """As in ``spec.policy.name``."""
    reads: ClassVar[frozenset[Figure]]
    """Figures that its costs depend on, beside BARRED and the matched tokens; LAST_CHOSEN settles ties for all. What is
    no figure is refused at import."""
    in_ms: ClassVar[bool] = False
    """Whether its costs are milliseconds, which others can be added to; else only their order counts."""

    @abstractmethod
    def costs_ms(self, candidates: Candidates) -> FloatArray:
        """Cost of each candidate: the least of its options. Infinite where barred, else finite.

        Returns: Shape (slots,); a new array, which the caller may change.
        """

    def options(self, candidates: Candidates, slot: int) -> tuple[Option, ...]:
        """What can be done at one worker, best first, with its price: whoever chooses, the options are the same."""
        return options(candidates, slot)

    def best_option(self, candidates: Candidates, slot: int) -> Option:
        """The first of ``options``, without the others."""
        return best_option(candidates, slot)

    @abstractmethod
    def reason(self, candidates: Candidates, chosen: Option, *, alone: bool = False) -> PlacementReason:
        """Why this one. Asked only for what was chosen.

        Args:
            candidates: What was seen.
            chosen: At the worker that costs least.
            alone: There was no other candidate.
        """
