"""What a replay came to: hit rate, time to first token and how evenly the workers were used, per policy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Outcome", "Tally", "tally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request that had its first token."""

    worker: str
    input_tokens: int
    cached_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One policy's figures; None where no request was answered."""

    requests: int
    """That were answered."""
    refused: int
    """That were placed nowhere."""
    hit_ratio: float | None
    """Of all prompt tokens those that the worker found in its cache."""
    ttft_mean_ms: float | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    spread_ratio: float | None
    """Most requests on one worker over the mean of all workers: 1 is even."""


def tally(outcomes: Sequence[Outcome], *, refused: int, workers: int) -> Tally:
    """Add up.

    Args:
        outcomes: In any order.
        refused: Requests without one.
        workers: How many there were, used or not; 1 or more.
    """
    if not outcomes:
        return Tally(
            requests=0, refused=refused, hit_ratio=None,
            ttft_mean_ms=None, ttft_p50_ms=None, ttft_p90_ms=None, spread_ratio=None,
        )  # fmt: skip
    ttft_ms = np.array([each.ttft_ms for each in outcomes])
    p50_ms, p90_ms = np.percentile(ttft_ms, (50, 90))
    most = max(Counter(each.worker for each in outcomes).values())
    return Tally(
        requests=len(outcomes),
        refused=refused,
        hit_ratio=sum(each.cached_tokens for each in outcomes) / sum(each.input_tokens for each in outcomes),
        ttft_mean_ms=float(ttft_ms.mean()),
        ttft_p50_ms=float(p50_ms),
        ttft_p90_ms=float(p90_ms),
        spread_ratio=most * workers / len(outcomes),
    )
