"""What a request costs at a worker: each term as a pure function of numbers, in milliseconds.

This is the reference. ``options.py`` prices one option by it, ``columns.py`` all workers at once; a property test holds
the columns to these functions. Source of all terms: design.md §4.
"""

from math import isnan
from typing import Final

from kvaware_engine.decisions import CostTerms
from kvaware_engine.profiles import HardwareProfile

__all__ = [
    "cache_access_ms",
    "compute_wait_ms",
    "cost_terms",
    "decode_parts_ms",
    "displaced_tokens",
    "expected_tokens",
    "exposed_ms",
    "locality_gain_ms",
    "memory_pressure_ms",
    "queue_ms",
    "room_ms",
    "short_tokens",
    "tier_load_ms",
    "transfer_ms",
]

_MS_PER_S: Final = 1000.0


def expected_tokens(matched_tokens: float, *, confidence_ratio: float) -> float:
    """Tokens of the prompt that are expected to be there when it begins. Nothing else is scaled by confidence.

    Args:
        matched_tokens: Held as far as is known.
        confidence_ratio: 0..1, how far that is believed.
    """
    return matched_tokens * confidence_ratio


def queue_ms(free_at_s: float, *, now_s: float) -> float:
    """Until the prompts that wait there are computed."""
    return max(0.0, free_at_s - now_s) * _MS_PER_S


def short_tokens(fresh_tokens: float, *, free_tokens: float) -> float:
    """Tokens for which the KV pool has no room now: they wait (``room_ms``).

    Args:
        fresh_tokens: Of prompt and expected output, those that need new blocks: the demand's own, not only what runs
            already (llm-d/llm-d-router#2909).
        free_tokens: Not held by requests that run; NaN: unknown, and then there is room.
    """
    return 0.0 if isnan(free_tokens) else max(0.0, fresh_tokens - max(0.0, free_tokens))


def displaced_tokens(fresh_tokens: float, *, free_tokens: float) -> float:
    """Tokens that get their room at once: each takes the place of a cached one, which may be asked for again.

    Together with ``short_tokens`` all fresh tokens: none is charged twice. Free and empty are not told apart: where
    nothing is cached yet, the price of a displaced token is 0.
    """
    return fresh_tokens - short_tokens(fresh_tokens, free_tokens=free_tokens)


def room_ms(
    short: float,
    *,
    free_tokens: float,
    total_tokens: float,
    remaining_tokens: float,
    requests: float,
    output_tokens: float,
    step_ms: float,
) -> float:
    """Until running requests have left room in the KV pool.

    They end evenly over the time of their mean rest, and have left all that they hold by then. A server waits for that;
    it does not drop what runs to admit a prompt.

    Args:
        short: Tokens without room.
        free_tokens: Of the pool; not NaN where ``short`` is above 0.
        total_tokens: Size of the pool; NaN: unknown, and then all that runs has to end.
        remaining_tokens: Output still expected of what runs there.
        requests: That wait or run there.
        output_tokens: This demand's own expected output; half of it is the least that is believed of the others' rest.
        step_ms: Of a decode step there.
    """
    if short <= 0:
        return 0.0
    held = total_tokens - max(0.0, free_tokens)
    share = min(1.0, short / held) if held > 0 else 1.0
    rest_tokens = max(remaining_tokens / max(requests, 1.0), output_tokens / 2, 1.0)
    return share * rest_tokens * step_ms


def compute_wait_ms(*, wait_ms: float, decode_ms: float, prefill_ms: float, congestion: float) -> float:
    """Waiting before the prefill, the answer's own decoding with its effect on the batch, and the price of congestion.

    Args:
        wait_ms: Queue, half a running decode step, and room in the KV pool.
        decode_ms: Expected output times what each of its tokens costs it and the sequences that decode there.
        prefill_ms: What the worker has to compute for it.
        congestion: λ: each millisecond of prefill taken now delays those who come next by so many.
    """
    return wait_ms + decode_ms + prefill_ms * congestion


