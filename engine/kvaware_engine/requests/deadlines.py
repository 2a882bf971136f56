"""When the first token comes: whether a request with a deadline is placed among those that make it, or at all."""

import numpy as np

from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.columns import begin_ms, held_tokens, loads_ms
from kvaware_engine.requests.options import need_of
from kvaware_engine.requests.rows import CLASS
from kvaware_engine.requests.words import FloatArray, Option

__all__ = ["barred_as_late", "first_token_ms", "first_tokens_ms"]


def first_token_ms(option: Option, prefill: Option | None) -> float:
    """From now: the wait, what is brought there, and the prefill.

    Args:
        option: Where it is decoded, or all of it is done.
        prefill: Where the prompt is computed, if that is elsewhere.
    """
    first = prefill or option
    total = first.wait_ms + first.terms.cache_access + first.terms.network + first.terms.migration
    return total if prefill is None else total + option.terms.network


def first_tokens_ms(candidates: Candidates) -> FloatArray:
    """The same where every worker does what it does by itself. Shape (slots,); a new array.

    Asked only where the choice comes too late, so it is plain rather than fast.
    """
    tokens = candidates.demand.input_tokens
    total = begin_ms(candidates)
    if need_of(candidates).prefills and candidates.classes:
        rates = np.array(
            [
                (each.prefill_base_ms, each.prefill_ms_per_token, each.prefill_ms_per_token_squared)
                for each in candidates.classes
            ]
        )
        base, linear, squared = rates.T.take(candidates.figures[CLASS].astype(np.int64), axis=1)
        held = held_tokens(candidates)
        uncached = tokens - held
        total += base + uncached * (linear + squared * (uncached + 2 * held))
    if candidates.bytes_per_token is not None:
        at, load = loads_ms(candidates)
        total[at] += load
    return total


def barred_as_late(candidates: Candidates, deadline_ms: float) -> FloatArray | None:
    """``barred`` with those that come too late; None: there is no other. Shape (slots,); a new array."""
    barred: FloatArray = candidates.barred + np.where(first_tokens_ms(candidates) > deadline_ms, np.inf, 0.0)
    return barred if np.isfinite(barred).any() else None
