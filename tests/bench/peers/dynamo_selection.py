"""Run by the peer's own Python: how many select-and-reserve + free pairs a second its selection service does in process.

``dynamo_selection.py TRACE WORKERS CONCURRENCY``; prints one JSON object.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

os.environ["DYN_ROUTER_USE_KV_EVENTS"] = "false"  # it remembers what it sent where, as we do without events
os.environ["DYN_LOG"] = "off"

from dynamo._core import SelectionService  # noqa: E402 - its environment comes first

BLOCK_TOKENS = 512
POOL_BLOCKS = 2_000


async def main(trace: Path, workers: int, concurrency: int) -> None:
    """Replay the trace once on a fresh service."""
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
    demands = []
    for number, line in enumerate(trace.read_text().splitlines()):
        row = json.loads(line)
        hashes = [((each + 1) * 0x9E3779B97F4A7C15) % (1 << 63) for each in row["hash_ids"]]
        demands.append(
            {
                "model_name": "m",
                "block_hashes": hashes,
                "sequence_hashes": hashes,
                "isl_tokens": row["input_length"],
                "selection_id": str(number),
            }
        )
    matched = 0
    waiting = iter(demands)

    async def one_by_one() -> None:
        nonlocal matched
        for demand in waiting:
            answer = await service.select_and_reserve(demand)
            matched += answer["overlap"]["longest_matched"]
            await service.free_reservation(demand["selection_id"])

    began = time.perf_counter()
    await asyncio.gather(*(one_by_one() for _ in range(concurrency)))
    took_s = time.perf_counter() - began
    whole_tokens = sum(len(each["block_hashes"]) * BLOCK_TOKENS for each in demands)
    print(json.dumps({"per_s": len(demands) / took_s, "hit_ratio": matched / whole_tokens}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
