"""The worker with the least to do, by one measure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import numpy as np

from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.columns import waits_ms
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.words import FloatArray, Option, PlacementReason

__all__ = ["LeastLoaded", "Measure", "load"]


class Measure(StrEnum):
    """What counts as load."""

    REQUESTS = "requests"
    """Waiting and running."""
    QUEUE = "queue"
    """Milliseconds of prefill that wait there."""
    GPU_UTILIZATION = "gpu_utilization"
    HBM = "hbm"
    """Bytes in use."""
    DECODING = "decoding"
    """Sequences that decode."""
    REMAINING_TOKENS = "remaining_tokens"
    """Output still expected of what runs there."""


_FIGURES: Final = {
    Measure.REQUESTS: Figure.REQUESTS,
    Measure.GPU_UTILIZATION: Figure.GPU_UTILIZATION_RATIO,
    Measure.HBM: Figure.HBM_USED_BYTES,
    Measure.DECODING: Figure.BATCH,
    Measure.REMAINING_TOKENS: Figure.REMAINING_TOKENS,
}


def load(candidates: Candidates, measure: Measure) -> FloatArray:
    """One measure over all candidates.

    Where it is unknown, the mean of those that may be chosen and tell it is assumed, and 0 where nobody tells: a worker
    that does not report is neither full nor idle (llm-d/llm-d-router#2408).
    Returns: Finite. Shape (slots,); a new array.
    """
    if measure is Measure.QUEUE:
        return waits_ms(candidates)
    column: FloatArray = candidates.figures[_FIGURES[measure]].copy()
    unknown = np.isnan(column)
    if unknown.any():
        told = column[~unknown & np.isfinite(candidates.barred)]
        column[unknown] = told.mean() if len(told) else 0.0
    return column


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded(Policy):
    """Costs are in the measure's own unit."""

    name: ClassVar[str] = "least_loaded"
    reads: ClassVar[frozenset[Figure]] = frozenset({Figure.FREE_AT_S, *_FIGURES.values()})
    measure: Measure = Measure.REQUESTS
    """Requests in flight are counted at the moment of decision; GPU utilisation and HBM only when a report arrives."""

    def costs_ms(self, candidates: Candidates) -> FloatArray:
        """The load."""
        return load(candidates, self.measure) + candidates.barred

    def reason(self, candidates: Candidates, chosen: Option, *, alone: bool = False) -> PlacementReason:
        """The least to do."""
        del candidates, chosen
        return PlacementReason.ONLY_CANDIDATE if alone else PlacementReason.LEAST_LOADED
