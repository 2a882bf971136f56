"""What a request costs at every worker: the least of each one's options, as one column.

The full scan of every decision, so it is on the path of every request: some twelve numpy calls where nothing lies in
lower tiers, no pool is short of room and nothing can be brought from elsewhere, which is the usual case; each of the
others adds its calls, for the workers that it concerns where those are few.

What is odd here is so because of what numpy takes for 64 numbers: 0.45 µs for an operation on two arrays of one shape
or with one of no dimension, 0.7 to 1.4 with a Python number, which is made an array first; 4 for ``np.maximum`` with a
number of either kind; 0.3 for ``argmin`` and 3 for ``min``.

With n prompt tokens of which m are held, prefill takes a + b·(n-m) + c·(n²-m²) (``HardwareProfile.prefill_ms`` with
u = n-m uncached): what holders are spared is m·(b + c·m), and for the others it is one number per hardware class.
"""

from itertools import chain
from math import inf
from typing import Final

import numpy as np

from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.options import Need, need_of, options
from kvaware_engine.requests.reach import Reach, hop_bytes_per_s
from kvaware_engine.requests.rows import (
    CLASS,
    CONFIDENCE,
    DECODE,
    FREE_AT,
    HALF_STEP,
    IN_FLIGHT,
    KV_FREE,
    KV_TOTAL,
    PRESSURE,
    REMAINING,
    REQUESTS,
    RISK,
)
from kvaware_engine.requests.transfers import can_transfer, sources_of
from kvaware_engine.requests.words import FloatArray, IntArray
from kvaware_engine.requests.workspace import Workspace

__all__ = ["begin_ms", "costs_ms", "held_tokens", "loads_ms", "waits_ms"]

_MS_PER_S: Final = 1000.0
_MS_IN_S: Final = np.array(_MS_PER_S)
_LEAST_HELD: Final = 1e-9
"""Tokens: a pool of which no more is held is empty."""

Rates = tuple[FloatArray | float, FloatArray | float, FloatArray | float]


def costs_ms(candidates: Candidates) -> FloatArray:
    """The least of each worker's options, as ``options.options`` prices them.

    Returns: Milliseconds, infinite where barred, else finite. Shape (slots,); a new array.
    """
    need = need_of(candidates)
    rates = whole, linear, squared = _rates(candidates, need)
    unpriced = candidates.lower_tokens and candidates.bytes_per_token is None
    if isinstance(whole, float) and isinstance(linear, float) and isinstance(squared, float) and not unpriced:
        work = candidates.work
        if work is None:
            work = Workspace(candidates.figures.shape[1])
        total = work.add(
            candidates,
            output_tokens=need.output_tokens,
            room_tokens=need.room_tokens,
            constant_ms=whole - need.gain_ms,
            linear_ms=linear,
            squared_ms=squared,
        )
    else:
        total = _added(candidates, need, rates)
    return _with_others(candidates, need, total, rates)


def _added(candidates: Candidates, need: Need, rates: Rates) -> FloatArray:
    """What ``Workspace.add`` does, whatever the hardware."""
    figures = candidates.figures
    whole, linear, squared = rates
    total: FloatArray = np.dot(_weights(need), figures[HALF_STEP : RISK + 1])
    total += waits_ms(candidates)
    total += whole - need.gain_ms
    if candidates.deepest_tokens > 0:
        held = held_tokens(candidates)
        spared = held * squared
        spared += linear
        spared += figures[PRESSURE]
        spared *= held
        total -= spared
    total += candidates.barred
    return total


def _with_others(candidates: Candidates, need: Need, total: FloatArray, rates: Rates) -> FloatArray:
    """What is rare: pools without room, lower tiers, what can be brought from elsewhere, waiting where it is."""
    tight = _tight(candidates, need)
    holds = candidates.deepest_tokens > 0
    loads = holds and candidates.lower_tokens and candidates.bytes_per_token is not None
    moves = holds and need.prefills and can_transfer(candidates)
    best = total
    if tight is not None or loads or moves:
        held = held_tokens(candidates)
        wait = waits_ms(candidates)
        queue = wait.copy()
        wait += candidates.figures[HALF_STEP]
        if tight is not None:
            room, uncharged = _short(candidates, need, tight, need.room_tokens - held.take(tight))
            total[tight] += room - uncharged
            wait[tight] += room
        if loads and need.prefills:
            best = _with_lower_tiers(candidates, need, total=total, held=held, queue=queue, rates=rates)
        elif loads:
            at, load = loads_ms(candidates)
            total[at] += load
        if moves:
            best = _with_transfers(candidates, need, total=total, best=best, held=held, wait=wait, rates=rates)
    if candidates.demand.current_worker is not None:
        best = _with_waiting(candidates, best)
    if best is not total or candidates.demand.current_worker is not None:
        best += candidates.barred  # once more: infinite either way
    return best


