"""What was sent where: remembered as long as a pool of that size would keep it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.hashing import chain
from kvaware_engine.blocks.history import History
from kvaware_engine.blocks.index import BlockIndex
from kvaware_engine.observations import Tier
from kvaware_engine.requests.settings import IndexSettings

SLOTS = 3


class World:
    """One model's index and history."""

    def __init__(self, *, max_bytes: int = 2**30) -> None:
        self.index = BlockIndex(IndexBudget(max_bytes))
        self.history = History(self.index, IndexSettings(history_pool_blocks=50))

    def send(self, slot: int, prompt: list[int], pool_blocks: int | None = None):
        match = self.index.match(prompt, np.zeros(SLOTS))
        return self.history.sent(slot, prompt, match, pool_blocks=pool_blocks)

    def held(self, prompt: list[int]) -> list[int]:
        out = np.zeros(SLOTS)
        self.index.match(prompt, out)
        return [int(blocks) for blocks in out]


def prompt_of(number: int, blocks: int = 10, shared: int = 0) -> list[int]:
    return chain(99, [*range(shared), *range(1000 * number + 1000, 1000 * number + 1000 + blocks)], block_tokens=1)


def test_what_was_sent_is_held_until_as_much_was_sent_after_it():
    world = World()
    for number in range(5):
        world.send(0, prompt_of(number))
    assert all(world.held(prompt_of(number)) == [10, 0, 0] for number in range(5))
    world.send(0, prompt_of(0))  # used again
    world.send(0, prompt_of(5))
    assert world.held(prompt_of(1)) == [0, 0, 0]
    assert world.held(prompt_of(0)) == world.held(prompt_of(5)) == [10, 0, 0]
    assert world.history.blocks(0) == world.index.held_blocks(0, Tier.HBM) == 50


def test_a_prefix_lives_as_long_as_what_was_sent_after_it():
    world = World()
    for number in range(6):
        world.send(0, prompt_of(number, 10, shared=10), pool_blocks=40)
    assert world.held(prompt_of(0, 10, shared=10)) == [10, 0, 0], "its end is forgotten, the shared beginning is not"
    assert world.held(prompt_of(5, 10, shared=10)) == [20, 0, 0]
    assert world.history.blocks(0) <= 40


def test_a_prompt_longer_than_the_pool_is_remembered_as_far_as_it_fits():
    world = World()
    world.send(0, prompt_of(1, 500), pool_blocks=200)
    assert 200 - 64 <= world.held(prompt_of(1, 500))[0] <= 200


def test_an_unknown_pool_has_the_size_of_the_setting_and_an_empty_one_none():
    world = World()
    world.send(0, prompt_of(1, 60))
    assert 0 < world.history.blocks(0) <= 50
    world.send(1, prompt_of(2), pool_blocks=0)
    assert world.history.blocks(1) == 0


def test_what_a_worker_refused_was_not_sent():
    world = World()
    world.send(0, prompt_of(1, 5, shared=5))
    refused = world.send(0, prompt_of(2, 5, shared=5))
    world.history.unsent(refused)
    assert world.held(prompt_of(2, 5, shared=5)) == [5, 0, 0]
    assert world.held(prompt_of(1, 5, shared=5)) == [10, 0, 0]
    assert world.history.blocks(0) == 10
    world.history.unsent(refused)
    assert world.history.blocks(0) == 10, "it was taken back before"


def test_what_somebody_else_was_sent_since_stays():
    world = World()
    refused = world.send(0, prompt_of(1, 10))
    world.send(0, chain(prompt_of(1, 10)[-1], [7], block_tokens=1)[:0] + prompt_of(1, 10) + [12345])
    world.history.unsent(refused)
    assert world.held(prompt_of(1, 10))[0] == 10


def test_forgetting_a_worker_leaves_the_others():
    world = World()
    for slot in range(2):
        world.send(slot, prompt_of(1, 5, shared=5))
        world.send(slot, prompt_of(2, 5, shared=5))
    world.history.forget(0)
    assert world.held(prompt_of(1, 5, shared=5)) == [0, 10, 0]
    assert (world.history.blocks(0), world.index.held_blocks(0, Tier.HBM)) == (0, 0)
    world.index.clear(1)
    assert world.history.blocks(1) == 0, "a cleared worker's history is gone too"
    world.send(1, prompt_of(1))
    assert world.held(prompt_of(1)) == [0, 10, 0]


def test_a_worker_that_the_history_does_not_know_has_none():
    world = World()
    world.history.forget(2)
    assert world.history.blocks(2) == 0


@given(
    sent=st.lists(
        st.tuples(
            st.integers(0, SLOTS - 1), st.lists(st.integers(0, 2), max_size=7), st.integers(0, 12), st.booleans()
        ),
        max_size=40,
    ),
    max_bytes=st.sampled_from([2**30, 12_000]),
)
@examples(max_examples=100, deadline=None)
def test_the_books_agree_whatever_is_sent_and_refused(sent, max_bytes):
    """As many blocks as the index holds, never more than the pool, the last prompt whole, and no gap."""
    world = World(max_bytes=max_bytes)
    for slot, blocks, pool, refused in sent:
        prompt = chain(99, blocks, block_tokens=1)
        what = world.send(slot, prompt, pool_blocks=pool)
        assert world.history.blocks(slot) <= pool
        if len(prompt) <= pool and max_bytes == 2**30:
            assert world.held(prompt)[slot] == len(prompt)
        if refused:
            world.history.unsent(what)
        if max_bytes == 2**30:
            for one in range(SLOTS):
                assert world.history.blocks(one) == world.index.held_blocks(one, Tier.HBM)
        assert not world.index.holdings.loose
    for slot in range(SLOTS):
        world.history.forget(slot)
        assert world.index.held_blocks(slot, Tier.HBM) == 0
    assert len(world.index.tree) == 0


def test_memory_of_the_history_is_counted():
    world = World()
    before = world.history.size_bytes
    for number in range(20):
        world.send(0, prompt_of(number), pool_blocks=1000)
    assert world.history.size_bytes > before
    world.history.forget(0)
    assert world.history.size_bytes == before


@pytest.mark.parametrize("shared", [0, 5])
def test_the_same_requests_leave_the_same_history(shared):
    seen = []
    for _ in range(2):
        world = World()
        for number in range(40):
            world.send(number % SLOTS, prompt_of(number % 17, 3 + number % 9, shared=shared))
        seen.append([world.held(prompt_of(number, 12, shared=shared)) for number in range(17)])
    assert seen[0] == seen[1]
