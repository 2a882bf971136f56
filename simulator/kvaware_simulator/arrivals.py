"""When recorded requests arrive in a replay: in their order, packed into the time that there is."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from random import Random
from statistics import median

from kvaware_simulator.traces import TraceRequest

__all__ = ["arrivals_s"]


def arrivals_s(requests: Sequence[TraceRequest], *, within_s: float, seed: int) -> tuple[float, ...]:
    """Spread requests over their ticks, then shorten all gaps by one factor.

    Mooncake's traces collect the arrivals of some 3 s under one timestamp: taken at their word they would be bursts
    that nobody saw. So the requests of one timestamp get times drawn evenly from it to the next, in ascending order.

    Args:
        requests: In the order of ``at_s``; not empty.
        within_s: When the last tick ends, above 0.
        seed: Of the draw: the same requests and seed give the same times.
    Returns: Seconds from the replay's beginning, ascending. Shape (requests,).
    """
    if not requests or within_s <= 0:
        raise ValueError(f"expected requests and a time above 0 s, got {len(requests)} and {within_s}")
    ticks = [(at_s, len(list(group))) for at_s, group in groupby(each.at_s for each in requests)]
    begins_s = [at_s for at_s, _ in ticks]
    gaps_s = [after - before for before, after in pairwise(begins_s)]
    gaps_s.append(median(gaps_s) if gaps_s else 1.0)
    scale = within_s / (begins_s[-1] + gaps_s[-1] - begins_s[0])
    draw = Random(seed)  # noqa: S311 - arrivals, no secrets
    return tuple(
        (begin_s - begins_s[0] + gap_s * share) * scale
        for (begin_s, count), gap_s in zip(ticks, gaps_s, strict=True)
        for share in sorted(draw.random() for _ in range(count))
    )
