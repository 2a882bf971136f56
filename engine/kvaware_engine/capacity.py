"""How many replicas a traffic needs at its objectives, by the hardware profile.

A replica shares its time between prefill and decode. Prefill may take so much of it that a prompt's wait stays within
the TTFT objective; the rest is decode steps, whose batch may be so large that a step, stretched by the prefills in
between, stays within the TPOT objective.
"""

from dataclasses import dataclass
from math import exp
from typing import Final

from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.reports import RoleLoad
from kvaware_engine.settings import ScalingSettings

__all__ = ["DECODE", "PREFILL", "Traffic", "prefill_share", "replicas_needed", "traffic_of"]

PREFILL: Final = "prefill"
DECODE: Final = "decode"
_MISSED: Final = 0.01
"""Share of requests that may miss an objective: it is one at the 99th percentile."""
_MS_PER_S: Final = 1000.0
_LEAST: Final = 1e-9
"""Replicas: less is nothing, and nothing cannot be divided by."""
MOST_NEEDED: Final = 1e9
"""Replicas: more is no number to act on. Workers' figures are their own word, and an infinite one must end the search
for a number, not keep it going for ever."""
_LONGEST_PROMPT: Final = 1e8
"""Tokens: the longest context that a spec can name."""
_HALVINGS: Final = 10
"""Of an interval that is at most twice its lower end: the answer is exact to 0.1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a role has to do, on all its replicas together."""

    prompt_tokens: float
    """Of a mean request, cached ones included."""
    prompt_ms: float
    """Prefill of one mean prompt, less what the cache supplies."""
    prefill_ms_per_s: float
    """Prefill work that comes each second: 1,000 fill one replica."""
    decode_tokens_per_s: float
    tokens_per_s: float
    """Prompt and answer tokens, cached ones included, for people to read."""


def traffic_of(load: RoleLoad, profile: HardwareProfile, settings: ScalingSettings) -> Traffic | None:
    """The traffic behind a load's rates, for as many workers as there are.

    Of a role named ``prefill`` only prompts count, of one named ``decode`` only answers. An unknown hit ratio counts
    as no hits: the work is then at most what is computed.

    Returns: None where a rate that counts is unknown.
    """
    everyone = load.workers / load.reporting if load.reporting else 1.0
    prompts, answers = load.prompt_tokens_per_s, load.generation_tokens_per_s
    prompt, prompt_ms, prefill_ms_per_s, decode_tokens_per_s, tokens_per_s = 0.0, 0.0, 0.0, 0.0, 0.0
    if load.role != DECODE:
        if prompts is None:
            return None
        requests = load.requests_per_s
        prompt = min(prompts / requests, _LONGEST_PROMPT) if requests and prompts else settings.prompt_tokens_unknown
        hit = load.prefix_hit_ratio or 0.0
        prompt_ms = profile.prefill_ms(prompt * (1 - hit), cached_tokens=prompt * hit)
        prefill_ms_per_s = prompt_ms * prompts / prompt * everyone
        tokens_per_s += prompts * everyone
    if load.role != PREFILL:
        if answers is None:
            return None
        decode_tokens_per_s = answers * everyone
        tokens_per_s += decode_tokens_per_s
    return Traffic(
        prompt_tokens=prompt,
        prompt_ms=prompt_ms,
        prefill_ms_per_s=prefill_ms_per_s,
        decode_tokens_per_s=decode_tokens_per_s,
        tokens_per_s=tokens_per_s,
    )


def prefill_share(prompt_ms: float, ttft_ms: float | None, settings: ScalingSettings) -> float:
    """Share of a replica's time that prefill may take, so that 99 % of prompts wait short enough.

    The wait's tail is that of one server with Poisson arrivals and exponential work: P(wait > t) = r·exp(-(1-r)·t/s).
    Prompt lengths vary about as much, and the exact figure is corrected by what is observed.

    Args:
        prompt_ms: Prefill of a mean prompt, s.
        ttft_ms: Objective; None: only ``utilization_max_ratio`` holds.
        settings: The bounds of the answer.
    Returns: r.
    """
    low, high = settings.utilization_min_ratio, settings.utilization_max_ratio
    if ttft_ms is None or prompt_ms <= 0:
        return high
    patience = (ttft_ms - prompt_ms) / prompt_ms
    if patience <= 0:
        return low

    def missed(share: float) -> float:
        return share * exp(-(1 - share) * patience)

    if missed(high) <= _MISSED:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) <= _MISSED else (low, middle)
    return low


def replicas_needed(
    traffic: Traffic,
    profile: HardwareProfile,
    *,
    ttft_ms: float | None,
    tpot_ms: float | None,
    settings: ScalingSettings,
) -> float:
    """Replicas that the traffic fills at its objectives, as a real number; twice the traffic needs twice as many.

    At most ``MOST_NEEDED``, whatever workers tell.
    """
    prefill = traffic.prefill_ms_per_s / _MS_PER_S
    least = prefill / prefill_share(traffic.prompt_ms, ttft_ms, settings)
    if not least < MOST_NEEDED:  # nor is no number
        return MOST_NEEDED
    if traffic.decode_tokens_per_s <= 0:
        return least

    def decodes(replicas: float) -> bool:
        """Whether so many replicas decode all tokens within the objective, beside their share of the prefills."""
        rest = 1 - prefill / replicas
        step_ms = None if tpot_ms is None else tpot_ms * rest
        batch = profile.largest_batch(step_ms, at_most=settings.batch_max)
        tokens_per_s = batch / profile.decode_step_ms(batch) * _MS_PER_S * rest * settings.utilization_max_ratio
        return replicas * tokens_per_s >= traffic.decode_tokens_per_s

    low = max(_LEAST, least, traffic.decode_tokens_per_s / _most_tokens_per_s(profile, settings))
    high = low
    while not decodes(high):
        if not high < MOST_NEEDED:
            return MOST_NEEDED
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if decodes(middle) else (middle, high)
    return high


def _most_tokens_per_s(profile: HardwareProfile, settings: ScalingSettings) -> float:
    """Faster than any batch decodes: a bound to begin with."""
    return settings.batch_max / profile.decode_step_ms(1) * _MS_PER_S
