"""A pod as the API server or kube-scheduler gives it → what the engine needs of it; most pods are none of our business.

This runs for every pod of the cluster: 40,000 times while the store fills. A pod without GPUs and without the model
label is recognised first, in about 2 µs.
"""

from collections.abc import Mapping
from sys import intern
from typing import Any, Final

from kvaware_cluster.parse.bounds import MAX_GPUS_PER_POD, MAX_HBM_PER_GPU_BYTES
from kvaware_cluster.parse.gpu_pools import is_gpu
from kvaware_cluster.parse.reports import Report, silent
from kvaware_cluster.parse.reservations import parse_reservation
from kvaware_cluster.parse.wire import entries, intern_or_none, mapping, metadata_of, string, uid_of
from kvaware_crds.errors import WireError
from kvaware_crds.names import ANNOTATION_HBM_PER_GPU, ANNOTATION_RESERVATION, LABEL_MODEL, LABEL_ROLE
from kvaware_crds.quantity import parse_count, parse_quantity
from kvaware_engine.observations import PodObservation, Reservation
from kvaware_engine.reasons import Reason

__all__ = ["effective_gpu_requests", "parse_pod"]

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


def parse_pod(raw: dict[str, Any], *, report: Report = silent) -> PodObservation | None:
    """Read one pod; None when it asks for no GPU and has no ``kvaware.io/model`` label.

    A malformed reservation annotation reads as none: the engine then books whole GPUs, which is never too little.
    ``report`` gets a sentence.
    Raises: WireError when it is no pod at all (wrong types, no name, no UID).
    """
    metadata = metadata_of(raw, "pod")
    spec = mapping(raw, "spec", "pod")
    labels = mapping(metadata, "labels", "pod.metadata")
    requests, invalid = effective_gpu_requests(spec)
    if not requests and not invalid and LABEL_MODEL not in labels:
        uid_of(metadata, "pod")
        return None
    status = mapping(raw, "status", "pod")
    annotations = mapping(metadata, "annotations", "pod.metadata")
    hbm, hbm_invalid = _hbm_per_gpu(annotations)
    problem = Reason.INVALID_GPU_REQUEST if invalid else Reason.INVALID_HBM_ANNOTATION if hbm_invalid else None
    priority = spec.get("priority")
    return PodObservation(
        uid=uid_of(metadata, "pod"),
        namespace=intern(string(metadata, "namespace", "pod.metadata")),
        name=string(metadata, "name", "pod.metadata"),
        node=intern_or_none(string(spec, "nodeName", "pod.spec")),
        finished=string(status, "phase", "pod.status") in _FINISHED,
        terminating=metadata.get("deletionTimestamp") is not None,
        ready=_is_ready(status),
        scheduler_name=intern(string(spec, "schedulerName", "pod.spec")),
        model=_label(labels, LABEL_MODEL),
        role=_label(labels, LABEL_ROLE),
        gpu_requests=_shared(requests),
        hbm_per_gpu_bytes=hbm,
        problem=problem,
        reservation=_reservation(annotations, report),
        priority=priority if type(priority) is int else 0,
        nominated_node=intern_or_none(string(status, "nominatedNodeName", "pod.status")),
        group=_group(spec),
    )


def effective_gpu_requests(spec: Mapping[str, Any]) -> tuple[dict[str, int], bool]:
    """What Kubernetes counts for a pod, per GPU resource, and whether an amount could not be used.

    The greater of the sum of the containers with the restartable init containers (sidecars), and the largest moment of
    the start: one init container together with the sidecars started before it. A limit stands for a missing request, as
    the API server fills it in for extended resources. The pod's overhead is added.
    Source: ``k8s.io/component-helpers/resource``, AggregateContainerRequests.
    """
    running: dict[str, int] = {}
    invalid = False
    for container in entries(spec, "containers", "pod.spec"):  # type: ignore[arg-type]  # read only
        amounts, wrong = _container_gpus(container)
        invalid |= wrong
        for resource, amount in amounts:
            running[resource] = running.get(resource, 0) + amount
    if spec.get("initContainers"):
        invalid |= _count_init_containers(spec, running)
    overhead = spec.get("overhead")
    if overhead:
        amounts, wrong = _gpus({"resources": {"requests": overhead}})
        invalid |= wrong
        for resource, amount in amounts:
            running[resource] = running.get(resource, 0) + amount
    invalid |= any(amount > MAX_GPUS_PER_POD for amount in running.values())
    return {resource: amount for resource, amount in running.items() if 0 < amount <= MAX_GPUS_PER_POD}, invalid


