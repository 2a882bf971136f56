"""The fleet: one row per node, one lane of columns per GPU resource, kept up to date row by row.

Filters and costs read columns, so that one numpy expression serves 8 nodes and 8,000. A change marks its row dirty; the
row is added up again before the next question, once, however many changes there were.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvaware_engine.names import NameTable, PackedNames
from kvaware_engine.observations import GpuClass, GpuPool, NodeObservation, NodeUse
from kvaware_engine.pools import Booking, BookingKind, DeviceState, PoolSummary, devices_of, summarise

__all__ = ["CLASS_CODES", "NO_CODE", "Columns", "Figure", "Fleet", "Lane", "NodeRow"]

IntArray = npt.NDArray[np.int64]

NO_CODE = -1
"""In columns of codes: none, or nobody told."""

CLASS_CODES: dict[GpuClass, int] = {GpuClass.EXCLUSIVE: 0, GpuClass.PARTITION: 1, GpuClass.SHARED: 2}

_LANE_COLUMNS = (
    "devices",
    "replicas",
    "free",
    "fit_bytes",
    "capacity_bytes",
    "full_bytes",
    "free_bytes",
    "gpu_class",
)


Figure = Any
"""A column of shape (nodes,), or one node's number: what reads it uses operators that both have."""


@dataclass(slots=True)
class Columns:
    """Figures for one resource, of some nodes or of a single one. ``gpu_class`` NO_CODE: no such GPU there."""

    known: Figure
    ready: Figure
    owner: Figure
    """Code of the tenant for which the node is reserved."""
    devices: Figure
    free: Figure
    fit_bytes: Figure
    capacity_bytes: Figure
    full_bytes: Figure
    gpu_class: Figure

    def take(self, indexes: IntArray) -> "Columns":
        """The figures of some rows, copied."""
        return Columns(*(getattr(self, name)[indexes] for name in self.__slots__))


class Lane:
    """The columns of one GPU resource, one entry per row of the fleet."""

    __slots__ = (*_LANE_COLUMNS, "resource", "summaries")

    def __init__(self, resource: str, rows: int) -> None:
        self.resource = resource
        self.summaries: dict[int, PoolSummary] = {}
        for name in _LANE_COLUMNS:
            setattr(self, name, np.zeros(rows, dtype=np.int64))
        self.gpu_class: IntArray
        self.gpu_class[:] = NO_CODE
        self.devices: IntArray
        self.replicas: IntArray
        self.free: IntArray
        self.fit_bytes: IntArray
        self.capacity_bytes: IntArray
        self.full_bytes: IntArray
        self.free_bytes: IntArray

    def grow(self, rows: int) -> None:
        """Make room for more rows; the new ones have no such GPU."""
        for name in _LANE_COLUMNS:
            old: IntArray = getattr(self, name)
            new = np.full(rows, NO_CODE if name == "gpu_class" else 0, dtype=np.int64)
            new[: len(old)] = old
            setattr(self, name, new)

    def write(self, row: int, pool: GpuPool | None, summary: PoolSummary | None) -> bool:
        """Set one row; tell whether anything differs from before."""
        if pool is None or summary is None:
            if self.gpu_class[row] == NO_CODE:
                return False
            self.summaries.pop(row, None)
            for name in _LANE_COLUMNS:
                getattr(self, name)[row] = 0
            self.gpu_class[row] = NO_CODE
            return True
        class_code = CLASS_CODES[pool.gpu_class]
        shape = (class_code, pool.devices, pool.replicas)
        if self.summaries.get(row) == summary and shape == (self.gpu_class[row], self.devices[row], self.replicas[row]):
            return False
        self.summaries[row] = summary
        self.gpu_class[row], self.devices[row], self.replicas[row] = shape
        self.free[row] = summary.free
        self.fit_bytes[row] = summary.fit_bytes
        self.capacity_bytes[row] = summary.capacity_bytes
        self.full_bytes[row] = summary.full_bytes
        self.free_bytes[row] = summary.free_bytes
        return True


@dataclass(slots=True)
class NodeRow:
    """One node: what was observed of it, and who holds what on it. Without an observation it only keeps bookings."""

    index: int
    name: str
    node: NodeObservation | None = None
    use: NodeUse | None = None
    bookings: dict[str, tuple[Booking, ...]] = field(default_factory=dict)
    """Pod UID to what it holds, one booking per resource."""
    charged: dict[str, tuple[Booking, ...]] = field(default_factory=dict)
    """What of ``bookings`` the tenants were charged for, with devices of ``charged_sizes``."""
    charged_sizes: tuple[int, ...] = ()
    """Full size per pool when they were charged, in bytes."""

    def pool(self, resource: str) -> GpuPool | None:
        """The node's devices of one resource."""
        if self.node is not None:
            for pool in self.node.pools:
                if pool.resource == resource:
                    return pool
        return None

    def booked(self, resource: str, *, intents: bool, but_not_uid: str | None = None) -> list[Booking]:
        """Who holds devices of one resource here."""
        return [
            booking
            for uid, bookings in self.bookings.items()
            if uid != but_not_uid
            for booking in bookings
            if booking.resource == resource and (intents or booking.kind is not BookingKind.INTENT)
        ]


