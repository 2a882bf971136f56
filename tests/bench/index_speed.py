"""What our index takes to match and to be told, in microseconds; as a process of its own. Prints one JSON object."""

import gc
import json
import time

import numpy as np
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

from kvaware_engine import ObjectKey
from kvaware_engine.blocks.budget import IndexBudget
from kvaware_engine.blocks.events import BlocksStored
from kvaware_engine.blocks.hashing import chain, root_hash
from kvaware_engine.blocks.index import BlockIndex
from kvaware_engine.blocks.residency import Residency
from kvaware_engine.requests.settings import IndexSettings

__all__ = ["MODEL", "hashes_of", "new_index", "stored"]

ROUNDS = 5
PARTS = 8
MODEL = ObjectKey("ml", "model")


def new_index() -> tuple[BlockIndex, Residency]:
    """An index with room, and what applies events to it."""
    index = BlockIndex(IndexBudget(2**35))
    return index, Residency(index, model=MODEL, revision="", settings=IndexSettings())


def stored(run: Run) -> BlocksStored:
    """The event as a reader of a worker's stream makes it."""
    return BlocksStored(
        engine_hashes=run.names,
        parent=run.parent_name,
        token_ids=run.tokens,
        block_tokens=BLOCK_TOKENS,
    )


def hashes_of(tokens: list[int]) -> list[int]:
    """As the edge hashes a prompt."""
    return chain(root_hash(model=MODEL, revision="", adapter=None, salt=None), tokens, block_tokens=BLOCK_TOKENS)


def told_us(residency: Residency, runs: list[Run]) -> float:
    """Microseconds an event, hashing its tokens included: the best of some parts of them, each after the other."""
    events = [(run.worker, [stored(run)]) for run in runs]
    size, took_s = len(events) // PARTS, []
    for part in range(PARTS):
        began = time.perf_counter()
        for worker, event in events[part * size : (part + 1) * size]:
            residency.apply(worker, event)
        took_s.append(time.perf_counter() - began)
    return min(took_s) / size * 1e6


def matched_us(index: BlockIndex, prompts: list[list[int]]) -> float:
    """Microseconds a match, the best of some rounds."""
    best_s, out = float("inf"), np.zeros(WORKERS)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for hashes in prompts:
            index.match(hashes, out)
        best_s = min(best_s, time.perf_counter() - began)
    return best_s / len(prompts) * 1e6


def depths(index: BlockIndex, prompts: list[list[int]]) -> list[list[int]]:
    """Of each prompt, how many blocks each worker has."""
    found, out = [], np.zeros(WORKERS)
    for hashes in prompts:
        index.match(hashes, out)
        found.append([int(blocks) for blocks in out])
    return found


def main() -> None:
    """Fill, ask, tell."""
    index, residency = new_index()
    for run in filling():
        residency.apply(run.worker, [stored(run)])
    short = [hashes_of(prompt_tokens(*one, SHORT_MATCH)) for one in asked()]
    long = [hashes_of(prompt_tokens(worker, PROMPTS, LONG_MATCH)) for worker in range(WORKERS)]
    gc.collect()
    gc.disable()
    seen = depths(index, [*short[:100], *long[:5]])
    result = {
        "blocks": index.blocks,
        "short_us": matched_us(index, short),
        "long_us": matched_us(index, long * 10),
        "depths": seen,
    }
    for name, runs in (("one", single_blocks()), ("many", new_prompts())):
        result[f"{name}_us"] = told_us(residency, list(runs))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
