"""Run by the peer's Python: what its radix tree takes to match and to be told, in microseconds.

``PYTHONPATH=tests/bench dynamo_radix.py``; prints one JSON object.
"""

import gc
import json
import os
import time

os.environ["DYN_LOG"] = "off"

from dynamo._core import RadixTree, compute_block_hash_for_seq
from index_blocks import (
    BLOCK_TOKENS,
    LONG_MATCH,
    PROMPTS,
    SHORT_MATCH,
    WORKERS,
    Run,
    asked,
    filling,
    new_prompts,
    prompt_tokens,
    single_blocks,
)

ROUNDS = 5
PARTS = 8


def stored(run: Run) -> bytes:
    """The event as the tree takes it: hashed before."""
    hashes = compute_block_hash_for_seq(run.tokens, BLOCK_TOKENS)
    blocks = [{"block_hash": n, "tokens_hash": each} for n, each in zip(run.names, hashes, strict=True)]
    return json.dumps({"event_id": 0, "data": {"stored": {"parent_hash": run.parent_name, "blocks": blocks}}}).encode()


def told_us(tree: RadixTree, runs: list[Run]) -> tuple[float, float]:
    """Microseconds an event: hashing its tokens, and applying it; of both the best of some parts of them."""
    size, hashed_s, applied_s = len(runs) // PARTS, [], []
    for part in range(PARTS):
        of_part = runs[part * size : (part + 1) * size]
        tokens, events = [run.tokens for run in of_part], [(run.worker, stored(run)) for run in of_part]
        began = time.perf_counter()
        for each in tokens:
            compute_block_hash_for_seq(each, BLOCK_TOKENS)
        hashed_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        for worker, event in events:
            tree.apply_event(worker, event)
        applied_s.append(time.perf_counter() - began)
    return min(hashed_s) / size * 1e6, min(applied_s) / size * 1e6


def matched_us(tree: RadixTree, prompts: list[list[int]]) -> float:
    """Microseconds a match, the best of some rounds."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for hashes in prompts:
            tree.find_matches(hashes)
        best_s = min(best_s, time.perf_counter() - began)
    return best_s / len(prompts) * 1e6


def depths(tree: RadixTree, prompts: list[list[int]]) -> list[list[int]]:
    """Of each prompt, how many blocks each worker has."""
    found = []
    for hashes in prompts:
        scores = {worker: blocks for (worker, _), blocks in tree.find_matches(hashes).scores.items()}
        found.append([scores.get(worker, 0) for worker in range(WORKERS)])
    return found


def main() -> None:
    """Fill, ask, tell."""
    tree = RadixTree()
    for run in filling():
        tree.apply_event(run.worker, stored(run))
    short = [compute_block_hash_for_seq(prompt_tokens(*one, SHORT_MATCH), BLOCK_TOKENS) for one in asked()]
    long = [
        compute_block_hash_for_seq(prompt_tokens(worker, PROMPTS, LONG_MATCH), BLOCK_TOKENS)
        for worker in range(WORKERS)
    ]
    gc.collect()
    gc.disable()
    seen = depths(tree, [*short[:100], *long[:5]])
    result = {"short_us": matched_us(tree, short), "long_us": matched_us(tree, long * 10), "depths": seen}
    for name, runs in (("one", single_blocks()), ("many", new_prompts())):
        result[f"{name}_hash_us"], result[f"{name}_apply_us"] = told_us(tree, list(runs))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
