"""Whether a worker can take a demand at all, by what both are: for the mask of candidates and for explanations."""

from enum import StrEnum
from typing import Final

from kvaware_engine.requests.candidates import WorkerFacts
from kvaware_engine.requests.roles import DECODE, PREFILL
from kvaware_engine.requests.words import Phase, Precision, RequestDemand

__all__ = ["FilterReason", "precision_at", "unfit"]

_UNABLE: Final = {Phase.PREFILL: DECODE, Phase.DECODE: PREFILL}
"""Phase to the role that does not do it."""


class FilterReason(StrEnum):
    """Why a worker was not in the running."""

    UNAVAILABLE = "Unavailable"
    """Not Ready, draining, asleep, or unheard for its time-out."""
    NOT_AMONG_CANDIDATES = "NotAmongCandidates"
    """The demand names the workers that may be chosen, and this is none of them."""
    OTHER_ROLE = "OtherRole"
    """It does the other phase."""
    ADAPTER_NOT_SERVED = "AdapterNotServed"
    RESERVED_FOR_OTHERS = "ReservedForOthers"
    """It is in the pool of other tenants."""
    POOL_TOO_SMALL = "PoolTooSmall"
    """The prompt is longer than its whole KV pool."""
    TOO_LATE = "TooLate"
    """Its first token would come after the deadline."""
    PASSED_OVER = "PassedOver"
    """It refused this request, or another one a moment ago."""


def unfit(facts: WorkerFacts, demand: RequestDemand) -> FilterReason | None:
    """Why the demand cannot go to a worker, whatever that does now; None: it can."""
    named = demand.candidates
    if named is not None and facts.worker not in named and facts.address not in named:
        return FilterReason.NOT_AMONG_CANDIDATES
    if demand.phase is not None and facts.role == _UNABLE[demand.phase]:
        return FilterReason.OTHER_ROLE
    if demand.adapter is not None and facts.adapters is not None and demand.adapter not in facts.adapters:
        return FilterReason.ADAPTER_NOT_SERVED
    if facts.reserved_for is not None and demand.tenant not in facts.reserved_for:
        return FilterReason.RESERVED_FOR_OTHERS
    return None


def precision_at(facts: WorkerFacts, demand: RequestDemand) -> Precision:
    """How what a worker holds of the demand is known."""
    return demand.precision if facts.publishes_events else Precision.APPROXIMATE
