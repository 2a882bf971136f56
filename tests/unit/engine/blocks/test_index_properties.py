"""The index against sets of prefixes: whatever is stored, removed, expected, cleared or forgotten, in any order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.hashing import chain
from kvaware_engine.blocks.index import BlockIndex, Expectation
from kvaware_engine.observations import Tier

SLOTS = 8
ROOT = 77
PLENTY_BYTES = 2**30

Prompt = tuple[int, ...]
Held = set[tuple[int, Tier, Prompt]]

prompts = st.lists(st.integers(0, 2), max_size=9).map(tuple)
"""Of three kinds of blocks, so that they share beginnings of all lengths."""
slots = st.integers(0, SLOTS - 1)
tiers = st.sampled_from(list(Tier))
changes = st.one_of(
    st.tuples(st.just("insert"), slots, prompts, st.integers(0, 3), tiers),
    st.tuples(st.just("insert"), slots, prompts, st.just(0), st.just(Tier.HBM)),
    st.tuples(st.just("insert everywhere"), st.just(0), prompts, st.just(0), st.just(Tier.HBM)),
    st.tuples(st.just("remove"), slots, prompts, st.integers(0, 8), tiers),
    st.tuples(st.just("remove"), slots, prompts, st.integers(0, 8), st.just(Tier.HBM)),
    st.tuples(st.just("clear"), slots, st.just(()), st.just(0), st.just(Tier.HBM)),
)
expecting = st.one_of(
    changes,
    st.tuples(st.just("expect"), slots, prompts, st.just(0), st.just(Tier.HBM)),
    st.tuples(st.sampled_from(["end", "keep"]), slots, st.just(()), st.integers(0, 5), st.just(Tier.HBM)),
)


def hashes(prompt: Sequence[int]) -> list[int]:
    return chain(ROOT, prompt, block_tokens=1)


def prefixes(prompt: Prompt, first: int = 0) -> list[Prompt]:
    return [prompt[:end] for end in range(first + 1, len(prompt) + 1)]


def depth(held: Held, slot: int, prompt: Prompt) -> int:
    blocks = 0
    while blocks < len(prompt) and any((slot, tier, prompt[: blocks + 1]) in held for tier in Tier):
        blocks += 1
    return blocks


def lower(held: Held, slot: int, prompt: Prompt) -> tuple[int, int]:
    """Of the matched blocks, how many lie only in CPU memory, and only on SSD."""
    matched = prefixes(prompt)[: depth(held, slot, prompt)]
    cold = [prefix for prefix in matched if (slot, Tier.HBM, prefix) not in held]
    cpu = sum((slot, Tier.CPU, prefix) in held for prefix in cold)
    return cpu, len(cold) - cpu


@dataclass
class Model:
    """What is resident, as sets; ``lowest`` and ``most`` differ where an expectation repeats what was resident."""

    least: Held = field(default_factory=set)
    most: Held = field(default_factory=set)
    expected: list[tuple[int, Prompt, Held, Expectation]] = field(default_factory=list)

    def add(self, held: Held) -> None:
        self.least |= held
        self.most |= held

    def drop(self, held: Held) -> None:
        self.least -= held
        self.most -= held

    def seen_least(self) -> Held:
        return self.least.union(*(new for _, _, new, _ in self.expected))

    def seen_most(self) -> Held:
        return self.most.union(*(whole(slot, prompt) for slot, prompt, _, _ in self.expected))


def whole(slot: int, prompt: Prompt) -> Held:
    return {(slot, Tier.HBM, prefix) for prefix in prefixes(prompt)}


def apply(index: BlockIndex, model: Model, steps: Iterable[tuple[str, int, Prompt, int, Tier]]) -> None:
    for step, slot, prompt, first, tier in steps:
        match step:
            case "insert":
                index.insert(slot, hashes(prompt), first=first, tier=tier)
                model.add({(slot, tier, prefix) for prefix in prefixes(prompt, first)})
            case "insert everywhere":
                for one in range(SLOTS):
                    index.insert(one, hashes(prompt))
                    model.add(whole(one, prompt))
            case "remove":  # one block by itself, wherever it is
                gone = {(slot, tier, prompt[: first + 1])} if first < len(prompt) else set()
                unknown = index.remove(slot, hashes(prompt[: first + 1]), first=first, tier=tier)
                assert unknown == len(gone - model.least) if model.least == model.most else True
                model.drop(gone)
            case "clear":
                index.clear(slot)
                model.drop({one for one in model.most if one[0] == slot})
                model.expected = [kept for kept in model.expected if kept[0] != slot]
            case "expect":
                match = index.match(hashes(prompt), np.zeros(SLOTS))
                new = whole(slot, prompt) - {(s, Tier.HBM, p) for s, _, p in model.most}
                model.expected.append((slot, prompt, new, index.expect(slot, hashes(prompt), match)))
            case "end" | "keep" if model.expected:
                of, whose, new, expectation = model.expected.pop(first % len(model.expected))
                index.end(expectation, keep=step == "keep")
                index.end(expectation, keep=True)  # a second time changes nothing
                if step == "keep":
                    model.least |= new
                    model.most |= whole(of, whose)


def check(index: BlockIndex, model: Model, asked: Iterable[Prompt]) -> None:
    least, most = model.seen_least(), model.seen_most()
    for prompt in asked:
        out = np.full(SLOTS, np.nan)
        match = index.match(hashes(prompt), out)
        for slot in range(SLOTS):
            assert depth(least, slot, prompt) <= out[slot] <= depth(most, slot, prompt), (prompt, slot, out)
        assert match.deepest_blocks == out.max()
        if least == most == model.least:
            expected = {slot: lower(least, slot, prompt) for slot in range(SLOTS)}
            assert match.lower == {slot: blocks for slot, blocks in expected.items() if any(blocks)}
    if model.least == model.most:
        for tier in Tier:
            for slot in range(SLOTS):
                assert index.held_blocks(slot, tier) == len({one for one in model.least if one[:2] == (slot, tier)})


@given(steps=st.lists(changes, max_size=25), asked=st.lists(prompts, max_size=6))
@settings(max_examples=80, deadline=None)
def test_the_index_holds_what_sets_of_prefixes_hold(steps, asked):
    index, model = BlockIndex(IndexBudget(PLENTY_BYTES)), Model()
    for number, step in enumerate(steps):
        apply(index, model, [step])
        check(index, model, [step[2], *(asked[:1] if number % 4 == 0 else ())])
    check(index, model, asked)
    for slot in range(SLOTS):
        index.clear(slot)
    assert index.blocks == 0, "what nobody holds is not kept"
    assert len(index.tree) == 0


@given(steps=st.lists(expecting, max_size=25), asked=st.lists(prompts, max_size=6))
@settings(max_examples=80, deadline=None)
def test_what_is_expected_is_there_until_it_ends_and_no_longer(steps, asked):
    index, model = BlockIndex(IndexBudget(PLENTY_BYTES)), Model()
    for step in steps:
        apply(index, model, [step])
        check(index, model, [step[2]])
    check(index, model, asked)
    for _, _, _, expectation in model.expected:
        index.end(expectation, keep=False)
    model.expected.clear()
    check(index, model, asked)


@given(steps=st.lists(expecting, max_size=40), asked=st.lists(prompts, max_size=6), budget=st.integers(1_000, 40_000))
@settings(max_examples=60, deadline=None)
def test_what_is_forgotten_for_want_of_memory_is_not_matched_and_nothing_else_appears(steps, asked, budget):
    index, model = BlockIndex(IndexBudget(budget)), Model()
    for step in steps:
        try:
            apply(index, model, [step])
        except AssertionError:
            assert step[0] == "remove", "blocks that were forgotten are unknown when they are removed"
            model.drop({(step[1], step[4], step[2][: step[3] + 1])})
        for prompt in asked:
            out = np.zeros(SLOTS)
            match = index.match(hashes(prompt), out)
            for slot in range(SLOTS):
                assert out[slot] <= depth(model.seen_most(), slot, prompt)
            assert match.deepest_blocks == out.max()
    for slot in range(SLOTS):
        index.clear(slot)
    assert index.blocks == 0


@given(steps=st.lists(expecting, max_size=25), asked=st.lists(prompts, max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_same_steps_give_the_same_index(steps, asked):
    seen = []
    for _ in range(2):
        index = BlockIndex(IndexBudget(20_000))
        try:
            apply(index, Model(), steps)
        except AssertionError:
            return
        depths = np.zeros((len(asked), SLOTS))
        for prompt, out in zip(asked, depths, strict=True):
            index.match(hashes(prompt), out)
        seen.append((depths.tolist(), list(index.groups(most=100, name_of=str)), index.size_bytes))
    assert seen[0] == seen[1]


def seen_by_block(index: BlockIndex) -> list[tuple[int, int, int, int, tuple[tuple[str, Tier], ...]]]:
    """All block groups, found the slow way: block by block, holder by holder, ancestor by ancestor."""
    tree, holdings = index.tree, index.holdings
    rows = sorted(tree.heads.values())
    hits = dict.fromkeys(rows, 0)
    for row in rows:
        above = row
        while above >= 0:
            hits[above] += tree.hits[row]
            above = tree.parent[above]
    seen = []
    for row in sorted(rows, key=lambda row: (-hits[row], row)):
        runs: list[list[dict[int, Tier]]] = []
        for offset in range(tree.length[row]):
            tiers: dict[int, Tier] = {}
            for slot in sorted(tree.holders[row]):
                if offset < tree.holders[row][slot]:
                    masks = holdings.masks(slot, row)
                    by_tier = {Tier.HBM: masks.hbm | masks.expected, Tier.CPU: masks.cpu, Tier.SSD: masks.ssd}
                    tiers[slot] = next(tier for tier, mask in by_tier.items() if mask >> offset & 1)
            if not runs or runs[-1][0].keys() != tiers.keys():
                runs.append([])
            runs[-1].append(tiers)
        begin = 0
        for run in runs:
            order = [Tier.HBM, Tier.CPU, Tier.SSD]
            worst = {slot: max((block[slot] for block in run), key=order.index) for slot in run[0]}
            end = begin + len(run)
            last = tree.hash_at(row, end - 1)
            holders = tuple((str(slot), tier) for slot, tier in worst.items())
            seen.append((tree.start[row] + begin, len(run), last, hits[row], holders))
            begin = end
    return seen


@given(steps=st.lists(expecting, max_size=25), asked=st.lists(prompts, max_size=6), most=st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_people_see_what_is_found_block_by_block(steps, asked, most):
    index, model = BlockIndex(IndexBudget(PLENTY_BYTES)), Model()
    for step in steps:
        apply(index, model, [step])
        for prompt in asked:
            index.match(hashes(prompt), np.zeros(SLOTS))
    views = [
        (each.start_block, each.blocks, each.last_hash, each.hits, each.holders)
        for each in index.groups(most=most, name_of=str)
    ]
    assert views == seen_by_block(index)[:most]
