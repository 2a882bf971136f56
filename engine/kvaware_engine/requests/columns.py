"""What a request costs at every worker: the least of each one's options, as one column.

The full scan of every decision, so it is on the path of every request: some twelve numpy calls where nothing lies in
lower tiers, no pool is short of room and nothing can be brought from elsewhere, which is the usual case; each of the
others adds its calls, for the workers that it concerns where those are few.

With n prompt tokens of which m are held, prefill takes a + b·(n-m) + c·(n²-m²) (``HardwareProfile.prefill_ms`` with
u = n-m uncached): what holders are spared is m·(b + c·m), and for the others it is one number per hardware class.
"""

from typing import Final

import numpy as np

from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.options import Need, need_of, options
from kvaware_engine.requests.reach import Reach, hop_bytes_per_s
from kvaware_engine.requests.transfers import can_transfer, sources_of
from kvaware_engine.requests.words import FloatArray, IntArray

__all__ = ["begin_ms", "costs_ms", "held_tokens", "waits_ms"]

_FREE_AT: Final = int(Figure.FREE_AT_S)
_REQUESTS: Final = int(Figure.REQUESTS)
_HALF_STEP: Final = int(Figure.HALF_STEP_MS)
_DECODE: Final = int(Figure.DECODE_MS_PER_TOKEN)
_PRESSURE: Final = int(Figure.PRESSURE_MS_PER_TOKEN)
_RISK: Final = int(Figure.RISK_MS)
_KV_TOTAL: Final = int(Figure.KV_TOTAL_TOKENS)
_KV_FREE: Final = int(Figure.KV_FREE_TOKENS)
_CONFIDENCE: Final = int(Figure.CONFIDENCE_RATIO)
_REMAINING: Final = int(Figure.REMAINING_TOKENS)
_IN_FLIGHT: Final = int(Figure.LINK_BYTES_IN_FLIGHT)
_CLASS: Final = int(Figure.HARDWARE_CLASS)
# Plain numbers: an IntEnum's member as an index costs 0.1 µs each time.

_MS_PER_S: Final = 1000.0

Rates = tuple[FloatArray | float, FloatArray | float, FloatArray | float]


def costs_ms(candidates: Candidates) -> FloatArray:
    """The least of each worker's options, as ``options.options`` prices them.

    Returns: Milliseconds, infinite where barred, else finite. Shape (slots,); a new array.
    """
    need = need_of(candidates)
    figures = candidates.figures
    # Half a step, decoding, displacement of all that the prompt and its answer need, risk: four rows, one BLAS call.
    weights = np.array((1.0, need.output_tokens, need.room_tokens, 1.0))
    total: FloatArray = np.dot(weights, figures[_HALF_STEP : _RISK + 1])
    queue = waits_ms(candidates)
    total += queue
    held: FloatArray | None = None
    if candidates.deepest_tokens > 0:
        held = held_tokens(candidates)
    rates = whole, linear, squared = _rates(candidates, need)
    total += whole - need.gain_ms
    if held is not None:
        saved = held * squared
        saved += linear
        saved += figures[_PRESSURE]
        saved *= held
        total -= saved
    wait: FloatArray | None = None
    tight = (figures[_KV_FREE] < need.room_tokens).nonzero()[0]  # not where it is unknown: that is no shortage
    if len(tight):
        wait = queue + figures[_HALF_STEP]
        _wait_for_room(candidates, need, tight, held=held, total=total, wait=wait)
    best = total
    if held is not None:
        if candidates.lower_tokens and candidates.bytes_per_token is not None:
            best = _with_lower_tiers(candidates, need, total=total, queue=queue, whole=whole)
        if need.prefills and can_transfer(candidates):
            if wait is None:
                wait = queue + figures[_HALF_STEP]
            best = _with_transfers(candidates, need, total=total, best=best, held=held, wait=wait, rates=rates)
    if candidates.demand.current_worker is not None:
        best = _with_waiting(candidates, best)
    best += candidates.barred
    return best


def begin_ms(candidates: Candidates) -> FloatArray:
    """Until the demand begins there: queue, half a step, room in the pool. Shape (slots,), 0 or more; a new array."""
    need, figures = need_of(candidates), candidates.figures
    wait = waits_ms(candidates)
    wait += figures[_HALF_STEP]
    tight = (figures[_KV_FREE] < need.room_tokens).nonzero()[0]
    if len(tight):
        held = held_tokens(candidates).take(tight)
        room, _ = _short(candidates, need, tight, need.room_tokens - held)
        wait[tight] += room
    return wait


def held_tokens(candidates: Candidates) -> FloatArray:
    """Of the prompt, what is expected to be there. Shape (slots,); a new array."""
    held: FloatArray = candidates.matched_tokens * candidates.figures[_CONFIDENCE]
    if candidates.lower_tokens and candidates.bytes_per_token is None:
        _without_lower(candidates, held)
    return held


def waits_ms(candidates: Candidates) -> FloatArray:
    """Until the prompts that wait ahead of this demand are computed. Shape (slots,), 0 or more; a new array."""
    waits = candidates.waits_ahead_ms
    if waits is None:
        queue: FloatArray = candidates.figures[_FREE_AT] - candidates.now_s
        queue *= _MS_PER_S
    else:
        queue = waits.copy()
    # Not 0.0: numpy takes 3 µs to make room for a Python number here, and 0.2 µs for an array of zeros.
    np.maximum(queue, np.zeros(len(queue)), out=queue)
    return queue


