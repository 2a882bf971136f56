"""How near every row of the fleet is to some marked rows: on the node, in its NVLink clique, rack or zone, or far."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvaware_engine.fleet import NO_CODE, Fleet
from kvaware_engine.settings import LinkSettings

__all__ = ["FAR", "NEAR", "NONE", "ON_NODE", "BoolArray", "FloatArray", "IntArray", "Reach", "nowhere", "reach_of"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ON_NODE, NEAR, FAR, NONE = 0, 1, 2, 3
"""Codes of a location: on the node; in its clique or rack; elsewhere; nowhere."""


def nowhere(size: int) -> BoolArray:
    """No row marked."""
    return np.zeros(size, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Reach:
    """Rows in the same zone, rack and NVLink clique as some marked row, each of shape (rows,)."""

    zone: BoolArray
    rack: BoolArray
    clique: BoolArray

    def near(self) -> BoolArray:
        """In the same clique or rack."""
        return self.clique | self.rack

    def locations(self, marked: BoolArray) -> IntArray:
        """ON_NODE on the marked rows themselves, NEAR near them, else FAR."""
        at = np.full(len(marked), FAR, dtype=np.int64)
        at[self.near()] = NEAR
        at[marked] = ON_NODE
        return at

    def bytes_per_s(self, links: LinkSettings) -> FloatArray:
        """The fastest link from any marked row."""
        speed = np.full(len(self.zone), links.far_bytes_per_s)
        for reached, bytes_per_s in (
            (self.zone, links.zone_bytes_per_s),
            (self.rack, links.rack_bytes_per_s),
            (self.clique, links.clique_bytes_per_s),
        ):
            np.maximum(speed, bytes_per_s, out=speed, where=reached)
        return speed


def reach_of(fleet: Fleet, marked: BoolArray) -> Reach:
    """What the marked rows reach, each of shape (rows,)."""
    rows = np.flatnonzero(marked)
    return Reach(*(_shares(codes, rows, fleet.codes) for codes in (fleet.zone, fleet.rack, fleet.clique)))


def _shares(codes: IntArray, rows: IntArray, count: int) -> BoolArray:
    """Rows whose code is that of some of the given rows; there are ``count`` codes."""
    table = np.zeros(count + 1, dtype=np.bool_)  # the last entry is what NO_CODE reads
    table[codes[rows]] = True
    table[NO_CODE] = False
    return table[codes]
