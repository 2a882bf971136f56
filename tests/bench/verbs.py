"""The scheduler verbs over HTTP at 5,000 nodes and 40,000 pods, ours and the no-op extender's in turn.

Each measured call has a UID that was never seen and a state that no earlier call saw: a bind lies between any two.
Filter is offered the nodes in a new order each time, as kube-scheduler's parallel collection does; prioritize gets the
names in the order of filter's reply, as kube-scheduler passes them on.
"""

import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import big_cluster
import psutil
import yaml
from report import Row, percentile

from kvaware_testing.controlplane.extender import ExtenderProcess, noop_extender
from kvaware_testing.controlplane.process import Process, free_ports

NODES, PODS = 5_000, 40_000
ROUNDS, WARM_UP = 400, 30
ORDERS = 16

__all__ = ["measure_verbs"]


class Caller:
    """One keep-alive connection; times a call from the first byte sent to the last byte read."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        self._path = parts.path
        self.times_ms: dict[str, list[float]] = {}

    def __call__(self, verb: str, body: bytes, *, into: str | None) -> bytes:
        began = time.perf_counter()
        self._connection.request("POST", f"{self._path}/{verb}", body, {"Content-Type": "application/json"})
        reply = self._connection.getresponse()
        content = reply.read()
        took_ms = (time.perf_counter() - began) * 1000
        if reply.status != 200:
            raise RuntimeError(f"{verb}: expected 200, got {reply.status}: {content[:300]!r}")
        if into is not None:
            self.times_ms.setdefault(into, []).append(took_ms)
        return content


@contextmanager
def cluster(folder: Path, *, pods: int, pending: int) -> Iterator[Path]:
    """A big cluster; its kubeconfig."""
    (port,) = free_ports(1)
    server = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(Path(big_cluster.__file__)), "--port", str(port)]
    command += ["--nodes", str(NODES), "--pods", str(pods), "--pending", str(pending)]
    process = Process("big-cluster", command, log=folder / "api.log", ready_url=f"{server}/api/v1/nodes?limit=1")
    kubeconfig = folder / f"kubeconfig-{pods}"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        ),
        "utf-8",
    )
    process.start()
    try:
        process.wait_ready()
        yield kubeconfig
    finally:
        process.kill()


def _extender(folder: Path, kubeconfig: Path) -> tuple[ExtenderProcess, float, float]:
    """Our extender, ready. Returns also the seconds from start to ready and its memory in MB."""
    extender = ExtenderProcess(folder, kubeconfig, config={"decisionLog": str(folder / "decisions.jsonl")})
    began = time.perf_counter()
    extender.process.start()
    extender.process.wait_ready(timeout_s=120)
    took_s = time.perf_counter() - began
    return extender, took_s, _rss_mb(extender)


def _rss_mb(extender: ExtenderProcess) -> float:
    pid = extender.process.pid
    assert pid is not None
    return psutil.Process(pid).memory_info().rss / 1e6


def _request(pod: dict[str, Any], names_json: bytes) -> bytes:
    return b'{"Pod":' + json.dumps(pod).encode() + b',"Nodes":null,"NodeNames":' + names_json + b"}"


def _names_json(reply: bytes) -> bytes:
    return json.dumps(json.loads(reply)["NodeNames"], separators=(",", ":")).encode()


def measure_verbs() -> list[Row]:
    """Run everything. Takes about two minutes."""
    with tempfile.TemporaryDirectory(prefix="kvaware-bench-") as name:
        folder = Path(name)
        linear = [_time_to_ready(folder, pods) for pods in (PODS // 2, PODS)]
        pending = 3 * (ROUNDS + WARM_UP)
        with cluster(folder, pods=PODS, pending=pending) as kubeconfig:
            extender, _, _ = _extender(folder, kubeconfig)
            noop, noop_url = noop_extender(folder, None)
            try:
                noop.start()
                noop.wait_ready()
                ours, theirs = Caller(extender.scheduler_url), Caller(noop_url)
                _rounds(ours, theirs)
                repeats = extender.metric("kvaware_filter_repeats_total")
                rss_mb = _rss_mb(extender)
            finally:
                noop.stop()
                extender.stop()
    if repeats:
        raise RuntimeError(f"expected every filter to be decided anew, got {repeats:.0f} repeated answers")
    return [*_verb_rows(ours, theirs), *_size_rows(linear, rss_mb)]


def _time_to_ready(folder: Path, pods: int) -> tuple[int, float]:
    with cluster(folder, pods=pods, pending=0) as kubeconfig:
        extender, took_s, _ = _extender(folder, kubeconfig)
        extender.stop()
    return pods, took_s


def _rounds(ours: Caller, theirs: Caller) -> None:
    shuffle = random.Random(1)  # noqa: S311 - an order of nodes, no secret
    names = [big_cluster.node_name(index) for index in range(NODES)]
    orders = []
    for _ in range(ORDERS):
        shuffle.shuffle(names)
        orders.append(json.dumps(names, separators=(",", ":")).encode())
    serial = waiting = 0

    def fresh_pod() -> dict[str, Any]:
        nonlocal serial
        serial += 1
        pod = big_cluster.pending_pod(20_000_000 + serial)
        pod["metadata"]["name"] = f"asked-{serial}"
        return pod

    def change_state() -> None:
        """Bind a waiting pod somewhere; both extenders do it, ours through the API server."""
        nonlocal waiting
        metadata = big_cluster.pending_pod(waiting)["metadata"]
        node = big_cluster.node_name(big_cluster.whole_node(waiting))
        waiting += 1
        asked = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        body = json.dumps({**asked, "Node": node}).encode()
        answer = json.loads(ours("bind", body, into=None))
        if answer["Error"]:
            raise RuntimeError(f"bind of {metadata['name']} to {node}: {answer['Error']}")
        theirs("bind", body, into=None)

    def both(turn: int, verb: str, body: bytes, into: str | None) -> bytes:
        """One call to each, in turns first, so that neither always finds the caches warm. Returns: our reply."""
        callers = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        replies = {caller: caller(verb, body, into=into) for caller in callers}
        return replies[ours]

    for turn in range(-WARM_UP, ROUNDS):
        counted = turn >= 0
        order = orders[turn % ORDERS]
        change_state()
        admitted = both(turn, "filter", _request(fresh_pod(), order), "filter" if counted else None)
        change_state()
        body = _request(fresh_pod(), _names_json(admitted))
        both(turn, "prioritize", body, "prioritize" if counted else None)
        change_state()
        other = fresh_pod()
        other["metadata"]["labels"] = {"app": "web"}
        other["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        both(turn, "filter", _request(other, order), "not ours" if counted else None)


def _verb_rows(ours: Caller, theirs: Caller) -> list[Row]:
    rows = []
    for name, limit_ms, limit_ratio in (("filter", 2.0, 2.5), ("prioritize", 2.0, 2.5), ("not ours", None, 1.2)):
        for share in (0.5, 0.99):
            mine = percentile(ours.times_ms[name], share)
            ratio = mine / percentile(theirs.times_ms[name], share)
            reach = f"<= {limit_ratio} x no-op" + (f" and <= {limit_ms:g} ms" if limit_ms and share == 0.99 else "")
            fast = limit_ms is None or share != 0.99 or mine <= limit_ms
            rows.append(
                Row(
                    name=f"{name} p{share * 100:g}, {NODES:,} nodes",
                    value=mine,
                    unit="ms",
                    against="no-op",
                    ratio=ratio,
                    reach=reach,
                    ok=ratio <= limit_ratio and fast,
                )
            )
    return rows


def _size_rows(linear: list[tuple[int, float]], rss_mb: float) -> list[Row]:
    (few, few_s), (many, many_s) = linear
    ratio = many_s / few_s
    return [
        Row(
            name=f"time to ready, {many:,} pods",
            value=many_s,
            unit="s",
            against=f"{few:,} pods",
            ratio=ratio,
            reach=f"linear: <= {many / few:g} x",
            ok=ratio <= many / few,
        ),
        Row(
            name=f"memory (RSS), {many:,} pods",
            value=rss_mb,
            unit="MB",
            against="",
            ratio=None,
            reach="<= 600 MB",
            ok=rss_mb <= 600,
        ),
    ]
