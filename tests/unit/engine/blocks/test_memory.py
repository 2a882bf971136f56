"""The memory of the index: counted as it is, kept within its bound, and out of the garbage collector's sight."""

import gc
import tracemalloc
from random import Random

import numpy as np
import pytest

from kvaware_engine import ObjectKey
from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.events import BlocksRemoved, BlocksStored
from kvaware_engine.blocks.hashing import chain
from kvaware_engine.blocks.history import History
from kvaware_engine.blocks.index import BlockIndex
from kvaware_engine.blocks.residency import Residency
from kvaware_engine.requests.settings import IndexSettings

BLOCK = 4
WORKERS = 4
SETTINGS = IndexSettings()


class World:
    """One model's index, told by its workers."""

    def __init__(self, budget: IndexBudget, name: str = "llama") -> None:
        self.index = BlockIndex(budget)
        self.history = History(self.index, SETTINGS)
        self.residency = Residency(self.index, model=ObjectKey("ml", name), revision="", settings=SETTINGS)

    def store(self, slot: int, names: list[int], parent: int | None = None) -> None:
        tokens = [name & 0xFFFFFFFF for name in names for _ in range(BLOCK)]
        stored = BlocksStored(engine_hashes=names, parent=parent, token_ids=tokens, block_tokens=BLOCK)
        self.residency.apply(slot, [stored])

    def fill(self, prompts: int, blocks: int, seed: int = 1) -> list[list[int]]:
        """Each worker gets so many prompts that begin alike, in events of 16 blocks."""
        random = Random(seed)  # noqa: S311 - the same numbers in every run
        shared = [random.getrandbits(64) for _ in range(8)]
        told = []
        for slot in range(WORKERS):
            self.store(slot, shared)
            for _ in range(prompts):
                names, parent = [random.getrandbits(64) for _ in range(blocks)], shared[-1]
                for at in range(0, blocks, 16):
                    self.store(slot, names[at : at + 16], parent)
                    parent = names[min(blocks, at + 16) - 1]
                told.append(names)
        return told

    @property
    def size_bytes(self) -> int:
        return self.index.size_bytes + self.residency.size_bytes + self.history.size_bytes


@pytest.mark.parametrize(("blocks", "most_bytes"), [(16, 100), (48, 80)])
def test_memory_is_counted_as_it_is_and_is_little(blocks, most_bytes):
    """10 million blocks of 64 workers take up to 100 bytes each, all structures; here are fewer of the same kind."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        world = World(IndexBudget(2**30))
        world.fill(prompts=24_000 // blocks, blocks=blocks)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert world.size_bytes == pytest.approx(taken, rel=0.1)
    assert world.size_bytes / world.index.blocks < most_bytes


def test_the_garbage_collector_sees_none_of_it():
    """What it sees it visits in every full run: at 10 million blocks for a tenth of a second."""
    world = World(IndexBudget(2**30))
    world.fill(prompts=10, blocks=32)
    gc.collect()
    before = len(gc.get_objects())
    world.fill(prompts=300, blocks=32, seed=2)
    gc.collect()
    assert len(world.index.tree) > 1_000
    assert len(gc.get_objects()) - before < 100


def test_what_was_matched_longest_ago_is_forgotten_first():
    budget = IndexBudget(120_000)
    index = BlockIndex(budget)
    prompts = [chain(number, range(20), block_tokens=1) for number in range(400)]
    out = np.zeros(1)
    for prompt in prompts[:50]:
        index.insert(0, prompt)
    for prompt in prompts[:10]:
        index.match(prompt, out)
    for prompt in prompts[50:]:
        index.insert(0, prompt)
        index.match(prompt, out)
        for kept in prompts[:5]:  # used all the time
            index.match(kept, out)
    assert budget.size_bytes <= budget.max_bytes
    held = []
    for number, prompt in enumerate(prompts):
        index.match(prompt, out)
        held.append(number) if out[0] else None
    assert held[:5] == [0, 1, 2, 3, 4]
    assert held[5:] == list(range(400 - len(held) + 5, 400)), "and of the others those that came last"
    assert budget.forgotten_groups == 400 - len(held)


def test_ends_of_prompts_are_forgotten_before_their_beginnings():
    budget = IndexBudget(100_000)
    index = BlockIndex(budget)
    shared = list(range(30))
    index.insert(0, chain(1, shared, block_tokens=1))
    for number in range(500):
        index.insert(0, chain(1, [*shared, 1000 + number, 5, 6, 7], block_tokens=1))
    out = np.zeros(1)
    assert index.match(chain(1, shared, block_tokens=1), out).deepest_blocks == 30
    assert 0 < budget.forgotten_groups < 500


def test_the_bound_holds_for_all_models_together():
    budget = IndexBudget(600_000)
    worlds = [World(budget, f"model-{number}") for number in range(3)]
    told = []
    for seed in range(30):
        told.append((seed % 3, worlds[seed % 3].fill(prompts=4, blocks=24, seed=seed)))
        assert budget.size_bytes <= budget.max_bytes * 1.02
    assert budget.forgotten_groups > 0
    assert sum(world.size_bytes for world in worlds) == budget.size_bytes
    # Blocks that were forgotten here and are removed there do no harm, and their names go.
    for model, prompts in told:
        for slot in range(WORKERS):
            for names in prompts:
                worlds[model].residency.apply(slot, [BlocksRemoved(engine_hashes=names)])
    for world in worlds:
        assert world.index.blocks <= 8 * 30


def test_a_block_after_a_forgotten_one_is_an_orphan_not_a_beginning():
    budget = IndexBudget(60_000)
    world = World(budget)
    told = world.fill(prompts=40, blocks=16)
    assert budget.forgotten_groups > 0
    stored = BlocksStored(engine_hashes=[5], parent=told[1][-1], token_ids=[1] * BLOCK, block_tokens=BLOCK)
    assert world.residency.apply(0, [stored]).orphaned == 1


def test_a_model_that_is_gone_counts_no_longer():
    budget = IndexBudget(2**30)
    gone, stays = World(budget, "gone"), World(budget, "stays")
    gone.fill(prompts=5, blocks=16)
    for part in (gone.index, gone.history, gone.residency):
        budget.leave(part)
    assert budget.size_bytes == stays.size_bytes
