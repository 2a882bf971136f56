"""Run by the peer's Python: how many select-and-reserve + free pairs a second its selection service does in process.

``dynamo_selection.py TRACE WORKERS CONCURRENCY``; prints one JSON object. Each replay is on a fresh service, and
the best of them counts.
"""

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path

os.environ["DYN_ROUTER_USE_KV_EVENTS"] = "false"  # it remembers what it sent where, as we do without events
os.environ["DYN_LOG"] = "off"

from dynamo._core import SelectionService

BLOCK_TOKENS = 512
POOL_BLOCKS = 8_000
REPLAYS = 5


def read_demands(trace: Path) -> list[dict]:
    """All requests of the trace with a whole block."""
    demands = []
    for number, line in enumerate(trace.read_text("utf-8").splitlines()):
        row = json.loads(line)
        whole = row["hash_ids"][: row["input_length"] // BLOCK_TOKENS]
        if not whole:
            continue
        hashes = [(each + 1) * 0x9E3779B97F4A7C15 % (1 << 63) for each in whole]
        demands.append(
            {
                "model_name": "m",
                "block_hashes": hashes,
                "sequence_hashes": hashes,
                "isl_tokens": row["input_length"],
                "selection_id": str(number),
            }
        )
    return demands


async def main(demands: list[dict], workers: int, concurrency: int) -> None:
    """Replay them ``REPLAYS`` times."""
    best_s, matched = float("inf"), 0
    for _ in range(REPLAYS):
        took_s, matched = await replayed(demands, workers, concurrency)
        best_s = min(best_s, took_s)
    whole_tokens = sum(len(each["block_hashes"]) * BLOCK_TOKENS for each in demands)
    print(json.dumps({"per_s": len(demands) / best_s, "hit_ratio": matched / whole_tokens}))


async def replayed(demands: list[dict], workers: int, concurrency: int) -> tuple[float, int]:
    """Seconds that it took, and the tokens that were found at the chosen workers."""
    service = SelectionService()
    for worker in range(workers):
        await service.upsert_worker(
            {
                "worker_id": worker,
                "model_name": "m",
                "block_size": BLOCK_TOKENS,
                "endpoint": f"http://127.0.0.1:{9000 + worker}",
                "total_kv_blocks": POOL_BLOCKS,
                "max_num_batched_tokens": 8192,
            }
        )
    matched = 0
    waiting = iter(demands)

    async def one_by_one() -> None:
        nonlocal matched
        for demand in waiting:
            answer = await service.select_and_reserve(demand)
            matched += answer["overlap"]["gpu"]
            await service.free_reservation(demand["selection_id"])

    gc.collect()
    gc.freeze()  # as on our side
    began_s = time.perf_counter()
    await asyncio.gather(*(one_by_one() for _ in range(concurrency)))
    took_s = time.perf_counter() - began_s
    service.shutdown()
    return took_s, matched


if __name__ == "__main__":
    asyncio.run(main(read_demands(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])))
