"""Where a prompt is computed and where its answer is decoded, when roles are split: the cheapest pair.

A pair costs what the prefill costs at one worker, what the decode costs at the other, and the part of the hand-over
between them that waiting at the second does not hide. The hand-over brings the prompt's KV that the second does not
hold, over the link between the two. Pairs have one transfer domain. A worker of role ``both`` may do either part, or
the whole, which then competes with the pairs.

Exact over all pairs: seen from the workers that decode, those that prefill at one place differ in their own costs
alone, so that of each place only the two cheapest count (two, as nobody hands over to itself).
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from kvaware_engine.decisions import CostTerms
from kvaware_engine.observations import Tier
from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import choose_by
from kvaware_engine.requests.columns import begin_ms, held_tokens
from kvaware_engine.requests.costs import exposed_ms, transfer_ms
from kvaware_engine.requests.reach import Reach, hop_bytes_per_s
from kvaware_engine.requests.rows import IN_FLIGHT, LAST_CHOSEN
from kvaware_engine.requests.transfers import bytes_in_front, link_bytes_per_s
from kvaware_engine.requests.words import Action, FloatArray, Mode, Option, Phase

__all__ = ["Pair", "PairChoice", "PairOptions", "added", "choose_pair", "handover_ms", "in_phase", "pair_options"]

_MS_PER_S: Final = 1000.0


@dataclass(slots=True, kw_only=True)
class Pair:
    """Where one request goes. Never changed once made."""

    slot: int
    """Where it is decoded."""
    prefill: int | None
    """Slot where the prompt is computed; None: at the same worker."""


@dataclass(slots=True, kw_only=True)
class PairChoice:
    """Where a policy sends a demand whose roles are split. Never changed once made."""

    chosen: Pair
    runner_up: Pair | None
    """The best with another decoding worker; None: there was no other."""
    costs: FloatArray
    """By decoding worker, the best prefill included. Shape (slots,), infinite where it cannot be."""


@dataclass(slots=True, kw_only=True)
class PairOptions:
    """A pair's options. Their totals add up to the pair's cost; see ``added``."""

    option: Option
    """Where it is decoded; the hand-over is its ``remote_read``."""
    prefill: Option | None


@dataclass(slots=True, kw_only=True)
class _Handover:
    """All decoding workers as receivers. Columns of shape (slots,)."""

    candidates: Candidates
    reach: Reach
    moved: FloatArray
    """Bytes that each lacks."""
    wait: FloatArray
    ms_per_byte: FloatArray
    """By ``Hop``."""

    def to_all(self, source: int) -> FloatArray:
        """From one prefilling worker to every decoding one; infinite where they have no domain in common."""
        return self._exposed(source, self.moved, self.wait)

    def from_all(self, target: int) -> FloatArray:
        """From every prefilling worker to one decoding one."""
        return self._exposed(target, self.moved.item(target), self.wait.item(target))

    def _exposed(self, one_end: int, moved: FloatArray | float, wait: FloatArray | float) -> FloatArray:
        """Between one worker and all others: links and domains are the same both ways."""
        row = self.reach.row(one_end)
        in_flight = self.candidates.figures[IN_FLIGHT]
        front = np.maximum(in_flight, in_flight.item(one_end)) * row.wired
        beyond: FloatArray = (moved + front) * self.ms_per_byte.take(row.hops) - wait
        beyond += self.candidates.settings.costs.transfer_latency_ms
        np.maximum(beyond, 0.0, out=beyond)
        beyond[~row.domain] = inf
        return beyond


def in_phase(candidates: Candidates, phase: Phase, *, barred: FloatArray) -> Candidates:
    """The same workers for one part of the demand.

    Args:
        candidates: Of the whole demand.
        phase: The part.
        barred: For whom that part cannot go to. Shape (slots,).
    """
    return replace(candidates, demand=replace(candidates.demand, phase=phase), barred=barred)


def choose_pair(
    policy: Policy, *, prefill: Candidates, decode: Candidates, whole: Candidates | None = None
) -> PairChoice | None:
    """Choose where the prompt is computed and where the answer is decoded.

    A policy whose costs are no milliseconds ranks each part by itself: first where it is decoded, then of those that
    can hand over to it where it is computed.

    Args:
        policy: The model's.
        prefill: The demand's first part, phase ``prefill``.
        decode: Its second part, phase ``decode``, over the same slots.
        whole: The undivided demand, for workers of role ``both``; None: there are none.
    Returns: None where no pair can be, and no worker can do the whole.
    """
    firsts, seconds = policy.costs_ms(prefill), policy.costs_ms(decode)
    handover = _handover(decode)
    paired = _paired(firsts, seconds, handover) if policy.in_ms else seconds + _reached(firsts, handover)
    wholes = None if whole is None else policy.costs_ms(whole)
    costs = paired if wholes is None else np.minimum(paired, wholes)
    last_chosen = decode.figures[LAST_CHOSEN]
    choice = choose_by(costs, last_chosen)
    if choice is None:
        return None

    def pair(slot: int) -> Pair:
        if wholes is not None and wholes.item(slot) <= paired.item(slot):
            return Pair(slot=slot, prefill=None)
        between = handover.from_all(slot)
        if not policy.in_ms:
            between[between < inf] = 0.0
        first = choose_by(firsts + between, last_chosen)
        return Pair(slot=slot, prefill=None if first is None else first.chosen)

    runner_up = None if choice.runner_up is None else pair(choice.runner_up)
    return PairChoice(chosen=pair(choice.chosen), runner_up=runner_up, costs=costs)


def pair_options(
    policy: Policy, pair: Pair, *, prefill: Candidates, decode: Candidates, whole: Candidates | None = None
) -> PairOptions:
    """The options of a chosen pair, or of a runner-up.

    Raises: ValueError where the pair is one worker and ``whole`` is None.
    """
    if pair.prefill is None:
        if whole is None:
            raise ValueError(f"slot {pair.slot}: expected the whole demand's candidates, as one worker does all of it")
        return PairOptions(option=policy.best_option(whole, pair.slot), prefill=None)
    first, second = policy.best_option(prefill, pair.prefill), policy.best_option(decode, pair.slot)
    moved = _moved_bytes(decode, second)
    terms = replace(second.terms, network=second.terms.network + handover_ms(decode, pair.prefill, second))
    handed = replace(
        second,
        action=Action.REMOTE_READ,
        mode=Mode.COMMANDED,
        terms=terms,
        source=first.worker,
        tier=Tier.HBM,
        matched_tokens=decode.demand.input_tokens,
        transfer_bytes=int(moved),
    )
    return PairOptions(option=handed, prefill=first)


def handover_ms(decode: Candidates, source: int, option: Option) -> float:
    """The part of a hand-over that waiting at the decoding worker does not hide: the reference.

    Args:
        decode: Phase ``decode``.
        source: Slot that prefills.
        option: At the decoding worker.
    """
    here, there = decode.facts[source], decode.facts[option.slot]
    if here is None or there is None:
        raise ValueError(f"slots {source}, {option.slot}: expected workers")
    in_flight = decode.figures[IN_FLIGHT]
    takes = transfer_ms(
        _moved_bytes(decode, option),
        bytes_in_front=bytes_in_front(here, there, in_flight=(in_flight.item(source), in_flight.item(option.slot))),
        bytes_per_s=link_bytes_per_s(decode, here, there),
        latency_ms=decode.settings.costs.transfer_latency_ms,
    )
    return exposed_ms(takes, wait_ms=option.wait_ms)


def added(one: CostTerms, other: CostTerms) -> CostTerms:
    """The terms of two options together."""
    return CostTerms(
        compute_wait=one.compute_wait + other.compute_wait,
        cache_access=one.cache_access + other.cache_access,
        migration=one.migration + other.migration,
        memory_pressure=one.memory_pressure + other.memory_pressure,
        network=one.network + other.network,
        risk=one.risk + other.risk,
        locality_gain=one.locality_gain + other.locality_gain,
    )


def _moved_bytes(decode: Candidates, option: Option) -> float:
    """What the decoding worker lacks; 0 where the size of a token's KV is unknown: then only the latency is priced."""
    held = held_tokens(decode).item(option.slot)
    return (decode.demand.input_tokens - held) * (decode.bytes_per_token or 0.0)


