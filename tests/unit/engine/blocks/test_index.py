"""The block-group index: matches, gaps, tiers, expectations, and that evicting tails does not splinter groups."""

import numpy as np
import pytest

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.groups import MAX_GROUP_BLOCKS
from kvaware_engine.blocks.hashing import chain
from kvaware_engine.blocks.index import BlockIndex
from kvaware_engine.observations import Tier

SHARED = [1, 2, 3, 4, 5]
NAMES = {slot: f"w{slot}" for slot in range(4)}


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(IndexBudget(2**30))


def hashes(*blocks: int) -> list[int]:
    return chain(99, blocks, block_tokens=1)


def depths(index: BlockIndex, prompt: list[int], slots: int = 4) -> list[int]:
    out = np.full(slots, np.nan)
    index.match(prompt, out)
    return [int(blocks) for blocks in out]


def test_each_worker_matches_as_far_as_it_holds(index):
    prompt = hashes(*range(10))
    for slot, blocks in enumerate((10, 7, 0, 1)):
        index.insert(slot, prompt[:blocks])
    out = np.full(4, np.nan)
    match = index.match(prompt, out)
    assert out.tolist() == [10, 7, 0, 1]
    assert (match.deepest_blocks, match.known_blocks) == (10, 10)
    assert depths(index, prompt[:5]) == [5, 5, 0, 1]
    assert depths(index, hashes(0, 1, 2, 77)) == [3, 3, 0, 1]
    assert depths(index, hashes(77, 1, 2)) == [0, 0, 0, 0]
    assert depths(index, []) == [0, 0, 0, 0]


def test_prompts_that_leave_a_group_half_way_do_not_cut_it(index):
    index.insert(0, hashes(*range(10)))
    for end in range(2, 9):
        index.insert(1, hashes(*range(end), 100 + end, 200 + end))
    assert len(index.tree) == 8
    assert depths(index, hashes(*range(10))) == [10, 8, 0, 0]
    assert depths(index, hashes(*range(4), 104, 204, 5)) == [4, 6, 0, 0]


def test_a_server_that_evicts_one_tail_block_at_a_time_does_not_splinter_groups(index):
    prompt = hashes(*range(100))
    index.insert(0, prompt)
    index.insert(1, prompt)
    for end in range(99, 9, -1):
        assert index.remove(0, prompt[: end + 1], first=end) == 0
        assert depths(index, prompt)[:2] == [end, 100]
    assert len(index.tree) == 1
    for end in range(99, 9, -1):
        index.remove(1, prompt[: end + 1], first=end)
    assert len(index.tree) == 1
    assert index.blocks < 30, "the end that nobody holds is forgotten"
    index.insert(0, prompt)
    assert depths(index, prompt)[:2] == [100, 10]


def test_conversations_that_go_on_stay_one_group(index):
    for end in range(1, 50):
        index.insert(0, hashes(*range(end)))
    assert (len(index.tree), index.blocks) == (1, 49)


def test_blocks_after_a_gap_match_when_it_is_filled(index):
    """A removal in the middle truncates; later blocks and groups stay where they are, detached."""
    prompt = hashes(*SHARED, 10, 11, 12)
    index.insert(0, hashes(*SHARED, 20))
    index.insert(0, prompt)
    index.insert(1, prompt)
    index.remove(0, prompt[:3], first=2)
    out = np.zeros(4)
    assert index.match(prompt, out).deepest_blocks == 8
    assert out.tolist() == [2, 8, 0, 0]
    index.remove(1, prompt[:1], first=0)
    assert index.match(prompt, out).deepest_blocks == 2
    assert index.held_blocks(0, Tier.HBM) == 8
    index.insert(0, prompt[:3], first=2)
    assert depths(index, prompt) == [8, 0, 0, 0]
    index.insert(1, prompt[:1])
    assert depths(index, prompt) == [8, 8, 0, 0]


def test_lower_tiers_count_for_the_match_and_are_told_apart(index):
    prompt = hashes(*range(6))
    index.insert(0, prompt[:2])
    index.insert(0, prompt[:5], first=1, tier=Tier.CPU)
    index.insert(0, prompt, first=4, tier=Tier.SSD)
    out = np.zeros(4)
    match = index.match(prompt, out)
    assert out[0] == 6
    assert match.lower == {0: (3, 1)}
    assert index.match(prompt[:4], out).lower == {0: (2, 0)}
    assert [index.held_blocks(0, tier) for tier in (Tier.HBM, Tier.CPU, Tier.SSD)] == [2, 4, 2]
    index.insert(0, prompt)
    assert index.match(prompt, out).lower == {}, "what lies in HBM too is read from there"
    index.remove(0, prompt)
    assert index.match(prompt, out).lower == {}
    assert out[0] == 0, "the first block was in HBM alone"
    index.insert(0, prompt[:1])
    assert index.match(prompt, out).lower == {0: (4, 1)}


