"""What waits at lower priorities: a request of a higher one goes before it (vLLM: ``--scheduling-policy priority``)."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from kvaware_engine.requests.words import FloatArray

__all__ = ["PriorityQueues"]

_COLUMNS_MAX: Final = 8
"""Priorities whose column is kept up to date."""
_ANEW_S: Final = 0.25
"""A column is added up anew so often: what waits in it is done with time, whether anybody tells or not."""


class PriorityQueues:
    """Prefill that waits, by priority and slot. While all have one priority it only counts them."""

    __slots__ = ("_added_up_at_s", "_columns", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        """Priority → requests that wait at it."""
        self._columns: OrderedDict[int, FloatArray] = OrderedDict()
        """Priority → milliseconds that wait below it, by slot. Empty until somebody asks."""
        self._added_up_at_s: dict[int, float] = {}
        """When each was."""

    def add(self, slot: int, priority: int, prefill_ms: float) -> None:
        """It waits there."""
        waiting = self._waiting
        waiting[priority] = waiting.get(priority, 0) + 1
        if self._columns:
            self._change(slot, priority, prefill_ms)

    def take(self, slot: int, priority: int, prefill_ms: float) -> None:
        """It waits no more: as it was added."""
        waiting = self._waiting
        left = waiting[priority] - 1
        if left:
            waiting[priority] = left
        else:
            del waiting[priority]
        if self._columns:
            if waiting:
                self._change(slot, priority, -prefill_ms)
            else:
                self._columns.clear()
                self._added_up_at_s.clear()

    def _change(self, slot: int, priority: int, amount_ms: float) -> None:
        for asked, column in self._columns.items():
            if priority < asked:
                column[slot] = max(0.0, column.item(slot) + amount_ms)  # part of it may be done, and left out

    def below_ms(
        self, priority: int, slots: int, waiting: Callable[[float], Iterable[tuple[int, int, float]]], now_s: float
    ) -> FloatArray | None:
        """What waits at lower priorities.

        Args:
            priority: Of the request that asks.
            slots: Length of the column.
            waiting: Slot, priority and the milliseconds that are left then of all that wait; called when nobody asked
                at this priority lately.
            now_s: Now.
        Returns: Shape (slots,), read only; None: nothing waits below it anywhere, which costs next to nothing to know.
        """
        for level in self._waiting:
            if level < priority:
                break
        else:
            return None
        column = self._columns.get(priority)
        if column is not None and len(column) == slots and now_s - self._added_up_at_s[priority] < _ANEW_S:
            self._columns.move_to_end(priority)
            return column
        column = self._columns[priority] = np.zeros(slots)
        self._columns.move_to_end(priority)
        self._added_up_at_s[priority] = now_s
        for slot, level, left_ms in waiting(now_s):
            if level < priority:
                column[slot] += left_ms
        if len(self._columns) > _COLUMNS_MAX:
            gone, _ = self._columns.popitem(last=False)
            del self._added_up_at_s[gone]
        return column
