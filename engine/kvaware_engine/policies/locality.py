"""Prefer the worker nearest to the request's KV cache, by a table of relative tier costs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.transfers import can_transfer, sources_of
from kvaware_engine.requests.words import FloatArray, Option, PlacementReason

__all__ = ["Locality"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality(Policy):
    """A whole prompt from one tier costs what ``RequestSettings.tiers`` says; a mixed one the mean over its tokens.

    Queues do not count: among workers that hold the same, the least recently chosen goes first.
    """

    name: ClassVar[str] = "locality"
    reads: ClassVar[frozenset[Figure]] = frozenset(
        {Figure.CONFIDENCE_RATIO, Figure.LINK_BYTES_IN_FLIGHT, Figure.FREE_AT_S, Figure.HALF_STEP_MS}
    )

    def costs_ms(self, candidates: Candidates) -> FloatArray:
        """By the table: only order and ratios matter."""
        table, figures = candidates.settings.tiers, candidates.figures
        confidence = figures[Figure.CONFIDENCE_RATIO]
        held: FloatArray = candidates.matched_tokens * confidence
        tokens = candidates.demand.input_tokens
        costs: FloatArray = held * (table.local_hbm - table.recompute)
        costs += tokens * table.recompute
        for slot, (cpu, ssd) in candidates.lower_tokens.items():
            dearer = cpu * (table.local_cpu - table.local_hbm) + ssd * (table.local_ssd - table.local_hbm)
            costs[slot] += dearer * confidence[slot]
        if can_transfer(candidates):
            costs -= self._spared(candidates, held)
        costs /= tokens
        costs += candidates.barred
        return costs

    def reason(self, candidates: Candidates, chosen: Option, *, alone: bool = False) -> PlacementReason:
        """The nearest, where anybody holds any of it."""
        del chosen
        if alone:
            return PlacementReason.ONLY_CANDIDATE
        return PlacementReason.NEAREST_CACHE if candidates.deepest_tokens > 0 else PlacementReason.COLD

    def _spared(self, candidates: Candidates, held: FloatArray) -> FloatArray:
        """What reading from the best of the sources spares of computing; 0 or more. Shape (slots,)."""
        table = candidates.settings.tiers
        reach = candidates.reach or Reach(candidates.facts)
        spared = np.zeros(len(held))
        for source in sources_of(candidates):
            row = reach.row(source.slot)
            _, ssd = candidates.lower_tokens.get(source.slot, (0.0, 0.0))
            more = source.tokens - held
            from_ssd = np.minimum(more, ssd)
            worth = more * (table.recompute - table.remote_memory)
            worth -= from_ssd * (table.remote_ssd - table.remote_memory)
            allowed = more > 0
            if candidates.remote_bytes is not None:
                allowed &= more * (candidates.bytes_per_token or 0.0) <= candidates.remote_bytes
            for able in (row.at_once, row.by_prefill):
                if able is not None:
                    np.maximum(spared, worth, out=spared, where=allowed & able)
        return spared
