"""One message of a model server's KV event stream → the engine's words.

vLLM and SGLang publish the same frames. Events are positional arrays up to vLLM 0.23 and maps with a ``type`` since;
the batch around them may be either too, and each is told apart by its first byte. Reading costs 2 us for an event of
one block of 16 tokens and 4 us for one of 6 blocks of 32; events are read one by one, so that whoever applies them can
stop in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from kvaware_crds.errors import WireError
from kvaware_engine.blocks.events import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored, engine_hash
from kvaware_engine.observations import Tier

__all__ = ["END", "KvBatch", "PassedOver", "Unread", "parse_kv_events"]

MAX_EVENTS: Final = 2**16
"""Of one batch; 45 were seen of a busy vLLM."""
MAX_BLOCKS: Final = 2**16
"""Of one event: a prompt of a million tokens in blocks of 16."""
MAX_TOKENS: Final = 2**21
"""Of one event."""
MAX_TEXT: Final = 1024
"""Characters of an adapter's name, a salt, or another key: some of them are remembered."""
MAX_KEYS_BYTES: Final = 2**19
"""Of one event's extra keys as sent: what is in them has no type, and a list of nothing takes 60 times its byte."""
RUN_BLOCKS: Final = 64
"""Blocks of one word: longer events become several, so that none takes long to apply."""
SEQUENCE_BYTES: Final = 8
END: Final = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""The sequence that ends a replay."""
LEAST_FRAMES: Final = 3
MOST_FRAMES: Final = 4
"""What a DEALER sees of a reply begins with an empty one."""

Hash = int | Annotated[bytes, msgspec.Meta(max_length=64)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_TIERS: Final = {
    "GPU": Tier.HBM,
    "CPU": Tier.CPU,  # vLLM's offloading
    "CPU_TIER1": Tier.CPU,  # SGLang's
    "CPU_PINNED": Tier.CPU,
    "CPU_TIER2": Tier.SSD,
    "DISK": Tier.SSD,
    "STORAGE": Tier.SSD,
}
"""What servers call their tiers. What is elsewhere (``EXTERNAL``, a shared store) is not held by the worker."""


class PassedOver(StrEnum):
    """Why an event is not applied."""

    UNKNOWN_TYPE = "unknown_type"
    """Of a later version: nothing that is known depends on it."""
    ELSEWHERE = "elsewhere"
    """About blocks that the worker does not hold itself."""
    ADAPTER = "adapter"
    """Blocks of an adapter whose name is not told: they would be taken for the base model's."""
    STORE = "store"
    """A store that cannot be read: less is known than could be."""
    UNREADABLE = "unreadable"
    """It may have said that blocks are gone: nothing that is known can be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An event that is not applied."""

    why: PassedOver
    problem: str


class _Fields(msgspec.Struct, gc=False):
    """Of ``BlockStored``, in the order of the positional form; trailing ones may be missing."""

    block_hashes: Annotated[list[Hash], msgspec.Meta(max_length=MAX_BLOCKS)]
    parent_block_hash: Hash | None = None
    token_ids: Annotated[list[int], msgspec.Meta(max_length=MAX_TOKENS)] | None = None
    block_size: int | None = None
    lora_id: int | None = None
    medium: Text | None = None
    lora_name: Text | None = None
    extra_keys: msgspec.Raw = msgspec.Raw(b"")
    group_idx: int | None = None
    kv_cache_spec_kind: Text | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Text | None = None


class _RemovedFields(msgspec.Struct, gc=False):
    block_hashes: Annotated[list[Hash], msgspec.Meta(max_length=MAX_BLOCKS)]
    medium: Text | None = None
    group_idx: int | None = None
    locality: Text | None = None


class _Stored(_Fields, tag="BlockStored", tag_field="type", gc=False): ...


class _Removed(_RemovedFields, tag="BlockRemoved", tag_field="type", gc=False): ...


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type", gc=False): ...