def tier_load_ms(
    *,
    cpu_tokens: float,
    ssd_tokens: float,
    bytes_per_token: float,
    host_bytes_per_s: float,
    disk_bytes_per_s: float,
) -> float:
    """Bringing blocks from the worker's own CPU memory and SSD into HBM: bytes ÷ bandwidth, one after the other."""
    per_token = bytes_per_token * _MS_PER_S
    return cpu_tokens * per_token / host_bytes_per_s + ssd_tokens * per_token / disk_bytes_per_s


def cache_access_ms(*, load_ms: float, prefill_ms: float) -> float:
    """Reusable blocks from the worker's own tiers, and prefill of the tokens that nobody supplies."""
    return load_ms + prefill_ms


def transfer_ms(
    transfer_bytes: float, *, bytes_in_front: float, bytes_per_s: float, latency_ms: float, lead_ms: float = 0.0
) -> float:
    """Bringing blocks from another worker, from now on.

    Args:
        transfer_bytes: Of the blocks.
        bytes_in_front: On that link already.
        bytes_per_s: Of the link.
        latency_ms: From asking to the first byte.
        lead_ms: What the other worker has to do first.
    """
    return lead_ms + latency_ms + (bytes_in_front + transfer_bytes) * _MS_PER_S / bytes_per_s


def exposed_ms(transfer: float, *, wait_ms: float) -> float:
    """The part of a transfer that waiting does not hide: it runs while the request waits for its prefill."""
    return max(0.0, transfer - wait_ms)


def memory_pressure_ms(displaced: float, *, pressure_ms_per_token: float) -> float:
    """What prompt and output displace in the pool: recompute time times chance of reuse. Counted here and nowhere else.

    Args:
        displaced: Tokens.
        pressure_ms_per_token: That product, for one token.
    """
    return displaced * pressure_ms_per_token


def locality_gain_ms(
    *, new_tokens: float, resident_tokens: float, reuse_ratio: float, horizon_requests: float, profile: HardwareProfile
) -> float:
    """Prefill that later requests of this prefix or session are expected to be spared by the copy that this one leaves.

    Only tokens that no Resident copy holds yet count: 0 where all are held, here or elsewhere. What the present request
    finds is in ``cache_access`` and not counted again.

    Args:
        new_tokens: That can be reused (whole blocks) and nobody holds; 0 or more.
        resident_tokens: Before them, that somebody holds.
        reuse_ratio: Chance that they are asked for again, 0..1.
        horizon_requests: By how many.
        profile: At whose rate the prefill is saved.
    """
    if new_tokens <= 0:
        return 0.0
    saved_ms = profile.prefill_ms(new_tokens, cached_tokens=resident_tokens) - profile.prefill_base_ms
    return reuse_ratio * horizon_requests * saved_ms


def cost_terms(
    *,
    wait_ms: float,
    decode_ms: float,
    prefill_ms: float,
    warming_ms: float,
    congestion: float,
    load_ms: float,
    migration_ms: float,
    network_ms: float,
    pressure_ms: float,
    risk_ms: float,
    gain_ms: float,
) -> CostTerms:
    """All terms of one option. Their total is what is minimised.

    ``warming_ms`` is the part of ``migration_ms`` that keeps the worker's own prefill: it has the price of congestion.
    """
    return CostTerms(
        compute_wait=compute_wait_ms(
            wait_ms=wait_ms, decode_ms=decode_ms, prefill_ms=prefill_ms + warming_ms, congestion=congestion
        ),
        cache_access=cache_access_ms(load_ms=load_ms, prefill_ms=prefill_ms),
        migration=migration_ms,
        memory_pressure=pressure_ms,
        network=network_ms,
        risk=risk_ms,
        locality_gain=gain_ms,
    )


def decode_parts_ms(
    decode_ms_per_token: float, *, batch: float, output_tokens: float, profile: HardwareProfile
) -> tuple[float, float]:
    """An answer's own decoding, and what it does to the sequences that decode there, which is the rest.

    Args:
        decode_ms_per_token: Both together, as the column has it.
        batch: Sequences that decode there.
        output_tokens: Expected.
        profile: Of the worker.
    """
    own = min(decode_ms_per_token, profile.decode_step_ms(batch + 1))
    return own * output_tokens, (decode_ms_per_token - own) * output_tokens
