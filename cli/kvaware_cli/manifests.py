"""Kubernetes YAML of the user's: documents from files and folders, and the pods in them."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_cli.errors import InputError

__all__ = ["documents_in", "pod_of", "read_documents"]

_UID_NAMESPACE: Final = uuid.UUID("6f9a2a55-5a0c-4d53-9d2e-6b8f0a4a7c11")
_TEMPLATED: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"})


class _JsonLikeLoader(yaml.SafeLoader):
    """Timestamps stay text, as in the JSON that Kubernetes itself makes of YAML."""


_JsonLikeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def documents_in(folder: Path) -> list[dict[str, Any]]:
    """All objects of a folder's ``*.yaml`` files, in the order of the file names."""
    if not folder.is_dir():
        raise InputError(f"expected a folder with YAML files, got {str(folder)!r}")
    files = sorted(p for p in folder.iterdir() if p.suffix in {".yaml", ".yml"} and p.is_file())
    if not files:
        raise InputError(f"expected *.yaml files in {str(folder)!r}, found none")
    return [document for file in files for document in read_documents(file)]


def read_documents(file: Path) -> list[dict[str, Any]]:
    """The objects of one file (``-``: standard input); a ``List`` is opened."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        documents = list(yaml.load_all(text, Loader=_JsonLikeLoader))
    except OSError as e:
        raise InputError(f"cannot read {str(file)!r}: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise InputError(f"{file}: expected YAML: {' '.join(str(e).split())}") from e
    return [item for document in documents if document is not None for item in _opened(document, file)]


def pod_of(document: dict[str, Any], *, file: str) -> dict[str, Any]:
    """A pod as the API server would show it: with namespace and UID.

    A workload with a pod template stands for one pod of it. The UID is derived from namespace and name, so that a dry
    run repeated is the same pod.
    """
    kind = document.get("kind")
    if kind in _TEMPLATED:
        template = _mapping(document.get("spec"), "spec", file).get("template")
        pod = dict(_mapping(template, f"spec.template of the {kind}", file))
        outer = _mapping(document.get("metadata", {}), "metadata", file)
        inner = _mapping(pod.get("metadata") or {}, "spec.template.metadata", file)
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


def _opened(document: Any, file: Path) -> Iterator[dict[str, Any]]:
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InputError(f"{file}: expected Kubernetes objects with a kind, got {type(document).__name__}")
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _opened(item, file)
    else:
        yield document


def _mapping(value: Any, what: str, file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{file}: expected {what} to be a mapping, got {type(value).__name__}")
    return value