def _count_init_containers(spec: Mapping[str, Any], running: dict[str, int]) -> bool:
    """Add sidecars to ``running`` and raise it to the largest moment of the start; True when an amount was wrong."""
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    invalid = False
    for container in entries(spec, "initContainers", "pod.spec"):  # type: ignore[arg-type]  # read only
        amounts, wrong = _container_gpus(container)
        invalid |= wrong
        restartable = container.get("restartPolicy") == "Always"
        for resource, amount in amounts:
            now = sidecars.get(resource, 0) + amount
            peak[resource] = max(peak.get(resource, 0), now)
            if restartable:
                sidecars[resource] = now
                running[resource] = running.get(resource, 0) + amount
    for resource, amount in peak.items():
        running[resource] = max(running.get(resource, 0), amount)
    return invalid


_NOTHING: Final[tuple[list[tuple[str, int]], bool]] = ([], False)


def _container_gpus(container: dict[str, Any]) -> tuple[list[tuple[str, int]], bool]:
    return _gpus(container) if container.get("resources") else _NOTHING


def _gpus(container: dict[str, Any]) -> tuple[list[tuple[str, int]], bool]:
    """GPU amounts of one container, and whether one of them could not be used."""
    resources = mapping(container, "resources", "container")
    requests = mapping(resources, "requests", "container.resources")
    limits = mapping(resources, "limits", "container.resources")
    found: list[tuple[str, int]] = []
    invalid = False
    for resource in limits.keys() | requests.keys() if limits.keys() - requests.keys() else requests:
        if not is_gpu(resource):
            continue
        amount = _whole_gpus(requests.get(resource, limits.get(resource)))
        if amount is None:
            invalid = True
        elif amount:
            found.append((intern(resource), amount))
    return found, invalid


def _whole_gpus(value: Any) -> int | None:
    """A count of GPUs in any legal spelling; None for a fraction, a negative or an absurd figure."""
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 8:
        amount = int(value)  # nearly all there are: a tenth of the time of the line below
    else:
        try:
            amount = parse_count(value)
        except WireError:
            return None
    return amount if 0 <= amount <= MAX_GPUS_PER_POD else None


def _hbm_per_gpu(annotations: dict[str, Any]) -> tuple[int | None, bool]:
    """The annotation's bytes, and whether it is there but cannot be used."""
    text = annotations.get(ANNOTATION_HBM_PER_GPU)
    if text is None:
        return None, False
    try:
        amount = parse_quantity(text) if type(text) is str else 0
    except WireError:
        return None, True
    return (amount, False) if 0 < amount <= MAX_HBM_PER_GPU_BYTES else (None, True)


def _reservation(annotations: dict[str, Any], report: Report) -> Reservation | None:
    text = annotations.get(ANNOTATION_RESERVATION)
    if text is None:
        return None
    try:
        return parse_reservation(text if type(text) is str else "")
    except WireError as error:
        report(f"annotation {ANNOTATION_RESERVATION} passed over, whole GPUs are booked: {error}")
        return None


def _group(spec: dict[str, Any]) -> str | None:
    """The PodGroup that the pod is placed with; most pods have none."""
    if spec.get("schedulingGroup") is None:
        return None
    group = mapping(spec, "schedulingGroup", "pod.spec")
    return intern_or_none(string(group, "podGroupName", "pod.spec.schedulingGroup"))


def _is_ready(status: dict[str, Any]) -> bool:
    for condition in entries(status, "conditions", "pod.status"):
        if condition.get("type") == "Ready":
            return condition.get("status") == "True"
    return False


def _label(labels: dict[str, Any], key: str) -> str | None:
    value = labels.get(key)
    if value is None:
        return None
    if type(value) is not str:
        raise WireError(f"pod.metadata.labels[{key!r}]: expected a string, got {type(value).__name__}")
    return intern(value)


_SHARED_REQUESTS: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}


def _shared(requests: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """One tuple for all pods that ask for the same: saves some 120 bytes a pod. Bounded by starting over."""
    wanted = tuple(sorted(requests.items()))
    if len(_SHARED_REQUESTS) > 1024:
        _SHARED_REQUESTS.clear()
    return _SHARED_REQUESTS.setdefault(wanted, wanted)
