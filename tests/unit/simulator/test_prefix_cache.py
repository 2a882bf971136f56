"""The modelled KV pool."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_simulator import PrefixCache


def through(cache: PrefixCache, hashes: list[int]) -> int:
    """One request from beginning to end. Returns: blocks found."""
    matched = cache.take(hashes, more_blocks=1)
    cache.computed(hashes[matched:])
    cache.leave(hashes, more_blocks=1)
    return matched


def kept(cache: PrefixCache, hashes: set[int]) -> int:
    """Blocks of these that can be found."""
    return sum(cache.matched([each]) for each in hashes)


def test_a_prefix_is_found_again() -> None:
    cache = PrefixCache(10)
    assert through(cache, [1, 2, 3]) == 0
    assert through(cache, [1, 2, 9]) == 2
    assert cache.free_blocks == 10
    assert kept(cache, {1, 2, 3, 9, 4}) == 4


def test_blocks_are_found_only_once_they_are_computed() -> None:
    cache = PrefixCache(10)
    cache.take([1, 2], more_blocks=0)
    assert cache.matched([1, 2]) == 0
    cache.computed([1, 2])
    assert cache.matched([1, 2, 3]) == 2


def test_the_least_recently_used_goes_first_and_from_its_end() -> None:
    """Room for 6: [1 2 3] is the older, so its tail goes, and its beginning can still be matched."""
    cache = PrefixCache(6)
    through(cache, [1, 2, 3])
    through(cache, [4, 5])
    cache.take([6, 7], more_blocks=0)  # 5 kept + 2 > 6
    assert cache.matched([1, 2, 3]) == 2
    assert cache.matched([4, 5]) == 2


def test_using_a_prefix_again_keeps_it() -> None:
    cache = PrefixCache(5)
    through(cache, [1, 2])
    through(cache, [3, 4])
    through(cache, [1, 2])
    cache.take([5, 6], more_blocks=0)
    assert cache.matched([1, 2]) == 2
    assert cache.matched([3, 4]) == 1


def test_blocks_in_use_are_never_given_away() -> None:
    """Of 4 blocks a running request holds 3; its own prefix, though kept, is no room for what follows it."""
    cache = PrefixCache(4)
    through(cache, [1, 2, 3])
    assert cache.has_room([1, 2, 3], more_blocks=1)
    assert not cache.has_room([1, 2, 3], more_blocks=2)
    cache.take([1, 2, 3], more_blocks=0)
    assert not cache.has_room([7, 8], more_blocks=0)
    with pytest.raises(ValueError, match="1 are free"):
        cache.take([7, 8], more_blocks=0)


def test_two_requests_share_a_block_until_the_last_leaves() -> None:
    cache = PrefixCache(4)
    cache.take([1], more_blocks=0)
    cache.computed([1])
    cache.take([1], more_blocks=0)
    cache.leave([1], more_blocks=0)
    assert cache.free_blocks == 3
    cache.leave([1], more_blocks=0)
    assert cache.free_blocks == 4


@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=30),
)
def test_blocks_are_never_lost_nor_made(blocks: int, requests: list[tuple[int, int, int, bool]]) -> None:
    """Whatever comes and leaves: what is held and kept fits, and when all have left the pool is free again."""
    cache = PrefixCache(blocks)
    running: list[tuple[list[int], int]] = []
    ever: set[int] = set()
    for branch, length, more, leaves in requests:
        hashes = [100 * branch + depth if depth > 1 else depth for depth in range(length)]
        ever.update(hashes)
        if cache.has_room(hashes, more_blocks=more):
            expected = cache.matched(hashes)
            assert cache.take(hashes, more_blocks=more) == expected
            cache.computed(hashes[expected:])
            running.append((hashes, more))
        if leaves and running:
            ended, its_more = running.pop(0)
            cache.leave(ended, more_blocks=its_more)
        held = {each for hashes, _ in running for each in hashes}
        assert cache.free_blocks == blocks - len(held) - sum(more for _, more in running) >= 0
        assert kept(cache, ever) + sum(more for _, more in running) <= blocks
    for ended, its_more in running:
        cache.leave(ended, more_blocks=its_more)
    assert cache.free_blocks == blocks
