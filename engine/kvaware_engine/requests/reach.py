"""Where one model's workers are and what can move between them, as columns. Made once per change of their facts."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from kvaware_engine.requests.candidates import WorkerFacts
from kvaware_engine.requests.words import IntArray
from kvaware_engine.settings import LinkSettings

__all__ = [
    "MIGRATE",
    "PULL_BY_PREFILL",
    "PULL_FROM_PEER",
    "SHARED_STORE",
    "Hop",
    "Reach",
    "ReachRow",
    "can_move",
    "hop_between",
    "hop_bytes_per_s",
]

BoolArray = npt.NDArray[np.bool_]

PULL_FROM_PEER: Final = "pull_from_peer"
PULL_BY_PREFILL: Final = "pull_by_prefill"
SHARED_STORE: Final = "shared_store"
MIGRATE: Final = "migrate"
_MOVING: Final = frozenset({PULL_FROM_PEER, PULL_BY_PREFILL, SHARED_STORE, MIGRATE})
_ROWS_BYTES: Final = 32 * 2**20
"""Of remembered rows: some 1,000 sources at 7,000 workers."""
_ROW_BYTES_PER_SLOT: Final = 5


class Hop(IntEnum):
    """The link between two workers, nearest first."""

    CLIQUE = 0
    NODE = 1
    RACK = 2
    ZONE = 3
    FAR = 4


FIRST_WIRED: Final = Hop.RACK
"""From here on a transfer uses the nodes' network links and queues behind what they have in flight."""


def hop_bytes_per_s(links: LinkSettings) -> tuple[float, ...]:
    """Bandwidth by ``Hop``. On one node it is PCIe's."""
    return (
        links.clique_bytes_per_s,
        links.host_bytes_per_s,
        links.rack_bytes_per_s,
        links.zone_bytes_per_s,
        links.far_bytes_per_s,
    )


def hop_between(one: WorkerFacts, other: WorkerFacts) -> Hop:
    """The nearest link that two workers share. What is not known of a place is shared with nobody."""
    if one.clique is not None and one.clique == other.clique:
        return Hop.CLIQUE
    if one.node is not None and one.node == other.node:
        return Hop.NODE
    if one.rack is not None and one.rack == other.rack:
        return Hop.RACK
    if one.zone is not None and one.zone == other.zone:
        return Hop.ZONE
    return Hop.FAR


def can_move(facts: Sequence[WorkerFacts | None]) -> bool:
    """Whether any worker has a capability by which KV could come from another."""
    return any(each is not None and not _MOVING.isdisjoint(each.capabilities) for each in facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachRow:
    """All workers seen from one source, each of shape (slots,). A worker does not reach itself."""

    hops: npt.NDArray[np.int8]
    """``Hop``."""
    domain: BoolArray
    """In the same transfer domain."""
    at_once: BoolArray | None
    """Who can read from the source, or from a store that both use; None: nobody."""
    by_prefill: BoolArray | None
    """Who can read from the source only by a prefill there; None: nobody."""
    copies: BoolArray | None
    """Who can be sent copies; None: nobody."""

    @property
    def wired(self) -> BoolArray:
        """Where a transfer uses the network links."""
        return self.hops >= FIRST_WIRED


class Reach:
    """Places and capabilities of one model's workers. Nothing in it changes."""

    __slots__ = ("_able", "_codes", "_rows", "moves", "places", "slots")

    def __init__(self, facts: Sequence[WorkerFacts | None]) -> None:
        self.moves = can_move(facts)
        """Whether anything can be read or copied at all."""
        self.slots = {each.worker: slot for slot, each in enumerate(facts) if each is not None}
        names = {
            name: [None if each is None else getattr(each, name) for each in facts]
            for name in ("clique", "node", "rack", "zone", "transfer_domain")
        }
        self._codes = {name: _codes(column) for name, column in names.items()}
        places: dict[tuple[str | None, ...], int] = {}
        self.places = [places.setdefault(each, len(places)) for each in zip(*names.values(), strict=True)]
        """By slot; equal for workers at one place and in one transfer domain: all others see them alike."""
        self._able = {
            name: np.array([each is not None and name in each.capabilities for each in facts], dtype=np.bool_)
            for name in _MOVING
        }
        self._rows: OrderedDict[int, ReachRow] = OrderedDict()

    def row(self, source: int) -> ReachRow:
        """All workers seen from the one in a slot."""
        row = self._rows.get(source)
        if row is None:
            row = self._rows[source] = self._row(source)
            if len(self._rows) * _ROW_BYTES_PER_SLOT * len(self.places) > _ROWS_BYTES:
                self._rows.popitem(last=False)
        return row

    def _row(self, source: int) -> ReachRow:
        same = {name: codes == codes[source] for name, codes in self._codes.items()}
        hops = np.full(len(same["node"]), Hop.FAR, dtype=np.int8)
        for hop, name in ((Hop.ZONE, "zone"), (Hop.RACK, "rack"), (Hop.NODE, "node"), (Hop.CLIQUE, "clique")):
            hops[same[name]] = hop
        domain = same["transfer_domain"]
        domain[source] = False
        able = {
            name: domain & column if column[source] else np.zeros_like(domain) for name, column in self._able.items()
        }
        at_once = able[PULL_FROM_PEER] | able[SHARED_STORE]
        return ReachRow(
            hops=hops,
            domain=domain,
            at_once=_any(at_once),
            by_prefill=_any(able[PULL_BY_PREFILL] & ~at_once),
            copies=_any(able[MIGRATE]),
        )


def _any(able: BoolArray) -> BoolArray | None:
    return able if able.any() else None


def _codes(names: Sequence[str | None]) -> IntArray:
    """Equal names get equal numbers; None equals nothing, not even another None."""
    numbers: dict[str, int] = {}
    return np.array(
        [-1 - at if name is None else numbers.setdefault(name, len(numbers)) for at, name in enumerate(names)],
        dtype=np.int64,
    )