def _rates(candidates: Candidates, need: Need) -> Rates:
    """Price of a whole prefill, and of each held token and its square, all with the price of congestion.

    Returns: Numbers where all hardware is of one class, or nothing is computed; else columns.
    """
    if not need.prefills:
        return 0.0, 0.0, 0.0
    tokens, scale = need.input_tokens, 1 + need.congestion
    rates = [
        (
            scale
            * (
                profile.prefill_base_ms
                + tokens * (profile.prefill_ms_per_token + tokens * profile.prefill_ms_per_token_squared)
            ),
            scale * profile.prefill_ms_per_token,
            scale * profile.prefill_ms_per_token_squared,
        )
        for profile in candidates.classes
    ]
    if len(rates) == 1:
        return rates[0]
    at = candidates.figures[_CLASS].astype(np.int64)
    base, linear, squared = np.array(rates).T.take(at, axis=1)
    return base, linear, squared


def _without_lower(candidates: Candidates, held: FloatArray) -> None:
    """Where the size of a token's KV is unknown no load can be priced: what lies in lower tiers counts as not held."""
    confidence = candidates.figures[_CONFIDENCE]
    for slot, (cpu, ssd) in candidates.lower_tokens.items():
        held[slot] -= (cpu + ssd) * confidence[slot]


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
    zero = np.zeros(len(at))
    free = np.maximum(figures[_KV_FREE].take(at), zero)
    short = np.fmax(fresh - free, zero)  # fmax: what is unknown is not short
    held = figures[_KV_TOTAL].take(at) - free
    with np.errstate(divide="ignore", invalid="ignore"):
        share = short / held
    share[~(held > 0)] = 1.0
    np.minimum(share, 1.0, out=share)
    rest = figures[_REMAINING].take(at) / np.maximum(figures[_REQUESTS].take(at), 1.0)
    np.maximum(rest, max(need.output_tokens / 2, 1.0), out=rest)
    half = figures[_HALF_STEP].take(at)
    step = np.where(half > 0, 2 * half, figures[_DECODE].take(at))
    room = share * rest * step
    room[~(short > 0)] = 0.0
    return room, short * figures[_PRESSURE].take(at)


def _wait_for_room(
    candidates: Candidates, need: Need, at: IntArray, *, held: FloatArray | None, total: FloatArray, wait: FloatArray
) -> None:
    """Where the pool is short of room, charge the wait for it instead of the displacement; in place."""
    fresh = np.full(len(at), need.room_tokens) if held is None else need.room_tokens - held.take(at)
    room, uncharged = _short(candidates, need, at, fresh)
    total[at] += room - uncharged
    wait[at] += room


def _with_lower_tiers(
    candidates: Candidates, need: Need, *, total: FloatArray, queue: FloatArray, whole: FloatArray | float
) -> FloatArray:
    """Charge loads from own tiers to ``total``, in place.

    Returns: The least of that and computing all of the prompt.
    """
    lower, figures, links = candidates.lower_tokens, candidates.figures, candidates.settings.links
    at = np.fromiter(lower, dtype=np.int64, count=len(lower))
    tokens = np.array(list(lower.values()))
    per_token = (candidates.bytes_per_token or 0.0) * _MS_PER_S
    load = tokens[:, 0] * (per_token / links.host_bytes_per_s) + tokens[:, 1] * (per_token / links.disk_bytes_per_s)
    load *= figures[_CONFIDENCE].take(at)
    total[at] += load
    if not need.prefills:
        return total
    best = total.copy()
    # All computed: as if nothing were held there.
    alone = np.array((1.0, need.output_tokens, need.room_tokens, 1.0)) @ figures[_HALF_STEP : _RISK + 1].take(
        at, axis=1
    )
    alone += queue.take(at)
    alone += (whole if isinstance(whole, float) else whole.take(at)) - need.gain_ms
    room, uncharged = _short(candidates, need, at, np.full(len(at), need.room_tokens))
    alone += room - uncharged
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
    """The least of ``best`` and every read or copy from another worker; a new array."""
    settings, figures = candidates.settings, candidates.figures
    reach = candidates.reach or Reach(candidates.facts)
    bytes_per_token = candidates.bytes_per_token or 0.0
    ms_per_byte = _MS_PER_S / np.array(hop_bytes_per_s(settings.links))
    in_flight = figures[_IN_FLIGHT]
    _, linear, squared = rates
    penalty_ms = settings.costs.remote_step_penalty_ms * need.output_tokens
    best = best.copy()
    for source in sources_of(candidates):
        row = reach.row(source.slot)
        more = source.tokens - held
        moved = more * bytes_per_token
        front = np.maximum(in_flight, in_flight.item(source.slot)) * row.wired
        takes = (moved + front) * ms_per_byte.take(row.hops)
        takes += settings.costs.transfer_latency_ms + source.load_ms - wait
        before = total - more * (linear + squared * (source.tokens + held))
        further = more > 0
        readable = further if candidates.remote_bytes is None else further & (moved <= candidates.remote_bytes)
        movable = further if candidates.migration_bytes is None else further & (moved <= candidates.migration_bytes)
        for allowed, lead_ms, extra_ms in (
            (row.at_once & readable, 0.0, penalty_ms),
            (row.by_prefill & readable, source.lead_ms, penalty_ms),
            (row.copies & movable, 0.0, 0.0),
        ):
            if allowed.any():
                cost = before + np.maximum(takes + lead_ms, 0.0) + extra_ms
                np.minimum(best, cost, out=best, where=allowed)
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
