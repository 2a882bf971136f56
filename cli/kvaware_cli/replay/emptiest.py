"""The decision in which "send it to the emptiest worker" would have been most wrong, as the extender explains it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kvaware_cli.wire import PlacementCandidate, PlacementExplanation, read

__all__ = ["PassedOver", "passed_over"]

LOOKED_AT: Final = 100
"""Explanations at most, evenly over the replay: each is computed when it is asked for, flips and all."""
LEAST_MS: Final = 1.0
"""A smaller difference is none: then the two are as good."""


class Explaining(Protocol):
    """The extender, as far as it explains."""

    async def explanation(self, placement_id: str) -> Any | None:
        """Why a request went where it went; None: unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A decision, and how often the emptiest would have been worse."""

    explanation: PlacementExplanation
    chosen: PlacementCandidate
    emptiest: PlacementCandidate
    wrong: int
    """Of those looked at."""
    looked_at: int

    @property
    def more_held(self) -> bool:
        """Whether the chosen worker holds more of the prompt than the emptiest."""
        return self.chosen.matched_tokens > self.emptiest.matched_tokens

    @property
    def extra_ms(self) -> float:
        """What the emptiest would have cost more, by the cost model."""
        return self.emptiest.options[0].terms.total - self.chosen.options[0].terms.total


async def passed_over(gateway: Explaining, placements: Sequence[str]) -> PassedOver | None:
    """The decision in which the emptiest worker would have been dearest; None: it was always as good as the chosen.

    One in which the chosen worker holds more of the prompt, where there is one: that it waits less is soon said.
    """
    every = max(1, -(-len(placements) // LOOKED_AT))
    found: list[PassedOver] = []
    looked_at = 0
    for placement_id in placements[::every]:
        body = await gateway.explanation(placement_id)
        if body is None:
            continue
        looked_at += 1
        explanation = read(PlacementExplanation, body)
        chosen, emptiest = explanation.candidate(explanation.chosen), explanation.candidate(explanation.emptiest)
        if chosen is None or emptiest is None or chosen.worker == emptiest.worker:
            continue
        if chosen.options and emptiest.options:
            decision = PassedOver(explanation=explanation, chosen=chosen, emptiest=emptiest, wrong=0, looked_at=0)
            if decision.extra_ms >= LEAST_MS:
                found.append(decision)
    # of equal ones the first: the order in which they were placed
    worst = max(found, key=lambda each: (each.more_held, each.extra_ms), default=None)
    if worst is None:
        return None
    return PassedOver(
        explanation=worst.explanation,
        chosen=worst.chosen,
        emptiest=worst.emptiest,
        wrong=len(found),
        looked_at=looked_at,
    )
