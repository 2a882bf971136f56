"""What is booked: by the extender's own account, and by the reservations that the API server holds."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kvaware_cluster import parse_reservation
from kvaware_crds.names import ANNOTATION_RESERVATION
from kvaware_engine import Reservation
from kvaware_testing.controlplane.extender import ExtenderProcess

__all__ = ["free_gpus", "gpu_pool", "pods_booked", "reservation_of", "reservations_by_node"]


def gpu_pool(extender: ExtenderProcess, node: str) -> Mapping[str, Any]:
    """Return the node's only pool as ``/v1/nodes`` shows it."""
    (view,) = [one for one in extender.get("/v1/nodes")["items"] if one["name"] == node]
    (pool,) = view["pools"]
    found: Mapping[str, Any] = pool
    return found


def free_gpus(extender: ExtenderProcess, node: str) -> int:
    """Return how many more GPUs (or shares of one) the extender sees free on the node."""
    free: int = gpu_pool(extender, node)["free"]
    return free


def pods_booked(extender: ExtenderProcess, node: str) -> set[str]:
    """Return the names of the pods that hold something on the node, by the extender's account."""
    return {pod["name"] for gpu in gpu_pool(extender, node)["gpus"] for pod in gpu["pods"]}


def reservation_of(pod: Mapping[str, Any]) -> Reservation:
    """Return the reservation that was written into a pod together with its binding."""
    return parse_reservation(pod["metadata"]["annotations"][ANNOTATION_RESERVATION])


def reservations_by_node(pods: Iterable[Mapping[str, Any]]) -> dict[str, list[Reservation]]:
    """Return what the bound pods hold, by node."""
    held: dict[str, list[Reservation]] = defaultdict(list)
    for pod in pods:
        if node := pod["spec"].get("nodeName"):
            held[node].append(reservation_of(pod))
    return held
