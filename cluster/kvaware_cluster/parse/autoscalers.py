"""A HorizontalPodAutoscaler → the workload that it scales."""

from typing import Any

from kvaware_cluster.parse.wire import mapping, metadata_of, object_key, string, uid_of
from kvaware_cluster.workloads import Autoscaler, ScaleTarget
from kvaware_crds.errors import WireError

__all__ = ["parse_autoscaler"]


def parse_autoscaler(raw: dict[str, Any]) -> Autoscaler:
    """Read one HorizontalPodAutoscaler, of any version: ``scaleTargetRef`` has been the same in all of them.

    Raises: WireError when it names no workload.
    """
    where = "horizontalpodautoscaler"
    metadata = metadata_of(raw, where)
    key = object_key(raw, where)
    target = mapping(mapping(raw, "spec", where), "scaleTargetRef", f"{where}.spec")
    inside = f"{where}.spec.scaleTargetRef"
    kind, name = string(target, "kind", inside), string(target, "name", inside)
    if not kind or not name:
        raise WireError(
            f"{where} {key.namespace}/{key.name}: expected kind and name in scaleTargetRef, got {kind!r}, {name!r}"
        )
    return Autoscaler(
        uid=uid_of(metadata, where),
        key=key,
        target=ScaleTarget(string(target, "apiVersion", inside), kind, key.namespace, name),
    )
