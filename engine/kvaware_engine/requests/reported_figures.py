"""The figures of a fleet that follow from reports alone, and what they come to for all its workers."""

from math import inf, isnan, nan

import numpy as np

from kvaware_engine.reports import ReportTimes, WorkerView
from kvaware_engine.requests.charges import WorkerColumn
from kvaware_engine.requests.figures import Figure, no_figures
from kvaware_engine.requests.words import FloatArray

__all__ = ["ReportedFigures"]


class ReportedFigures:
    """Pools, reuse and what displacing costs, memory and tiers, by slot: whatever no reservation moves."""

    __slots__ = ("_figures", "_unknown_reuse_ratio", "reuse_total")

    def __init__(self, *, unknown_reuse_ratio: float) -> None:
        self.reuse_total = 0.0
        """Sum of REUSE_RATIO."""
        self._unknown_reuse_ratio = unknown_reuse_ratio
        self._figures = no_figures(0)

    def grow(self, figures: FloatArray) -> None:
        """The figures are another array, with more slots."""
        self._figures = figures

    def write(self, column: WorkerColumn, view: WorkerView, times: ReportTimes, cached_tokens: float | None) -> None:
        """What is believed of a worker.

        Args:
            column: Its own, as counted from the same view.
            view: What is believed of it.
            times: When each of that was observed.
            cached_tokens: That it is known to hold; None: unknown, then all that is free is taken for cached.
        """
        figures, slot = self._figures, column.slot
        reuse = self._unknown_reuse_ratio if view.prefix_hit_ratio is None else view.prefix_hit_ratio
        figures[Figure.KV_TOTAL_TOKENS, slot] = column.kv_total_tokens
        self.reuse_total += reuse - figures.item(Figure.REUSE_RATIO, slot)
        figures[Figure.REUSE_RATIO, slot] = reuse
        share = _displaced_ratio(cached_tokens, column.kv_free_tokens)
        figures[Figure.PRESSURE_MS_PER_TOKEN, slot] = share * reuse * column.hardware.recompute_ms_per_token
        figures[Figure.HARDWARE_CLASS, slot] = column.hardware.index
        figures[Figure.OBSERVED_AT_S, slot] = times.any_at_s if times.any_at_s > -inf else nan
        for figure, value in (
            (Figure.GPU_UTILIZATION_RATIO, view.gpu_utilization_ratio),
            (Figure.HBM_USED_BYTES, view.hbm_used_bytes),
            (Figure.CPU_FREE_BYTES, view.cpu_tier_free_bytes),
            (Figure.SSD_FREE_BYTES, view.ssd_tier_free_bytes),
        ):
            figures[figure, slot] = nan if value is None else value

    def leave(self, slot: int) -> None:
        """Its worker is about to be forgotten."""
        self.reuse_total -= self._figures.item(Figure.REUSE_RATIO, slot)

    def pools_tokens(self) -> tuple[float, float]:
        """The smallest KV pool and the largest, of the workers that tell; infinity: nobody does."""
        pools = self._figures[Figure.KV_TOTAL_TOKENS]
        largest = float(np.fmax.reduce(pools, initial=-inf))
        return float(np.fmin.reduce(pools, initial=inf)), inf if largest < 0 else largest


def _displaced_ratio(cached_tokens: float | None, free_tokens: float) -> float:
    """Which share of new tokens displaces cached ones: a pool that never filled gives room for nothing.

    Args:
        cached_tokens: That are free to be displaced and worth something; None: unknown.
        free_tokens: Not held by what runs; NaN: unknown.
    Returns: 0..1; where it cannot be told, 1.
    """
    if cached_tokens is None or isnan(free_tokens) or free_tokens <= 0:
        return 1.0
    return min(1.0, cached_tokens / free_tokens)
