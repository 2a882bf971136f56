"""The cluster that the demo serves: the user's folder and the pods to place, copied into a folder of its own.

The user's files are read, never written. Objects get what the API server would have given them (namespace, UID), so
that bare YAML works as well as ``kubectl get -o yaml``.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_cli.client import SCHEDULER_NAME
from kvaware_cli.errors import InputError
from kvaware_cli.manifests import documents_in, pod_of
from kvaware_cluster import DirectorySource, parse_pod
from kvaware_crds.errors import WireError

__all__ = ["Scene", "examples", "read_scene"]

_CLUSTER_SCOPED: Final = frozenset({"Node", "TenantQuota"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster and the pods to place on it, in order."""

    objects: tuple[dict[str, Any], ...]
    """Without the pods to place."""
    nodes: tuple[dict[str, Any], ...]
    pending: tuple[dict[str, Any], ...]
    taken_over: tuple[str, ...]
    """Of them those that do not name our scheduler, as ``namespace/name``: kube-scheduler would not ask about them."""
    left_out: int
    """Pods to place that ask for no GPU and name no model: kvaware has no say in where they go."""
    exporter_texts: Path | None
    """The folder with the DCGM exporters' texts; None: there is none."""

    def write(self, folder: Path) -> None:
        """As YAML, beside the exporters' texts."""
        for name, objects in (("cluster.yaml", self.objects), ("pods.yaml", self.pending)):
            (folder / name).write_text(yaml.safe_dump_all(objects, sort_keys=False), encoding="utf-8")
        if self.exporter_texts is not None:
            shutil.copytree(self.exporter_texts, folder / "dcgm")


def examples() -> Path:
    """The folder of the shipped examples: in the installed package, or in the checkout that it runs from."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "cluster").is_dir():
            return folder
    raise InputError("the example cluster is not installed with this package: name a folder with --cluster DIR")


def read_scene(cluster: Path, pods: Path | None) -> Scene:
    """Read a cluster and the pods to place.

    Args:
        cluster: A folder of YAML, with ``dcgm/NODE.txt`` where exporters' texts are known.
        pods: A folder with the pods to place; None: those of the cluster that have no node yet.
    Raises: InputError when a folder holds no nodes or no pods to place.
    """
    objects = [_complete(document, cluster) for document in documents_in(cluster)]
    asyncio.run(DirectorySource.load(cluster))  # what the extender could not read is said now, by the user's file names
    nodes = tuple(o for o in objects if o["kind"] == "Node")
    if not nodes:
        raise InputError(f"expected objects of kind Node in {str(cluster)!r}, found none")
    if pods is None:
        pending = [o for o in objects if o["kind"] == "Pod" and not (o.get("spec") or {}).get("nodeName")]
        objects = [o for o in objects if o not in pending]
        where = f"pods without spec.nodeName in {str(cluster)!r}"
    else:
        pending = [pod_of(document, file=str(pods)) for document in documents_in(pods)]
        where = f"pods in {str(pods)!r}"
        taken = {_identity(o) for o in objects}
        for pod in pending:
            if _identity(pod) in taken:
                raise InputError(f"pod {'/'.join(_identity(pod)[1:])} is in {str(cluster)!r} and in {str(pods)!r}")
    ours = [pod for pod in pending if _concerns_gpus(pod)]
    if not ours:
        raise InputError(f"expected {where} that ask for GPUs or name a model, found none among {len(pending)}")
    texts = cluster / "dcgm"
    return Scene(
        objects=tuple(objects),
        nodes=nodes,
        pending=tuple(map(_as_ours, ours)),
        taken_over=tuple("/".join(_identity(p)[1:]) for p in ours if p["spec"].get("schedulerName") != SCHEDULER_NAME),
        left_out=len(pending) - len(ours),
        exporter_texts=texts if texts.is_dir() else None,
    )


def _concerns_gpus(pod: dict[str, Any]) -> bool:
    try:
        return parse_pod(pod) is not None
    except WireError as e:
        raise InputError(f"pod {'/'.join(_identity(pod)[1:])}: {e}") from e


def _as_ours(pod: dict[str, Any]) -> dict[str, Any]:
    """Placed as if it named our scheduler: people try their YAML before they change it."""
    return {**pod, "spec": {**pod["spec"], "schedulerName": SCHEDULER_NAME}}


def _complete(document: dict[str, Any], cluster: Path) -> dict[str, Any]:
    if document["kind"] == "Pod":
        return pod_of(document, file=str(cluster))
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise InputError(f"{cluster}: expected metadata.name in every object, a {document['kind']} has none")
    kind = document["kind"]
    filled = {"uid": f"{kind.lower()}-{metadata.get('namespace', '')}-{metadata['name']}", **metadata}
    if kind not in _CLUSTER_SCOPED:
        filled.setdefault("namespace", "default")
    return {**document, "metadata": filled}


def _identity(document: dict[str, Any]) -> tuple[str, str, str]:
    return document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]
