"""Mooncake's published traces: a JSON object per line with ``timestamp, input_length, output_length, hash_ids``.

A hash id stands for a block of 512 tokens and all blocks before it; the last one may stand for a part of a block.
Timestamps are milliseconds, and all requests of some 3 s carry the same one.
Source: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST '25.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from kvaware_simulator.errors import TraceError
from kvaware_simulator.traces import TraceRequest

__all__ = ["BLOCK_TOKENS", "parse_mooncake", "read_mooncake"]

BLOCK_TOKENS: Final = 512
REQUESTS_MAX: Final = 200_000
"""Beyond is another kind of file; the published traces have some 12,000 to 24,000 lines."""
TOKENS_MAX: Final = 2**24
_COUNTS: Final = ("timestamp", "input_length", "output_length")


def read_mooncake(path: Path) -> tuple[TraceRequest, ...]:
    """Read a trace file.

    Raises: TraceError naming the line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            return tuple(parse_mooncake(lines, name=str(path)))
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror or e if isinstance(e, OSError) else "it is no UTF-8 text"
        raise TraceError(f"{path}: expected a trace, one JSON object a line, cannot read it: {reason}") from e


def parse_mooncake(lines: Iterable[str], *, name: str = "trace") -> Iterator[TraceRequest]:
    """Read lines; empty ones are left out.

    Args:
        lines: In the order of their timestamps.
        name: Of the file, for messages.
    Raises: TraceError when a line is no request, goes back in time, or when hash ids are not chained: then they would
        stand for single blocks, and the same one in two prompts would not mean the same text before it.
    """
    before: dict[int, int | None] = {}
    last_ms, requests = 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        requests += 1
        if requests > REQUESTS_MAX:
            raise TraceError(f"{place}: expected at most {REQUESTS_MAX} requests")
        timestamp_ms, input_tokens, output_tokens, hashes = _fields(line, place)
        if timestamp_ms < last_ms:
            raise TraceError(
                f"{place}: timestamp: expected {last_ms} or more, as on the line before, got {timestamp_ms}"
            )
        last_ms = timestamp_ms
        parent: int | None = None
        for each in hashes:
            if before.setdefault(each, parent) != parent:
                raise TraceError(
                    f"{place}: hash_ids: expected {each} after {before[each]} as before, got it after {parent}"
                )
            parent = each
        yield TraceRequest(
            at_s=timestamp_ms / 1000,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            block_hashes=tuple(hashes[: input_tokens // BLOCK_TOKENS]),
        )
    if not requests:
        raise TraceError(f"{name}: expected requests, one JSON object a line, found none")


def _fields(line: str, place: str) -> tuple[int, int, int, list[int]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise TraceError(f"{place}: expected a JSON object, got {line[:40].strip()!r}") from e
    if type(record) is not dict:
        raise TraceError(f"{place}: expected a JSON object, got {type(record).__name__}")
    timestamp_ms, input_tokens, output_tokens = (_count(record.get(key), f"{place}: {key}") for key in _COUNTS)
    if min(input_tokens, output_tokens) < 1 or max(input_tokens, output_tokens) > TOKENS_MAX:
        raise TraceError(
            f"{place}: input_length, output_length: expected 1 to {TOKENS_MAX}, got {input_tokens}, {output_tokens}"
        )
    hashes = record.get("hash_ids")
    if type(hashes) is not list:
        raise TraceError(f"{place}: hash_ids: expected a list of numbers, got {type(hashes).__name__}")
    for each in hashes:
        _count(each, f"{place}: hash_ids")
    if len(hashes) < input_tokens // BLOCK_TOKENS:
        raise TraceError(
            f"{place}: hash_ids: expected {input_tokens // BLOCK_TOKENS} or more, as {input_tokens} tokens have whole "
            f"blocks of {BLOCK_TOKENS}, got {len(hashes)}"
        )
    return timestamp_ms, input_tokens, output_tokens, hashes


def _count(value: Any, place: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TraceError(f"{place}: expected a number of 0 or more, got {str(value)[:40]!r}")
    return value
