"""Whose KV blocks can be brought to a worker, and how: sources, remote reads and copies. Priced in ``costs.py``.

Who reads needs the same capability as who is read from, and the same transfer domain. A pull needs the holder's order
(``commanded``); a shared store is read by the servers themselves (``expected``), and priced like its nearest holder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvaware_engine.observations import Tier
from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.costs import expected_tokens, queue_ms, tier_load_ms
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.reach import (
    FIRST_WIRED,
    MIGRATE,
    PULL_BY_PREFILL,
    PULL_FROM_PEER,
    SHARED_STORE,
    can_move,
    hop_between,
    hop_bytes_per_s,
)
from kvaware_engine.requests.rows import BARRED, CONFIDENCE, IN_FLIGHT
from kvaware_engine.requests.words import Action, Mode

__all__ = ["Source", "Transfer", "bytes_in_front", "can_transfer", "link_bytes_per_s", "sources_of", "transfers"]

_TAKEN: Final = -1.0


@dataclass(slots=True, kw_only=True)
class Source:
    """A worker from which blocks can be brought. Never changed once made."""

    slot: int
    facts: WorkerFacts
    tokens: float
    """From the prompt's beginning, expected to be there."""
    load_ms: float
    """To bring those that lie only in its lower tiers out of them."""
    lead_ms: float
    """Until a prefill there, by which blocks are handed over, has run: its queue, half a step, and one token."""
    tier: Tier
    """The lowest that they lie in."""


@dataclass(slots=True, kw_only=True)
class Transfer:
    """One way of bringing a source's blocks to a worker. Never changed once made."""

    source: Source
    action: Action
    mode: Mode
    tier: Tier
    lead_ms: float
    """What the source has to do first."""


def can_transfer(candidates: Candidates) -> bool:
    """Whether any block of this prompt could come from another worker. The usual no is cheap."""
    if candidates.deepest_tokens <= 0 or candidates.bytes_per_token is None:
        return False
    if candidates.settings.costs.sources_max < 1:
        return False
    return can_move(candidates.facts) if candidates.reach is None else candidates.reach.moves


def sources_of(candidates: Candidates) -> list[Source]:
    """At most ``sources_max`` workers that are heard and Ready; whether this demand may go there does not matter.

    The longest expected match first, of equal ones those whose link has least in flight, then the lower slot.
    """
    found = candidates.sources
    if found is None:
        found = candidates.sources = _find_sources(candidates)
    return found


def _find_sources(candidates: Candidates) -> list[Source]:
    figures = candidates.figures
    tokens = candidates.matched_tokens * figures[CONFIDENCE]
    tokens[figures[BARRED] > 0] = _TAKEN
    in_flight = figures[IN_FLIGHT]
    quiet = in_flight.item(in_flight.argmax()) <= 0  # then argmax finds the lowest of equal slots by itself
    found: list[Source] = []
    while len(found) < candidates.settings.costs.sources_max:
        slot = int(tokens.argmax())
        most = tokens.item(slot)
        if most <= 0:
            break
        if not quiet:
            equal = (tokens == most).nonzero()[0]
            slot = int(equal[in_flight.take(equal).argmin()])
        tokens[slot] = _TAKEN
        if (facts := candidates.facts[slot]) is not None:
            found.append(_source(candidates, slot, facts, most))
    return found


def _source(candidates: Candidates, slot: int, facts: WorkerFacts, tokens: float) -> Source:
    column = candidates.figures[:, slot].tolist()
    confidence = column[Figure.CONFIDENCE_RATIO]
    cpu, ssd = candidates.lower_tokens.get(slot, (0.0, 0.0))
    links = candidates.settings.links
    profile = candidates.classes[int(column[Figure.HARDWARE_CLASS])]
    wait_ms = (
        queue_ms(column[Figure.FREE_AT_S], now_s=candidates.now_s)
        if candidates.waits_ahead_ms is None
        else max(0.0, candidates.waits_ahead_ms.item(slot))
    )
    return Source(
        slot=slot,
        facts=facts,
        tokens=tokens,
        load_ms=tier_load_ms(
            cpu_tokens=expected_tokens(cpu, confidence_ratio=confidence),
            ssd_tokens=expected_tokens(ssd, confidence_ratio=confidence),
            bytes_per_token=candidates.bytes_per_token or 0.0,
            host_bytes_per_s=links.host_bytes_per_s,
            disk_bytes_per_s=links.disk_bytes_per_s,
        ),
        lead_ms=wait_ms + column[Figure.HALF_STEP_MS] + profile.prefill_ms(1, cached_tokens=tokens),
        tier=Tier.SSD if ssd > 0 else Tier.CPU if cpu > 0 else Tier.HBM,
    )


def transfers(facts: WorkerFacts, source: Source) -> Iterator[Transfer]:
    """The ways from a source to a worker: at most one read, the cheapest, and a copy."""
    there = source.facts
    if there.worker == facts.worker or there.transfer_domain != facts.transfer_domain:
        return
    both = facts.capabilities & there.capabilities
    if PULL_FROM_PEER in both:
        # From the holder's offload tier, where its HBM's blocks are, too.
        lower = Tier.SSD if source.tier is Tier.SSD else Tier.CPU
        yield Transfer(
            source=source, action=Action.REMOTE_READ, mode=Mode.COMMANDED, tier=lower, lead_ms=source.load_ms
        )
    elif SHARED_STORE in both:
        yield Transfer(
            source=source, action=Action.REMOTE_READ, mode=Mode.EXPECTED, tier=Tier.CPU, lead_ms=source.load_ms
        )
    elif PULL_BY_PREFILL in both:
        yield Transfer(
            source=source,
            action=Action.REMOTE_READ,
            mode=Mode.COMMANDED,
            tier=source.tier,
            lead_ms=source.load_ms + source.lead_ms,
        )
    if MIGRATE in both:
        yield Transfer(
            source=source, action=Action.MIGRATE, mode=Mode.COMMANDED, tier=source.tier, lead_ms=source.load_ms
        )


def link_bytes_per_s(candidates: Candidates, one: WorkerFacts, other: WorkerFacts) -> float:
    """Bandwidth between two workers."""
    return hop_bytes_per_s(candidates.settings.links)[hop_between(one, other)]


def bytes_in_front(one: WorkerFacts, other: WorkerFacts, *, in_flight: tuple[float, float]) -> float:
    """What a transfer has to wait for: the busier of the two nodes' network links; 0 where it does not use them."""
    return max(in_flight) if hop_between(one, other) >= FIRST_WIRED else 0.0
