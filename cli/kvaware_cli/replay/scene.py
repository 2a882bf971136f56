"""The cluster of a replay: for each policy a model of its own, with as many workers on GPUs of their own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_simulator import BLOCK_TOKENS

__all__ = ["GPU_PRODUCT", "KV_BLOCKS", "MODEL_ID", "NAMESPACE", "model_name", "objects", "worker_ids", "write_scene"]

NAMESPACE: Final = "replay"
MODEL_ID: Final = "meta-llama/Llama-3.1-8B-Instruct"
GPU_PRODUCT: Final = "NVIDIA-B200"
GPUS_PER_NODE: Final = 8
_GPU_MIB: Final = 183_359
_HBM_GIB: Final = 72
_WEIGHTS_BYTES: Final = 16 * 10**9
_LAYERS, _KV_HEADS, _HEAD_DIM, _DTYPE_BYTES = 32, 8, 128, 2
_TOKEN_BYTES: Final = 2 * _LAYERS * _KV_HEADS * _HEAD_DIM * _DTYPE_BYTES
KV_BLOCKS: Final = (_HBM_GIB * 2**30 - _WEIGHTS_BYTES) // (_TOKEN_BYTES * BLOCK_TOKENS)
"""Of one worker: what its 72 GiB leave beside the weights. So little that old prefixes have to go within the replay."""


def model_name(policy: str) -> str:
    """The InferenceModel of a policy: its name with the dashes that Kubernetes wants."""
    return policy.replace("_", "-")


def worker_ids(policy: str, workers: int) -> list[str]:
    """Ids of a policy's workers, as the extender knows them."""
    return [f"{NAMESPACE}:{model_name(policy)}-{number}:0" for number in range(workers)]


def write_scene(folder: Path, policies: Sequence[str], *, workers: int) -> None:
    """The cluster as YAML in a folder."""
    text = yaml.safe_dump_all(objects(policies, workers=workers), sort_keys=False)
    (folder / "cluster.yaml").write_text(text, encoding="utf-8")


def objects(policies: Sequence[str], *, workers: int) -> Iterator[dict[str, Any]]:
    """Nodes, models and running pods."""
    for policy in policies:
        name = model_name(policy)
        yield _model(policy)
        for number in range(workers):
            node = f"{name}-{number // GPUS_PER_NODE}"
            if number % GPUS_PER_NODE == 0:
                yield _node(node)
            yield _pod(name, number, node)


def _model(policy: str) -> dict[str, Any]:
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": model_name(policy), "namespace": NAMESPACE},
        "spec": {
            "modelId": MODEL_ID,
            "servedNames": [model_name(policy)],
            "roles": [{"name": "both", "footprint": {"gpusPerPod": 1, "hbmPerGPU": f"{_HBM_GIB}Gi"}}],
            "weights": {"size": _WEIGHTS_BYTES},
            "kvCache": {
                "architecture": {
                    "layers": _LAYERS,
                    "kvHeads": _KV_HEADS,
                    "headDim": _HEAD_DIM,
                    "dtypeBytes": _DTYPE_BYTES,
                },
                "blockSizeTokens": BLOCK_TOKENS,
            },
            "policy": {"name": str(policy)},  # YAML knows no enumerations
        },
    }


def _node(name: str) -> dict[str, Any]:
    resources = {"cpu": "112", "memory": "2000Gi", "pods": "110", "nvidia.com/gpu": str(GPUS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "nvidia.com/gpu.product": GPU_PRODUCT,
                "nvidia.com/gpu.count": str(GPUS_PER_NODE),
                "nvidia.com/gpu.memory": str(_GPU_MIB),
            },
        },
        "status": {"capacity": resources, "allocatable": resources},
    }


def _pod(model: str, number: int, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{model}-{number}",
            "namespace": NAMESPACE,
            "labels": {"kvaware.io/model": model},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "server",
                    "image": "modelled",
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                }
            ],
        },
    }
