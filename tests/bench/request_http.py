"""Requests placed over HTTP and over streams: the real extender, beside an aiohttp server that does nothing and a peer.

The extender serves a folder of manifests; its workers' heartbeats come from here. Runs alternate, and the best of each
side counts: what else the machine does slows down one run, and speeds up none.
"""

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from peer_python import peer_python
from report import Row
from trace_bodies import BLOCK_TOKENS, trace_bodies

from kvaware_cli.demo.process import running_extender
from kvaware_cli.replay.gateway import Gateway, open_gateway
from kvaware_cli.replay.scene import KV_BLOCKS, NAMESPACE, model_name, worker_ids, write_scene
from kvaware_testing.controlplane.process import Process, free_ports

__all__ = ["measure_request_http"]

POLICY = "cost"
WORKERS = 64
ROUNDS, LASTS_S, CONNECTIONS = 5, 3, 32
BEAT_EVERY_S = 5.0
"""Of one worker. They do not beat together."""
FOLDER = Path(__file__).parent
HTTP_RATIO, P99_RATIO, STREAM_RATIO = 0.65, 3.0, 1.0
PAIRS = f"HTTP, place + finish, {WORKERS} workers, {CONNECTIONS} connections"
STREAM = f"stream of 32 demands a frame, place + finish, {WORKERS} workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of some seconds."""

    per_s: float
    """Pairs."""
    matched_tokens: int
    p99_ms: float = 0.0
    """Of one call."""


def measure_request_http() -> list[Row]:
    """Run everything. Takes about two minutes, and the peer's environment once."""
    if shutil.which("wrk") is None:
        missing = "needs wrk on PATH, and it is not there: apt-get install wrk, or brew install wrk"
        return [_not_measured(name, missing) for name in (PAIRS, f"{PAIRS}, p99", STREAM)]
    with tempfile.TemporaryDirectory(prefix="kvaware-bench-") as name:
        return asyncio.run(_measured(Path(name)))


async def _measured(folder: Path) -> list[Row]:
    ours = _bodies(folder / "ours", lambda body: {"model": model_name(POLICY), **body}, hashes=("block_hashes",))
    theirs = _bodies(
        folder / "theirs",
        lambda body: {"model_name": "m", "isl_tokens": body["input_tokens"]},
        hashes=("block_hashes", "sequence_hashes"),
        request_id="selection_id",
    )
    runs: dict[str, list[Run]] = {"http": [], "echo": [], "stream": [], "peer": []}
    async with _extender(folder) as url:
        for number in range(ROUNDS):
            with _server("echo", [sys.executable, FOLDER / "echo.py"], folder, ready="/readyz") as echo:
                runs["echo"].append(await _wrk(echo, "answered", ours, f"e{number}-"))
            runs["http"].append(await _wrk(url, "answered", ours, f"h{number}-"))
            with _dynamo(folder) as peer:
                runs["peer"].append(await _wrk(peer, "numbered", theirs, f"d{number}-"))
            runs["stream"].append(await _stream(url, ours, f"s{number}-"))
    if not all(run.matched_tokens for run in (*runs["http"], *runs["stream"])):
        raise RuntimeError("expected every run to find blocks of the trace at workers, got one that found none")
    best = {side: max(run.per_s for run in of_side) for side, of_side in runs.items()}
    p99_ms, echo_p99_ms = (median(run.p99_ms for run in runs[side]) for side in ("http", "echo"))
    return [
        _row(PAIRS, best["http"], "no-op echo", best["echo"], HTTP_RATIO),
        Row(
            name=f"{PAIRS}, p99 of a call",
            value=p99_ms,
            unit="ms",
            against="no-op echo",
            ratio=p99_ms / echo_p99_ms,
            reach=f"<= {P99_RATIO:g} x",
            ok=p99_ms <= P99_RATIO * echo_p99_ms,
        ),
        _row(STREAM, best["stream"], "Dynamo select_service over HTTP", best["peer"], STREAM_RATIO),
    ]


def _row(name: str, value: float, against: str, other: float, least: float) -> Row:
    return Row(
        name=name,
        value=value,
        unit="pairs/s",
        against=f"{against}, {other:,.0f}",
        ratio=value / other,
        reach=f">= {least:g} x",
        ok=value >= least * other,
    )


def _not_measured(name: str, why: str) -> Row:
    return Row(name=f"{name}: not measured", value=0.0, unit="", against="", ratio=None, reach=why, ok=False)


# -- the sides ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _extender(folder: Path) -> AsyncIterator[str]:
    """The extender with its workers, which are idle and say so."""
    scene = folder / "scene"
    scene.mkdir()
    write_scene(scene, [POLICY], workers=WORKERS)
    token = secrets.token_hex(16)
    (folder / "token").write_text(token, encoding="utf-8")
    settings = {
        "KVAWARE_HEARTBEAT__TOKEN_FILE": str(folder / "token"),
        "KVAWARE_DECISION_LOG": str(folder / "decisions.jsonl"),
    }
    with running_extender(scene, settings) as extender:
        async with open_gateway(extender.api_url, token=token) as gateway:
            for worker in worker_ids(POLICY, WORKERS):
                await _beat(gateway, worker, seq=0)
            beating = asyncio.create_task(_keep_beating(gateway), name="heartbeats")
            try:
                yield extender.api_url
            finally:
                beating.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await beating  # what went wrong with a heartbeat is raised here


