"""The bind decision without the API call: demand, check-and-take, the annotation's text. In one process."""

import gc
import time
from dataclasses import replace

import big_cluster
from report import Row, percentile

from kvaware_cluster import parse_model, parse_node, parse_pod, parse_quota, render_reservation
from kvaware_engine import Engine, PodObservation, Reservation
from kvaware_testing.fake_api import FakeApi

__all__ = ["measure_decisions"]

ROUNDS = 1_000


def measure_decisions(nodes: int = 5_000, pods: int = 40_000) -> list[Row]:
    """Fill an engine and bind pods one after another, each on another state."""
    api = FakeApi()
    big_cluster.fill(api, nodes=nodes, pods=pods, pending=0)
    engine = Engine()
    for raw in api.objects["node"].values():
        node = parse_node(raw)
        engine.observe_node(node.name, node)
    for raw in api.objects["inferencemodel"].values():
        model = parse_model(raw)
        assert model is not None
        engine.observe_model(model.key, model)
    for raw in api.objects["tenantquota"].values():
        quota = parse_quota(raw)
        engine.observe_quota(quota.name, quota)
    for raw in api.objects["pod"].values():
        pod = parse_pod(raw)
        assert pod is not None
        engine.observe_pod(pod.uid, pod, now_s=0)
    assert engine.version > 0
    gc.collect()
    gc.freeze()  # as the extender does once its view is complete
    times_ms = []
    for index in range(ROUNDS):
        pod = parse_pod(big_cluster.pending_pod(index))
        assert pod is not None
        node_name = big_cluster.node_name(big_cluster.whole_node(index))
        times_ms.append(_bind_ms(engine, pod, node_name, now_s=float(index)))
        engine.observe_pod(pod.uid, replace(pod, node=node_name), now_s=float(index))
    worst = percentile(times_ms, 0.99)
    return [
        Row(
            name=f"bind decision p99, {nodes:,} nodes",
            value=worst,
            unit="ms",
            against="",
            ratio=None,
            reach="<= 0.3 ms",
            ok=worst <= 0.3,
        ),
        Row(
            name=f"bind decision p50, {nodes:,} nodes",
            value=percentile(times_ms, 0.5),
            unit="ms",
            against="",
            ratio=None,
            reach="<= 0.3 ms",
            ok=percentile(times_ms, 0.5) <= 0.3,
        ),
    ]


def _bind_ms(engine: Engine, pod: PodObservation, node: str, *, now_s: float) -> float:
    began = time.perf_counter()
    answer = engine.reserve(engine.demand(pod), node, now_s=now_s)
    if isinstance(answer, Reservation):
        render_reservation(answer)
        engine.settle(pod.uid, node, now_s=now_s)
    took_ms = (time.perf_counter() - began) * 1000
    if not isinstance(answer, Reservation):
        raise RuntimeError(f"bind of {pod.name} to {node}: {answer.text}")  # noqa: TRY004 - a refusal, not a type
    return took_ms
