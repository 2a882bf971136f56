"""Requests are placed on real pods: API server, tokens of pods, quotas and models as users apply them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvaware_testing.controlplane import eventually
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.service import Answer
from kvaware_testing.controlplane.workers_under_kwok import Worker, beating, pod_token
from kvaware_testing.fake_api import raw_model

PREFIX = list(range(1, 101))
"""1,600 tokens in blocks of 16."""
FIGURES = {"kv_blocks_total": 10_000, "kv_blocks_free": 10_000, "block_size": 16, "waiting": 0, "running": 0}


@contextmanager
def serving(extender: ExtenderProcess, sandbox: Sandbox, *names: str) -> Iterator[list[Worker]]:
    """A model with so many worker pods that send heartbeats with tokens of their own."""
    plane = sandbox.control_plane
    (node,) = sandbox.add_nodes("n1", gpus=8)
    plane.kubectl("create", "serviceaccount", "worker", "-n", sandbox.namespace)
    raw = raw_model(namespace=sandbox.namespace)
    raw["spec"]["servedNames"] = [served(sandbox)]
    plane.apply(raw)
    for name in names:
        plane.apply(sandbox.pod(name, model="llama", node_name=node, service_account="worker"))
        plane.kubectl("wait", "--for=condition=Ready", "pod", name, "-n", sandbox.namespace, "--timeout=30s")
    pods = [sandbox.get_pod(name) for name in names]
    workers = [Worker(extender, pod, model="llama", token=pod_token(plane, pod)) for pod in pods]
    with beating(workers, dict.fromkeys([each.id for each in workers], FIGURES)) as refused:
        eventually(lambda: len(reporting(extender, sandbox)) == len(names), 30, f"the workers are heard; {refused}")
        yield workers


def served(sandbox: Sandbox) -> str:
    """A name that no other test's model has."""
    return f"llama-{sandbox.namespace}"


def reporting(extender: ExtenderProcess, sandbox: Sandbox) -> list[str]:
    """Workers that the extender hears."""
    items = extender.get(f"/v1/workers?model={sandbox.namespace}/llama")["items"]
    return [each["worker"] for each in items if each["reporting"]]


def demand(sandbox: Sandbox, request_id: str, **fields: Any) -> dict[str, Any]:
    """The prefix, by hashes of the caller's own."""
    return {"request_id": request_id, "model": served(sandbox), "block_hashes": PREFIX, "input_tokens": 1610, **fields}


def finish(extender: ExtenderProcess, placed: dict[str, Any]) -> None:
    """The request is over."""
    extender.post(f"/v1/placements/{placed['placement_id']}/events", {"type": "finished", "output_tokens": 5})


def test_a_request_goes_back_to_its_prefix_and_elsewhere_when_that_pod_is_gone(
    extender: ExtenderProcess, sandbox: Sandbox
) -> None:
    with serving(extender, sandbox, "llama-0", "llama-1") as workers:
        first = extender.post("/v1/placements", demand(sandbox, "r1"))
        assert first["worker"]["id"] in {each.id for each in workers}
        assert (first["reason"], first["kv"]["action"]) == ("Cold", "recompute")
        finish(extender, first)
        # when
        second = extender.post("/v1/placements", demand(sandbox, "r2"))
        # then
        assert second["worker"] == first["worker"]
        assert (second["reason"], second["kv"]["matched_tokens"]) == ("PrefixResident", 1600)
        explanation = extender.get(f"/v1/placements/{second['placement_id']}/explanation")
        assert explanation["chosen"] == first["worker"]["id"]
        assert len(explanation["answers"]) == 6
        finish(extender, second)
        # when
        gone = first["worker"]["id"].split(":")[1]
        sandbox.control_plane.kubectl("delete", "pod", gone, "-n", sandbox.namespace, "--wait=true")
        eventually(lambda: len(reporting(extender, sandbox)) == 1, 30, "the pod is gone")
        third = extender.post("/v1/placements", demand(sandbox, "r3"))
        # then
        assert third["worker"]["id"] != first["worker"]["id"]
        assert third["kv"]["matched_tokens"] == 0
        assert third["runner_up"] is None
        assert extender.metric("kvaware_reservations") == 1


def test_a_quota_that_is_applied_limits_the_next_request(extender: ExtenderProcess, sandbox: Sandbox) -> None:
    """Project-HAMi/HAMi#2312: 0 is nothing, and waiting does not help."""
    with serving(extender, sandbox, "llama-0"):
        finish(extender, extender.post("/v1/placements", demand(sandbox, "r1")))
        quota = sandbox.quota("nothing", requestsPerSecond=0)
        quota["spec"]["tenant"] = "default"  # of whoever brings no token
        sandbox.control_plane.apply(quota)
        asked = iter(range(1000))

        def placed() -> Answer:
            answer = extender.ask("/v1/placements", demand(sandbox, f"q{next(asked)}"))
            if answer.status == 200:
                finish(extender, answer.body)
            return answer

        eventually(lambda: placed().status == 429, 20, "the quota holds")
        error = placed().body["error"]
        assert (error["code"], error["retryable"]) == ("TenantQuotaExceeded", False)
        assert error.get("retry_after_ms") is None
        sandbox.control_plane.kubectl("delete", "tenantquota", quota["metadata"]["name"])
        eventually(lambda: placed().status == 200, 20, "the quota is gone")
