"""HBM arithmetic of one pool of devices on one node: what is taken, what one more pod can be sure to get.

The kubelet picks the device after bind, so "sure to get" means the worst device that it could give.

    taken(gpu) = sum reserved + max(0, used as DCGM sees it - sum reserved of Ready pods there)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kvaware_engine.observations import GpuClass, GpuPool, GpuUse, ObjectKey

__all__ = [
    "MOST_BYTES",
    "UNKNOWN",
    "Booking",
    "BookingKind",
    "DeviceState",
    "PoolSummary",
    "devices_of",
    "summarise",
    "uses_by_device",
]

UNKNOWN = -1
"""In columns of bytes: nobody told. (``None`` does not fit an int64 column.)"""

MOST_BYTES = 2**50
"""No sum of a node's memory is larger (1 PiB): what is, is a wrong label, and must not leave int64 behind."""

FOREIGN_STEP_BYTES = 64 * 2**20
"""Foreign use is rounded up to 64 MiB, so that the usual jitter of a scrape does not change the state."""


class BookingKind(IntEnum):
    """Who says that the pod holds devices here."""

    OBSERVED = 0
    """The API server: the pod is bound here."""
    OWN = 1
    """We wrote, or are writing, its binding."""
    INTENT = 2
    """A guess: it will probably be bound here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """What one pod holds of one resource on one node."""

    uid: str
    pod: ObjectKey
    resource: str
    gpus: int
    hbm_per_gpu_bytes: int | None
    """None: the whole device."""
    devices: tuple[int, ...]
    """Assumed or known device indexes; empty: unknown."""
    ready: bool
    kind: BookingKind


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device of a pool, all bookings placed on it."""

    index: int
    capacity_bytes: int | None
    reserved_bytes: int
    foreign_bytes: int | None
    """Use that no Ready pod's reservation explains; None: no exporter."""
    slots_free: int
    pods: tuple[ObjectKey, ...]

    @property
    def free_bytes(self) -> int | None:
        """What is neither reserved nor in foreign use; None: unknown capacity."""
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - self.reserved_bytes - (self.foreign_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """One row of a lane. Bytes are -1 where unknown."""

    free: int
    """Devices (SHARED: replicas) that are not booked, >= 0."""
    fit_bytes: int
    """HBM that one more pod is sure to get on whichever free device it is given."""
    capacity_bytes: int
    """Usable HBM of the smallest device."""
    full_bytes: int
    """What a whole device is charged to a tenant: its size by label, else by the exporter."""
    free_bytes: int
    """HBM of all devices that is still free, >= 0; unknown devices count as 0."""


def _round_up(value: int) -> int:
    return -(-value // FOREIGN_STEP_BYTES) * FOREIGN_STEP_BYTES


def uses_by_device(pool: GpuPool, uses: Sequence[GpuUse]) -> list[GpuUse | None]:
    """The exporter's entries of this pool in index order, padded with None to the pool's size."""
    if pool.mig_profile is None:
        mine = [use for use in uses if not use.mig_profile]
    else:
        mine = [use for use in uses if use.mig_profile and pool.mig_profile in ("", use.mig_profile)]
    mine.sort(key=lambda use: (use.index, use.uuid))
    padded: list[GpuUse | None] = [*mine[: pool.devices]]
    padded.extend([None] * (pool.devices - len(padded)))
    return padded


def _capacity(pool: GpuPool, use: GpuUse | None, *, seen_margin_ratio: float, unseen_margin_ratio: float) -> int | None:
    if use is not None and use.used_bytes is not None and use.free_bytes is not None:
        return int((use.used_bytes + use.free_bytes) * (1 - seen_margin_ratio))
    if pool.hbm_bytes is None:
        return None
    return int(pool.hbm_bytes * (1 - unseen_margin_ratio))


def _assign(
    bookings: Sequence[Booking], *, replicas: int, known: dict[ObjectKey, list[int]], used_bytes: Sequence[int]
) -> list[list[Booking]]:
    """Place each booking's devices: where the exporter shows the pod, else as assumed, else on the emptiest device.

    Of equally empty devices the least used one: what stays open then includes the worst that a next pod could get.
    """
    devices = len(used_bytes)
    on: list[list[Booking]] = [[] for _ in range(devices)]
    unplaced: list[tuple[Booking, int]] = []
    for booking in sorted(bookings, key=lambda b: b.uid):
        wanted = known.get(booking.pod) or booking.devices
        placed = [index for index in wanted if 0 <= index < devices][: booking.gpus]
        for index in placed:
            on[index].append(booking)
        if len(placed) < booking.gpus:
            unplaced.append((booking, booking.gpus - len(placed)))
    for booking, count in unplaced:
        # Another scheduler may have over-booked the pool: a device then holds more than its replicas.
        for _ in range(min(count, devices * replicas)):
            index = min(range(devices), key=lambda i: (len(on[i]) >= replicas, len(on[i]), used_bytes[i], i))
            on[index].append(booking)
    return on


def devices_of(
    pool: GpuPool,
    uses: Sequence[GpuUse] | None,
    bookings: Iterable[Booking],
    *,
    seen_margin_ratio: float,
    unseen_margin_ratio: float,
) -> list[DeviceState]:
    """Place all bookings on the pool's devices and add up what each holds.

    Args:
        pool: The devices.
        uses: The node's exporter entries; None: no exporter.
        bookings: Of this pool's resource, in any order.
        seen_margin_ratio: Kept back where the exporter shows the device, 0..1.
        unseen_margin_ratio: Kept back where only the label tells its size, 0..1.
    Returns: One state per device, in index order.
    Source: design.md §5, taken(gpu).
    """
    booked = list(bookings)
    by_device = uses_by_device(pool, uses) if uses is not None else [None] * pool.devices
    known: dict[ObjectKey, list[int]] = {}
    for position, use in enumerate(by_device):
        if use is not None and use.pod is not None:
            known.setdefault(use.pod, []).append(position)
    used = [(use.used_bytes or 0) if use is not None else 0 for use in by_device]
    if pool.gpu_class is GpuClass.SHARED:
        used = [0] * pool.devices  # assumed indexes must not move with every scrape
    on = _assign(booked, replicas=pool.replicas, known=known, used_bytes=used)
    if pool.gpu_class is not GpuClass.SHARED and uses is not None:
        on = _move_ready_to_busiest(on, used, known=known)
    states = []
    for index in range(pool.devices):
        use = by_device[index]
        capacity = _capacity(pool, use, seen_margin_ratio=seen_margin_ratio, unseen_margin_ratio=unseen_margin_ratio)
        whole = capacity if capacity is not None else 0
        exclusive = pool.gpu_class is not GpuClass.SHARED

        def charge(booking: Booking, *, whole: int = whole, exclusive: bool = exclusive) -> int:
            return whole if exclusive or booking.hbm_per_gpu_bytes is None else booking.hbm_per_gpu_bytes

        foreign = None
        if use is not None and use.used_bytes is not None:
            explained = sum(charge(b) for b in on[index] if b.ready)
            foreign = _round_up(max(0, use.used_bytes - explained))
        states.append(
            DeviceState(
                index=index,
                capacity_bytes=capacity,
                reserved_bytes=sum(map(charge, on[index])),
                foreign_bytes=foreign,
                slots_free=max(0, pool.replicas - len(on[index])),
                pods=tuple(dict.fromkeys(b.pod for b in on[index])),
            )
        )
    return states


def _move_ready_to_busiest(
    on: list[list[Booking]], used_bytes: Sequence[int], *, known: Mapping[ObjectKey, Sequence[int]]
) -> list[list[Booking]]:
    """Whole devices whose index nobody tells: Ready pods explain the busiest devices, the others take the idlest.

    Devices that the exporter says are some pod's stay with it.
    """
    moved: list[list[Booking]] = [[booking for booking in holders if booking.pod in known] for holders in on]
    ready = [booking for holders in on for booking in holders if booking.pod not in known and booking.ready]
    waiting = [booking for holders in on for booking in holders if booking.pod not in known and not booking.ready]
    nobodys = [index for index in range(len(on)) if not moved[index]]
    busiest_first = sorted(nobodys, key=lambda i: (-used_bytes[i], i))
    for booking, index in zip(ready, busiest_first, strict=False):
        moved[index].append(booking)
    for booking, index in zip(waiting, reversed(busiest_first), strict=False):
        moved[index].append(booking)
    return moved


def summarise(
    pool: GpuPool,
    uses: Sequence[GpuUse] | None,
    bookings: Sequence[Booking],
    *,
    seen_margin_ratio: float,
    unseen_margin_ratio: float,
) -> PoolSummary:
    """Add up one pool for the fleet's columns. Arguments as for ``devices_of``."""
    booked = sum(booking.gpus for booking in bookings)
    free = max(0, min(pool.allocatable, pool.devices * pool.replicas) - booked)
    if uses is None and pool.gpu_class is not GpuClass.SHARED:  # most nodes: no need to look at single devices
        capacity = UNKNOWN if pool.hbm_bytes is None else int(pool.hbm_bytes * (1 - unseen_margin_ratio))
        return PoolSummary(
            free=free,
            fit_bytes=min(MOST_BYTES, capacity) if free or capacity == UNKNOWN else 0,
            capacity_bytes=min(MOST_BYTES, capacity),
            full_bytes=min(MOST_BYTES, pool.hbm_bytes) if pool.hbm_bytes is not None else UNKNOWN,
            free_bytes=min(MOST_BYTES, free * max(0, pool.hbm_bytes or 0)),
        )
    states = devices_of(
        pool, uses, bookings, seen_margin_ratio=seen_margin_ratio, unseen_margin_ratio=unseen_margin_ratio
    )
    capacities = [state.capacity_bytes for state in states]
    known = [capacity for capacity in capacities if capacity is not None]
    capacity = min(known) if known and len(known) == len(capacities) else UNKNOWN
    open_states = [state for state in states if state.slots_free > 0]
    frees = [state.free_bytes for state in open_states]
    if any(value is None for value in frees) or not states:
        fit = UNKNOWN
    else:
        fit = min((value for value in frees if value is not None), default=0)
    full = pool.hbm_bytes if pool.hbm_bytes is not None else max(known, default=UNKNOWN)
    if pool.gpu_class is GpuClass.SHARED:
        free_bytes = sum(state.free_bytes or 0 for state in open_states)
    else:
        free_bytes = free * max(0, full)
    return PoolSummary(
        free=free,
        fit_bytes=min(MOST_BYTES, fit),
        capacity_bytes=min(MOST_BYTES, capacity),
        full_bytes=min(MOST_BYTES, full),
        free_bytes=min(MOST_BYTES, free_bytes),
    )
