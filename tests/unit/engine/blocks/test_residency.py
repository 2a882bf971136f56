"""Workers' KV events applied: who holds how much of which prompt afterwards, and what could not be applied."""

from typing import Any

import numpy as np
import pytest

from kvaware_engine import ObjectKey
from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.events import BlocksCleared, BlocksRemoved, BlocksStored, engine_hash
from kvaware_engine.blocks.hashing import chain, root_hash
from kvaware_engine.blocks.index import BlockIndex
from kvaware_engine.blocks.residency import Applied, Residency
from kvaware_engine.observations import Tier
from kvaware_engine.requests.settings import IndexSettings

MODEL = ObjectKey("ml", "llama")
BLOCK = 4
PROMPT = tuple(range(100, 100 + 6 * BLOCK))
"""Six blocks."""
NAMES = (901, 902, 903, 904, 905, 906)
"""What a server calls them."""


class World:
    """One model's index with what its workers tell."""

    def __init__(self, **settings: Any) -> None:
        self.index = BlockIndex(IndexBudget(2**30))
        self.residency = Residency(self.index, model=MODEL, revision="", settings=IndexSettings(**settings))

    def tell(self, *events: Any, slot: int = 0) -> Applied:
        return self.residency.apply(slot, events)

    def held(self, *, slot: int = 0, adapter: str | None = None, salt: str | None = None) -> int:
        """Blocks of the prompt that a worker holds without a gap."""
        root = root_hash(model=MODEL, revision="", adapter=adapter, salt=salt)
        out = np.empty(4)
        self.index.match(chain(root, PROMPT, block_tokens=BLOCK), out)
        return int(out[slot])


def stored(first: int = 0, end: int = 6, **fields: Any) -> BlocksStored:
    """Blocks of the prompt, from one to another, after the one before."""
    given: dict[str, Any] = {
        "engine_hashes": NAMES[first:end],
        "parent": NAMES[first - 1] if first else None,
        "token_ids": PROMPT[first * BLOCK : end * BLOCK],
        "block_tokens": BLOCK,
    }
    return BlocksStored(**(given | fields))


def removed(*names: int, **fields: Any) -> BlocksRemoved:
    return BlocksRemoved(engine_hashes=names, **fields)


def test_what_is_stored_in_parts_matches_as_one_prompt():
    world = World()
    assert world.tell(stored(0, 2), stored(2, 3), stored(3, 6)).stored == 6
    assert (world.held(), world.held(slot=1)) == (6, 0)
    assert world.residency.block_tokens == BLOCK


def test_an_unknown_block_does_not_keep_the_others_from_being_removed():
    """ai-dynamo/dynamo#14652: one unknown block ended the removal of all after it; they stayed as ghosts."""
    world = World()
    world.tell(stored(0, 3))
    world.tell(stored(0, 3), slot=1)
    applied = world.tell(removed(999, NAMES[0], NAMES[1]))
    assert (applied.removed, applied.unknown_removed) == (2, 1)
    assert world.held() == 0
    again = world.tell(removed(999, NAMES[0], NAMES[1]))
    assert (again.removed, again.unknown_removed) == (0, 3)
    assert world.held(slot=1) == 3, "another rank keeps its own"
    world.tell(stored(0, 2))
    assert world.held() == 3, "the third block was never removed"


def test_groups_of_a_sliding_window_are_no_prefix():
    """llm-d/llm-d-router#2362: they leave blocks out; and what they remove is not the dense group's block."""
    world = World()
    sparse = {"group_index": 1, "kind": "sliding_window_mla"}
    applied = world.tell(stored(0, 4, group_index=0, kind="mla_attention"), stored(0, 6, **sparse))
    assert (applied.stored, applied.skipped) == (4, 6)
    assert world.held() == 4
    assert world.tell(removed(*NAMES[:4], group_index=1)).skipped == 4
    assert world.held() == 4


def test_a_parent_is_looked_up_in_its_own_cache_group():
    """llm-d/llm-d-router#2362: equal names in two groups are two blocks."""
    world = World()
    world.tell(stored(0, 2, group_index=0, kind="full_attention"))
    applied = world.tell(stored(2, 4, group_index=2, kind="full_attention"))
    assert (applied.stored, applied.orphaned) == (0, 2)
    assert world.held() == 2


def test_an_emptied_cache_holds_nothing_and_no_other_worker_is_touched():
    """vllm-project/aibrix#2287: the router kept sending prefixes to a server that had none any more."""
    world = World()
    world.tell(stored())
    world.tell(stored(), slot=1)
    assert world.tell(BlocksCleared()).cleared == 1
    assert (world.held(), world.held(slot=1)) == (0, 6)
    assert world.tell(stored(3, 6)).orphaned == 3, "what came before is not known any more"


def test_adapter_and_salt_are_told_apart_however_a_server_mixes_them():
    """vllm-project/vllm#44701: one called like the other would share its blocks."""
    world = World()
    world.tell(stored(0, 6, adapter="x", extra_keys=[["x"]] * 6))
    assert world.held(adapter="x") == 6
    assert world.held(salt="x") == world.held() == 0
    salted = World()
    salted.tell(stored(0, 6, extra_keys=[["x"], *[None] * 5]))
    assert salted.held(salt="x") == 6
    assert salted.held(adapter="x") == salted.held() == 0


def test_blocks_wait_for_a_parent_that_comes_later():
    world = World()
    assert world.tell(stored(4, 6), stored(2, 4)).orphaned == 4
    assert world.held() == 0
    assert world.tell(stored(0, 2)).stored == 6
    assert world.held() == 6
    assert world.tell(stored(0, 2)).stored == 2, "they wait no more"


def test_of_too_many_that_wait_the_oldest_are_given_up():
    world = World(orphans_max=2)
    world.tell(stored(4, 6))
    assert world.tell(stored(2, 4)).orphans_dropped == 2
    world.tell(stored(0, 2))
    assert world.held() == 4


def test_a_block_stays_as_long_as_any_tier_has_it():
    world = World()
    world.tell(stored(), stored(0, 6, token_ids=(), block_tokens=0, parent=None, tier=Tier.CPU))
    world.tell(removed(*NAMES))
    assert world.held() == 6
    world.tell(removed(*NAMES[4:], tier=Tier.CPU))
    assert world.held() == 4


def test_a_gap_in_the_middle_ends_the_match_and_closes_again():
    world = World()
    world.tell(stored())
    world.tell(removed(NAMES[2]))
    assert world.held() == 2
    world.tell(stored(2, 3))
    assert world.held() == 6


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"token_ids": PROMPT[:-1]}, id="tokens that are no whole blocks"),
        pytest.param({"block_tokens": 0}, id="blocks of nothing"),
        pytest.param({"engine_hashes": ()}, id="tokens without a name"),
    ],
)
def test_what_does_not_fit_together_is_counted_and_changes_nothing(fields: dict[str, Any]):
    world = World()
    assert world.tell(stored(**fields)).malformed >= 1
    assert world.held() == 0


@pytest.mark.parametrize(
    ("came", "means"),
    [
        pytest.param(-1, 2**64 - 1, id="signed"),
        pytest.param(2**64 + 5, 5, id="longer"),
        pytest.param(bytes(24) + (7).to_bytes(8, "big"), 7, id="bytes of vLLM 0.32"),
    ],
)
def test_an_engine_hash_has_one_form(came: int | bytes, means: int):
    assert engine_hash(came) == means
