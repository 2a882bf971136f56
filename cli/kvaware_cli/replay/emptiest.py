"""The decision in which "send it to the emptiest worker" would have been most wrong, as the extender explains it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kvaware_cli.wire import PlacementCandidate, PlacementExplanation, read

__all__ = ["PassedOver", "passed_over"]

AT_ONCE: Final = 500
"""Explanations that are looked at, evenly over the replay: each is computed when it is asked for, some milliseconds."""


class Explaining(Protocol):
    """The extender, as far as it explains."""

    async def explanation(self, placement_id: str) -> Any | None:
        """Why a request went where it went; None: unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A decision, and how often the emptiest was not chosen."""

    explanation: PlacementExplanation
    chosen: PlacementCandidate
    emptiest: PlacementCandidate
    wrong: int
    """Of those looked at."""
    looked_at: int

    @property
    def extra_ms(self) -> float:
        """What the emptiest would have cost more, by the cost model."""
        return self.emptiest.options[0].terms.total - self.chosen.options[0].terms.total


async def passed_over(gateway: Explaining, placements: Sequence[str]) -> PassedOver | None:
    """The dearest decision for the emptiest worker; None: there is none, the emptiest was always chosen."""
    every = max(1, -(-len(placements) // AT_ONCE))
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
            found.append(PassedOver(explanation=explanation, chosen=chosen, emptiest=emptiest, wrong=0, looked_at=0))
    # of equal ones the first: the order in which they were placed
    worst = max(found, key=lambda each: each.extra_ms, default=None)
    if worst is None:
        return None
    return PassedOver(
        explanation=worst.explanation,
        chosen=worst.chosen,
        emptiest=worst.emptiest,
        wrong=len(found),
        looked_at=looked_at,
    )
