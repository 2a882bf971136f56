"""Kubernetes YAML of the user's: documents from files and folders, and the pods in them."""

import sys
import uuid
from pathlib import Path
from typing import Any, Final

from kvaware_cli.errors import InputError

__all__ = ["documents_in", "pod_of", "read_documents"]

_UID_NAMESPACE: Final = uuid.UUID("6f9a2a55-5a0c-4d53-9d2e-6b8f0a4a7c11")
_TEMPLATES: Final = {
    "CronJob": ("jobTemplate", "spec", "template"),
    "DaemonSet": ("template",),
    "Deployment": ("template",),
    "Job": ("template",),
    "LeaderWorkerSet": ("leaderWorkerTemplate", "workerTemplate"),
    "ReplicaSet": ("template",),
    "ReplicationController": ("template",),
    "StatefulSet": ("template",),
}
"""Where the pod template of a workload lies, below its spec."""


def documents_in(folder: Path) -> list[dict[str, Any]]:
    """All objects of a folder's ``*.yaml`` files, in the order of the file names."""
    from kvaware_cluster import yaml_files  # noqa: PLC0415  # it brings a Kubernetes client: not for kvaware --help

    if not folder.is_dir():
        raise InputError(f"expected a folder with YAML files, got {str(folder)!r}")
    files = yaml_files(folder)
    if not files:
        raise InputError(f"expected *.yaml files in {str(folder)!r}, found none")
    return [document for file in files for document in read_documents(file)]


def read_documents(file: Path) -> list[dict[str, Any]]:
    """The objects of one file (``-``: standard input); lists are opened."""
    from kvaware_cluster import objects_in, objects_of  # noqa: PLC0415  # as above

    if str(file) == "-":
        return [raw for _, raw in objects_in(sys.stdin.buffer.read(), name="standard input")]
    return [raw for _, raw in objects_of(file, name=str(file))]


def pod_of(document: dict[str, Any], *, file: str) -> dict[str, Any]:
    """A pod as the API server would show it: with namespace and UID.

    A workload with a pod template stands for one pod of it, a LeaderWorkerSet for one of its workers. The UID is
    derived from namespace and name, so that a dry run repeated is the same pod.
    """
    kind = document.get("kind")
    if kind in _TEMPLATES:
        template, where = document.get("spec"), "spec"
        for key in _TEMPLATES[kind]:
            template, where = _mapping(template, f"{where} of the {kind}", file).get(key), f"{where}.{key}"
        pod = dict(_mapping(template, f"{where} of the {kind}", file))
        outer = _mapping(document.get("metadata", {}), "metadata", file)
        inner = _mapping(pod.get("metadata") or {}, f"{where}.metadata", file)
        metadata = {"name": outer.get("name"), "namespace": outer.get("namespace"), **inner}
    elif kind == "Pod":
        pod = dict(document)
        metadata = dict(_mapping(document.get("metadata", {}), "metadata", file))
    else:
        raise InputError(f"{file}: expected a Pod, or a workload with a pod template, got kind {kind!r}")
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str) or not name:
        raise InputError(f"{file}: expected metadata.name, got {name!r}")
    namespace = metadata.get("namespace") or "default"
    uid = metadata.get("uid") or str(uuid.uuid5(_UID_NAMESPACE, f"{namespace}/{name}"))
    metadata |= {"name": name, "namespace": namespace, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        **{k: v for k, v in pod.items() if k != "metadata"},
        "metadata": metadata,
    }


def _mapping(value: Any, what: str, file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{file}: expected {what} to be a mapping, got {type(value).__name__}")
    return value
