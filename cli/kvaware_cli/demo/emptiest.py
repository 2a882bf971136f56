"""What "send it to the emptiest GPU" would have chosen, and what that would have cost: computed, never assumed."""

from dataclasses import dataclass

from kvaware_cli.explain_view import dearer_by
from kvaware_cli.wire import Candidate, Explanation

__all__ = ["Comparison", "compare", "dearest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The chosen node beside the emptiest one, for one pod."""

    explanation: Explanation
    chosen: Candidate
    emptiest: Candidate

    @property
    def extra_ms(self) -> float:
        """What the emptiest would have cost more, by the cost model."""
        if self.emptiest.cost is None or self.chosen.cost is None:
            return 0.0
        return dearer_by(self.emptiest.cost, self.chosen.cost)


def compare(explanation: Explanation) -> Comparison | None:
    """None where nothing was chosen."""
    chosen, empty = explanation.candidate(explanation.chosen), explanation.candidate(explanation.emptiest)
    if chosen is None or empty is None:
        return None
    return Comparison(explanation=explanation, chosen=chosen, emptiest=empty)


def dearest(explanations: list[Explanation]) -> Comparison | None:
    """The pod for which the emptiest GPU would have cost most; None where the emptiest was right every time."""
    comparisons = [c for e in explanations if (c := compare(e)) is not None and c.emptiest.node != c.chosen.node]
    # of equal ones the first: the order in which the pods were placed
    return max((c for c in comparisons if c.extra_ms > 0), key=lambda c: c.extra_ms, default=None)