class _StoredRow(_Fields, tag="BlockStored", array_like=True, gc=False): ...


class _RemovedRow(_RemovedFields, tag="BlockRemoved", array_like=True, gc=False): ...


class _ClearedRow(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False): ...


class _Typed(msgspec.Struct):
    type: str


class _TypedRow(msgspec.Struct, array_like=True):
    type: str


class _Batch(msgspec.Struct, gc=False):
    ts: float
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_EVENTS)]


class _BatchRow(_Batch, array_like=True, gc=False): ...


_read_batch: Final = msgspec.msgpack.Decoder(_Batch).decode
_read_batch_row: Final = msgspec.msgpack.Decoder(_BatchRow).decode
_read_event: Final = msgspec.msgpack.Decoder(_Stored | _Removed | _Cleared).decode
_read_event_row: Final = msgspec.msgpack.Decoder(_StoredRow | _RemovedRow | _ClearedRow).decode
_read_keys: Final = msgspec.msgpack.Decoder(list[list[Any] | None] | None).decode
_read_type: Final = msgspec.msgpack.Decoder(_Typed).decode
_read_type_row: Final = msgspec.msgpack.Decoder(_TypedRow).decode
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What msgspec raises; of text that is no UTF-8, and of lists nested without end, not its own errors."""
_KNOWN: Final = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


@dataclass(frozen=True, slots=True)
class KvBatch:
    """What a server published at once: one step of its engine."""

    sequence: int
    at_s: float
    """Of the server's clock."""
    raw_events: Sequence[msgspec.Raw]

    def events(self) -> Iterator[BlockEvent | Unread]:
        """Read the events one by one, in their order; each may become several words, of at most 64 blocks."""
        for raw in self.raw_events:
            try:
                event = _read_event_row(raw) if _is_array(memoryview(raw)) else _read_event(raw)
                word = _word(event)
            except _UNREADABLE as error:
                yield _unread(raw, error)
                continue
            if isinstance(word, BlocksStored | BlocksRemoved) and len(word.engine_hashes) > RUN_BLOCKS:
                yield from _runs(word)
            else:
                yield word


def parse_kv_events(frames: Sequence[bytes]) -> KvBatch:
    """Read the frames of one message: of the live stream, or of a replay as a DEALER sees it.

    Both end with sequence and payload; what stands before (a topic, an empty delimiter) does not matter.
    Raises: WireError for what is none, and for the end of a replay.
    """
    if not LEAST_FRAMES <= len(frames) <= MOST_FRAMES:
        raise WireError(f"KV events: expected 3 frames, or 4 in a replay, got {len(frames)}")
    number, payload = frames[-2], frames[-1]
    if len(number) != SEQUENCE_BYTES:
        raise WireError(f"KV events: expected a sequence of {SEQUENCE_BYTES} bytes, got {len(number)}")
    if number == END:
        raise WireError("KV events: expected a batch, got the end of a replay")
    try:
        batch = _read_batch_row(payload) if _is_array(payload) else _read_batch(payload)
    except _UNREADABLE as error:
        raise WireError(f"KV events: expected a batch, got {error}") from error
    return KvBatch(int.from_bytes(number, "big"), batch.ts, batch.events)


def _is_array(data: bytes | memoryview) -> bool:
    """Whether it begins as a msgpack array (fixarray, array 16, array 32) rather than as a map."""
    first = data[0] if len(data) else 0
    return 0x90 <= first <= 0x9F or first in {0xDC, 0xDD}


def _unread(raw: msgspec.Raw, error: Exception) -> Unread:
    """Say what an event was that cannot be read, as far as it shows."""
    problem = str(error)[:MAX_TEXT]
    try:
        kind = (_read_type_row(raw) if _is_array(memoryview(raw)) else _read_type(raw)).type
    except _UNREADABLE:
        return Unread(why=PassedOver.UNREADABLE, problem=problem)
    if kind not in _KNOWN:
        return Unread(why=PassedOver.UNKNOWN_TYPE, problem=f"expected one of {', '.join(sorted(_KNOWN))}, got another")
    return Unread(why=PassedOver.STORE if kind == "BlockStored" else PassedOver.UNREADABLE, problem=problem)


def _word(event: Any) -> BlockEvent | Unread:
    if isinstance(event, _Fields):
        tier = _tier(event.medium, event.locality)
        if tier is None:
            return Unread(why=PassedOver.ELSEWHERE, problem=f"blocks in the medium {event.medium!r}")
        if event.lora_id and event.lora_name is None:
            return Unread(why=PassedOver.ADAPTER, problem=f"lora_id {event.lora_id} without lora_name")
        parent = event.parent_block_hash
        return BlocksStored(
            engine_hashes=_hashes(event.block_hashes),
            parent=None if parent is None else engine_hash(parent),
            token_ids=event.token_ids or (),
            block_tokens=event.block_size or 0,
            adapter=event.lora_name,
            extra_keys=_keys(event.extra_keys),
            tier=tier,
            group_index=event.group_idx,
            kind=event.kv_cache_spec_kind,
        )
    if isinstance(event, _RemovedFields):
        tier = _tier(event.medium, event.locality)
        if tier is None:
            return Unread(why=PassedOver.ELSEWHERE, problem=f"blocks in the medium {event.medium!r}")
        return BlocksRemoved(engine_hashes=_hashes(event.block_hashes), tier=tier, group_index=event.group_idx)
    return BlocksCleared()


def _runs(word: BlocksStored | BlocksRemoved) -> Iterator[BlockEvent]:
    """Say the same in words of at most 64 blocks."""
    hashes = word.engine_hashes
    starts = range(0, len(hashes), RUN_BLOCKS)
    if isinstance(word, BlocksRemoved):
        yield from (replace(word, engine_hashes=hashes[start : start + RUN_BLOCKS]) for start in starts)
        return
    tokens, size = word.token_ids, word.block_tokens
    if tokens and len(tokens) != len(hashes) * size:
        yield word  # a sliding window's group leaves blocks out, and is skipped as a whole
        return
    for start in starts:
        end = start + RUN_BLOCKS
        yield replace(
            word,
            engine_hashes=hashes[start:end],
            parent=word.parent if start == 0 else hashes[start - 1],
            token_ids=tokens[start * size : end * size],
            extra_keys=word.extra_keys[start:end],
        )


def _keys(raw: msgspec.Raw) -> Sequence[Sequence[Any] | None]:
    """Per block what its hash depends on beside the tokens. Raises: ValidationError for what is too long."""
    size = len(memoryview(raw))
    if size > MAX_KEYS_BYTES:
        raise msgspec.ValidationError(f"extra_keys: expected at most {MAX_KEYS_BYTES} bytes, got {size}")
    keys = _read_keys(raw) if size else None
    if not keys or not any(keys):
        return ()
    for of_block in keys:
        for key in of_block or ():
            if isinstance(key, str | bytes) and len(key) > MAX_TEXT:
                raise msgspec.ValidationError(f"extra_keys: expected texts of at most {MAX_TEXT}, got {len(key)}")
    return keys


def _hashes(found: list[int | bytes]) -> list[int]:
    try:
        if not found or min(found) >= 0:  # type: ignore[operator]  # bytes raise, which is what the try is for
            return found  # type: ignore[return-value]  # unsigned, as vLLM sends them: 0.02 us each instead of 0.1
    except TypeError:
        pass
    return [engine_hash(value) for value in found]


def _tier(medium: str | None, locality: str | None) -> Tier | None:
    """Where blocks are; None: not with this worker, or nowhere that is known."""
    if locality is not None and locality != "LOCAL":
        return None
    return Tier.HBM if medium is None else _TIERS.get(medium.upper())