def test_thousands_of_workers_may_hold_the_same(index):
    workers, prompt = 7_000, hashes(*range(20))
    for slot in range(workers):
        index.insert(slot, prompt[:10] if slot % 7 else prompt)
    out = np.full(workers, np.nan)
    match = index.match(prompt, out)
    assert match.deepest_blocks == 20
    assert out.tolist() == [10.0 if slot % 7 else 20.0 for slot in range(workers)]
    index.match(prompt[:10], out)
    assert (out == 10).all()
    index.clear(3_500)
    index.match(prompt[:10], out)
    assert out[3_500] == 0
    assert (out == 10).sum() == workers - 1


def test_a_prompt_longer_than_a_group_may_be(index):
    blocks = MAX_GROUP_BLOCKS + 100
    prompt = hashes(*range(blocks))
    index.insert(0, prompt[: MAX_GROUP_BLOCKS - 1])
    index.insert(0, prompt)
    assert depths(index, prompt) == [blocks, 0, 0, 0]
    assert len(index.tree) == 2


def test_what_is_expected_counts_from_the_decision_on(index):
    """Else 64 requests with one prefix that arrive at once see nobody hold it."""
    prompt = hashes(*SHARED, 6)
    first = index.expect(0, prompt, index.match(prompt, np.zeros(4)))
    assert depths(index, prompt) == [6, 0, 0, 0]
    assert index.held_blocks(0, Tier.HBM) == 0
    other = hashes(*SHARED, 7)
    second = index.expect(0, other, index.match(other, np.zeros(4)))
    index.end(first, keep=False)
    assert depths(index, prompt) == [5, 0, 0, 0], "the second expects what they share"
    index.end(second, keep=False)
    assert depths(index, prompt) == [0, 0, 0, 0]
    assert len(index.tree) == 0


def test_what_events_confirm_stays_when_the_request_ends(index):
    prompt = hashes(*range(8))
    expectation = index.expect(0, prompt, index.match(prompt, np.zeros(4)))
    index.insert(0, prompt[:5])
    index.insert(0, [*prompt, *chain(prompt[-1], [100], block_tokens=1)], first=8)  # decode goes on
    index.end(expectation, keep=False)
    assert depths(index, prompt) == [5, 0, 0, 0]
    assert index.held_blocks(0, Tier.HBM) == 6, "the block after the gap is not forgotten"
    index.end(expectation, keep=True)
    assert depths(index, prompt) == [5, 0, 0, 0], "it has ended"


def test_an_expectation_that_is_kept_is_residency(index):
    prompt = hashes(*range(8))
    index.insert(0, prompt[:3])
    index.end(index.expect(0, prompt, index.match(prompt, np.zeros(4))), keep=True)
    assert depths(index, prompt) == [8, 0, 0, 0]
    assert index.held_blocks(0, Tier.HBM) == 8


def test_a_match_from_before_the_tree_changed_is_no_danger(index):
    prompt = hashes(*range(8))
    index.insert(1, prompt[:4])
    match = index.match(prompt, np.zeros(4))
    index.clear(1)
    index.insert(2, hashes(50, 51))
    expectation = index.expect(0, prompt, match)
    assert depths(index, prompt) == [8, 0, 0, 0]
    index.end(expectation, keep=False)
    assert (len(index.tree), index.blocks) == (1, 2)


def test_an_expectation_of_a_worker_that_is_cleared_ends_without_a_trace(index):
    prompt = hashes(*range(8))
    expectation = index.expect(0, prompt, index.match(prompt, np.zeros(4)))
    index.clear(0)
    assert depths(index, prompt) == [0, 0, 0, 0]
    index.end(expectation, keep=False)
    assert len(index.tree) == 0
    # its row may be another group's by then
    index.insert(1, hashes(7, 8, 9))
    again = index.expect(0, prompt, index.match(prompt, np.zeros(4)))
    index.clear(0)
    index.insert(1, prompt)
    index.end(again, keep=False)
    assert depths(index, prompt) == [0, 8, 0, 0]


def test_clearing_a_worker_leaves_the_others_what_they_have(index):
    """vllm-project/aibrix#2287: that worker and rank hold nothing."""
    told: list[int] = []
    index.on_clear(told.append)
    for slot in range(3):
        for number in range(100):
            index.insert(slot, hashes(*SHARED, number, slot))
    index.clear(1)
    assert told == [1]
    assert depths(index, hashes(*SHARED, 7, 1)) == [6, 0, 6, 0]
    assert [index.held_blocks(slot, Tier.HBM) for slot in range(3)] == [5 + 200, 0, 5 + 200]
    index.clear(3)
    assert told == [1, 3], "of a worker that nothing was known of, too"


