"""The sample trace as every side is asked it: prompts as hashes of their whole blocks of 512 tokens."""

from dataclasses import replace
from pathlib import Path

from kvaware_simulator import BLOCK_TOKENS, TraceRequest, read_mooncake
from kvaware_testing.repository import REPOSITORY

__all__ = ["BLOCK_TOKENS", "TRACE", "trace_bodies"]

TRACE = REPOSITORY / "examples" / "traces" / "conversation.jsonl"


def trace_bodies(trace: Path = TRACE) -> list[TraceRequest]:
    """All requests of the trace with a whole block, in order."""
    return [
        replace(each, block_hashes=tuple(map(_spread, each.block_hashes)))
        for each in read_mooncake(trace)
        if each.block_hashes
    ]


def _spread(hash_id: int) -> int:
    """A hash as large as real ones, for one of the trace's small numbers (Fibonacci hashing)."""
    return (hash_id + 1) * 0x9E3779B97F4A7C15 % (1 << 63)
