"""A node as the API server has it → what the engine needs of it."""

from sys import intern
from typing import Any, Final

from kvaware_cluster.parse.gpu_pools import gpu_pools
from kvaware_cluster.parse.wire import entries, mapping, metadata_of, string, uid_of
from kvaware_crds.errors import WireError
from kvaware_crds.names import ANNOTATION_WEIGHTS
from kvaware_engine.observations import NodeObservation

__all__ = ["RACK_LABEL", "ZONE_LABEL", "parse_node"]

CLIQUE_LABEL: Final = "nvidia.com/gpu.clique"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
RACK_LABEL: Final = "topology.kubernetes.io/rack"
MAX_WEIGHTS: Final = 256
"""Models listed on one node; more is a broken writer."""


def parse_node(raw: dict[str, Any], *, rack_label: str = RACK_LABEL, zone_label: str = ZONE_LABEL) -> NodeObservation:
    """Read one node.

    Labels that cannot be read are sentences in ``problems``. A node without a Ready condition is not ready: nobody has
    said that it is.
    Raises: WireError when it is no node at all (wrong types, no name, no UID).
    """
    metadata = metadata_of(raw, "node")
    spec = mapping(raw, "spec", "node")
    status = mapping(raw, "status", "node")
    labels = _texts(mapping(metadata, "labels", "node.metadata"))
    pools, problems = gpu_pools(
        labels=labels,
        capacity=mapping(status, "capacity", "node.status"),
        allocatable=mapping(status, "allocatable", "node.status"),
    )
    weights, weight_problems = _weights(mapping(metadata, "annotations", "node.metadata"))
    return NodeObservation(
        name=intern(string(metadata, "name", "node.metadata")),
        uid=uid_of(metadata, "node"),
        pools=pools,
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in entries(status, "conditions", "node.status")
        ),
        unschedulable=spec.get("unschedulable") is True,
        labels=labels,
        clique=labels.get(CLIQUE_LABEL) or None,
        rack=labels.get(rack_label) or None,
        zone=labels.get(zone_label) or None,
        weights=weights,
        problems=problems + weight_problems,
    )


def _texts(raw: dict[str, Any]) -> dict[str, str]:
    """Labels with one shared copy of every key and value: 5,000 nodes repeat some 60 of them."""
    for key, value in raw.items():
        if type(value) is not str:
            raise WireError(f"node.metadata.labels[{key[:64]!r}]: expected a string, got {type(value).__name__}")
    return {intern(key): intern(value) for key, value in raw.items()}


def _weights(annotations: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    text = annotations.get(ANNOTATION_WEIGHTS)
    if text is None:
        return (), ()
    names = [name.strip() for name in text.split(",")] if type(text) is str else []
    good = tuple(intern(name) for name in names if name and len(name) <= 256 and not any(c.isspace() for c in name))
    if not good or len(good) != len(names) or len(good) > MAX_WEIGHTS:
        problem = (
            f"annotation {ANNOTATION_WEIGHTS}: expected up to {MAX_WEIGHTS} names, modelId or modelId@revision, "
            f"separated by commas, got {str(text)[:64]!r}"
        )
        return good[:MAX_WEIGHTS], (problem,)
    return good, ()
