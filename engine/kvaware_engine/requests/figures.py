"""What is known of a model's workers, as columns: one row of one array per figure, one column (slot) per worker."""

from enum import IntEnum
from math import inf, nan
from typing import Any, Final, cast

import numpy as np

from kvaware_engine.requests.words import FloatArray

__all__ = ["FIGURES", "Figure", "blank", "no_figures", "row"]


class Figure(IntEnum):
    """Rows of ``WorkerFleet.figures``, float64. NaN is unknown.

    A slot without a worker is barred, and 0 in the rows that are never NaN (FREE_AT_S: minus infinity). KV_FREE_TOKENS
    is infinite there: one argmin then tells the costs that no pool is short of room.

    Figures that the workers report hold what was reserved after the observation, too. HALF_STEP_MS to RISK_MS stand
    together: the costs add them up, each times a weight of the demand's, in one BLAS call instead of seven of numpy.
    """

    BARRED = 0
    """0: may be chosen; infinity: no worker, not Ready, drains, sleeps, unheard for its time-out."""
    FREE_AT_S = 1
    """When the prompts waiting there are computed. Not later than now: it begins at once. Never NaN."""
    BATCH = 2
    """Sequences that decode, or will once their prompts are computed: they go before whoever comes now. Never NaN."""
    REQUESTS = 3
    """Requests that wait or run. Never NaN."""
    HALF_STEP_MS = 4
    """Half a decode step at that batch; 0 where nothing decodes. Never NaN."""
    DECODE_MS_PER_TOKEN = 5
    """For each output token of one more request: a step at BATCH + 1, and by how much it is longer than one at BATCH,
    for each sequence that decodes there. Never NaN."""
    PRESSURE_MS_PER_TOKEN = 6
    """For each token that is displaced: its recomputing times the chance of its reuse. Never NaN."""
    RISK_MS = 7
    """Cost of a refused or failed assignment times its chance. Never NaN."""
    KV_TOTAL_TOKENS = 8
    """Size of its KV pool."""
    KV_FREE_TOKENS = 9
    """Of them not held by requests that run: empty, or cached and reusable."""
    CONFIDENCE_RATIO = 10
    """0..1: how far its report is believed. Never NaN."""
    REUSE_RATIO = 11
    """Chance that what it caches is asked for again, 0..1. Never NaN."""
    LAST_CHOSEN = 12
    """Number of the decision that chose it last; 0: never. Never NaN."""
    GPU_UTILIZATION_RATIO = 13
    HBM_USED_BYTES = 14
    REMAINING_TOKENS = 15
    """Output tokens still expected of what runs there. Never NaN."""
    CPU_FREE_BYTES = 16
    """Of its offload tier in CPU memory."""
    SSD_FREE_BYTES = 17
    LINK_BYTES_IN_FLIGHT = 18
    """On its node's network link, as far as kvaware caused them. Never NaN."""
    HARDWARE_CLASS = 19
    """Index into ``WorkerFleet.classes``. Never NaN."""
    OBSERVED_AT_S = 20
    """When its last report was taken, for explanations: how old was what was believed."""


FIGURES: Final = len(Figure)

_BLANK: Final = np.zeros(FIGURES)
_BLANK[
    [
        Figure.KV_TOTAL_TOKENS,
        Figure.GPU_UTILIZATION_RATIO,
        Figure.HBM_USED_BYTES,
        Figure.CPU_FREE_BYTES,
        Figure.SSD_FREE_BYTES,
        Figure.OBSERVED_AT_S,
    ]
] = nan
_BLANK[[Figure.BARRED, Figure.KV_FREE_TOKENS]] = inf
_BLANK[Figure.FREE_AT_S] = -inf


def no_figures(slots: int) -> FloatArray:
    """Of so many slots without a worker. Shape (FIGURES, slots)."""
    return np.tile(_BLANK[:, np.newaxis], slots)


def blank(figures: FloatArray, slot: int) -> None:
    """The slot has no worker any more."""
    figures[:, slot] = _BLANK


def row(figures: FloatArray, figure: Figure) -> Any:
    """A row to write single items of: 0.05 µs each; of the array's row 0.09, of the array 0.14, by an IntEnum 0.39.

    (mypy does not know that a memoryview can hold floats.)
    """
    return cast("Any", memoryview(figures[figure]))
