"""Recorded requests: one word for them, and a reader per format."""

from dataclasses import dataclass

__all__ = ["TraceRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request as it was recorded."""

    at_s: float
    """Since the trace's beginning, as exactly as it tells."""
    input_tokens: int
    """1 or more."""
    output_tokens: int
    """1 or more. Only the modelled worker may know it: no policy ever sees the true length."""
    block_hashes: tuple[int, ...]
    """Of the prompt's whole blocks, first block first. Equal hashes mean equal prompts up to there."""
