"""How many place + finish pairs a second one placer does in process; as a process of its own.

``python tests/bench/placing_pairs.py TRACE WORKERS SCENE``; prints one JSON object. Each replay is on a fresh placer,
and the best of them counts. What lives before is out of the collector's sight, as in the extender.
"""

import gc
import json
import random
import sys
import time
from collections import deque
from enum import StrEnum
from pathlib import Path

from trace_bodies import BLOCK_TOKENS, trace_bodies

from kvaware_engine.requests.words import EventType, Placement, PlacementEvent, RequestDemand
from kvaware_extender.request_records import Placed
from kvaware_simulator import TraceRequest
from kvaware_testing.placer_builders import PlacerAtWork

__all__ = ["Scene"]

REPLAYS, REPLAYS_OF_MANY, MANY = 5, 2, 1_000
"""Thousands of workers take a second to come."""
POOL_BLOCKS, SMALL_POOL_BLOCKS = 8_000, 1_000
"""Of one worker, as long as a hash of the trace stands for. The whole trace has some 6,600 of them: requests that end
at once leave all workers idle, so that all of them follow the first block, which they share."""
WORKER_BLOCK_TOKENS = 16


class Scene(StrEnum):
    """What the workers are doing, and what they may hold."""

    TRACE = "trace"
    """Idle, all alike; prefixes of the trace come again."""
    SMALL_POOLS = "small_pools"
    """The same, in pools that are soon full: older blocks have to go."""
    EMPTY = "empty"
    """Idle, all alike, and nobody ever holds anything of a prompt."""
    LOADED = "loaded"
    """Queues, batches and pools of any length, one worker's unlike another's; prefixes come again."""


def main(trace: Path, workers: int, scene: Scene) -> None:
    """Replay the trace ``REPLAYS`` times."""
    bodies = trace_bodies(trace)
    best_s, matched = float("inf"), 0
    for _ in range(REPLAYS_OF_MANY if workers >= MANY else REPLAYS):
        at_work = _at_work(workers, scene)
        demands = [_demand(at_work, number, body, scene) for number, body in enumerate(bodies)]
        gc.collect()
        gc.freeze()
        took_s, matched = _replayed(at_work, demands)
        gc.unfreeze()
        best_s = min(best_s, took_s)
    whole_tokens = sum(len(body.block_hashes) * BLOCK_TOKENS for body in bodies)
    print(json.dumps({"per_s": len(bodies) / best_s, "hit_ratio": matched / whole_tokens}))


def _at_work(workers: int, scene: Scene) -> PlacerAtWork:
    blocks = SMALL_POOL_BLOCKS if scene is Scene.SMALL_POOLS else POOL_BLOCKS
    pool_blocks = blocks * BLOCK_TOKENS // WORKER_BLOCK_TOKENS
    at_work = PlacerAtWork(workers, pool_blocks=pool_blocks)
    if scene is Scene.LOADED:
        chance = random.Random(workers)  # noqa: S311 - figures of load, no secret
        for name in at_work.names:
            at_work.hears(
                name,
                waiting=chance.randrange(8),
                running=chance.randrange(64),
                queued_tokens=chance.randrange(20_000),
                batch_size=chance.randrange(64),
                kv_blocks_free=chance.randrange(pool_blocks // 2, pool_blocks),
            )
    return at_work


def _demand(at_work: PlacerAtWork, number: int, body: TraceRequest, scene: Scene) -> RequestDemand:
    """As the edge makes it. Where nobody is to hold anything, each prompt's hashes are its own."""
    changed = (number + 1) << 40 if scene is Scene.EMPTY else 0
    return at_work.demand(
        f"r{number}",
        input_tokens=body.input_tokens,
        block_hashes=[each ^ changed for each in body.block_hashes],
        block_tokens=BLOCK_TOKENS,
        expected_output_tokens=None,
    )


def _replayed(at_work: PlacerAtWork, demands: list[RequestDemand]) -> tuple[float, int]:
    """Seconds that it took, and the tokens that were found."""
    placer, now_s = at_work.placer, at_work.now_s
    at_work.tells(at_work.placed("warm-up"), EventType.FINISHED)
    finished = PlacementEvent(type=EventType.FINISHED)
    log: deque[Placed] = deque(maxlen=10_000)
    """As many as wait for the extender's writing thread."""
    matched = 0
    began_s = time.perf_counter()
    for demand in demands:
        placement = placer.place(demand, now_s=now_s)
        assert type(placement) is Placement, placement
        log.append(Placed(placement, "m", time.time(), None))
        matched += placement.option.matched_tokens
        placer.event(placement.placement_id, finished, now_s=now_s)
    return time.perf_counter() - began_s, matched


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Scene(sys.argv[3]))
