"""What one worker reported, and what was reserved there: how the two add up.

    figure = as reported at its observation + what was reserved after that and has not ended

What was reserved before the observation is taken to be in the report; when it ends, it is subtracted until the next
report. A report never erases what was reserved after it, and a reservation never overwrites a report
(ai-dynamo/dynamo#7753). Each figure has the time of its own observation.

The queue is known better than that. Servers count a prompt that is being computed as running, so a report without
waiting requests may hide seconds of prefill. Of our own requests it is known when their prefill would end; the reported
number of waiting ones tells which of them, the latest, have not begun.
"""

from dataclasses import dataclass
from math import inf, nan
from typing import Protocol

from kvaware_engine.reports import ReportTimes, WorkerView
from kvaware_engine.requests.hardware_classes import HardwareClass

__all__ = ["Charge", "Charged", "MeanPrompt", "WorkerColumn"]


class Charged(Protocol):
    """What a fleet reads of a reservation. It is told apart by identity, and must not change while it is charged."""

    slot: int
    incarnation: str
    prefill_ms: float
    """0: it keeps no prefill, as the decode part of a pair."""
    uncached_tokens: int
    expected_output_tokens: float
    """0: it does not decode, as the prefill part of a pair."""
    kv_tokens: float
    transfer_bytes: int
    prefilled: bool

    @property
    def input_tokens(self) -> int:
        """Of the whole prompt."""

    @property
    def priority(self) -> int:
        """Higher goes first."""


class Charge:
    """One reservation on one worker. Plain: one is made per request."""

    __slots__ = ("at_s", "column", "end_s", "link", "live", "remaining_tokens", "reservation", "waits")

    def __init__(self, reservation: Charged, column: "WorkerColumn", at_s: float, end_s: float, waits: bool) -> None:  # noqa: FBT001 - 0.1 µs less than by keyword, once per request
        self.reservation = reservation
        self.column = column
        self.at_s = at_s
        """When it was charged."""
        self.end_s = end_s
        """When its prefill is expected to end."""
        self.waits = waits
        """Whether its prefill is not over yet."""
        self.remaining_tokens = reservation.expected_output_tokens
        self.link: str | None = None
        """Node over whose link its blocks are on their way."""
        self.live = True
        """Whether its worker is still the one that it was reserved on."""


@dataclass(slots=True)
class MeanPrompt:
    """Of the requests that came lately: what waits elsewhere is taken for such ones."""

    input_tokens: float = 1024.0
    uncached_tokens: float = 1024.0

    def add(self, input_tokens: float, uncached_tokens: float) -> None:
        """One more; the last hundred or so count."""
        self.input_tokens += (input_tokens - self.input_tokens) / 64
        self.uncached_tokens += (uncached_tokens - self.uncached_tokens) / 64


