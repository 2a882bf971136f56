"""Preempt: a veto on kube-scheduler's plan to kill pods for one that HBM or quota would keep out all the same."""

from collections.abc import Callable
from datetime import UTC, datetime

from kvaware_engine import Engine, PodDemand, Reason, VictimsVerdict
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.freshness import Freshness
from kvaware_extender.metrics import Metrics, PreemptResult, Verb
from kvaware_extender.ours import demand_of_ours
from kvaware_extender.records import Preempted
from kvaware_extender.wire import parse_victims, render_victims

__all__ = ["Preemptions"]


class Preemptions:
    """Answers about one pod and the victims offered for it: bytes in, bytes out, nothing that waits."""

    def __init__(
        self,
        *,
        engine: Engine,
        freshness: Freshness,
        metrics: Metrics,
        decisions: DecisionLog,
        queue_length: Callable[[], int],
        scheduler_name: str,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._freshness = freshness
        self._metrics = metrics
        self._decisions = decisions
        self._queue_length = queue_length
        self._scheduler_name = scheduler_name
        self._clock = clock

    def answer(self, body: bytes, *, trace_id: str | None = None) -> bytes:
        """The offers that would make room, with the victims that HBM needs on top. Raises: WireError."""
        offered = parse_victims(body)
        demand = demand_of_ours(offered.pod, self._engine, scheduler_name=self._scheduler_name)
        if demand is None:
            self._metrics.not_ours[Verb.PREEMPT].inc()
            # An empty list is an error to kube-scheduler, whoever wrote it.
            return render_victims(offer for offer in offered.offers if offer.victims)
        if self._freshness.stale():
            verdict = VictimsVerdict(kept=(), added=0, reason=Reason.STALE_VIEW)
        else:
            verdict = self._engine.keep_victims(demand, offered.offers, now_s=self._clock())
        self._record(demand, verdict, offered=len(offered.offers), trace_id=trace_id)
        return render_victims(verdict.kept)

    def _record(self, demand: PodDemand, verdict: VictimsVerdict, *, offered: int, trace_id: str | None) -> None:
        result = _result(verdict)
        self._metrics.preempts[result].inc()
        self._metrics.added_victims.inc(verdict.added)
        self._decisions.put(
            Preempted(
                at=datetime.now(UTC),
                demand=demand,
                kept=verdict.kept,
                result=result,
                reason=verdict.reason,
                offered=offered,
                added=verdict.added,
                queue_length=self._queue_length(),
                trace_id=trace_id,
            )
        )


def _result(verdict: VictimsVerdict) -> PreemptResult:
    if verdict.kept:
        return PreemptResult.KEPT
    match verdict.reason:
        case Reason.STALE_VIEW:
            return PreemptResult.STALE
        case Reason.VICTIMS_LEAVING:
            return PreemptResult.WAITING
        case _:
            return PreemptResult.VETOED
