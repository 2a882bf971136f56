"""What pods cost their tenants, node by node: GPUs and HBM, at the size that the node's devices have."""

from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.observations import GpuClass
from kvaware_engine.pools import Booking, BookingKind
from kvaware_engine.tenants import Charge, Tenants

__all__ = ["Charges"]


class Charges:
    """Charges the tenants for the bookings on the fleet's rows."""

    def __init__(self, fleet: Fleet, tenants: Tenants) -> None:
        self._fleet = fleet
        self._tenants = tenants

    def charge(self, row: NodeRow) -> None:
        """Charge tenants for what changed on one node; for everything when the size of its devices did."""
        sizes = self._sizes(row)
        if sizes != row.charged_sizes:
            for uid in row.charged:
                self._tenants.charge(row.name, uid, None)
            row.charged.clear()
            row.charged_sizes = sizes
        for uid in [uid for uid in row.charged if uid not in row.bookings]:
            del row.charged[uid]
            self._tenants.charge(row.name, uid, None)
        for uid, bookings in row.bookings.items():
            if bookings and row.charged.get(uid) is not bookings:
                row.charged[uid] = bookings
                gpus = sum([booking.gpus for booking in bookings])
                hbm = sum([self.charged_bytes(row, booking) for booking in bookings])
                intent = bookings[0].kind is BookingKind.INTENT
                self._tenants.charge(row.name, uid, Charge(bookings[0].pod.namespace, gpus, hbm, intent))

    def _sizes(self, row: NodeRow) -> tuple[int, ...]:
        if row.node is None:
            return ()
        return tuple([int(self._fleet.lanes[pool.resource].full_bytes[row.index]) for pool in row.node.pools])

    def charged_bytes(self, row: NodeRow, booking: Booking) -> int:
        """Whole devices at full size, shared ones at the reservation; on a node nobody shows, what the pod reserved."""
        pool = row.pool(booking.resource)
        lane = self._fleet.lanes.get(booking.resource)
        if pool is None or lane is None:
            return (booking.hbm_per_gpu_bytes or 0) * booking.gpus
        if pool.gpu_class is GpuClass.SHARED and booking.hbm_per_gpu_bytes is not None:
            return booking.hbm_per_gpu_bytes * booking.gpus
        return max(0, int(lane.full_bytes[row.index])) * booking.gpus