class WorkerColumn:
    """One worker's figures as Python numbers: cheaper to add to than items of an array."""

    __slots__ = (
        "_queue_at_s",
        "base_end_s",
        "batch",
        "charges",
        "free_at_s",
        "hardware",
        "incarnation",
        "kv_free_tokens",
        "kv_total_tokens",
        "node",
        "pending_ms",
        "present",
        "references",
        "remaining_tokens",
        "requests",
        "slot",
        "waits",
        "worker",
    )

    def __init__(self, worker: str, slot: int, hardware: HardwareClass, incarnation: str) -> None:
        self.worker = worker
        self.slot = slot
        self.hardware = hardware
        self.incarnation = incarnation
        self.node: str | None = None
        self.present = True
        """Whether it is not forgotten."""
        self.references = 0
        """Reservations that name its slot, whatever became of the worker."""
        self.charges: dict[Charged, Charge] = {}
        """The live ones, in the order in which they were charged."""
        self.start_over()

    def start_over(self) -> None:
        """Nothing is known and nothing is reserved: another incarnation."""
        for charge in self.charges.values():
            charge.live = False
        self.charges.clear()
        self._queue_at_s = -inf
        """When the reported queue was observed."""
        self.requests = 0
        self.batch = 0
        self.kv_total_tokens = nan
        self.kv_free_tokens = nan
        self.remaining_tokens = 0.0
        self.base_end_s = -inf
        """When what was reported to wait will be computed."""
        self.free_at_s = -inf
        self.pending_ms = 0.0
        """Prefill of the charges after the report that wait."""
        self.waits = 0
        """How many they are."""

    def count(
        self,
        view: WorkerView,
        times: ReportTimes,
        *,
        block_tokens: int,
        mean: MeanPrompt,
        mean_output_tokens: float,
    ) -> None:
        """Add up anew from a report and what is reserved. Takes time by the number of charges.

        Args:
            view: What is believed of it.
            times: When each of that was observed.
            block_tokens: Where it does not tell.
            mean: What requests of others are taken for.
            mean_output_tokens: Of them: on average half is still to come.
        """
        block_tokens = view.block_size_tokens or block_tokens
        self.kv_total_tokens = nan if view.kv_blocks_total is None else float(view.kv_blocks_total * block_tokens)
        self.kv_free_tokens = nan if view.kv_blocks_free is None else float(view.kv_blocks_free * block_tokens)
        reported = (view.waiting or 0) + (view.running or 0)
        self.requests = self.batch = reported
        if view.running is None and view.batch_size is not None:
            self.requests = self.batch = (view.waiting or 0) + view.batch_size
        self._count_queue(view, times, mean)
        in_report = 0
        remaining = 0.0
        for charge in self.charges.values():
            reservation = charge.reservation
            if charge.at_s > times.load_at_s:
                self.requests += 1
                self.batch += reservation.expected_output_tokens > 0
            else:
                in_report += 1
            if charge.at_s > times.kv_at_s:
                self.kv_free_tokens -= reservation.kv_tokens
            remaining += charge.remaining_tokens
        self.remaining_tokens = remaining + max(0, reported - in_report) * mean_output_tokens / 2

    def _count_queue(self, view: WorkerView, times: ReportTimes, mean: MeanPrompt) -> None:
        """``free_at_s``: what was reported to wait, then what was reserved after that."""
        by_tokens = view.queued_tokens is not None and times.queued_tokens_at_s >= times.waiting_at_s
        at_s = self._queue_at_s = max(times.waiting_at_s, times.queued_tokens_at_s)
        waiting = [charge for charge in self.charges.values() if charge.waits]
        before = [charge for charge in waiting if charge.at_s <= at_s]
        queued_tokens = view.queued_tokens if by_tokens else None
        not_begun = _not_begun(before, view.waiting, queued_tokens)
        begun = len(before) - not_begun
        end_s = at_s
        for number, charge in enumerate(before):
            prefill_s = charge.reservation.prefill_ms / 1000
            if number < begun:
                prefill_s = min(prefill_s, max(0.0, charge.end_s - at_s))
            end_s += prefill_s
            charge.end_s = end_s
        end_s += self._others_ms(before[begun:], view.waiting, queued_tokens, mean) / 1000
        self.base_end_s = end_s
        self.pending_ms = 0.0
        self.waits = 0
        for charge in waiting[len(before) :]:
            prefill_ms = charge.reservation.prefill_ms
            self.pending_ms += prefill_ms
            self.waits += 1
            end_s = max(end_s, charge.at_s) + prefill_ms / 1000
            charge.end_s = end_s
        self.free_at_s = end_s

    def _others_ms(self, own: list[Charge], waiting: int | None, queued_tokens: int | None, mean: MeanPrompt) -> float:
        """Prefill of what waits there beside our own."""
        others = max(0, waiting - len(own)) if waiting is not None else None
        if queued_tokens is None:
            return (others or 0) * self.hardware.profile.prefill_ms(mean.uncached_tokens)
        tokens = max(0, queued_tokens - sum(charge.reservation.input_tokens for charge in own))
        if not tokens:
            return 0.0
        requests = others or max(1, round(tokens / mean.input_tokens))
        uncached = tokens * min(1.0, mean.uncached_tokens / mean.input_tokens)
        # One after another, each with an attention of its own: not the prefill of one prompt as long as all together.
        return requests * self.hardware.profile.prefill_ms(uncached / requests)

    def prefilled(self, charge: Charge, now_s: float) -> None:
        """Its first token is there: what was before it is done, what came after it is next.

        When it is earlier or later than expected, so is what waits behind it: by no more than what is known to wait,
        and by no more than it was late itself, since not every client tells of every first token.
        """
        charge.waits = False
        if charge.at_s <= self._queue_at_s:
            return  # what was reported ends by itself as time goes on
        self._leave(charge)
        late_s = max(0.0, now_s - charge.end_s)
        self.free_at_s = min(max(now_s, self.base_end_s) + self.pending_ms / 1000, self.free_at_s + late_s)

    def withdrawn(self, charge: Charge, now_s: float) -> float:
        """It ends while its prefill was not over, as far as was told: what is left of it is not waited for.

        Returns: What is left, in milliseconds; 0 where it would have been over by now.
        """
        charge.waits = False
        left_s = min(charge.reservation.prefill_ms / 1000, max(0.0, charge.end_s - now_s))
        if charge.at_s <= self._queue_at_s:
            self.base_end_s -= left_s
        else:
            self._leave(charge)
        self.free_at_s = self.free_at_s - left_s if self.waits else self.base_end_s
        return left_s * 1000

    def _leave(self, charge: Charge) -> None:
        self.waits -= 1
        # Sums of floats that come to nothing are nothing.
        self.pending_ms = self.pending_ms - charge.reservation.prefill_ms if self.waits else 0.0


def _not_begun(own: list[Charge], waiting: int | None, queued_tokens: int | None) -> int:
    """How many of our own requests before the report have not begun: servers take them in turn, so the latest.

    Where only tokens are told, as many of the latest as these are enough for.
    """
    if waiting is not None:
        return min(waiting, len(own))
    if queued_tokens is None:
        return 0
    left = queued_tokens
    for number, charge in enumerate(reversed(own)):
        left -= charge.reservation.input_tokens
        if left < 0:
            return number
    return len(own)
