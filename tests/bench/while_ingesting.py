"""How long a decision takes from when it is due, with and without block events in between; as a process of its own.

``python tests/bench/while_ingesting.py``; prints one JSON object. One loop does it all, as in the extender: what is due
first is done first. Spells with and without events alternate. The collector runs, and is looked after as in the
extender.
"""

import json
import logging
import random
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from statistics import median

import structlog
from report import percentile

from kvaware_engine.blocks.events import BlockEvent, BlocksRemoved, BlocksStored
from kvaware_engine.blocks.hashing import chain
from kvaware_engine.requests.words import EventType, Placement, PlacementEvent
from kvaware_extender.garbage import EVERY_S, Garbage
from kvaware_testing.placer_builders import PlacerAtWork

WORKERS = 64
BLOCK_TOKENS = 16
PROMPT_BLOCKS, PROMPTS = 32, 256
"""Half a million blocks are there from the beginning."""
EVENTS_PER_S, PER_MESSAGE = 20_000, 8
"""Of one block each: half of them stored, half of them removed. A message is what a worker tells of one step."""
ANSWER_BLOCKS = 64
DECISIONS_PER_S = 1_000
SPELLS, LASTS_S = 5, 1.5
"""Of each kind."""


class Fleet:
    """Workers whose blocks are followed."""

    def __init__(self) -> None:
        self.at_work = PlacerAtWork(WORKERS, pool_blocks=4 * PROMPTS * PROMPT_BLOCKS)
        self._placer = self.at_work.placer
        self._chance = random.Random(1)  # noqa: S311 - prompts and arrivals, no secret
        self._numbers = count()
        self._root = self._placer.root(self.at_work.seen.key, None, None)
        self._prompts = [self._fill(name) for name in self.at_work.names for _ in range(PROMPTS)]
        """Their hashes, as callers know them."""
        self._messages = self._endless()
        self._garbage = Garbage(clock=time.monotonic)

    def spell(self, *, ingesting: bool) -> list[float]:
        """Some time of decisions. Returns: of each, the microseconds from when it was due until it was made."""
        arrivals = self._arrivals()
        message_every_s = PER_MESSAGE / EVENTS_PER_S if ingesting else float("inf")
        message_at_s, look_at_s = message_every_s, EVERY_S
        took_us = []
        began_s = time.perf_counter()
        for due_s in arrivals:
            while (at_s := time.perf_counter() - began_s) < due_s or message_at_s < due_s:
                if message_at_s <= at_s:
                    worker, events = next(self._messages)
                    applied = self._placer.observe_blocks(worker, events, now_s=self.at_work.now_s)
                    assert not applied.orphaned + applied.unknown_removed, applied
                    message_at_s += message_every_s
                elif look_at_s <= at_s:
                    self._garbage.look()
                    look_at_s += EVERY_S
            placement = self._place()
            took_us.append((time.perf_counter() - began_s - due_s) * 1e6)
            self._placer.event(
                placement.placement_id, PlacementEvent(type=EventType.FINISHED), now_s=self.at_work.now_s
            )
        return took_us

    def begin(self) -> None:
        """Take what lives out of the collector's sight."""
        self._garbage.begin()

    def _place(self) -> Placement:
        return self.at_work.placed(
            input_tokens=(PROMPT_BLOCKS + 4) * BLOCK_TOKENS,
            block_hashes=self._chance.choice(self._prompts),
            block_tokens=BLOCK_TOKENS,
        )

    def _arrivals(self) -> Iterator[float]:
        """When requests come, independently of each other."""
        at_s = 0.0
        while (at_s := at_s + self._chance.expovariate(DECISIONS_PER_S)) < LASTS_S:
            yield at_s

    def _fill(self, worker: str) -> list[int]:
        """One prompt more."""
        tokens = self._tokens(PROMPT_BLOCKS)
        stored = BlocksStored(
            engine_hashes=[next(self._numbers) for _ in range(PROMPT_BLOCKS)],
            token_ids=tokens,
            block_tokens=BLOCK_TOKENS,
        )
        self._placer.observe_blocks(worker, [stored], now_s=self.at_work.now_s)
        return chain(self._root, tokens, block_tokens=BLOCK_TOKENS)

    def _tokens(self, blocks: int) -> list[int]:
        first = next(self._numbers) * 997
        return [(first + each) % 128_000 for each in range(blocks * BLOCK_TOKENS)]

    def _endless(self) -> Iterator[tuple[str, list[BlockEvent]]]:
        """Answers that grow block by block, and old ones that give way as servers evict them: tails first."""
        growing: dict[str, list[int]] = {name: [] for name in self.at_work.names}
        grown: dict[str, deque[list[int]]] = {name: deque() for name in self.at_work.names}
        while True:
            for name in self.at_work.names:
                events: list[BlockEvent] = []
                for _ in range(PER_MESSAGE // 2):
                    answer, block = growing[name], next(self._numbers)
                    parent = answer[-1] if answer else None
                    tokens = self._tokens(1)
                    events.append(
                        BlocksStored(engine_hashes=[block], parent=parent, token_ids=tokens, block_tokens=BLOCK_TOKENS)
                    )
                    answer.append(block)
                    if len(answer) == ANSWER_BLOCKS:
                        grown[name].append(answer)
                        growing[name] = []
                while len(events) < PER_MESSAGE and grown[name]:
                    events.append(BlocksRemoved(engine_hashes=[grown[name][0].pop()]))
                    if not grown[name][0]:
                        grown[name].popleft()
                yield name, events


def main() -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    fleet = Fleet()
    fleet.begin()
    fleet.spell(ingesting=True)  # the first time is another's: memory comes, code is seen once
    spells: dict[str, list[list[float]]] = {"quiet": [], "ingesting": []}
    for _ in range(SPELLS):
        for name, of_kind in spells.items():
            of_kind.append(fleet.spell(ingesting=name == "ingesting"))
    print(
        json.dumps(
            {
                f"{name}_{word}_us": median(percentile(spell, share) for spell in of_kind)
                for name, of_kind in spells.items()
                for word, share in (("p50", 0.5), ("p99", 0.99))
            }
        )
    )


if __name__ == "__main__":
    main()
