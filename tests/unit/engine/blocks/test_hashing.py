"""Hashes of prompts: what they are taken over, and that nothing named like something else has the same."""

from itertools import combinations
from struct import pack

import pytest
from xxhash import xxh3_64_digest

from kvaware_engine import ObjectKey
from kvaware_engine.blocks.hashing import (
    chain,
    chain_bytes,
    hashes_of,
    opaque_hashes,
    opaque_root,
    packed,
    root_hash,
    text_hashes,
)

MODEL = ObjectKey("ml", "llama")
TOKENS = list(range(1000, 1050))


def root(*, model: ObjectKey = MODEL, revision: str = "", adapter: str | None = None, salt: str | None = None) -> int:
    return root_hash(model=model, revision=revision, adapter=adapter, salt=salt)


def test_a_block_is_hashed_with_its_parent_and_its_tokens_as_documented():
    first = xxh3_64_digest(pack(">Q", 7) + pack("<16I", *TOKENS[:16]))
    second = xxh3_64_digest(first + pack("<16I", *TOKENS[16:32]))
    assert chain(7, TOKENS[:40], block_tokens=16) == [int.from_bytes(one, "big") for one in (first, second)]


def test_hashes_do_not_change_from_release_to_release():
    """Replicas of two versions share nothing else, but a caller may keep them."""
    assert chain(7, [1, 2, 3, 4], block_tokens=2) == [1623990224926769784, 7245432442827319856]


def test_what_is_no_whole_block_has_no_hash():
    assert chain(7, TOKENS[:15], block_tokens=16) == []
    assert len(chain(7, TOKENS[:47], block_tokens=16)) == 2
    assert chain(7, [], block_tokens=16) == []


def test_a_hash_stands_for_everything_before_it():
    long, other = chain(7, TOKENS, block_tokens=5), chain(7, [0, *TOKENS[1:]], block_tokens=5)
    assert not set(long) & set(other)
    assert chain(7, TOKENS[:25], block_tokens=5) == long[:5]
    assert chain(long[4], TOKENS[25:], block_tokens=5) == long[5:]


def test_no_two_roots_are_equal_however_their_parts_are_named():
    """vllm-project/vllm#44701: an adapter called like a salt shared its blocks."""
    roots = [
        root(),
        root(adapter="x"),
        root(salt="x"),
        root(revision="x"),
        root(adapter="x", salt="x"),
        root(adapter=""),
        root(salt=""),
        root(adapter="xx"),
        root(adapter="x", salt=""),
        root(model=ObjectKey("ml", "llamax")),
        root(model=ObjectKey("m", "lllama")),
        opaque_root(MODEL),
    ]
    assert all(one != other for one, other in combinations(roots, 2))


def test_extra_keys_are_told_apart_by_block_type_and_order():
    keys = [
        (),
        [["x"]],
        [None, ["x"]],
        [[b"x"]],
        [["x", "y"]],
        [["y", "x"]],
        [["xy"]],
        [[("x", "y")]],
        [[1]],
        [["1"]],
        [[True]],
        [[1.0]],
        [[None]],
    ]
    seen = [tuple(chain(7, TOKENS[:32], block_tokens=16, extra_keys=of)) for of in keys]
    assert all(one != other for one, other in combinations(seen, 2))
    assert chain(7, TOKENS[:32], block_tokens=16, extra_keys=[[], None]) == list(seen[0])
    assert seen[2][0] == seen[0][0], "the second block's key does not reach back"


def test_text_shares_its_first_chunks_and_nothing_with_tokens():
    start = root()
    one, other = (text_hashes(start, "hello world" + end, chunk_characters=4) for end in ("!!", "??"))
    assert len(one) == 3
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    words = chain(start, [int.from_bytes(b"hell", "little")], block_tokens=1)
    assert words != text_hashes(start, "hell", chunk_characters=4)
    assert len(text_hashes(start, "half a pair \ud83d", chunk_characters=13)) == 1, "odd text is text"


def test_callers_own_hashes_are_chained_within_their_model():
    same = opaque_hashes(opaque_root(MODEL), [5, 5, 6])
    assert len(set(same)) == 3, "they may be of each block alone"
    assert same[:2] == opaque_hashes(opaque_root(MODEL), [5, 5, 7])[:2]
    assert not set(same) & set(opaque_hashes(opaque_root(ObjectKey("ml", "other")), [5, 5, 6]))


def test_hashes_are_kept_as_they_are_read():
    hashes = [0, 1, 2**64 - 1]
    assert hashes_of(packed(hashes)) == hashes
    assert hashes_of(chain_bytes(7, TOKENS, block_tokens=5)) == chain(7, TOKENS, block_tokens=5)


@pytest.mark.parametrize("token", [-1, 2**32, 1.5, "1", None])
def test_what_is_no_token_is_refused(token):
    with pytest.raises(ValueError, match="token ids: expected integers from 0 to 2"):
        chain(7, [1, token], block_tokens=2)


@pytest.mark.parametrize("number", [-1, 2**64, 1.5, "1", None])
def test_what_is_no_hash_is_refused(number):
    with pytest.raises(ValueError, match="block hashes: expected integers from 0 to 2"):
        opaque_hashes(7, [1, number])


def test_other_arguments_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="block_tokens: expected 1 or more, got 0"):
        chain(7, [1], block_tokens=0)
    with pytest.raises(ValueError, match="chunk_characters: expected 1 or more, got 0"):
        text_hashes(7, "x", chunk_characters=0)
    with pytest.raises(ValueError, match="extra key: expected text, bytes, a number or a list of them, got dict"):
        chain(7, [1], block_tokens=1, extra_keys=[[{}]])