def waits_ms(candidates: Candidates) -> FloatArray:
    """Until the prompts that wait ahead of this demand are computed. Shape (slots,), 0 or more; a new array."""
    waits = candidates.waits_ahead_ms
    if waits is None:
        queue: FloatArray = candidates.figures[FREE_AT] - np.array(candidates.now_s)
        queue *= _MS_IN_S
        waits = queue
    else:
        queue = np.empty(len(waits))
    np.maximum(waits, np.zeros(len(waits)), out=queue)
    return queue


def begin_ms(candidates: Candidates) -> FloatArray:
    """Until the demand begins there: queue, half a step, room in the pool. Shape (slots,), 0 or more; a new array."""
    need = need_of(candidates)
    wait = waits_ms(candidates)
    wait += candidates.figures[HALF_STEP]
    tight = _tight(candidates, need)
    if tight is not None:
        fresh = need.room_tokens - held_tokens(candidates).take(tight)
        wait[tight] += _short(candidates, need, tight, fresh)[0]
    return wait


def held_tokens(candidates: Candidates) -> FloatArray:
    """Of the prompt, what is expected to be there. Shape (slots,); a new array."""
    confidence = candidates.figures[CONFIDENCE]
    held: FloatArray = candidates.matched_tokens * confidence
    if candidates.lower_tokens and candidates.bytes_per_token is None:
        # No load can be priced: what lies in lower tiers counts as not held.
        for slot, (cpu, ssd) in candidates.lower_tokens.items():
            held[slot] = max(0.0, held.item(slot) - (cpu + ssd) * confidence.item(slot))
    return held


def _weights(need: Need) -> FloatArray:
    """Of HALF_STEP_MS, DECODE_MS_PER_TOKEN, PRESSURE_MS_PER_TOKEN and RISK_MS."""
    return np.array((1.0, need.output_tokens, need.room_tokens, 1.0))


def _rates(candidates: Candidates, need: Need) -> Rates:
    """Price of a whole prefill, and of each held token and its square, all with the price of congestion.

    Returns: Numbers where all hardware is of one class, or nothing is computed; else columns.
    """
    if not need.prefills or not candidates.classes:  # without a class there is no worker, and never was one
        return 0.0, 0.0, 0.0
    tokens, scale = need.input_tokens, 1 + need.congestion
    rates: list[tuple[float, float, float]] = []
    for profile in candidates.classes:
        linear, squared = profile.prefill_ms_per_token, profile.prefill_ms_per_token_squared
        whole = profile.prefill_base_ms + tokens * (linear + tokens * squared)
        rates.append((scale * whole, scale * linear, scale * squared))
    if len(rates) == 1:
        return rates[0]
    at = candidates.figures[CLASS].astype(np.int64)
    whole_of, linear_of, squared_of = np.array(rates).T.take(at, axis=1)
    return whole_of, linear_of, squared_of


def _tight(candidates: Candidates, need: Need) -> IntArray | None:
    """Slots whose pool may have no room for all of the prompt and its answer; None: there is none.

    A pool of which nothing is known is not short of room.
    """
    free = candidates.figures[KV_FREE]
    # Of numbers with a NaN argmin finds that: only then, or where there is a shortage, each one is looked at.
    if not len(free) or free.item(free.argmin()) >= need.room_tokens:
        return None
    tight: IntArray = (free < need.room_tokens).nonzero()[0]
    return tight if len(tight) else None