def test_people_see_runs_of_blocks_that_the_same_workers_hold(index):
    prompt = hashes(*range(8))
    index.insert(2, prompt)
    index.insert(1, prompt[:5])
    index.insert(0, prompt[:5], tier=Tier.CPU)
    index.insert(0, prompt[:2])
    for _ in range(3):
        index.match(prompt, np.zeros(4))
    first, second = index.groups(most=10, name_of=NAMES.get)
    assert (first.start_block, first.blocks, first.last_hash) == (0, 5, prompt[4])
    assert first.holders == (("w0", Tier.CPU), ("w1", Tier.HBM), ("w2", Tier.HBM))
    assert (second.start_block, second.blocks, second.last_hash) == (5, 3, prompt[7])
    assert second.holders == (("w2", Tier.HBM),)
    assert first.hits == 3
    assert list(index.groups(most=1, name_of=NAMES.get)) == [first]


def test_what_is_on_its_way_to_a_worker_is_seen_where_it_will_be(index):
    """A match counts it, and it is in no lower tier: it was shown on SSD."""
    prompt = hashes(*range(4))
    index.insert(0, prompt[:2], tier=Tier.CPU)
    index.expect(0, prompt, index.match(prompt, np.zeros(4)))
    (group,) = index.groups(most=10, name_of=NAMES.get)
    assert (group.blocks, group.holders) == (4, (("w0", Tier.HBM),))


def test_workers_of_different_depth_each_end_a_group(index):
    """Servers evict one tail block at a time: of a prompt that all of them had, each has another part left."""
    prompt, workers = hashes(*range(200)), 64
    for slot in range(workers):
        index.insert(slot, prompt)
        index.remove(slot, prompt, first=200 - 2 * slot - 1)
    groups = list(index.groups(most=1000, name_of=lambda slot: f"w{slot}"))
    assert [(each.start_block, each.blocks) for each in groups[:-1]] == [
        (0, 73), *((start, 2) for start in range(73, 199, 2))
    ]  # fmt: skip
    assert (groups[-1].start_block, groups[-1].blocks, groups[-1].holders) == (199, 1, ())
    for left, group in enumerate(groups[:-1]):
        assert group.holders == tuple((f"w{slot}", Tier.HBM) for slot in range(workers - left))
        assert group.last_hash == prompt[group.start_block + group.blocks - 1]


def test_what_nobody_asks_for_further_is_not_looked_at(index):
    """``most`` is of groups as people see them: one row of the tree may be many."""
    for number in range(10):
        for slot in range(4):
            index.insert(slot, hashes(number, *range(10 - 2 * slot)))
    asked: list[int] = []

    def name_of(slot: int) -> str:
        asked.append(slot)
        return f"w{slot}"

    assert len(list(index.groups(most=4, name_of=name_of))) == 4
    assert sorted(asked) == [0, 1, 2, 3], "the holders of one row"


def test_groups_that_go_while_somebody_looks_are_not_seen(index):
    """They are given one by one, and others change the index in between."""
    for number in range(4):
        for slot in (1, 0):  # the longer one first: it is one row of the tree
            index.insert(slot, hashes(number, *range(10, 14 + slot)))
    looking = index.groups(most=100, name_of=NAMES.get)
    first = next(looking)
    index.clear(0)
    for number in range(2, 4):
        index.remove(1, hashes(number, *range(10, 15)))
    index.insert(3, hashes(99, 98))  # in a row that was another's
    second, *later = looking
    assert first.holders == (("w0", Tier.HBM), ("w1", Tier.HBM))
    assert second.holders == (("w1", Tier.HBM),), "the rest of a row that was begun is as it was then"
    assert [each.holders for each in later] == [(("w1", Tier.HBM),)], "a slot's next owner is not taken for the last"


def test_a_worker_without_a_name_is_not_seen(index):
    index.insert(0, hashes(1, 2, 3))
    index.insert(1, hashes(1, 2))
    (group,) = index.groups(most=10, name_of={0: "w0"}.get)
    assert (group.blocks, group.holders) == (3, (("w0", Tier.HBM),))


def test_a_prompt_that_runs_through_a_group_is_a_hit_of_it(index):
    for end in (10, 11, 12):
        index.insert(0, hashes(*SHARED))
        index.insert(end - 10, hashes(*SHARED, end, 1))
        for _ in range(end):
            index.match(hashes(*SHARED, end, 1), np.zeros(4))
    hits = {view.start_block: view.hits for view in index.groups(most=10, name_of=NAMES.get)}
    assert hits[0] == 33
    index.clear(2)
    hits = {view.start_block: view.hits for view in index.groups(most=10, name_of=NAMES.get)}
    assert hits[0] == 33, "also of what is gone since"


@pytest.mark.parametrize("slot", [-1, 2**16])
def test_a_slot_that_cannot_be_is_refused(index, slot):
    with pytest.raises(ValueError, match=f"slot: expected 0 to 65535, got {slot}"):
        index.insert(slot, hashes(1))
    with pytest.raises(ValueError, match="slot: expected"):
        index.expect(slot, hashes(1), index.match(hashes(1), np.zeros(1)))