def _handover(decode: Candidates) -> _Handover:
    lacking = decode.demand.input_tokens - held_tokens(decode)
    return _Handover(
        candidates=decode,
        reach=decode.reach or Reach(decode.facts),
        moved=lacking * (decode.bytes_per_token or 0.0),
        wait=begin_ms(decode),
        ms_per_byte=_MS_PER_S / np.array(hop_bytes_per_s(decode.settings.links)),
    )


def _paired(firsts: FloatArray, seconds: FloatArray, handover: _Handover) -> FloatArray:
    """Each decoding worker's cost with its cheapest prefill. Shape (slots,)."""
    in_flight, places = handover.candidates.figures[IN_FLIGHT], handover.reach.places
    cheapest: dict[tuple[int, float], list[int]] = {}
    order = np.argsort(firsts, kind="stable")
    for slot in order[: np.count_nonzero(np.isfinite(firsts))].tolist():
        at_place = cheapest.setdefault((places[slot], in_flight.item(slot)), [])
        if len(at_place) < 2:
            at_place.append(slot)
    least = np.full(len(seconds), inf)
    able = np.isfinite(seconds)
    for first, *others in cheapest.values():
        # Cheapest places first: once a prefill alone costs as much as every pair so far, no later one is better.
        if firsts.item(first) >= least.max(where=able, initial=-inf):
            break
        between = handover.to_all(first)
        between += firsts.item(first)
        np.minimum(least, between, out=least)
        if others and seconds.item(first) < inf:  # to the cheapest itself hands the next
            between = handover.to_all(others[0])
            least[first] = min(least.item(first), firsts.item(others[0]) + between.item(first))
    least += seconds
    return least


def _reached(firsts: FloatArray, handover: _Handover) -> FloatArray:
    """0 for who can be handed to by anybody, else infinity. Shape (slots,)."""
    reached = np.full(len(firsts), inf)
    for slot in np.isfinite(firsts).nonzero()[0].tolist():
        reached[handover.reach.row(slot).domain] = 0.0
    return reached
