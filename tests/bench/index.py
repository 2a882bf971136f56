"""The block index beside the peer's radix tree, at a million blocks; and its memory and pauses at ten million.

Each run is a process of its own, sides take turns, and the best of each side counts: what else the machine does slows
down one run, and speeds up none. Both sides are told the same tokens, and must find the same blocks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from index_blocks import EVENT_BLOCKS, LONG_MATCH, SHORT_MATCH, WORKERS
from peer_python import peer_python
from report import Row

from kvaware_testing.repository import REPOSITORY

__all__ = ["measure_index"]

FOLDER = Path(__file__).parent
PEER = "Dynamo RadixTree"
ROUNDS = 5
SHORT_RATIO, LONG_PER_S, TOLD_RATIO = 2.0, 100_000, 1.0
BYTES_PER_BLOCK, INGESTING_RATIO, COUNTED_RATIO = 100, 2.0, 0.1


def measure_index() -> list[Row]:
    """Run everything. Takes some four minutes, and the peer's environment once."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(_json([sys.executable, FOLDER / "index_speed.py"]))
        theirs.append(_json([peer_python(), FOLDER / "peers" / "dynamo_radix.py"]))
    for each in (*ours, *theirs):
        if each["depths"] != ours[0]["depths"]:
            raise RuntimeError(f"expected both sides to find the same blocks, got others from {PEER}")
    return [*_matches(ours, theirs), *_told(ours, theirs), *_at_size(_json([sys.executable, FOLDER / "index_size.py"]))]


def _matches(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[Row]:
    short, short_peer = (_best(runs, lambda run: run["short_us"]) for runs in (ours, theirs))
    long, long_peer = (_best(runs, lambda run: run["long_us"]) for runs in (ours, theirs))
    found, blocks = sum(map(sum, ours[0]["depths"])), ours[0]["blocks"]
    return [
        Row(
            name=f"longest match, {SHORT_MATCH} blocks deep, {blocks:,} blocks of {WORKERS} workers",
            value=short,
            unit="us",
            against=f"faster than {PEER}, {short_peer:.1f}; both found {found:,} blocks",
            ratio=short_peer / short,
            reach=f">= {SHORT_RATIO:g} x",
            ok=short_peer >= SHORT_RATIO * short,
        ),
        Row(
            name=f"the same, {LONG_MATCH} blocks deep",
            value=1e6 / long,
            unit="1/s",
            against=f"{PEER}, {1e6 / long_peer:,.0f}",
            ratio=long_peer / long,
            reach=f">= {LONG_PER_S:,}/s",
            ok=1e6 / long >= LONG_PER_S,
        ),
    ]


def _told(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[Row]:
    """Events as both sides come to know them: with their tokens. The peer's tree is told hashes, made before."""
    rows = []
    for key, words in (("one", "one block"), ("many", f"{EVENT_BLOCKS} blocks")):
        mine = _best(ours, lambda run, key=key: run[f"{key}_us"])
        hashed = _best(theirs, lambda run, key=key: run[f"{key}_hash_us"])
        applied = _best(theirs, lambda run, key=key: run[f"{key}_apply_us"])
        rows.append(
            Row(
                name=f"event of {words}, from tokens to index",
                value=mine,
                unit="us",
                against=f"faster than {PEER}, {hashed:.1f} hashed + {applied:.1f} applied",
                ratio=(hashed + applied) / mine,
                reach=f">= {TOLD_RATIO:g} x",
                ok=hashed + applied >= TOLD_RATIO * mine,
            )
        )
    return rows


def _at_size(found: dict[str, Any]) -> list[Row]:
    quiet_us, ingesting_us = found["quiet_p99_us"], found["ingesting_p99_us"]
    return [
        Row(
            name=f"memory at 10,000,000 blocks of {WORKERS} workers, all structures, measured of the process",
            value=found["bytes_per_block"],
            unit="bytes",
            against="counted / measured",
            ratio=found["counted_ratio"],
            reach=f"<= {BYTES_PER_BLOCK}, counted within {COUNTED_RATIO:.0%}",
            ok=found["bytes_per_block"] <= BYTES_PER_BLOCK and abs(found["counted_ratio"] - 1) <= COUNTED_RATIO,
        ),
        Row(
            name="full run of the garbage collector then",
            value=found["full_collection_ms"],
            unit="ms",
            against=f"before, {found['empty_collection_ms']:.0f} ms",
            ratio=found["full_collection_ms"] / found["empty_collection_ms"],
            reach="no target",
            ok=True,
        ),
        Row(
            name="match p99 while 20,000 block events/s come in, collector on",
            value=ingesting_us,
            unit="us",
            against=f"without events, {quiet_us:,.1f}",
            ratio=ingesting_us / quiet_us,
            reach=f"<= {INGESTING_RATIO:g} x",
            ok=ingesting_us <= INGESTING_RATIO * quiet_us,
        ),
    ]


def _best(runs: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    return min(map(figure, runs))


def _json(command: list[str | Path]) -> dict[str, Any]:
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'tests'}:{FOLDER}"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
