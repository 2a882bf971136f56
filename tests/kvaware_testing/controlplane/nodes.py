"""GPU nodes as kwok plays them: the labels of NVIDIA's feature discovery, and what a kubelet would offer."""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["RACK_LABEL", "kwok_node"]

RACK_LABEL: Final = "topology.kubernetes.io/rack"


def kwok_node(
    name: str,
    *,
    gpus: int = 8,
    product: str = "NVIDIA-H100-80GB-HBM3",
    memory_mib: int | None = 81559,
    replicas: int = 1,
    sharing: str | None = None,
    clique: str | None = None,
    rack: str | None = None,
    zone: str | None = None,
    cpu: str = "128",
    memory: str = "2Ti",
    pods: int = 250,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resources: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a Node manifest whose status kwok completes; it keeps the capacity given here.

    ``gpus`` are devices; 0 makes a node without GPU labels. ``memory_mib`` is the HBM of each, as the label
    ``nvidia.com/gpu.memory`` tells; None leaves the label out. ``replicas`` are the pods that the device plugin lets
    share one device: above 1 the node offers gpus * replicas and, as feature discovery does, adds ``-SHARED`` to the
    product. ``sharing`` is ``time-slicing`` or ``mps``; time-slicing where replicas is above 1 and nothing is said.
    ``resources`` adds to capacity and allocatable, such as ``{"nvidia.com/mig-1g.10gb": "7"}``.
    """
    offered = {"cpu": cpu, "memory": memory, "pods": str(pods), **(resources or {})}
    node_labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "kwok",
    }
    if gpus:
        offered["nvidia.com/gpu"] = str(gpus * replicas)
        node_labels |= _gpu_labels(
            gpus=gpus, product=product, memory_mib=memory_mib, replicas=replicas, sharing=sharing, clique=clique
        )
    if rack is not None:
        node_labels[RACK_LABEL] = rack
    if zone is not None:
        node_labels["topology.kubernetes.io/zone"] = zone
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**node_labels, **(labels or {})},
            "annotations": {"kwok.x-k8s.io/node": "fake", **(annotations or {})},
        },
        # A kubelet, too, registers its node with a status: the API server keeps it on create.
        "status": {"capacity": dict(offered), "allocatable": dict(offered)},
    }


def _gpu_labels(
    *, gpus: int, product: str, memory_mib: int | None, replicas: int, sharing: str | None, clique: str | None
) -> dict[str, str]:
    strategy = sharing or ("time-slicing" if replicas > 1 else "none")
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": f"{product}-SHARED" if replicas > 1 and strategy == "time-slicing" else product,
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": strategy,
        "nvidia.com/mps.capable": "true" if strategy == "mps" else "false",
    }
    if memory_mib is not None:
        labels["nvidia.com/gpu.memory"] = str(memory_mib)
    if clique is not None:
        labels["nvidia.com/gpu.clique"] = clique
    return labels
