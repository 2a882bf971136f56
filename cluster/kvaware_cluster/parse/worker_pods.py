"""A pod as the API server gives it → what membership and the operator need of one that may run workers.

Every pod of the cluster comes through here, and up to 40,000 of them are kept: what pods share is kept once.
"""

from collections.abc import Mapping
from sys import intern
from typing import Any, Final

from kvaware_cluster.parse.pods import effective_gpu_requests
from kvaware_cluster.parse.wire import entries, intern_or_none, mapping, metadata_of, object_key, string, uid_of
from kvaware_cluster.workloads import Owner, WorkerPod
from kvaware_crds.errors import WireError
from kvaware_crds.names import (
    ANNOTATION_DELETION_COST,
    CONDITION_FOREIGN_USE_UNKNOWN,
    CONDITION_HBM_OVERRUN,
    FIELD_MANAGER_OPERATOR,
    LABEL_MODEL,
    LABEL_ROLE,
)

__all__ = ["parse_worker_pod"]

OWN_LABELS: Final = frozenset({"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"})
"""Labels that differ from pod to pod of one StatefulSet. No workload's selector names them, and without them its pods
share one set of labels."""
COST_FIELD: Final = f"f:{ANNOTATION_DELETION_COST}"
MAX_COST_CHARACTERS: Final = len("-2147483648")
"""Kubernetes reads the deletion cost as an int32."""
KEPT_SHARED: Final = 4096
"""Sets of labels, and owners, that pods share; beyond it sharing starts over."""
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


def parse_worker_pod(raw: dict[str, Any]) -> WorkerPod | None:
    """Read one pod; None when it asks for no GPU and has no ``kvaware.io/model`` label, as ``parse_pod`` says.

    A deletion cost that is no number counts as none, as Kubernetes counts it.
    Raises: WireError when it is no pod at all (wrong types, no name, no UID).
    """
    metadata = metadata_of(raw, "pod")
    spec = mapping(raw, "spec", "pod")
    labels = mapping(metadata, "labels", "pod.metadata")
    if LABEL_MODEL not in labels:
        requests, invalid = effective_gpu_requests(spec)
        if not requests and not invalid:
            return None
    shared = _shared_labels(labels)
    status = mapping(raw, "status", "pod")
    true, unschedulable = _conditions(status)
    cost = _deletion_cost(mapping(metadata, "annotations", "pod.metadata"))
    return WorkerPod(
        uid=uid_of(metadata, "pod"),
        key=object_key(raw, "pod"),
        model=shared.get(LABEL_MODEL),
        role=shared.get(LABEL_ROLE),
        node=intern_or_none(string(spec, "nodeName", "pod.spec")),
        ip=string(status, "podIP", "pod.status") or None,
        ready="Ready" in true,
        finished=string(status, "phase", "pod.status") in _FINISHED,
        terminating=metadata.get("deletionTimestamp") is not None,
        unschedulable=unschedulable,
        labels=shared,
        owner=_owner(metadata),
        deletion_cost=cost,
        deletion_cost_by=None if cost is None else _cost_manager(metadata),
        created_at=string(metadata, "creationTimestamp", "pod.metadata"),
        started_at=_started_at(status),
        hbm_overrun=CONDITION_HBM_OVERRUN in true,
        foreign_use_unknown=CONDITION_FOREIGN_USE_UNKNOWN in true,
    )


def _conditions(status: dict[str, Any]) -> tuple[set[str], bool]:
    """Types of the conditions that are True, and whether kube-scheduler found no node."""
    true: set[str] = set()
    unschedulable = False
    for condition in entries(status, "conditions", "pod.status"):
        kind, state = condition.get("type"), condition.get("status")
        if state == "True" and type(kind) is str:
            true.add(kind)
        elif kind == "PodScheduled" and state == "False":
            unschedulable = condition.get("reason") == "Unschedulable"
    return true, unschedulable


def _started_at(status: dict[str, Any]) -> str:
    """Start of the youngest running container; RFC 3339 in UTC sorts as text."""
    youngest = ""
    for container in entries(status, "containerStatuses", "pod.status"):
        running = mapping(mapping(container, "state", "pod.status.containerStatuses"), "running", "state")
        youngest = max(youngest, string(running, "startedAt", "state.running"))
    return youngest


def _deletion_cost(annotations: dict[str, Any]) -> int | None:
    text = annotations.get(ANNOTATION_DELETION_COST)
    if type(text) is not str or len(text) > MAX_COST_CHARACTERS:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def _cost_manager(metadata: dict[str, Any]) -> str | None:
    """Who wrote the deletion cost. Of several that own it, one that is not us: it is theirs to change."""
    managers = [
        string(entry, "manager", "pod.metadata.managedFields")
        for entry in entries(metadata, "managedFields", "pod.metadata")
        if COST_FIELD in _annotation_fields(entry)
    ]
    others = [manager for manager in managers if manager != FIELD_MANAGER_OPERATOR]
    return intern((others or managers)[0]) if managers else None


def _annotation_fields(entry: dict[str, Any]) -> dict[str, Any]:
    fields = mapping(entry, "fieldsV1", "managedFields")
    return mapping(mapping(fields, "f:metadata", "fieldsV1"), "f:annotations", "fieldsV1")


_SHARED_OWNERS: dict[Owner, Owner] = {}
_SHARED_LABELS: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}


def _owner(metadata: dict[str, Any]) -> Owner | None:
    """The controller, one object for all pods that it owns."""
    for reference in entries(metadata, "ownerReferences", "pod.metadata"):
        if reference.get("controller") is True:
            found = Owner(*(string(reference, key, "ownerReferences") for key in ("apiVersion", "kind", "name", "uid")))
            if len(_SHARED_OWNERS) > KEPT_SHARED:
                _SHARED_OWNERS.clear()
            return _SHARED_OWNERS.setdefault(found, found)
    return None


def _shared_labels(labels: dict[str, Any]) -> Mapping[str, str]:
    """One mapping for all pods with the same labels, without those of a single pod: saves some 400 bytes a pod."""
    kept = tuple(sorted(item for item in labels.items() if item[0] not in OWN_LABELS))
    try:
        shared = _SHARED_LABELS.get(kept)
    except TypeError:  # a list or an object for a value
        shared = None
    if shared is None:
        for key, value in kept:
            if type(value) is not str:
                raise WireError(f"pod.metadata.labels[{key!r}]: expected a string, got {type(value).__name__}")
        if len(_SHARED_LABELS) > KEPT_SHARED:
            _SHARED_LABELS.clear()
        shared = _SHARED_LABELS[kept] = {intern(key): intern(value) for key, value in kept}
    return shared
