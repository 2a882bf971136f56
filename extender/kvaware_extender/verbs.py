"""Filter and prioritize: bytes in, bytes out, nothing that waits. kube-scheduler calls them 100 times a second."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kvaware_engine import Engine, FilterVerdict, PodDemand, Reason, main_reason
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.freshness import Freshness
from kvaware_extender.memory import Decided, Memory
from kvaware_extender.metrics import Metrics, Verb
from kvaware_extender.ours import demand_of_ours, group_of
from kvaware_extender.records import Chosen, Refused, leading
from kvaware_extender.repeats import Repeats
from kvaware_extender.wakeups import WakeUps
from kvaware_extender.wire import OfferedPod, parse_offer, render_all_admitted, render_filter, render_priorities

__all__ = ["Verbs"]


class Verbs:
    """Answers about one pod and the nodes offered for it."""

    def __init__(
        self,
        *,
        engine: Engine,
        freshness: Freshness,
        memory: Memory,
        repeats: Repeats,
        wakeups: WakeUps,
        metrics: Metrics,
        decisions: DecisionLog,
        scheduler_name: str,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._freshness = freshness
        self._memory = memory
        self._repeats = repeats
        self._wakeups = wakeups
        self._metrics = metrics
        self._decisions = decisions
        self._scheduler_name = scheduler_name
        self._clock = clock

    def filter(self, body: bytes, *, trace_id: str | None = None) -> bytes:
        """Which of the offered nodes can take the pod. Raises: WireError."""
        offer = parse_offer(body)
        demand = self._demand(offer.pod)
        self._memory.filtered(offer.uid, demand, group=group_of(offer.pod) if demand is None else None)
        if demand is None:
            self._metrics.not_ours[Verb.FILTER].inc()
            return render_all_admitted(offer)
        if self._freshness.stale():
            verdict = _stale(offer.names)
            self._refused(demand, offer, verdict, trace_id)
            return render_filter(offer, verdict)
        # What filter answers to a group's pod is remembered by the engine: it must be asked each time.
        repeatable = offer.items is None and demand.group is None
        if repeatable:
            given = self._repeats.get(demand, version=self._engine.version, body=body, names=offer.names)
            if given is not None:
                self._metrics.repeats.inc()
                if given.reason is not None:
                    # It may have been woken in between: it waits again, for another state.
                    self._wakeups.refused(demand, offer.names, given.reason)
                return given.reply
        verdict = self._engine.filter_nodes(demand, offer.names, now_s=self._clock())
        reply = render_filter(offer, verdict)
        if verdict.admits == 1:
            # kube-scheduler asks for no priorities when one node is left: the choice is made here.
            self._choose(demand, verdict.admitted, trace_id)
        for reason, nodes in verdict.counts.items():
            self._metrics.node_refusals[reason].inc(nodes)
        why: Reason | None = None
        if verdict.admits or not offer.names:
            self._wakeups.admitted(demand.uid)
        else:
            why = self._refused(demand, offer, verdict, trace_id)
        if repeatable:
            # The version after the call: the pod's own intent that the call ended or made is part of this answer.
            self._repeats.put(demand, version=self._engine.version, body=body, reply=reply, reason=why)
        return reply

    def prioritize(self, body: bytes, *, trace_id: str | None = None) -> bytes:
        """A score of 0..10 for each offered node. Raises: WireError."""
        offer = parse_offer(body)
        demand = self._demand(offer.pod)
        if demand is None:
            self._metrics.not_ours[Verb.PRIORITIZE].inc()
            return render_priorities(offer.names, [0] * len(offer.names))
        if self._freshness.stale():
            return render_priorities(offer.names, [0] * len(offer.names))
        return render_priorities(offer.names, self._choose(demand, offer.names, trace_id))

    def _choose(self, demand: PodDemand, names: Sequence[str], trace_id: str | None) -> list[int]:
        """Make the decision, remember and log it. Returns: the scores."""
        decision = self._engine.choose_node(demand, names, now_s=self._clock())
        at = datetime.now(UTC)
        # 5,000 names per pod are no part of what is worth remembering.
        kept = replace(decision, nodes=[], scores=[])
        self._memory.decided(Decided(decision=kept, at=at))
        self._decisions.put(
            Chosen(
                at=at,
                decision=kept,
                candidates=leading(decision),
                offered=len(names),
                queue_length=len(self._wakeups),
                trace_id=trace_id,
            )
        )
        return decision.scores

    def _demand(self, pod: dict[str, Any]) -> PodDemand | None:
        """What the pod needs; None: it is not ours."""
        return demand_of_ours(pod, self._engine, scheduler_name=self._scheduler_name)

    def _refused(self, demand: PodDemand, offer: OfferedPod, verdict: FilterVerdict, trace_id: str | None) -> Reason:
        """Count, log and remember a refusal. Returns: its main reason."""
        counts = verdict.counts
        reason = verdict.reason or main_reason(counts)
        self._metrics.refused(reason)
        self._wakeups.refused(demand, offer.names, reason)
        self._decisions.put(
            Refused(
                at=datetime.now(UTC),
                demand=demand,
                reason=reason,
                counts=counts,
                offered=len(offer.names),
                queue_length=len(self._wakeups),
                trace_id=trace_id,
            )
        )
        return reason


def _stale(names: Sequence[str]) -> FilterVerdict:
    """One constant refusal of the pod."""
    codes = np.full(len(names), -1, dtype=np.int8)
    return FilterVerdict(nodes=names, codes=codes, reason=Reason.STALE_VIEW, counts={Reason.STALE_VIEW: len(names)})
