"""The text format of ``/metrics``, made in slices: calls of kube-scheduler and requests come between.

In one piece, 1,000 workers' figures would hold up everybody for 20 ms. In a thread, the interpreter's lock would be
taken away from the loop for 5 ms at a time.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest

__all__ = ["render_in_slices"]

SAMPLES_AT_A_TIME: Final = 100
"""Some 0.5 ms."""


class _Collected(CollectorRegistry):
    """What ``generate_latest`` asks for: families that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


async def render_in_slices(registry: CollectorRegistry) -> bytes:
    """All families, each as it stands when its turn comes.

    Each is collected without a break, so collectors may read what the loop changes.
    """
    parts: list[bytes] = []
    small: list[Metric] = []
    samples = 0
    for family in registry.collect():
        small.append(family)
        samples += len(family.samples)
        if samples < SAMPLES_AT_A_TIME:
            continue
        *others, last = small
        parts.append(_text(others))
        small, samples = [], 0
        for start in range(0, len(last.samples), SAMPLES_AT_A_TIME):
            slice_ = Metric(last.name, last.documentation, last.type)
            slice_.samples = last.samples[start : start + SAMPLES_AT_A_TIME]
            text = _text([slice_])
            parts.append(text if start == 0 else _without_head(text))
            await asyncio.sleep(0)
    parts.append(_text(small))
    return b"".join(parts)


def _text(families: Iterable[Metric]) -> bytes:
    return generate_latest(_Collected(families))


def _without_head(text: bytes) -> bytes:
    """A family's HELP and TYPE stand once, above its first sample."""
    return text.split(b"\n", 2)[2]
