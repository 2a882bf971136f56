"""A large cluster behind a fake kube-apiserver, as a process: 8-GPU nodes, pods on them, and pods that wait.

``python tests/bench/big_cluster.py --port P --nodes 5000 --pods 40000 --pending 2000``
"""

import argparse
import asyncio
from typing import Any

from kvaware_testing.fake_api import FakeApi, raw_model, raw_node, raw_pod, raw_quota

__all__ = ["fill", "node_name", "pending_pod", "whole_node"]

NAMESPACES = 10
MODELS = 20
SHARED_EVERY = 5
"""Every fifth node is time-sliced, 4 pods to a GPU."""
GPUS = 8
PODS_ON_SHARED = 12
PODS_ON_WHOLE = 7


def node_name(index: int) -> str:
    """As cloud providers name them, more or less."""
    return f"gpu-node-{index:05d}"


def whole_node(number: int) -> int:
    """Index of the ``number``-th node that is not time-sliced; each has one GPU free."""
    between = SHARED_EVERY - 1
    return number // between * SHARED_EVERY + 1 + number % between


def _node(index: int) -> dict[str, Any]:
    labels = {
        "topology.kubernetes.io/zone": f"zone-{index // 2000}",
        "topology.kubernetes.io/rack": f"rack-{index // 16}",
        "nvidia.com/gpu.clique": f"clique-{index // 4}",
        "kubernetes.io/hostname": node_name(index),
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }
    raw = raw_node(node_name(index), labels=labels, gpus=GPUS)
    if index % SHARED_EVERY == 0:
        raw["metadata"]["labels"].update(
            {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
        )
        raw["status"]["allocatable"]["nvidia.com/gpu"] = str(GPUS * 4)
    return raw


def _pod(name: str, *, node: str | None, serial: int) -> dict[str, Any]:
    """A pod of the size that controllers make them: metadata, volumes and status that nobody here reads."""
    namespace = f"team-{serial % NAMESPACES}"
    raw = raw_pod(
        name,
        namespace=namespace,
        node=node,
        labels={"app": f"app-{serial % MODELS}", "kvaware.io/model": f"model-{serial % MODELS}"},
        annotations={"kvaware.io/hbm-per-gpu": "20Gi"} if node is not None else {},
        conditions=[{"type": "Ready", "status": "True" if node is not None else "False"}],
        podIP=f"10.{serial >> 16 & 255}.{serial >> 8 & 255}.{serial & 255}",
        hostIP="10.0.0.1",
    )
    uid = f"{serial:08x}-0000-4000-8000-000000000000"
    raw["metadata"].update(
        {
            "uid": uid,
            "generateName": f"{name}-",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "o"}],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1"}],
        }
    )
    if node is not None:
        raw["metadata"]["annotations"]["kvaware.io/reservation"] = (
            '{"v":1,"model":"m","tenant":"t","resource":"nvidia.com/gpu","gpus":1,"hbm_per_gpu_bytes":21474836480,'
            f'"class":"shared","devices":[{serial % GPUS}],"decision_id":"{uid}-1"}}'
        )
    raw["spec"]["containers"][0].update(
        {
            "env": [{"name": f"VARIABLE_{i}", "value": "some value"} for i in range(8)],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            "ports": [{"containerPort": 8000}],
        }
    )
    raw["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return raw


def pending_pod(index: int) -> dict[str, Any]:
    """The pod that waits under number ``index``."""
    return _pod(f"waiting-{index}", node=None, serial=10_000_000 + index)


def fill(api: FakeApi, *, nodes: int, pods: int, pending: int) -> None:
    """Put everything in, without events: it was there before anybody watched."""

    def put(kind: str, raw: dict[str, Any]) -> None:
        metadata = raw["metadata"]
        metadata.setdefault("uid", f"uid-{kind}-{metadata.get('namespace', '')}-{metadata['name']}")
        metadata["resourceVersion"] = "1"
        api.objects[kind][metadata.get("namespace", ""), metadata["name"]] = raw

    for index in range(nodes):
        put("node", _node(index))
    for number in range(NAMESPACES):
        team = f"team-{number}"
        put("tenantquota", raw_quota(team, tenant=team, namespaces=(team,), gpus=9000))
        for model in range(MODELS):
            put("inferencemodel", raw_model(f"model-{model}", namespace=f"team-{number}", hbm_per_gpu="40Gi"))
    serial = index = 0
    while serial < pods:
        on_node = PODS_ON_SHARED if index % SHARED_EVERY == 0 else PODS_ON_WHOLE
        for _ in range(min(on_node, pods - serial)):
            put("pod", _pod(f"running-{serial}", node=node_name(index % nodes), serial=serial))
            serial += 1
        index += 1
    for index in range(pending):
        put("pod", pending_pod(index))


async def _serve(port: int, **sizes: int) -> None:
    api = FakeApi()
    api._port = port
    fill(api, **sizes)
    await api.start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "nodes", "pods", "pending"):
        parser.add_argument(f"--{name}", type=int, required=True)
    asyncio.run(_serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
