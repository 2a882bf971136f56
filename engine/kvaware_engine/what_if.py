"""What if: bookings that are taken away or made up while a question is asked, and put back before anybody else asks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.ledger import Ledger
from kvaware_engine.observations import GpuUse, NodeUse, ObjectKey
from kvaware_engine.places import Places
from kvaware_engine.pools import Booking

__all__ = ["Placed", "Version", "WhatIf"]

Placed = tuple[PodDemand, str]
"""A pod that does not exist and the node on which it is imagined."""


class Version:
    """Counts what could have changed an answer: in the ledger, which counts for itself, and everywhere else."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changes = 0

    def now(self) -> int:
        """As things are booked now."""
        self._ledger.flush()
        return self._changes + self._ledger.changes

    def grow(self) -> None:
        """Something changed that the ledger does not know of."""
        self._changes += 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Nobody can tell afterwards that anything changed inside; all of it must be undone inside, too."""
        version = self.now()
        try:
            yield
        finally:
            self._ledger.flush()
            self._changes = version - self._ledger.changes


class WhatIf:
    """Suppositions, each a context: what is booked is other inside, and everything stands as before afterwards."""

    def __init__(self, *, fleet: Fleet, ledger: Ledger, places: Places, version: Version) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._places = places
        self._version = version

    @contextmanager
    def aside(self, uids: Sequence[str], *, changed: bool = False) -> Iterator[None]:
        """Inside, the places that are kept for these pods are not counted.

        Args:
            uids: Of the pods. One without a hold costs a look-up.
            changed: Whether rows are changed and restored inside in any case.
        """
        if not changed and all(self._ledger.held(uid) is None for uid in uids):
            yield
            return
        with self._version.kept():
            self._ledger.put_aside(uids)
            self._ledger.flush()
            try:
                yield
            finally:
                self._ledger.put_back()

    @contextmanager
    def without(self, demand: PodDemand) -> Iterator[None]:
        """Inside, the pod holds nothing and nothing is meant for it: a bound pod is not in its own way."""
        with self._version.kept():
            taken = self._take_off(demand)
            try:
                yield
            finally:
                for row, bookings, use in taken:
                    row.bookings[demand.uid] = bookings
                    row.use = use
                    self._fleet.mark((row.name,))
                self._places.show_again()

    @contextmanager
    def imagined(self, placed: Sequence[Placed]) -> Iterator[None]:
        """Inside, these pods are booked where they are said to be."""
        with self._version.kept():
            try:
                if placed and (model := placed[0][0].model) is not None:
                    self._places.imagine(model, [node for _, node in placed])
                for demand, node in placed:
                    self._ledger.assume(demand, node)
                yield
            finally:
                self._places.forget_imagined()
                for demand, node in placed:
                    self._ledger.take_back(demand.uid, node)

    def _take_off(self, demand: PodDemand) -> list[tuple[NodeRow, tuple[Booking, ...], NodeUse | None]]:
        """Take what the pod holds off its nodes, the use that the exporter names as its own included."""
        pod = ObjectKey(demand.namespace, demand.name)
        observed = self._ledger.observed_node(demand.uid)
        taken = []
        for name in self._ledger.booked_nodes(demand.uid):
            row = self._fleet.get(name)
            if row is None or demand.uid not in row.bookings:
                continue
            taken.append((row, row.bookings.pop(demand.uid), row.use))
            if name == observed:
                self._places.hide(demand.model, name)
            if row.use is not None:
                row.use = replace(row.use, gpus=tuple(_without_pod(use, pod) for use in row.use.gpus))
            self._fleet.mark((name,))
        return taken


def _without_pod(use: GpuUse, pod: ObjectKey) -> GpuUse:
    """The GPU as it would be without this pod, where the exporter says that it is its."""
    if use.pod != pod or use.used_bytes is None or use.free_bytes is None:
        return use
    return replace(use, used_bytes=0, free_bytes=use.free_bytes + use.used_bytes, pod=None)