async def _keep_beating(gateway: Gateway) -> None:
    for seq in count(1):
        for worker in worker_ids(POLICY, WORKERS):
            await asyncio.sleep(BEAT_EVERY_S / WORKERS)
            await _beat(gateway, worker, seq=seq)


async def _beat(gateway: Gateway, worker: str, *, seq: int) -> None:
    figures = {
        "seq": seq,
        "model": f"{NAMESPACE}/{model_name(POLICY)}",
        "role": "both",
        "block_size": BLOCK_TOKENS,
        "kv_blocks_total": KV_BLOCKS,
        "kv_blocks_free": KV_BLOCKS,
        "waiting": 0,
        "running": 0,
        "queued_tokens": 0,
        "batch_size": 0,
    }
    async with asyncio.timeout(10):
        while not await gateway.beat(worker, figures):  # noqa: ASYNC110 - another process has no event to set
            await asyncio.sleep(0.25)  # it is not known yet


@contextlib.contextmanager
def _dynamo(folder: Path) -> Iterator[str]:
    """The peer's selection service with the same workers, fresh: it remembers what it sent where."""
    command = [str(peer_python()), "-m", "dynamo.select_service"]
    environ = {**os.environ, "DYN_ROUTER_USE_KV_EVENTS": "false", "DYN_LOG": "off"}
    with _server("select-service", command, folder, ready="/health", environ=environ) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        for worker in range(WORKERS):
            body = {
                "worker_id": worker,
                "model_name": "m",
                "block_size": BLOCK_TOKENS,
                "endpoint": f"http://127.0.0.1:{9000 + worker}",
                "total_kv_blocks": KV_BLOCKS,
                "max_num_batched_tokens": 8192,
            }
            connection.request("POST", "/workers", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
            if reply.status >= 300:
                raise RuntimeError(f"the peer did not take a worker: {reply.status} {content[:300]!r}")
        connection.close()
        yield url


@contextlib.contextmanager
def _server(
    name: str,
    command: Sequence[str | Path],
    folder: Path,
    *,
    ready: str,
    environ: Mapping[str, str] | None = None,
) -> Iterator[str]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = Process(
        name,
        [*command, "--port", str(port)],
        log=folder / f"{name}.log",
        ready_url=f"{url}{ready}",
        environ=environ,
    )
    process.start()
    try:
        process.wait_ready()
        yield url
    finally:
        process.stop()


# -- the callers ----------------------------------------------------------------------------------------------------


def _bodies(path: Path, form: Any, *, hashes: Sequence[str], request_id: str = "request_id") -> Path:
    """A body a line, with ``@ID@`` where the request's id goes."""
    lines = []
    for each in trace_bodies():
        body = {request_id: "@ID@", **form({"input_tokens": each.input_tokens})}
        body |= dict.fromkeys(hashes, each.block_hashes)
        lines.append(json.dumps(body, separators=(",", ":")) + "\n")
    path.write_text("".join(lines), "utf-8")
    return path


async def _wrk(url: str, speaks: str, bodies: Path, prefix: str) -> Run:
    """One run of wrk; see ``wrk/pairs.lua``."""
    options = ["-t1", f"-c{CONNECTIONS}", f"-d{LASTS_S}s", "-s", str(FOLDER / "wrk" / "pairs.lua"), url]
    output = await _output("wrk", *options, "--", speaks, bodies, prefix)
    found = json.loads(next(line for line in output.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    overtaken = found["requests"] // 1000 if speaks == "numbered" else 0  # on a busy machine one may be that slow
    if found["refused"] > overtaken or found["broken"] or found["failed"]:
        raise RuntimeError(f"expected every call of {url} to be taken, got {found}")
    pairs = found["finished"] if speaks == "answered" else found["requests"] / 2
    return Run(
        per_s=pairs / (found["duration_us"] / 1e6),
        matched_tokens=found["matched_tokens"],
        p99_ms=found["p99_us"] / 1000,
    )


async def _stream(url: str, bodies: Path, prefix: str) -> Run:
    """One run of ``stream_pairs.py``."""
    script = FOLDER / "stream_pairs.py"
    output = await _output(sys.executable, script, f"{url}/v1/placements/stream", bodies, prefix, str(LASTS_S))
    found = json.loads(output)
    if found["failed"] or found["finished"] != found["placed"]:
        raise RuntimeError(f"expected every demand to be placed and finished, got {found}")
    return Run(per_s=found["per_s"], matched_tokens=found["matched_tokens"])


async def _output(*command: str | Path) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output.decode()[-2000:]}")
    return output.decode()
