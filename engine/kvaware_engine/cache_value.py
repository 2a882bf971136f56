"""What losing a worker would cost, in milliseconds of work that has to be done again.

Servers do not tell which finished blocks they still hold: vLLM's cache use counts running requests alone. A pool that
was filled once stays filled, since blocks are only dropped for new ones. So a worker holds what it computed since its
start, up to the size of its pool.
"""

from typing import Final

from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.worker_state import WorkerState

__all__ = ["cache_value_ms", "chance_of_reuse"]

_EVER: Final = float("-inf")
_HALF: Final = 0.5
_PROMPT_TOKENS: Final = 1024.0
"""Prompt length where it is not told."""


def chance_of_reuse(state: WorkerState, *, since_s: float) -> float | None:
    """The observed prefix hit ratio: of the window, or since the server's start where the window saw no prompt.

    Returns: 0..1; None where it is not told, or nothing was ever asked for.
    """
    queried, hit = (state.counter(name, since_s=since_s) for name in ("prefix_queried_tokens", "prefix_hit_tokens"))
    if queried is None or hit is None:
        return None
    in_window = queried.increase()
    if in_window:
        return min(1.0, (hit.increase() or 0.0) / in_window)
    return min(1.0, hit.latest / queried.latest) if queried.latest else None


def cache_value_ms(
    state: WorkerState, profile: HardwareProfile, *, since_s: float, unknown_reuse_ratio: float
) -> float | None:
    """Prefill of the tokens held times the chance that they are asked for again, and the work that runs there.

    Tokens of running requests are needed for certain, and half of their answers, on average, were already decoded.

    Returns: Milliseconds; 0 for a worker that sleeps; None where its pool or its contents are not known.
    """
    if state.lasting("asleep"):
        return 0.0
    blocks, block_size = state.lasting("kv_blocks_total"), state.lasting("block_size_tokens")
    usage = state.kv_pool(since_s=since_s)[1]
    computed = _computed_tokens(state)
    if not blocks or not block_size or (usage is None and computed is None):
        return None
    pool = float(blocks * block_size)
    in_use = pool * (usage or 0.0)
    held = max(in_use, min(pool, computed or 0.0))
    reuse = chance_of_reuse(state, since_s=since_s)
    prompt, answer = _mean_tokens(state)
    ms_per_token = profile.prefill_ms(prompt) / prompt
    again = in_use + (held - in_use) * (unknown_reuse_ratio if reuse is None else reuse)
    running = state.passing("running", since_s=since_s) or 0
    decoded_ms = _HALF * answer * profile.decode_step_ms(running) if running else 0.0
    return again * ms_per_token + decoded_ms


def _computed_tokens(state: WorkerState) -> float | None:
    """Tokens whose KV was computed there since the server's start: prompts less their hits, and answers."""
    prompt = state.counter("prompt_tokens", since_s=_EVER)
    answer = state.counter("generation_tokens", since_s=_EVER)
    hit = state.counter("prefix_hit_tokens", since_s=_EVER)
    if prompt is None:
        return None
    return max(0.0, prompt.latest - (hit.latest if hit else 0.0)) + (answer.latest if answer else 0.0)


def _mean_tokens(state: WorkerState) -> tuple[float, float]:
    """Prompt and answer of a request since the server's start."""
    finished = state.counter("finished_requests", since_s=_EVER)
    prompt = state.counter("prompt_tokens", since_s=_EVER)
    answer = state.counter("generation_tokens", since_s=_EVER)
    if finished is None or not finished.latest:
        return _PROMPT_TOKENS, 0.0
    mean_prompt = prompt.latest / finished.latest if prompt and prompt.latest else _PROMPT_TOKENS
    return max(1.0, mean_prompt), (answer.latest / finished.latest if answer else 0.0)
