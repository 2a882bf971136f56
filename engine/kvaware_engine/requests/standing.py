"""Who may be chosen and how far each is believed: BARRED and CONFIDENCE_RATIO of a fleet.

A stale worker weighs less and is not "full" (llm-d/llm-d-router#2408, #2547): its confidence falls from one report
interval to the time-out; beyond it gets nothing new, and one report brings it back. A Ready worker that was never heard
is a candidate for one time-out, with a low confidence: pods alone must neither shut it out nor vouch for it.
"""

from math import inf, nan
from typing import Final

import numpy as np

from kvaware_engine.reports import ReportTimes, WorkerView
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.trust import Trust
from kvaware_engine.requests.words import FloatArray
from kvaware_engine.settings import WorkerSettings

__all__ = ["Standing"]

_UNHEARD_CONFIDENCE_RATIO: Final = 0.25
"""Of a Ready worker before its first report: it has just come, and nothing says otherwise."""
_STEPS_PER_INTERVAL: Final = 20
"""Confidence falls in so many steps per report interval. Time-outs and marks end exactly."""


class Standing:
    """By slot. Changes are cheap; the two figures follow at the next ``refresh``."""

    def __init__(self, reports: WorkerSettings, *, refusal_mark_s: float) -> None:
        self.able = 0
        """Workers that may be chosen, at the last ``refresh``."""
        self.serving = 0
        """Workers that may be chosen and that prefill, at the last ``refresh``."""
        self.without_marks: FloatArray | None = None
        """BARRED as it were if nobody had refused, at the last ``refresh``; None: it is the same."""
        self._interval_s = reports.report_interval_s
        self._timeout_s = reports.report_timeout_s
        self._refusal_mark_s = refusal_mark_s
        self._due_s = -inf
        self._fit = np.empty(0, bool)
        self._prefills = np.empty(0, bool)
        self._heard_at_s: FloatArray = np.empty(0)
        """NaN: never."""
        self._deadline_s: FloatArray = np.empty(0)
        """Until when it counts as heard."""
        self._refused_until_s: FloatArray = np.empty(0)
        self._trusted: FloatArray = np.empty(0)
        self._awaited_since_s: dict[int, float] = {}
        """Of those never heard: since when they are Ready."""
        self._refused_at_s: dict[int, float] = {}
        self._trust: dict[int, Trust] = {}

    def grow(self, slots: int) -> None:
        """More slots, without workers."""
        more = slots - len(self._fit)
        self._fit = np.append(self._fit, np.zeros(more, bool))
        self._prefills = np.append(self._prefills, np.zeros(more, bool))
        self._heard_at_s = np.append(self._heard_at_s, np.full(more, nan))
        self._deadline_s = np.append(self._deadline_s, np.full(more, -inf))
        self._refused_until_s = np.append(self._refused_until_s, np.full(more, -inf))
        self._trusted = np.append(self._trusted, np.ones(more))
        self._due_s = -inf

    def begin(self, slot: int) -> None:
        """Another worker, or another incarnation of one, of which nothing is known."""
        self._fit[slot] = False
        self._heard_at_s[slot] = nan
        self._deadline_s[slot] = -inf
        self._refused_until_s[slot] = -inf
        self._trusted[slot] = 1.0
        self._awaited_since_s.pop(slot, None)
        self._refused_at_s.pop(slot, None)
        self._trust[slot] = Trust()
        self._due_s = -inf

    def absent(self, slot: int) -> None:
        """It is not shown at present."""
        self._fit[slot] = False
        self._prefills[slot] = False
        self._due_s = -inf

    def shown(self, slot: int, view: WorkerView, times: ReportTimes, now_s: float, *, prefills: bool) -> None:
        """What is believed of it now; and whether prompts may go there."""
        fit = view.ready and not view.draining and not view.asleep
        self._fit[slot] = fit
        self._prefills[slot] = prefills
        self._due_s = -inf
        if times.any_at_s > -inf:
            self._heard_at_s[slot] = times.any_at_s
            self._deadline_s[slot] = times.any_at_s + self._timeout_s
            refused_at_s = self._refused_at_s.get(slot)
            if refused_at_s is not None and fit and view.waiting == 0 and times.waiting_at_s > refused_at_s:
                del self._refused_at_s[slot]
                self._refused_until_s[slot] = -inf
        elif fit:
            self._deadline_s[slot] = self._awaited_since_s.setdefault(slot, now_s) + self._timeout_s

    def refused(self, slot: int, now_s: float) -> None:
        """It is passed over for a time, or until it says that it is well.

        Without an end a worker that refused once would stay idle for good (ai-dynamo/dynamo#12138).
        """
        self._refused_at_s[slot] = now_s
        self._refused_until_s[slot] = now_s + self._refusal_mark_s
        self._due_s = -inf

    def verify(self, slot: int, *, predicted_tokens: float, cached_tokens: float) -> bool:
        """What a request found of its blocks. Returns: whether its index is to be built anew, see ``Trust.verify``."""
        trust = self._trust[slot]
        rebuild = trust.verify(predicted_tokens, cached_tokens)
        if trust.ratio != self._trusted.item(slot):
            self._trusted_now(slot, trust)
        return rebuild

    def restore(self, slot: int) -> None:
        """Its index begins anew after a gap in its events: what is known from now on is not to blame."""
        trust = self._trust[slot]
        trust.start_over()
        self._trusted_now(slot, trust)

    def _trusted_now(self, slot: int, trust: Trust) -> None:
        self._trusted[slot] = trust.ratio
        self._due_s = -inf

    def refresh(self, figures: FloatArray, now_s: float) -> None:
        """Bring BARRED and CONFIDENCE_RATIO to now. Free (0.1 µs) while nothing is due; else 20 µs at 64 slots."""
        if now_s < self._due_s:
            return
        unable, marked = ~self._fit | (self._deadline_s < now_s), self._refused_until_s > now_s
        barred = unable | marked
        figures[Figure.BARRED] = np.where(barred, inf, 0.0)
        self.without_marks = np.where(unable, inf, 0.0) if marked.any() else None
        able = ~barred
        self.able = int(np.count_nonzero(able))
        self.serving = int(np.count_nonzero(self._prefills & able))
        # 1 up to one interval, then falling evenly to 0 at the time-out, as Workers has it.
        age_s = now_s - self._heard_at_s
        believed = np.clip((self._timeout_s - age_s) / max(self._timeout_s - self._interval_s, 1e-9), 0.0, 1.0)
        figures[Figure.CONFIDENCE_RATIO] = (
            np.where(np.isnan(age_s), _UNHEARD_CONFIDENCE_RATIO, believed) * self._trusted
        )
        deadlines = self._deadline_s[self._fit & (self._deadline_s >= now_s)]
        marks = self._refused_until_s[marked]
        self._due_s = min(
            now_s + self._interval_s / _STEPS_PER_INTERVAL,
            deadlines.min(initial=inf),
            marks.min(initial=inf),
        )