Margins = Callable[[NodeRow], tuple[float, float]]
"""Row to (seen, unseen) margin ratios, see ``pools.devices_of``."""


class Fleet:
    """All nodes. Its owner marks rows dirty and flushes them before reading columns."""

    def __init__(self, *, margins: Margins) -> None:
        self._margins = margins
        self._rows: dict[str, NodeRow] = {}
        self._free_indexes: list[int] = []
        self._size = 64
        self.lanes: dict[str, Lane] = {}
        self.dirty: set[str] = set()
        self.known = np.zeros(self._size, dtype=np.bool_)
        self.ready = np.zeros(self._size, dtype=np.bool_)
        self.cordoned = np.zeros(self._size, dtype=np.bool_)
        self.owner = np.full(self._size, NO_CODE, dtype=np.int64)
        self.rack = np.full(self._size, NO_CODE, dtype=np.int64)
        self.zone = np.full(self._size, NO_CODE, dtype=np.int64)
        self.clique = np.full(self._size, NO_CODE, dtype=np.int64)
        self.confidence = np.zeros(self._size, dtype=np.float64)
        self._codes: dict[str, int] = {}
        self._table: tuple[int, NameTable] | None = None
        self._ranks: tuple[int, IntArray] | None = None
        self.topology_version = 0
        """Grows when a row appears, goes or moves: what was computed per row must be computed again."""

    def __iter__(self) -> Iterator[NodeRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """Length of the columns."""
        return self._size

    def get(self, name: str) -> NodeRow | None:
        """The row of a node, or None."""
        return self._rows.get(name)

    def row(self, name: str) -> NodeRow:
        """The row of a node, made if missing: a pod may be seen before its node."""
        row = self._rows.get(name)
        if row is None:
            if self._free_indexes:
                index = self._free_indexes.pop()
            else:
                index = len(self._rows)
                if index >= self._size - 1:  # the last row stays unknown: it is what NO_CODE reads
                    self._grow()
            row = self._rows[name] = NodeRow(index, name)
            self.topology_version += 1
        return row

    def drop_if_empty(self, row: NodeRow) -> None:
        """Forget a row that neither the API server nor a booking nor an exporter keeps alive."""
        if row.node is not None or row.bookings or row.use is not None or self._rows.get(row.name) is not row:
            return
        del self._rows[row.name]
        self.dirty.discard(row.name)
        self.known[row.index] = False
        for lane in self.lanes.values():
            lane.write(row.index, None, None)
        self._free_indexes.append(row.index)
        self.topology_version += 1

    @property
    def layout(self) -> tuple[int, int]:
        """Changes whenever what was computed per row must be computed again."""
        return self.topology_version, self._size

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return len(self._codes)

    def code(self, word: str | None) -> int:
        """A small number for a rack, zone, clique or tenant name; equal words have equal numbers."""
        if word is None:
            return NO_CODE
        return self._codes.setdefault(word, len(self._codes))

    def tenant_code(self, tenant: str | None) -> int:
        """The code that the column ``owner`` has for a tenant."""
        return self.code(f"tenant/{tenant}" if tenant is not None else None)

    def place(self, row: NodeRow, *, owner: str | None) -> None:
        """Write a row's columns that do not depend on bookings."""
        node, index = row.node, row.index
        self.known[index] = node is not None
        self.ready[index] = node is not None and node.ready
        self.cordoned[index] = node is not None and node.unschedulable
        self.owner[index] = self.tenant_code(owner)
        places = (
            # Rack names are often unique inside a zone only.
            self.code(f"rack/{node.zone}/{node.rack}" if node and node.rack else None),
            self.code(f"zone/{node.zone}" if node and node.zone else None),
            self.code(f"clique/{node.clique}" if node and node.clique else None),
        )
        if places != (self.rack[index], self.zone[index], self.clique[index]):
            self.rack[index], self.zone[index], self.clique[index] = places
            self.topology_version += 1

    def flush_row(self, row: NodeRow) -> bool:
        """Add up one row; tell whether any column changed."""
        pools = {pool.resource: pool for pool in row.node.pools} if row.node is not None else {}
        for resource in pools:
            if resource not in self.lanes:
                self.lanes[resource] = Lane(resource, self._size)
        changed = False
        for resource, lane in self.lanes.items():
            pool = pools.get(resource)
            summary = self.summary(row, pool, intents=True) if pool is not None else None
            changed |= lane.write(row.index, pool, summary)
        return changed

    def summary(self, row: NodeRow, pool: GpuPool, *, intents: bool, but_not_uid: str | None = None) -> PoolSummary:
        """Add up one pool of one row, with or without intents and without one pod."""
        seen, unseen = self._margins(row)
        return summarise(
            pool,
            row.use.gpus if row.use is not None else None,
            row.booked(pool.resource, intents=intents, but_not_uid=but_not_uid),
            seen_margin_ratio=seen,
            unseen_margin_ratio=unseen,
        )

    def devices(
        self, row: NodeRow, pool: GpuPool, *, intents: bool, but_not_uid: str | None = None
    ) -> list[DeviceState]:
        """Every device of one pool of one row, with or without intents and without one pod."""
        seen, unseen = self._margins(row)
        return devices_of(
            pool,
            row.use.gpus if row.use is not None else None,
            row.booked(pool.resource, intents=intents, but_not_uid=but_not_uid),
            seen_margin_ratio=seen,
            unseen_margin_ratio=unseen,
        )

    def indexes(self, names: Sequence[str]) -> IntArray:
        """Rows of the named nodes, NO_CODE (the last row, always unknown) where there is none. Shape (names,)."""
        if isinstance(names, PackedNames):
            if self._table is None or self._table[0] != self.topology_version:
                rows = {row.name: row.index for row in self._rows.values()}
                self._table = (self.topology_version, NameTable(rows, missing=NO_CODE))
            return self._table[1].find(names)
        rows_of = self._rows
        return np.array([rows_of[name].index if name in rows_of else NO_CODE for name in names], dtype=np.int64)

    def columns(self, resource: str | None) -> Columns:
        """The figures of all rows for one resource, not copied: read them before the next change."""
        lane = self.lanes.get(resource) if resource is not None else None
        if lane is None:
            zeros = np.zeros(self._size, dtype=np.int64)
            nowhere = np.full(self._size, NO_CODE, dtype=np.int64)
            return Columns(self.known, self.ready, self.owner, zeros, zeros, zeros, zeros, zeros, nowhere)
        return Columns(
            self.known,
            self.ready,
            self.owner,
            lane.devices,
            lane.free,
            lane.fit_bytes,
            lane.capacity_bytes,
            lane.full_bytes,
            lane.gpu_class,
        )

    def columns_of(self, row: NodeRow, resource: str | None, *, but_not_uid: str | None) -> Columns:
        """The figures of one node as plain numbers, without anybody's intents and without one pod."""
        known = row.node is not None
        ready = row.node is not None and row.node.ready
        owner = int(self.owner[row.index])
        pool = row.pool(resource) if resource is not None else None
        if pool is None:
            return Columns(known, ready, owner, 0, 0, 0, 0, 0, NO_CODE)
        summary = self.summary(row, pool, intents=False, but_not_uid=but_not_uid)
        return Columns(
            known,
            ready,
            owner,
            pool.devices,
            summary.free,
            summary.fit_bytes,
            summary.capacity_bytes,
            summary.full_bytes,
            CLASS_CODES[pool.gpu_class],
        )

    def offered(self) -> list[str]:
        """The GPU resources that some node has."""
        return [resource for resource, lane in self.lanes.items() if (lane.gpu_class != NO_CODE).any()]

    def spare(self) -> tuple[IntArray, IntArray]:
        """Free GPUs and free HBM bytes per row, all resources together, 0 where no new pod can go.

        A share of a GPU counts as one, as it does when it is used; slices of a GPU are no GPUs that could be promised.
        """
        gpus = np.zeros(self._size, dtype=np.int64)
        hbm = np.zeros(self._size, dtype=np.int64)
        serving = self.known & self.ready & ~self.cordoned
        for lane in self.lanes.values():
            gpus += np.where(serving & (lane.gpu_class != CLASS_CODES[GpuClass.PARTITION]), lane.free, 0)
            hbm += np.where(serving, lane.free_bytes, 0)
        return gpus, hbm

    def ranks(self) -> IntArray:
        """Place of each row's node among all names in order, for ties. Shape (rows,)."""
        if self._ranks is None or self._ranks[0] != self.topology_version:
            ranks = np.zeros(self._size, dtype=np.int64)
            for rank, name in enumerate(sorted(self._rows)):
                ranks[self._rows[name].index] = rank
            self._ranks = (self.topology_version, ranks)
        return self._ranks[1]

    def names(self) -> list[str]:
        """All nodes that the API server shows, sorted."""
        return sorted(row.name for row in self._rows.values() if row.node is not None)

    def mark(self, names: Iterable[str]) -> None:
        """These rows must be added up again."""
        self.dirty.update(names)

    def _grow(self) -> None:
        old, self._size = self._size, self._size * 2
        for lane in self.lanes.values():
            lane.grow(self._size)
        fills: Mapping[str, object] = {
            "known": False,
            "ready": False,
            "cordoned": False,
            "owner": NO_CODE,
            "rack": NO_CODE,
            "zone": NO_CODE,
            "clique": NO_CODE,
            "confidence": 0.0,
        }
        for name, fill in fills.items():
            column = getattr(self, name)
            new = np.full(self._size, fill, dtype=column.dtype)
            new[:old] = column
            setattr(self, name, new)
