"""What a pod books on a node: as the API server shows it, or as it would be, with devices that are assumed for it."""

from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.observations import GpuClass, ObjectKey, PodObservation
from kvaware_engine.pools import Booking, BookingKind

__all__ = ["bookings_of", "node_held", "observed_bookings"]


def node_held(pod: PodObservation | None) -> str | None:
    """The node on which a pod holds its devices: from bind until it is gone or finished, terminating included."""
    return pod.node if pod is not None and not pod.finished else None


def observed_bookings(pod: PodObservation) -> tuple[Booking, ...]:
    """What a bound pod holds. Without a reservation that is ours and its own, whole GPUs.

    A reservation counts only when its decision was made for this UID: an annotation copied from another pod, or written
    into a template, must not make a pod smaller than it is.
    """
    reservation = pod.reservation
    if reservation is not None and not reservation.decision_id.startswith(f"{pod.uid}-"):
        reservation = None
    bookings = []
    for resource, gpus in pod.gpu_requests:
        reserved = reservation if reservation is not None and reservation.resource == resource else None
        bookings.append(
            Booking(
                uid=pod.uid,
                pod=ObjectKey(pod.namespace, pod.name),
                resource=resource,
                gpus=gpus,
                hbm_per_gpu_bytes=reserved.hbm_per_gpu_bytes if reserved is not None else None,
                devices=reserved.devices if reserved is not None else (),
                ready=pod.ready,
                kind=BookingKind.OBSERVED,
            )
        )
    return tuple(bookings)


def bookings_of(demand: PodDemand, row: NodeRow, kind: BookingKind, *, fleet: Fleet) -> tuple[Booking, ...]:
    """What the pod would hold on the node, with the devices that it is assumed to get."""
    if demand.resource is None:
        return ()
    return (
        Booking(
            uid=demand.uid,
            pod=ObjectKey(demand.namespace, demand.name),
            resource=demand.resource,
            gpus=demand.gpus,
            hbm_per_gpu_bytes=demand.hbm_per_gpu_bytes,
            devices=_assumed_devices(demand, row, fleet=fleet),
            ready=False,
            kind=kind,
        ),
    )


def _assumed_devices(demand: PodDemand, row: NodeRow, *, fleet: Fleet) -> tuple[int, ...]:
    """On a shared pool, the devices with the most free replicas (as the device plugin spreads); else unknown."""
    pool = row.pool(demand.resource) if demand.resource is not None else None
    if pool is None or pool.gpu_class is not GpuClass.SHARED:
        return ()
    states = fleet.devices(row, pool, intents=False, but_not_uid=demand.uid)
    slots = {state.index: state.slots_free for state in states}
    devices = []
    for _ in range(min(demand.gpus, sum(slots.values()))):
        index = min(slots, key=lambda i: (-slots[i], i))
        slots[index] -= 1
        devices.append(index)
    return tuple(devices)
