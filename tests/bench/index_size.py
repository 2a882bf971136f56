"""Our index at ten million blocks: memory, the collector's pause, and matches while block events come in.

A process of its own, ``python tests/bench/index_size.py``; prints one JSON object. Takes some minutes.
"""

import gc
import json
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import psutil
from index_blocks import BLOCK_TOKENS, EVENT_BLOCKS, SHARED_BLOCKS, WORKERS, Run, name_of
from index_speed import hashes_of, new_index, stored
from report import percentile

from kvaware_engine.blocks.events import BlocksRemoved
from kvaware_engine.blocks.residency import Residency

BLOCKS = 10_000_000
OWN_BLOCKS = 64
"""Of each prompt after the shared beginning: a thousand tokens."""
CHURN_BLOCKS = 500_000
"""Evicted, tails first, and as many stored, before memory is measured: what a cache in use looks like."""
EVENTS_PER_S, SPELL_S, SPELLS = 20_000, 1.0, 5
MATCHES_PER_S = 2_000


class Fleet:
    """Workers that tell of new prompts and evict their oldest ones."""

    def __init__(self, residency: Residency) -> None:
        self.residency = residency
        self.firsts: list[deque[int]] = [deque() for _ in range(WORKERS)]
        """By worker, the number of each prompt's first block, the oldest prompt first."""
        self._next = 1_000

    def begin(self, worker: int) -> None:
        """It holds the shared beginning."""
        self.residency.apply(worker, [stored(Run(worker, 0, SHARED_BLOCKS, None))])

    def store(self, worker: int) -> None:
        """One prompt more."""
        first = self._next
        self._next += OWN_BLOCKS
        for at in range(0, OWN_BLOCKS, EVENT_BLOCKS):
            parent = first + at - 1 if at else SHARED_BLOCKS - 1
            applied = self.residency.apply(worker, [stored(Run(worker, first + at, EVENT_BLOCKS, parent))])
            assert applied.stored == EVENT_BLOCKS
        self.firsts[worker].append(first)

    def evict(self, worker: int) -> None:
        """Its oldest prompt, one block an event."""
        first = self.firsts[worker].popleft()
        for block in range(first + OWN_BLOCKS - 1, first - 1, -1):
            assert self.residency.apply(worker, [BlocksRemoved(engine_hashes=(name_of(block),))]).removed == 1

    def single_events(self) -> Iterator[None]:
        """One event of one block at each step, for ever: a new prompt grows, an old one shrinks."""
        worker = 0
        while True:
            worker = (worker + 1) % WORKERS
            first, old = self._next, self.firsts[worker].popleft()
            self._next += OWN_BLOCKS
            for at in range(OWN_BLOCKS):
                parent = first + at - 1 if at else SHARED_BLOCKS - 1
                self.residency.apply(worker, [stored(Run(worker, first + at, 1, parent))])
                yield
                self.residency.apply(worker, [BlocksRemoved(engine_hashes=(name_of(old + OWN_BLOCKS - 1 - at),))])
                yield
            self.firsts[worker].append(first)


def main() -> None:
    """Fill, measure, print."""
    gc.collect()
    empty_ms = min(_full_collection_ms() for _ in range(3))
    process = psutil.Process()
    before = process.memory_info().rss
    index, residency = new_index()
    fleet = Fleet(residency)
    for worker in range(WORKERS):
        fleet.begin(worker)
    for number in range(BLOCKS // OWN_BLOCKS):
        fleet.store(number % WORKERS)
    for number in range(CHURN_BLOCKS // OWN_BLOCKS):
        fleet.evict(number % WORKERS)
        fleet.store(number % WORKERS)
    gc.collect()
    pauses_ms = [_full_collection_ms() for _ in range(3)]
    held = BLOCKS // OWN_BLOCKS * OWN_BLOCKS + WORKERS * SHARED_BLOCKS
    taken = process.memory_info().rss - before - fleet_bytes(fleet)
    firsts = [firsts[at] for firsts in fleet.firsts for at in (-1, -20, -40)]  # those that stay
    prompts = [
        hashes_of([*range(SHARED_BLOCKS * BLOCK_TOKENS), *range(first * BLOCK_TOKENS, (first + 16) * BLOCK_TOKENS)])
        for first in firsts
    ]
    events, out = fleet.single_events(), np.zeros(WORKERS)
    spells: dict[bool, list[list[float]]] = {False: [], True: []}
    for _ in range(SPELLS):
        for ingesting, of_kind in spells.items():
            took_us, began, told, asked = [], time.perf_counter(), 0, 0
            while (at_s := time.perf_counter() - began) < SPELL_S:
                if ingesting and told < at_s * EVENTS_PER_S:
                    next(events)
                    told += 1
                elif asked < at_s * MATCHES_PER_S:
                    prompt = prompts[asked % len(prompts)]
                    asked += 1
                    start = time.perf_counter()
                    index.match(prompt, out)
                    took_us.append((time.perf_counter() - start) * 1e6)
            of_kind.append(took_us)
    print(
        json.dumps(
            {
                "bytes_per_block": taken / held,
                "counted_ratio": (index.size_bytes + residency.size_bytes) / taken,
                "full_collection_ms": min(pauses_ms),
                "empty_collection_ms": empty_ms,
                "quiet_p99_us": min(percentile(each, 0.99) for each in spells[False]),
                "ingesting_p99_us": min(percentile(each, 0.99) for each in spells[True]),
            }
        )
    )


def fleet_bytes(fleet: Fleet) -> int:
    """What the bench itself keeps: some 40 bytes a prompt."""
    return sum(len(firsts) * 40 for firsts in fleet.firsts)


def _full_collection_ms() -> float:
    began = time.perf_counter()
    gc.collect()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
