"""The least estimated delay, to the request and those around it: cache, queues, HBM and transfers weighed together."""

from dataclasses import dataclass
from typing import ClassVar

from kvaware_engine.observations import Tier
from kvaware_engine.policies.base import Policy
from kvaware_engine.requests import columns
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.words import Action, FloatArray, Option, PlacementReason

__all__ = ["Cost"]

_OF_ACTION = {
    Action.REMOTE_READ: PlacementReason.REMOTE_READ,
    Action.MIGRATE: PlacementReason.MIGRATE,
    Action.WARM_UP: PlacementReason.WARM_UP,
    Action.WAIT: PlacementReason.STAYS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Policy):
    """The default."""

    name: ClassVar[str] = "cost"
    reads: ClassVar[frozenset[Figure]] = frozenset(
        {
            Figure.FREE_AT_S,
            Figure.REQUESTS,
            Figure.HALF_STEP_MS,
            Figure.DECODE_MS_PER_TOKEN,
            Figure.PRESSURE_MS_PER_TOKEN,
            Figure.RISK_MS,
            Figure.KV_TOTAL_TOKENS,
            Figure.KV_FREE_TOKENS,
            Figure.CONFIDENCE_RATIO,
            Figure.REMAINING_TOKENS,
            Figure.LINK_BYTES_IN_FLIGHT,
            Figure.HARDWARE_CLASS,
        }
    )
    in_ms: ClassVar[bool] = True

    def costs_ms(self, candidates: Candidates) -> FloatArray:
        """Milliseconds of delay."""
        return columns.costs_ms(candidates)

    def reason(self, candidates: Candidates, chosen: Option, *, alone: bool = False) -> PlacementReason:
        """By what is done about the cache, and whether anybody holds more of it."""
        if alone:
            return PlacementReason.ONLY_CANDIDATE
        if (moving := _OF_ACTION.get(chosen.action)) is not None:
            return moving
        deepest = candidates.deepest_tokens
        if deepest <= 0:
            return PlacementReason.COLD
        if chosen.action is Action.RECOMPUTE or candidates.matched_tokens.item(chosen.slot) < deepest:
            return PlacementReason.SHORTER_WAIT
        return PlacementReason.PREFIX_RESIDENT if chosen.tier is Tier.HBM else PlacementReason.PREFIX_IN_LOWER_TIER