def _short(candidates: Candidates, need: Need, at: IntArray, fresh: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Wait for room in the pools of some workers, and what of the displacement is not charged because it waits.

    Args:
        candidates: What was seen.
        need: Of the demand.
        at: Slots.
        fresh: Tokens that need new blocks there. Shape as ``at``.
    Returns: Milliseconds, shape as ``at``, each.
    """
    figures = candidates.figures
    free = np.maximum(figures[KV_FREE].take(at), 0.0)
    short = np.fmax(fresh - free, 0.0)  # fmax and fmin pass over what is unknown
    held = np.fmax(figures[KV_TOTAL].take(at) - free, _LEAST_HELD)
    share = np.fmin(short / held, 1.0)
    rest = figures[REMAINING].take(at) / np.maximum(figures[REQUESTS].take(at), 1.0)
    rest = np.maximum(rest, max(need.output_tokens / 2, 1.0))
    half = figures[HALF_STEP].take(at)
    step = np.where(half > 0, 2 * half, figures[DECODE].take(at))
    return share * rest * step, short * figures[PRESSURE].take(at)


def loads_ms(candidates: Candidates) -> tuple[IntArray, FloatArray]:
    """Slots with tokens in lower tiers, and what bringing those into HBM takes there, in milliseconds."""
    lower, links = candidates.lower_tokens, candidates.settings.links
    count = len(lower)
    at = np.fromiter(lower, dtype=np.int64, count=count)
    tokens = np.fromiter(chain.from_iterable(lower.values()), dtype=np.float64, count=2 * count).reshape(count, 2)
    per_token = (candidates.bytes_per_token or 0.0) * _MS_PER_S
    load: FloatArray = tokens @ np.array((per_token / links.host_bytes_per_s, per_token / links.disk_bytes_per_s))
    load *= candidates.figures[CONFIDENCE].take(at)
    return at, load


def _with_lower_tiers(
    candidates: Candidates, need: Need, *, total: FloatArray, held: FloatArray, queue: FloatArray, rates: Rates
) -> FloatArray:
    """Charge loads from own tiers to ``total``, in place.

    Returns: The least of that and computing all of the prompt: ``total`` itself where no load takes longer.
    """
    at, load = loads_ms(candidates)
    total[at] += load
    whole, linear, squared = (rate.take(at) if isinstance(rate, np.ndarray) else rate for rate in rates)
    tokens = held.take(at)
    # What is held spares its prefill and room besides: less than that no load can cost more.
    dear = (load > tokens * (linear + squared * tokens)).nonzero()[0]
    if not len(dear):
        return total
    at = at.take(dear)
    # All computed: as if nothing were held there.
    alone: FloatArray = _weights(need) @ candidates.figures[HALF_STEP : RISK + 1].take(at, axis=1)
    alone += queue.take(at)
    alone += (whole.take(dear) if isinstance(whole, np.ndarray) else whole) - need.gain_ms
    if _tight(candidates, need) is not None:
        room, uncharged = _short(candidates, need, at, np.full(len(at), need.room_tokens))
        alone += room - uncharged
    best = total.copy()
    best[at] = np.minimum(best.take(at), alone)
    return best


def _with_transfers(
    candidates: Candidates,
    need: Need,
    *,
    total: FloatArray,
    best: FloatArray,
    held: FloatArray,
    wait: FloatArray,
    rates: Rates,
) -> FloatArray:
    """The least of ``best`` and every read or copy from another worker; a new array.

    Who holds no less than the source gets the price of an empty transfer, which is never the least.
    """
    costs, figures = candidates.settings.costs, candidates.figures
    reach = candidates.reach or Reach(candidates.facts)
    bytes_per_token = candidates.bytes_per_token or 0.0
    ms_per_byte = _MS_PER_S / np.array(hop_bytes_per_s(candidates.settings.links))
    in_flight = figures[IN_FLIGHT]
    busy = in_flight.item(in_flight.argmax()) > 0
    _, linear, squared = rates
    penalty_ms = costs.remote_step_penalty_ms * need.output_tokens
    zero = np.zeros(len(total))
    best = best.copy()
    for source in sources_of(candidates):
        row = reach.row(source.slot)
        more = source.tokens - held
        np.maximum(more, zero, out=more)
        moved = more * bytes_per_token
        takes = moved
        if busy:
            takes = np.maximum(in_flight, np.array(in_flight.item(source.slot)))
            takes *= row.wired
            takes += moved
        takes = takes * ms_per_byte.take(row.hops)
        takes += costs.transfer_latency_ms + source.load_ms
        takes -= wait
        before = held + source.tokens
        before *= squared
        before += linear
        before *= more
        np.subtract(total, before, out=before)
        for able, lead_ms, extra_ms, most in (
            (row.at_once, 0.0, penalty_ms, candidates.remote_bytes),
            (row.by_prefill, source.lead_ms, penalty_ms, candidates.remote_bytes),
            (row.copies, 0.0, 0.0, candidates.migration_bytes),
        ):
            if able is None:
                continue
            cost = np.maximum(takes + lead_ms if lead_ms else takes, zero)
            cost += before
            if extra_ms:
                cost += extra_ms
            if most is not None:
                cost[moved > most] = inf
            np.minimum(best, cost, out=best, where=able)
    return best


def _with_waiting(candidates: Candidates, best: FloatArray) -> FloatArray:
    """The worker where the demand waits now has one option more: one slot, priced by the reference."""
    current = candidates.demand.current_worker
    if candidates.reach is not None:
        slot = candidates.reach.slots.get(current or "")
    else:
        found = (at for at, facts in enumerate(candidates.facts) if facts is not None and facts.worker == current)
        slot = next(found, None)
    if slot is not None:
        best[slot] = options(candidates, slot)[0].terms.total
    return best
