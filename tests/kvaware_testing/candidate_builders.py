"""Builders of what a policy sees. Every argument has a harmless default: a test names only what it is about."""

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any, Final

import numpy as np

from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.figures import FIGURES, Figure
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.settings import RequestCostSettings, RequestSettings
from kvaware_engine.requests.words import Phase, RequestDemand
from kvaware_engine.settings import LinkSettings
from kvaware_testing.worker_builders import MODEL, hardware

KV_BYTES_PER_TOKEN: Final = 100_000.0
NOW_S: Final = 1000.0
NO_LATENCY: Final = RequestSettings(costs=RequestCostSettings(transfer_latency_ms=0))
"""So that a transfer's arithmetic is bytes ÷ bandwidth."""
ROUND_LINKS: Final = LinkSettings(
    disk_bytes_per_s=1e9,
    host_bytes_per_s=10e9,
    clique_bytes_per_s=100e9,
    rack_bytes_per_s=5e9,
    zone_bytes_per_s=2e9,
    far_bytes_per_s=1e9,
)


def request(
    *,
    request_id: str = "r1",
    input_tokens: int = 1000,
    hashes: int = 0,
    block_tokens: int = 16,
    phase: Phase | None = None,
    **others: Any,
) -> RequestDemand:
    """A prompt of 1,000 tokens without hashes: nothing of it can be reused later, so there is no gain."""
    return RequestDemand(
        request_id=request_id,
        model=MODEL,
        tenant="default",
        input_tokens=input_tokens,
        block_hashes=tuple(range(hashes)),
        block_tokens=block_tokens,
        phase=phase,
        **others,
    )


def worker_facts(
    worker: str = "w0",
    *,
    role: str = "both",
    node: str | None = None,
    rack: str | None = None,
    zone: str | None = None,
    clique: str | None = None,
    can: Sequence[str] = (),
    domain: str = "d",
    **others: Any,
) -> WorkerFacts:
    """A worker at an unknown place, with no capability."""
    facts: dict[str, Any] = {"adapters": None, "reserved_for": None, "publishes_events": True}
    return WorkerFacts(
        worker=worker,
        incarnation="i1",
        role=role,
        address="10.0.0.1:8000",
        node=node,
        rack=rack,
        zone=zone,
        clique=clique,
        capabilities=frozenset(can),
        transfer_domain=domain,
        **(facts | others),
    )


class Seat:
    """One worker's column: figures by their names in lower case, and what else a demand finds there."""

    def __init__(
        self,
        *,
        facts: WorkerFacts | None = None,
        matched: float = 0.0,
        cpu: float = 0.0,
        ssd: float = 0.0,
        barred: bool = False,
        queue_ms: float = 0.0,
        **figures: float,
    ) -> None:
        self.facts, self.matched, self.cpu, self.ssd, self.barred = facts, matched, cpu, ssd, barred
        self.figures = {
            "free_at_s": NOW_S + queue_ms / 1000,
            "decode_ms_per_token": 10.0,
            "kv_total_tokens": 100_000.0,
            "kv_free_tokens": 100_000.0,
            "confidence_ratio": 1.0,
            "reuse_ratio": 0.5,
            "gpu_utilization_ratio": 0.5,
            "hbm_used_bytes": 1e9,
            "observed_at_s": NOW_S,
        } | figures


def seat(**told: Any) -> Seat:
    """An idle worker that holds nothing of the prompt, with room for all."""
    return Seat(**told)


def candidates(
    *seats: Seat,
    demand: RequestDemand | None = None,
    output: float = 100.0,
    classes: Sequence[HardwareProfile] | None = None,
    bytes_per_token: float | None = KV_BYTES_PER_TOKEN,
    congestion: float = 0.0,
    waits_ahead_ms: Sequence[float] | None = None,
    settings: RequestSettings = NO_LATENCY,
    links: LinkSettings = ROUND_LINKS,
    indexed: bool = True,
    empty_slots: int = 0,
    **others: Any,
) -> Candidates:
    """Workers of 2,000 prompt tokens a second without a base, whose links have round figures.

    Empty slots come last, with the figures that a fleet gives them.
    """
    slots = len(seats) + empty_slots
    figures = np.zeros((FIGURES, slots))
    figures[[Figure.KV_TOTAL_TOKENS, Figure.KV_FREE_TOKENS, Figure.GPU_UTILIZATION_RATIO, Figure.HBM_USED_BYTES]] = nan
    figures[Figure.KV_FREE_TOKENS] = inf
    figures[Figure.FREE_AT_S] = -inf
    figures[Figure.BARRED, len(seats) :] = inf
    for slot, each in enumerate(seats):
        for name, value in each.figures.items():
            figures[Figure[name.upper()], slot] = value
    facts = [each.facts or worker_facts(f"w{slot}") for slot, each in enumerate(seats)] + [None] * empty_slots
    lower: Mapping[int, tuple[float, float]] = {
        slot: (each.cpu, each.ssd) for slot, each in enumerate(seats) if each.cpu or each.ssd
    }
    matched = np.zeros(slots)
    matched[: len(seats)] = [each.matched for each in seats]
    barred = figures[Figure.BARRED].copy()
    barred[[slot for slot, each in enumerate(seats) if each.barred]] = inf
    return Candidates(
        demand=demand or request(),
        expected_output_tokens=output,
        now_s=NOW_S,
        figures=figures,
        facts=facts,
        classes=list(classes or [hardware()]),
        barred=barred,
        matched_tokens=matched,
        lower_tokens=lower,
        deepest_tokens=float(matched.max(initial=0.0)),
        bytes_per_token=bytes_per_token,
        congestion=congestion,
        waits_ahead_ms=None if waits_ahead_ms is None else np.array([*waits_ahead_ms, *[0.0] * empty_slots]),
        reach=Reach(facts) if indexed else None,
        settings=RequestSettings(links=links, tiers=settings.tiers, costs=settings.costs),
        **others,
    )
