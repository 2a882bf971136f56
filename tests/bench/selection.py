"""Select and release in process: ours beside the peer's, at thousands of workers, and while block events come in.

Each run is a process of its own, sides take turns, and the best of each side counts: what else the machine does slows
down one run, and speeds up none.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peer_python import peer_python
from report import Row
from trace_bodies import TRACE

from kvaware_testing.repository import REPOSITORY

__all__ = ["measure_selection"]

FOLDER = Path(__file__).parent
PEER = "Dynamo SelectionService"
ROUNDS, ROUNDS_OF_MANY = 5, 3
WORKERS, MANY = (8, 64), 7_000
CONCURRENCIES = (1, 32)
"""Of the peer, which is asynchronous; ours is one call after another."""
SCENES = {"empty": "nobody holds anything", "trace": "all idle alike", "loaded": "uncorrelated load"}
"""As ``placing_pairs.py`` knows them."""
LEAST_PER_S, LEAST_RATIO, MANY_RATIO, INGESTING_RATIO = 30_000, 3.0, 3.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of some runs."""

    per_s: float
    hit_ratio: float
    """Of the prompts' whole blocks, how many were at the chosen worker."""


def measure_selection() -> list[Row]:
    """Run everything. Takes about three minutes, and the peer's environment once."""
    runs = {f"ours {workers}": _ours(workers, "trace") for workers in WORKERS}
    for workers in WORKERS:
        for concurrency in CONCURRENCIES:
            runs[f"peer {workers} {concurrency}"] = _peer(workers, concurrency)
    best = _bests(runs, ROUNDS)
    rows = [row for workers in WORKERS for row in _beside_peer(workers, best)]
    many = {"few": _ours(64, "trace"), "small_pools": _ours(64, "small_pools")}
    many |= {scene: _ours(MANY, scene) for scene in SCENES}
    return [*rows, *_many(_bests(many, ROUNDS_OF_MANY)), _ingesting()]


def _beside_peer(workers: int, best: Mapping[str, Best]) -> list[Row]:
    ours = best[f"ours {workers}"]
    theirs = {each: best[f"peer {workers} {each}"] for each in CONCURRENCIES}
    peer_per_s = max(each.per_s for each in theirs.values())
    peer_hits = max(each.hit_ratio for each in theirs.values())
    figures = " / ".join(f"{each.per_s:,.0f}" for each in theirs.values())
    return [
        Row(
            name=f"select + release, {workers} workers",
            value=ours.per_s,
            unit="1/s",
            against=f"{PEER}, {figures} one by one / 32 at once",
            ratio=ours.per_s / peer_per_s,
            reach=f">= {LEAST_RATIO:g} x and >= {LEAST_PER_S:,}/s",
            ok=ours.per_s >= LEAST_RATIO * peer_per_s and ours.per_s >= LEAST_PER_S,
        ),
        Row(
            name=f"blocks found at the chosen worker, {workers} workers",
            value=ours.hit_ratio * 100,
            unit="%",
            against=f"{PEER}, {peer_hits * 100:.1f} %",
            ratio=ours.hit_ratio / peer_hits if peer_hits else None,
            reach="both find blocks",
            ok=ours.hit_ratio > 0 and all(each.hit_ratio > 0 for each in theirs.values()),
        ),
    ]


def _many(best: Mapping[str, Best]) -> list[Row]:
    few, small = best["few"].per_s, best["small_pools"]
    return [
        Row(
            name=f"select + release, 64 workers, full pools, {small.hit_ratio * 100:.1f} % found",
            value=small.per_s,
            unit="1/s",
            against=f"slower than with room, {few:,.0f}",
            ratio=few / small.per_s,
            reach="no target",
            ok=True,
        ),
        *(
            Row(
                name=f"select + release, {MANY:,} workers, {words}",
                value=best[scene].per_s,
                unit="1/s",
                against=f"slower than with 64, {few:,.0f}",
                ratio=few / best[scene].per_s,
                reach=f"<= {MANY_RATIO:g} x",
                ok=few <= MANY_RATIO * best[scene].per_s,
            )
            for scene, words in SCENES.items()
        ),
    ]


def _ingesting() -> Row:
    found = _json([sys.executable, FOLDER / "while_ingesting.py"])
    quiet_us, ingesting_us = found["quiet_p99_us"], found["ingesting_p99_us"]
    return Row(
        name="decision p99 from when it is due, 20,000 block events/s, collector on",
        value=ingesting_us,
        unit="us",
        against=f"without events, {quiet_us:,.0f}",
        ratio=ingesting_us / quiet_us,
        reach=f"<= {INGESTING_RATIO:g} x",
        ok=ingesting_us <= INGESTING_RATIO * quiet_us,
    )


# -- runs -----------------------------------------------------------------------------------------------------------


def _ours(workers: int, scene: str) -> list[str | Path]:
    return [sys.executable, FOLDER / "placing_pairs.py", TRACE, str(workers), scene]


def _peer(workers: int, concurrency: int) -> list[str | Path]:
    return [peer_python(), FOLDER / "peers" / "dynamo_selection.py", TRACE, str(workers), str(concurrency)]


def _bests(runs: Mapping[str, list[str | Path]], rounds: int) -> dict[str, Best]:
    """Every run once a round, in turn."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, command in runs.items():
            found[name].append(_json(command))
    return {
        name: Best(per_s=max(run["per_s"] for run in each), hit_ratio=min(run["hit_ratio"] for run in each))
        for name, each in found.items()
    }


def _json(command: list[str | Path]) -> dict[str, float]:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
