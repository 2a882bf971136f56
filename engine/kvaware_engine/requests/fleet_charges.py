"""What is reserved on a fleet's workers: the figures that it moves, who waits in front of whom, and whose slot is free.

Reservations are added to what was observed and never overwritten by it, see ``charges.py``.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, cast

import numpy as np

from kvaware_engine.reports import ReportTimes, WorkerView
from kvaware_engine.requests.charges import Charged, MeanPrompt, WorkerColumn
from kvaware_engine.requests.congestion import Congestion
from kvaware_engine.requests.figures import Figure, row
from kvaware_engine.requests.fleet_links import FleetLinks
from kvaware_engine.requests.hardware_classes import HardwareClass
from kvaware_engine.requests.priority_queues import PriorityQueues
from kvaware_engine.requests.risk import Risk
from kvaware_engine.requests.words import FloatArray

__all__ = ["FleetCharges"]


class FleetCharges:
    """By slot. A slot is given again only when no reservation names it."""

    __slots__ = (
        "_batch",
        "_chosen",
        "_column_of",
        "_congestion",
        "_decode_ms",
        "_figures",
        "_free_at_s",
        "_free_slots",
        "_half_step_ms",
        "_kv_free",
        "_last_chosen",
        "_links",
        "_mean",
        "_queues",
        "_remaining",
        "_requests",
        "_risk",
        "columns",
    )

    def __init__(self, congestion: Congestion, links: FleetLinks, risk: Risk) -> None:
        self.columns: list[WorkerColumn | None] = []
        """By slot; that of a forgotten worker stays while a reservation names its slot."""
        self._congestion = congestion
        self._links = links
        self._risk = risk
        self._column_of: dict[Charged, WorkerColumn] = {}
        """Whom it is, or was, charged to; until it ends."""
        self._free_slots: list[int] = []
        self._queues = PriorityQueues()
        self._mean = MeanPrompt()
        self._chosen = 0

    # -- who is there ------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether there is no slot for one more worker."""
        return not self._free_slots

    def grow(self, figures: FloatArray) -> None:
        """The figures are another array, with more slots."""
        before, slots = len(self.columns), figures.shape[1]
        self.columns.extend([None] * (slots - before))
        self._free_slots.extend(range(before, slots))
        heapify(self._free_slots)
        self._figures = figures
        self._free_at_s: Any = row(figures, Figure.FREE_AT_S)
        self._batch: Any = row(figures, Figure.BATCH)
        self._requests: Any = row(figures, Figure.REQUESTS)
        self._half_step_ms: Any = row(figures, Figure.HALF_STEP_MS)
        self._decode_ms: Any = row(figures, Figure.DECODE_MS_PER_TOKEN)
        self._kv_free: Any = row(figures, Figure.KV_FREE_TOKENS)
        self._remaining: Any = row(figures, Figure.REMAINING_TOKENS)
        self._last_chosen: Any = row(figures, Figure.LAST_CHOSEN)

    def begin(self, worker: str, hardware: HardwareClass, incarnation: str) -> WorkerColumn:
        """A worker came; not while all slots are used."""
        slot = heappop(self._free_slots)
        column = self.columns[slot] = WorkerColumn(worker, slot, hardware, incarnation)
        return column

    def lose(self, column: WorkerColumn) -> None:
        """What was charged to it is gone: another incarnation."""
        for reservation in column.charged_at_s:
            self._links.end(reservation)
        for reservation in column.prefill_ends_s:
            self._queues.take(column.slot, reservation.priority, reservation.prefill_ms)
        column.start_over()

    def end(self, column: WorkerColumn) -> None:
        """It is forgotten, and what was charged to it is gone."""
        self.lose(column)
        column.present = False
        if not column.lost:
            self._vacate(column.slot)

    def _vacate(self, slot: int) -> None:
        self.columns[slot] = None
        heappush(self._free_slots, slot)

    def count(
        self,
        column: WorkerColumn,
        view: WorkerView,
        times: ReportTimes,
        *,
        block_tokens: int,
        mean_output_tokens: float,
        prefills: bool,
    ) -> None:
        """Add up a worker's figures anew, as of ``WorkerColumn.count``."""
        column.count(
            view,
            times,
            block_tokens=block_tokens,
            mean=self._mean,
            mean_output_tokens=mean_output_tokens,
            prefills=prefills,
        )
        slot, batch = column.slot, column.batch
        self._free_at_s[slot] = column.free_at_s
        self._requests[slot] = column.requests
        self._kv_free[slot] = column.kv_free_tokens
        self._remaining[slot] = column.remaining_tokens
        self._batch[slot] = batch
        self._half_step_ms[slot], self._decode_ms[slot] = column.hardware.decode_figures(batch)

    # -- what is reserved --------------------------------------------------------------------------------------------

    def charge(self, reservation: Charged, now_s: float) -> None:
        """Add a reservation to its worker's figures.

        Raises: ValueError when it is charged already, or its slot or incarnation is nobody's.
        """
        slot = reservation.slot
        column = self.columns[slot]
        if column is None or column.incarnation != reservation.incarnation or not column.present:
            raise ValueError(f"slot {slot}: expected {reservation.incarnation!r} there, found another or nobody")
        if reservation in self._column_of:
            raise ValueError(f"slot {slot}: expected a reservation that is not charged yet")
        self._column_of[reservation] = column
        column.charged_at_s[reservation] = now_s
        prefill_ms = reservation.prefill_ms
        if prefill_ms > 0 and not reservation.prefilled:
            end_s = max(column.free_at_s, now_s) + prefill_ms / 1000
            column.free_at_s = self._free_at_s[slot] = column.prefill_ends_s[reservation] = end_s
            column.pending_ms += prefill_ms
            self._congestion.reserved(prefill_ms, now_s)
            self._queues.add(slot, reservation.priority, prefill_ms)
        column.requests += 1
        self._requests[slot] = column.requests
        output_tokens = reservation.expected_output_tokens
        if output_tokens > 0:
            column.batch = batch = column.batch + 1
            self._batch[slot] = batch
            self._half_step_ms[slot], self._decode_ms[slot] = column.hardware.decode_figures(batch)
            column.remaining_tokens += output_tokens
            self._remaining[slot] = column.remaining_tokens
        column.kv_free_tokens -= reservation.kv_tokens
        self._kv_free[slot] = column.kv_free_tokens
        self._chosen = chosen = self._chosen + 1
        self._last_chosen[slot] = chosen
        if chosen & 7 == 0 and prefill_ms > 0:  # a mean of every eighth is as good: 0.3 µs
            self._mean.add(reservation.input_tokens, reservation.uncached_tokens)
        if reservation.transfer_bytes and column.node is not None and not reservation.prefilled:
            self._links.begin(reservation, column.node)

    def prefilled(self, reservation: Charged, now_s: float) -> None:
        """Its first token is there, so its prefill and its transfer are over. Told again, or not charged: nothing."""
        column = self._column_of.get(reservation)
        if column is None:
            return
        if reservation.transfer_bytes:
            self._links.end(reservation)
        if reservation in column.prefill_ends_s:
            slot = column.slot
            column.prefilled(reservation, now_s)
            self._free_at_s[slot] = column.free_at_s
            self._queues.take(slot, reservation.priority, reservation.prefill_ms)
            if self._risk.ms[slot]:
                self._risk.served(slot)

    def progressed(self, reservation: Charged, output_tokens: int) -> None:
        """It has answered so many tokens."""
        column = self._column_of.get(reservation)
        if column is not None and reservation in column.charged_at_s:
            expected = reservation.expected_output_tokens
            left = max(0.0, expected - output_tokens)
            column.remaining_tokens += left - column.left_tokens.get(reservation, expected)
            column.left_tokens[reservation] = left
            self._remaining[column.slot] = column.remaining_tokens

    def discharge(self, reservation: Charged, now_s: float) -> None:
        """It has ended. Told again, or of what is not charged: nothing."""
        column = self._column_of.pop(reservation, None)
        if column is None:
            return
        slot = column.slot
        if reservation not in column.charged_at_s:
            column.lost.discard(reservation)
            if not column.lost and not column.present:
                self._vacate(slot)
            return
        if reservation.transfer_bytes:
            self._links.end(reservation)
        reserved_at_s = column.charged_at_s[reservation]
        if reservation in column.prefill_ends_s:
            undone_ms = column.withdrawn(reservation, now_s)
            self._free_at_s[slot] = column.free_at_s
            self._queues.take(slot, reservation.priority, reservation.prefill_ms)
            if undone_ms:
                self._congestion.returned(undone_ms, reserved_at_s, now_s)
        del column.charged_at_s[reservation]
        # It may have been in a report that came after its end: then it is not there a second time.
        if column.requests > 0:
            column.requests -= 1
            self._requests[slot] = column.requests
        output_tokens = reservation.expected_output_tokens
        column.ended.append((reserved_at_s, now_s, output_tokens > 0, reservation.kv_tokens))
        if output_tokens > 0:
            if column.batch > 0:
                column.batch = batch = column.batch - 1
                self._batch[slot] = batch
                self._half_step_ms[slot], self._decode_ms[slot] = column.hardware.decode_figures(batch)
            if column.left_tokens:
                output_tokens = column.left_tokens.pop(reservation, output_tokens)
            column.remaining_tokens = self._remaining[slot] = max(0.0, column.remaining_tokens - output_tokens)
        free = min(column.kv_free_tokens + reservation.kv_tokens, column.kv_total_tokens)
        column.kv_free_tokens = self._kv_free[slot] = free

    def waits_ahead_ms(self, priority: int, now_s: float) -> FloatArray | None:
        """What waits at this priority or above. Shape (slots,), new; None: all that waits, FREE_AT_S.

        What others have put into a worker's queue counts as ahead: their priority is not known.
        """
        below_ms = self._queues.below_ms(priority, len(self.columns), self._waiting, now_s)
        if below_ms is None:
            return None
        ahead_ms = (self._figures[Figure.FREE_AT_S] - now_s) * 1000 - below_ms
        return cast("FloatArray", np.maximum(ahead_ms, 0.0, out=ahead_ms))

    def _waiting(self, now_s: float) -> Iterator[tuple[int, int, float]]:
        """Slot, priority and what is left of the prefill, of all that wait."""
        for column in self.columns:
            if column is not None:
                for reservation, end_s in column.prefill_ends_s.items():
                    left_ms = min(reservation.prefill_ms, (end_s - now_s) * 1000)
                    if left_ms > 0:
                        yield column.slot, reservation.priority, left_ms
