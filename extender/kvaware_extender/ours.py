"""Whether a pod is kvaware's business, told from its raw JSON: most are not, and pass at the price of a look-up."""

from collections.abc import Mapping
from typing import Any, Final

from kvaware_cluster import AMD_GPU, NVIDIA_GPU, NVIDIA_GPU_SHARED, NVIDIA_MIG_PREFIX, parse_pod
from kvaware_crds.names import LABEL_MODEL
from kvaware_engine import Engine, ObjectKey, PodDemand

__all__ = ["demand_of_ours", "group_of", "may_be_ours"]

WHOLE: Final = frozenset({NVIDIA_GPU, NVIDIA_GPU_SHARED, AMD_GPU})


def demand_of_ours(pod: dict[str, Any], engine: Engine, *, scheduler_name: str) -> PodDemand | None:
    """What the pod needs; None: it is not ours."""
    if not may_be_ours(pod, scheduler_name=scheduler_name):
        return None
    seen = parse_pod(pod)
    if seen is None or not engine.is_ours(seen):
        return None
    return engine.demand(seen)


def group_of(pod: Mapping[str, Any]) -> ObjectKey | None:
    """The group that a pod is placed with, also of one that is not ours; None: none, or none that can be read."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    group = spec.get("schedulingGroup") if isinstance(spec, dict) else None
    name = group.get("podGroupName") if isinstance(group, dict) else None
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return ObjectKey(namespace, name) if isinstance(name, str) and isinstance(namespace, str) and name else None


def may_be_ours(pod: dict[str, Any], *, scheduler_name: str) -> bool:
    """Tell whether the pod must be read in full: it names a model, or our scheduler is to find it a GPU.

    Never False for a pod that ``parse_pod`` and ``Engine.is_ours`` make ours (a property test holds it to them). A True
    may still turn out not to be ours (a GPU amount of zero).

    Cost: two look-ups for a pod of another scheduler, else one per container and resource.
    """
    metadata = pod.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    if labels:
        if not isinstance(labels, dict):
            return True  # unreadable: the full path says what is wrong with it
        if labels.get(LABEL_MODEL) is not None:
            return True
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return spec is not None
    if spec.get("schedulerName") != scheduler_name:
        return False
    return (
        _mentions_gpu(spec.get("containers"))
        or _mentions_gpu(spec.get("initContainers"))
        or _names_gpu(spec.get("overhead"))
    )


def _mentions_gpu(containers: Any) -> bool:
    if not isinstance(containers, list):
        return containers is not None
    for container in containers:
        resources = container.get("resources") if isinstance(container, dict) else container
        if not resources:
            continue
        if not isinstance(resources, dict):
            return True
        if _names_gpu(resources.get("requests")) or _names_gpu(resources.get("limits")):
            return True
    return False


def _names_gpu(amounts: Any) -> bool:
    if not amounts:
        return False
    if not isinstance(amounts, dict):
        return True
    return any(name in WHOLE or name.startswith(NVIDIA_MIG_PREFIX) for name in amounts)
