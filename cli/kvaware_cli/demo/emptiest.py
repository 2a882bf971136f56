"""What "send it to the emptiest GPU" would have chosen, and what that would have cost: computed, never assumed."""

from dataclasses import dataclass

from kvaware_cli.wire import Candidate, Explanation

__all__ = ["Comparison", "compare", "dearest", "emptiest"]


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
        return self.emptiest.cost.total - self.chosen.cost.total


def emptiest(explanation: Explanation) -> Candidate | None:
    """Of the nodes that can take the pod: most free HBM per GPU, then most free GPUs, then the first by name."""
    fitting = [c for c in explanation.candidates if c.refusal is None and c.cost is not None]
    return min(fitting, key=lambda c: (-(c.hbm_free_bytes or 0), -c.free_gpus, c.node), default=None)


def compare(explanation: Explanation) -> Comparison | None:
    """None where nothing was chosen."""
    chosen, empty = explanation.candidate(explanation.chosen), emptiest(explanation)
    if chosen is None or empty is None:
        return None
    return Comparison(explanation=explanation, chosen=chosen, emptiest=empty)


def dearest(explanations: list[Explanation]) -> Comparison | None:
    """The pod for which the emptiest GPU would have cost most; None where the emptiest was right every time."""
    comparisons = [c for e in explanations if (c := compare(e)) is not None and c.emptiest.node != c.chosen.node]
    # of equal ones the first: the order in which the pods were placed
    return max((c for c in comparisons if c.extra_ms > 0), key=lambda c: c.extra_ms, default=None)
