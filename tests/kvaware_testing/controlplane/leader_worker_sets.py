"""The part of LeaderWorkerSet's controller, played by the test: pods by index, and the status that its scale shows."""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from kvaware_testing.controlplane.sandbox import Sandbox

__all__ = ["playing_leader_worker_set"]

_PREFIX: Final = "leaderworkerset.sigs.k8s.io"
_EVERY_S: Final = 0.5
_RESOURCE: Final = "leaderworkersets.leaderworkerset.x-k8s.io"


@contextlib.contextmanager
def playing_leader_worker_set(sandbox: Sandbox, name: str) -> Iterator[None]:
    """Bring about what one LeaderWorkerSet of groups of one pod asks for, until left."""
    ended = threading.Event()

    def play() -> None:
        while not ended.is_set():
            with contextlib.suppress(AssertionError):  # not there yet, or changed meanwhile: the next round sees it
                _converge(sandbox, name)
            ended.wait(_EVERY_S)

    thread = threading.Thread(target=play, name=f"leader-worker-set-{name}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _converge(sandbox: Sandbox, name: str) -> None:
    plane, namespace = sandbox.control_plane, sandbox.namespace
    group = plane.read(f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets/{name}")
    spec, before = group["spec"], group.get("status")
    selector = quote(f"{_PREFIX}/name={name}", safe="")
    found = plane.read(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
    pods = {pod["metadata"]["name"]: pod for pod in found}
    wanted = {f"{name}-{index}": index for index in range(spec["replicas"])}
    template = spec["leaderWorkerTemplate"]["workerTemplate"]
    missing = [_pod(template, name, pod, index, namespace) for pod, index in wanted.items() if pod not in pods]
    if missing:
        plane.create(*missing)
    # As a StatefulSet, which the real controller leaves this to: the highest index goes.
    if extra := sorted(set(pods) - set(wanted)):
        plane.kubectl("delete", "pod", "-n", namespace, "--wait=false", *extra)
    ready = sum(
        1
        for pod in pods.values()
        if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
    )
    status = {"replicas": len(pods), "readyReplicas": ready, "hpaPodSelector": f"{_PREFIX}/name={name}"}
    if status == before:
        return
    patch = json.dumps({"status": status})
    plane.kubectl("patch", _RESOURCE, name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


def _pod(template: dict[str, Any], group: str, name: str, index: int, namespace: str) -> dict[str, Any]:
    labels = {
        **template["metadata"].get("labels", {}),
        f"{_PREFIX}/name": group,
        f"{_PREFIX}/group-index": str(index),
        f"{_PREFIX}/worker-index": "0",
    }
    metadata = {**template["metadata"], "name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
