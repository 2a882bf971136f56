"""What waits at lower priorities: a request of a higher one goes before it (vLLM: ``--scheduling-policy priority``)."""

from collections import OrderedDict
from math import inf
from typing import Final

import numpy as np

from kvaware_engine.requests.words import FloatArray

__all__ = ["PriorityQueues"]

_COLUMNS_MAX: Final = 8
"""Priorities whose column is kept up to date; another one is summed up when it asks."""
_US: Final = 1000.0
"""Sums are kept in whole microseconds, which a float64 holds exactly: what is added and taken leaves nothing."""


class PriorityQueues:
    """Prefill that waits, by priority and slot. While all have one priority nothing is kept in columns."""

    __slots__ = ("_columns", "_levels", "_lowest")

    def __init__(self) -> None:
        self._levels: dict[int, dict[int, int]] = {}
        """Priority → slot → microseconds. Bounded by what is in flight."""
        self._lowest: float = inf
        self._columns: OrderedDict[int, FloatArray] = OrderedDict()
        """Priority → microseconds that wait below it, by slot."""

    def add(self, slot: int, priority: int, prefill_ms: float) -> None:
        """It waits there."""
        self._change(slot, priority, int(prefill_ms * _US))

    def take(self, slot: int, priority: int, prefill_ms: float) -> None:
        """It waits no more: as it was added."""
        self._change(slot, priority, -int(prefill_ms * _US))

    def _change(self, slot: int, priority: int, amount: int) -> None:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = {}
            self._lowest = min(self._lowest, priority)
        there = level.get(slot, 0) + amount
        if there:
            level[slot] = there
        else:
            level.pop(slot, None)
            if not level:
                del self._levels[priority]
                self._lowest = min(self._levels, default=inf)
        if self._columns:
            for asked, column in self._columns.items():
                if priority < asked:
                    column[slot] += amount
            if not self._levels:
                self._columns.clear()

    def below_ms(self, priority: int, slots: int) -> FloatArray | None:
        """What waits at lower priorities. Shape (slots,); None: nothing anywhere, which costs nothing to know."""
        if self._lowest >= priority:
            return None
        column = self._columns.get(priority)
        if column is None or len(column) != slots:
            column = self._columns[priority] = np.zeros(slots)
            for level, waiting in self._levels.items():
                if level < priority:
                    for slot, amount in waiting.items():
                        column[slot] += amount
            if len(self._columns) > _COLUMNS_MAX:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(priority)
        return column / _US
