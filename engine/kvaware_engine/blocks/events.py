"""What a worker tells of its KV blocks, in words of ours: made by who reads its event stream, applied by residency.

An *engine hash* is the worker's own name of a block: 64 bits, unsigned (``engine_hash``). It is never computed here and
means nothing outside its worker and cache group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvaware_engine.observations import Tier

__all__ = ["DENSE_KINDS", "BlockEvent", "BlocksCleared", "BlocksRemoved", "BlocksStored", "engine_hash"]

DENSE_KINDS: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache groups whose blocks stand for a prompt from its beginning. Groups of a sliding window leave blocks
out: read as a prefix they are false hits (llm-d/llm-d-router#2362)."""

ENGINE_HASH_MASK: Final = 2**64 - 1


def engine_hash(value: int | bytes) -> int:
    """Give an engine hash as it came the one form that is compared: its low 64 bits, unsigned.

    Servers send integers, signed or not, or the whole hash as bytes, big-endian (32 of them by vLLM 0.32).
    """
    return (int.from_bytes(value, "big") if isinstance(value, bytes) else value) & ENGINE_HASH_MASK


@dataclass(slots=True, kw_only=True)
class BlocksStored:
    """A run of consecutive blocks is resident now. Plain: one is made per event, 20,000 a second. Never changed."""

    engine_hashes: Sequence[int]
    """First block first."""
    parent: int | None = None
    """Engine hash of the block before the first; None: the prompt begins with it."""
    token_ids: Sequence[int] = ()
    """``block_tokens`` per block. Empty: blocks that were stored before, told by their hashes alone, as offload tiers
    tell them."""
    block_tokens: int = 0
    adapter: str | None = None
    """The event's ``lora_name``."""
    extra_keys: Sequence[Sequence[Any] | None] = ()
    """As they came, per block: the adapter's name and the salt are untagged among them. Empty: none."""
    tier: Tier = Tier.HBM
    group_index: int | None = None
    """Which of the model's cache groups; None: the server does not say, there is one."""
    kind: str | None = None
    """The cache group's ``kv_cache_spec_kind``; None: the server does not say, it is dense."""


@dataclass(slots=True, kw_only=True)
class BlocksRemoved:
    """Blocks are no longer resident in a tier: each by itself, in any order."""

    engine_hashes: Sequence[int]
    tier: Tier = Tier.HBM
    group_index: int | None = None


@dataclass(slots=True, kw_only=True)
class BlocksCleared:
    """Nothing is resident any more, in any tier."""


BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared
