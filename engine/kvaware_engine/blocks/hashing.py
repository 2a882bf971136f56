"""Hashes of prompts: chained XXH3-64, so that one hash stands for everything up to its block.

A block's hash is taken over its parent's hash (8 bytes, big-endian: XXH3's canonical form) and its token ids (u32,
little-endian). What else makes two blocks differ is told apart by its kind: adapter and salt are tagged fields of the
root, extra keys are tagged by type and hashed under another seed, text and callers' own hashes under seeds of theirs.
So nothing named like something else can share its blocks (vllm-project/vllm#44701).
"""

from array import array
from collections.abc import Sequence
from struct import Struct, iter_unpack, pack, unpack
from sys import byteorder
from typing import Any, Final

from xxhash import xxh3_64, xxh3_64_digest, xxh3_64_intdigest

from kvaware_engine.observations import ObjectKey

__all__ = [
    "HASH_BYTES",
    "OpaqueChain",
    "chain",
    "chain_bytes",
    "hashes_of",
    "opaque_hashes",
    "opaque_root",
    "packed",
    "root_hash",
    "text_hashes",
]

HASH_BYTES: Final = 8
"""Size of one hash where many are kept."""

ROOT_SEED: Final = 1
EXTRA_KEYS_SEED: Final = 2
TEXT_SEED: Final = 3
OPAQUE_SEED: Final = 4

TOKEN_BYTES: Final = 4
HASH: Final = Struct(">Q")
LENGTH: Final = Struct("<Q")


def root_hash(*, model: ObjectKey, revision: str, adapter: str | None, salt: str | None) -> int:
    """Give the parent of every prompt's first block.

    Args:
        model: Its InferenceModel.
        revision: Of its weights.
        adapter: LoRA adapter's name; None: none. An empty name is a name.
        salt: The ``cache_salt`` that the model server is given; None: none.
    """
    return xxh3_64_intdigest(b"tokens" + encoded((*model, revision, adapter, salt)), ROOT_SEED)


def opaque_root(model: ObjectKey) -> int:
    """Give the parent of hashes of the callers' own: one namespace per model."""
    return xxh3_64_intdigest(b"opaque" + encoded(tuple(model)), ROOT_SEED)


def chain(
    parent: int, token_ids: Sequence[int], *, block_tokens: int, extra_keys: Sequence[Sequence[Any] | None] = ()
) -> list[int]:
    """Hash a prompt's whole blocks; what is left over at the end is no block.

    Args:
        parent: Hash of the block before, or the root.
        token_ids: Each 0..2^32 - 1.
        block_tokens: Tokens per block.
        extra_keys: Per block what else its KV depends on (hashes of images, say); blocks beyond its end have none.
    Returns: One hash per whole block, first block first.
    Raises: ValueError for a token id that is none, or an extra key of an unknown type.
    """
    return hashes_of(chain_bytes(parent, token_ids, block_tokens=block_tokens, extra_keys=extra_keys))


def chain_bytes(
    parent: int, token_ids: Sequence[int], *, block_tokens: int, extra_keys: Sequence[Sequence[Any] | None] = ()
) -> bytes:
    """Do what ``chain`` does, and give the hashes as they are kept: 8 bytes each, big-endian."""
    if block_tokens < 1:
        raise ValueError(f"block_tokens: expected 1 or more, got {block_tokens}")
    data, step, digest = token_bytes(token_ids), block_tokens * TOKEN_BYTES, HASH.pack(parent)
    if len(data) % step:
        data = data[: len(data) // step * step]
    blocks = iter_unpack(f"{step}s", data)
    if not extra_keys or not any(extra_keys):  # 0.2 us a block: the digest is the next one's parent as it is
        return b"".join([digest := xxh3_64_digest(digest + block) for (block,) in blocks])
    digests = []
    for number, (block,) in enumerate(blocks):
        keys = extra_keys[number] if number < len(extra_keys) else None
        if keys:
            digest = xxh3_64_digest(digest + block + encoded(tuple(keys)), EXTRA_KEYS_SEED)
        else:
            digest = xxh3_64_digest(digest + block)
        digests.append(digest)
    return b"".join(digests)


def text_hashes(root: int, text: str, *, chunk_characters: int) -> list[int]:
    """Hash text where there are no token ids: its whole chunks, chained like blocks.

    Two prompts that share their first characters share their first hashes, whatever a tokenizer makes of them.
    Returns: One hash per whole chunk of ``chunk_characters``, first chunk first.
    """
    if chunk_characters < 1:
        raise ValueError(f"chunk_characters: expected 1 or more, got {chunk_characters}")
    digest, digests = HASH.pack(root), []
    for end in range(chunk_characters, len(text) + 1, chunk_characters):
        # surrogatepass: half of a pair cut in two by somebody is still text, and must not be an error
        chunk = text[end - chunk_characters : end].encode("utf-8", "surrogatepass")
        digest = xxh3_64_digest(digest + chunk, TEXT_SEED)
        digests.append(digest)
    return hashes_of(b"".join(digests))


class OpaqueChain:
    """Chains hashes of the caller's own, one per block: they may be of each block alone, or like another's."""

    __slots__ = ("_upto",)

    def __init__(self, root: int) -> None:
        """Begin with nothing; ``root`` as ``opaque_root`` gives it."""
        self._upto = xxh3_64(HASH.pack(root), OPAQUE_SEED)

    def extend(self, hashes: Sequence[int]) -> list[int]:
        """Go on with the next blocks. Returns: One hash each, of all the prompt up to it.

        Raises: ValueError for a hash that is not in 0..2^64 - 1; nothing has changed then.
        """
        upto, chained = self._upto, []
        for (each,) in iter_unpack(f"{HASH_BYTES}s", packed(hashes)):
            upto.update(each)
            chained.append(upto.intdigest())  # a third less than to hash each with its parent's hash
        return chained


def opaque_hashes(root: int, hashes: Sequence[int]) -> list[int]:
    """Chain a whole prompt's at once. Raises: ValueError for a hash that is none."""
    return OpaqueChain(root).extend(hashes)


def packed(hashes: Sequence[int]) -> bytes:
    """Write hashes as they are kept: 8 bytes each, big-endian.

    Raises: ValueError for what is no 64-bit hash.
    """
    try:
        return pack(f">{len(hashes)}Q", *hashes)
    except Exception as e:
        raise ValueError("block hashes: expected integers from 0 to 2^64 - 1") from e


def hashes_of(data: bytes | bytearray) -> list[int]:
    """Read what ``packed`` wrote."""
    return list(unpack(f">{len(data) // HASH_BYTES}Q", data))


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Write token ids as u32, little-endian."""
    try:
        ids = array("I", token_ids)
    except (OverflowError, TypeError) as e:
        raise ValueError("token ids: expected integers from 0 to 2^32 - 1") from e
    if byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def encoded(value: Any) -> bytes:
    """Write a key so that no two different ones are equal: each with its type and length."""
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return counted(b"i", str(value).encode())
        case float():
            return counted(b"d", repr(value).encode())
        case str():
            return counted(b"s", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray():
            return counted(b"b", bytes(value))
        case tuple() | list():
            return b"l" + LENGTH.pack(len(value)) + b"".join(map(encoded, value))
        case _:
            raise ValueError(f"extra key: expected text, bytes, a number or a list of them, got {type(value).__name__}")


def counted(tag: bytes, data: bytes) -> bytes:
    """Write one value after its type and length."""
    return tag + LENGTH.pack(len(data)) + data
