"""A real kube-scheduler at 1,000 nodes: pods bound per second with our extender and with the no-op one, in turns."""

import json
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from report import Row

from kvaware_crds import render_crds
from kvaware_testing.controlplane import ControlPlane, obtain
from kvaware_testing.controlplane.extender import ExtenderProcess, noop_extender
from kvaware_testing.controlplane.nodes import kwok_node
from kvaware_testing.fake_api import raw_model

__all__ = ["measure_scheduler"]

NODES, PODS, TURNS = 1_000, 400, 2
SKIPPED = 50
"""Pods before the clock starts: caches fill and connections open."""
LONGEST_S = 60


def measure_scheduler() -> list[Row]:
    """Run everything. Takes some four minutes once the control plane's programs are built."""
    with (
        tempfile.TemporaryDirectory(prefix="kvaware-bench-") as name,
        ControlPlane(Path(name) / "plane", obtain(report=print), client_qps=5_000) as plane,
    ):
        folder = Path(name)
        plane.apply_text("---\n".join(render_crds().values()))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        plane.add_nodes(
            [kwok_node(f"n{i:04}", rack=f"r{i // 16}", zone=f"z{i // 500}") for i in range(NODES)], timeout_s=180
        )
        # From here on nobody but the scheduler works, so that two cores measure it and not the players around it.
        for program in ("kwok", "kube-controller-manager", "kube-scheduler"):
            plane.stop(program)
        kubeconfig = plane.service_account_kubeconfig("kvaware-system", "kvaware-extender")
        ours = ExtenderProcess(folder, kubeconfig, config={"decisionLog": str(folder / "decisions.jsonl")})
        noop, noop_url = noop_extender(folder, kubeconfig)
        ours_per_s, noop_per_s = [], []
        for turn in range(TURNS):
            noop.start()
            noop.wait_ready()
            noop_per_s.append(_throughput(plane, f"noop-{turn}", noop_url, lambda: _noop_binds(noop_url)))
            noop.stop()
            ours.start()
            ours_per_s.append(_throughput(plane, f"ours-{turn}", ours.scheduler_url, lambda: _our_binds(ours)))
            ours.stop()
    ratio = median(ours_per_s) / median(noop_per_s)
    return [
        Row(
            name=f"kube-scheduler, {NODES:,} nodes",
            value=median(ours_per_s),
            unit="pods/s",
            against="no-op",
            ratio=ratio,
            reach=">= 0.85 x no-op",
            ok=ratio >= 0.85,
        )
    ]


def _noop_binds(url: str) -> int:
    with urllib.request.urlopen(url.removesuffix("/scheduler") + "/calls", timeout=5) as reply:  # noqa: S310  own URL
        return int(json.load(reply)["bind"])


def _our_binds(extender: ExtenderProcess) -> int:
    return int(extender.metric("kvaware_bind_total", result="bound"))


def _throughput(plane: ControlPlane, namespace: str, url: str, binds: Callable[[], int]) -> float:
    """Pods bound per second, of pods that all wait when the scheduler starts."""
    plane.kubectl("create", "namespace", namespace)
    plane.apply(raw_model("m", namespace=namespace))
    plane.create(*(_pod(f"p{i}", namespace) for i in range(PODS)))
    before = binds()
    plane.start_scheduler(url)
    samples: list[tuple[float, int]] = []
    give_up_s = time.perf_counter() + LONGEST_S
    while not samples or samples[-1][1] < PODS:
        # Four looks a second: a look costs our extender some milliseconds, and the no-op one none.
        time.sleep(0.25)
        samples.append((time.perf_counter(), binds() - before))
        if samples[-1][0] > give_up_s:
            raise RuntimeError(f"expected {PODS} binds within {LONGEST_S} s, got {samples[-1][1]}")
    plane.stop_scheduler()
    # From the first look in full swing to the last before the end: no start, no tail, no rounding to a look.
    measured = [sample for sample in samples if SKIPPED <= sample[1] < PODS]
    if len(measured) < 3:
        raise RuntimeError(f"expected {PODS} binds to span at least three looks, got {samples}")
    (began_s, first), (ended_s, last) = measured[0], measured[-1]
    return (last - first) / (ended_s - began_s)


def _pod(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kvaware.io/model": "m"}},
        "spec": {
            "schedulerName": "kvaware-scheduler",
            "containers": [
                {"name": "server", "image": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "100m"}}}
            ],
            "tolerations": [{"operator": "Exists"}],
        },
    }
