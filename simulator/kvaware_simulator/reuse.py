"""How much of a trace's prompts came before: what caches could save at best."""

from collections.abc import Iterable

from kvaware_simulator.traces import TraceRequest

__all__ = ["seen_before_ratio"]


def seen_before_ratio(requests: Iterable[TraceRequest], *, block_tokens: int) -> float:
    """The hit rate of one worker with a cache without end: no policy can do better.

    Args:
        requests: In their order; not empty.
        block_tokens: Tokens per block hash.
    Returns: Of all prompt tokens those of blocks that stood at the beginning of an earlier prompt, 0..1.
    """
    seen: set[int] = set()
    found_tokens = all_tokens = 0
    for request in requests:
        hashes = request.block_hashes
        found = next((number for number, each in enumerate(hashes) if each not in seen), len(hashes))
        found_tokens += min(found * block_tokens, request.input_tokens - 1)  # the last token is always computed
        all_tokens += request.input_tokens
        seen.update(hashes)
    return found_tokens / all_tokens
