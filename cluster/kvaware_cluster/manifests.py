"""A folder of YAML → raw objects as an API server would have them, or a ConfigError that says where and what."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

import structlog

from kvaware_cluster.parse.dcgm import parse_dcgm
from kvaware_cluster.parse.nodes import parse_node
from kvaware_cluster.parse.pods import parse_pod
from kvaware_cluster.parse.wire import mapping, object_key
from kvaware_cluster.source import Kind, RawObject
from kvaware_cluster.yaml_files import objects_of, yaml_files
from kvaware_crds.base import read
from kvaware_crds.errors import ConfigError, WireError
from kvaware_crds.names import GROUP, VERSION
from kvaware_crds.v1alpha1 import InferenceModel, KVCacheBlockGroup, TenantQuota
from kvaware_engine.observations import ObjectKey

__all__ = ["CREATED_AT", "Folder", "complete", "load_folder"]

CREATED_AT: Final = "2026-01-01T00:00:00Z"
"""Of objects that do not say when they were created: one figure, so that two loads of a folder are equal."""
UID_NAMESPACE: Final = UUID("6b766177-6172-4500-8000-000000000000")
"""For UIDs made from names; the first bytes spell kvaware."""
DEFAULT_NAMESPACE: Final = "default"

KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    ("v1", "Node"): Kind.NODE,
    ("v1", "Pod"): Kind.POD,
    (f"{GROUP}/{VERSION}", "InferenceModel"): Kind.INFERENCE_MODEL,
    (f"{GROUP}/{VERSION}", "KVCacheBlockGroup"): Kind.KV_CACHE_BLOCK_GROUP,
    (f"{GROUP}/{VERSION}", "TenantQuota"): Kind.TENANT_QUOTA,
}
CLUSTER_SCOPED: Final = frozenset({Kind.NODE, Kind.TENANT_QUOTA})

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Folder:
    """What was read."""

    objects: Mapping[Kind, Mapping[ObjectKey, RawObject]]
    """As given, completed by what an API server adds."""
    exporters: Mapping[str, str]
    """Node to the text of its DCGM exporter, from ``dcgm/<node>.txt``."""


def load_folder(folder: Path) -> Folder:
    """Read all ``*.yaml`` and ``*.yml`` of a folder, and ``dcgm/<node>.txt`` in it.

    Nodes, pods and kvaware's three kinds are kept, other kinds are passed over with a log line. A node that does not
    say whether it is Ready is; a pod on a node that does not say how it fares runs and is Ready.
    Raises: ConfigError naming file and document for what cannot be read, is invalid, or comes twice.
    """
    objects: dict[Kind, dict[ObjectKey, RawObject]] = {kind: {} for kind in Kind}
    places: dict[tuple[Kind, ObjectKey], str] = {}
    for path in yaml_files(folder):
        for place, raw in objects_of(path):
            kind = _kind_of(raw, place)
            if kind is None:
                continue
            try:
                key, completed = complete(kind, raw)
            except WireError as error:
                raise ConfigError(f"{place}: {error}") from error
            first = places.setdefault((kind, key), place)
            if first != place:
                named = f"{key.namespace}/{key.name}".lstrip("/")
                raise ConfigError(f"{place}: expected one {kind} {named}, it is in {first} already")
            objects[kind][key] = completed
    exporters = _exporters(folder / "dcgm", {key.name for key in objects[Kind.NODE]})
    return Folder(objects, exporters)


def complete(kind: Kind, raw: RawObject, *, generation: int = 0) -> tuple[ObjectKey, RawObject]:
    """Add what an API server adds, and check that the object can be read.

    Args:
        kind: Of the object.
        raw: Not changed.
        generation: How many objects of this name there were before: makes another UID.
    Raises: WireError when the object is invalid.
    """
    metadata = dict(mapping(raw, "metadata", kind))
    if kind in CLUSTER_SCOPED:
        metadata.pop("namespace", None)
    else:
        metadata["namespace"] = metadata.get("namespace") or DEFAULT_NAMESPACE
    for part in ("labels", "annotations"):
        for name, value in mapping(metadata, part, f"{kind}.metadata").items():
            if type(value) is not str:
                raise WireError(f"{kind}.metadata.{part}[{name!r}]: expected a text in quotes, got {value!r}")
    metadata.setdefault("creationTimestamp", CREATED_AT)
    completed = {**raw, "metadata": metadata}
    key = object_key(completed, kind)
    metadata.setdefault("uid", str(uuid5(UID_NAMESPACE, f"{kind}/{key.namespace}/{key.name}#{generation}")))
    match kind:
        case Kind.NODE:
            completed["status"] = _node_status(mapping(raw, "status", "node"))
            parse_node(completed)
        case Kind.POD:
            completed["status"] = _pod_status(raw)
            parse_pod(completed)
        case Kind.INFERENCE_MODEL:
            read(InferenceModel, completed)
        case Kind.KV_CACHE_BLOCK_GROUP:
            read(KVCacheBlockGroup, completed)
        case Kind.TENANT_QUOTA:
            read(TenantQuota, completed)
    return key, completed


def _node_status(status: RawObject) -> RawObject:
    return {"conditions": [{"type": "Ready", "status": "True"}], **status}


def _pod_status(raw: RawObject) -> RawObject:
    status = mapping(raw, "status", "pod")
    if "phase" in status:
        return status
    if not mapping(raw, "spec", "pod").get("nodeName"):
        return {"phase": "Pending", **status}
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **status}


def _kind_of(raw: RawObject, place: str) -> Kind | None:
    version, kind = raw.get("apiVersion"), raw.get("kind")
    if type(version) is not str or type(kind) is not str:
        raise ConfigError(f"{place}: expected apiVersion and kind, got {version!r} and {kind!r}")
    known = KINDS.get((version, kind))
    if known is None:
        if version.startswith(f"{GROUP}/"):
            raise ConfigError(f"{place}: expected a kind of {GROUP}/{VERSION}, got {version} {kind}")
        log.info("object of another kind passed over", place=place, api_version=version, kind=kind)
    return known


def _exporters(folder: Path, nodes: set[str]) -> dict[str, str]:
    texts = {}
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else []:
        if path.stem not in nodes:
            raise ConfigError(f"dcgm/{path.name}: expected the name of a node in this folder, got {path.stem!r}")
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            parse_dcgm(text, node=path.stem, observed_at_s=0.0)
        except WireError as error:
            raise ConfigError(f"dcgm/{path.name}: {error}") from error
        texts[path.stem] = text
    return texts
