"""The records of the decision log: refused by filter, chosen by prioritize, bound or not."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import compress, islice
from typing import Any, Final

from kvaware_engine import CandidateView, CostTerms, PodDecision, PodDemand, Reason, VictimOffer

__all__ = ["Bound", "Chosen", "Preempted", "Refused", "leading"]

MOST_CANDIDATES: Final = 16
"""Names in ``candidate_workers``; their number stands in ``candidates``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Filter admitted no node."""

    at: datetime
    demand: PodDemand
    reason: Reason
    counts: Mapping[Reason, int]
    offered: int
    queue_length: int
    trace_id: str | None

    def fields(self) -> dict[str, Any]:
        """What is written."""
        common = _common(self.demand, reason=self.reason, chosen=None, candidates=[], queue_length=self.queue_length)
        return {
            **common,
            "event": "filter_refused",
            "candidates": 0,
            "offered": self.offered,
            "refusals": {str(reason): count for reason, count in self.counts.items()},
            **_ours(self.demand, at=self.at, trace_id=self.trace_id),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Prioritize ranked the nodes."""

    at: datetime
    decision: PodDecision
    """Without its nodes and scores: 10,000 queued records with 5,000 names each would be 4 GB."""
    candidates: list[str]
    """See ``leading``."""
    offered: int
    queue_length: int
    trace_id: str | None

    def fields(self) -> dict[str, Any]:
        """What is written."""
        decision = self.decision
        common = _common(
            decision.demand,
            reason=decision.reason,
            chosen=decision.chosen,
            candidates=self.candidates,
            queue_length=self.queue_length,
        )
        return {
            **common,
            "event": "node_chosen",
            "candidates": self.offered,
            "decision_id": decision.decision_id,
            "terms_ms": _terms(decision.chosen),
            "runner_up": decision.runner_up.node if decision.runner_up else None,
            "runner_up_terms_ms": _terms(decision.runner_up),
            **_ours(decision.demand, at=self.at, trace_id=self.trace_id),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bind ended, with whatever result."""

    at: datetime
    demand: PodDemand
    node: str
    result: str
    error: str
    chosen: CandidateView | None
    """The node's figures when prioritize chose it; None: it chose another, or was not asked."""
    decision_id: str
    """As in the pod's reservation; empty: no reservation was made, and no decision chose this node."""
    queue_length: int
    trace_id: str | None

    def fields(self) -> dict[str, Any]:
        """What is written."""
        common = _common(
            self.demand, reason=self.result, chosen=self.chosen, candidates=[self.node], queue_length=self.queue_length
        )
        return {
            **common,
            "selected_worker": self.node,
            "event": "bind",
            "candidates": 1,
            "result": self.result,
            "error": self.error,
            "decision_id": self.decision_id,
            "terms_ms": _terms(self.chosen),
            **_ours(self.demand, at=self.at, trace_id=self.trace_id),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """Preempt was answered."""

    at: datetime
    demand: PodDemand
    kept: tuple[VictimOffer, ...]
    result: str
    reason: Reason | None
    """Why nobody is to die for the pod; None: somebody is, or no offer named a victim."""
    offered: int
    added: int
    queue_length: int
    trace_id: str | None

    def fields(self) -> dict[str, Any]:
        """What is written."""
        names = [offer.node for offer in self.kept[:MOST_CANDIDATES]]
        reason = self.reason or self.result
        return {
            **_common(self.demand, reason=reason, chosen=None, candidates=names, queue_length=self.queue_length),
            "event": "preempt",
            "candidates": len(self.kept),
            "offered": self.offered,
            "result": self.result,
            "victims": {offer.node: list(offer.victims) for offer in self.kept[:MOST_CANDIDATES]},
            "added_victims": self.added,
            **_ours(self.demand, at=self.at, trace_id=self.trace_id),
        }


def leading(decision: PodDecision) -> list[str]:
    """The choice, the runner-up, and further candidates that scored, as offered, up to ``MOST_CANDIDATES``."""
    first = [view.node for view in (decision.chosen, decision.runner_up) if view is not None]
    scored = islice(compress(decision.nodes, decision.scores), MOST_CANDIDATES)
    return [*first, *(node for node in scored if node not in first)][:MOST_CANDIDATES]


def _common(
    demand: PodDemand, *, reason: str, chosen: CandidateView | None, candidates: list[str], queue_length: int
) -> dict[str, Any]:
    """The names that the design promises, in its order. Costs in milliseconds, null where nothing was chosen."""
    cost = chosen.cost if chosen else None
    return {
        "request_id": demand.uid,
        "model_id": demand.model_id,
        "tenant_id": demand.tenant,
        "selected_worker": chosen.node if chosen else None,
        "candidate_workers": candidates,
        "schedule_reason": str(reason),
        "estimated_compute_cost": cost.compute_wait + cost.memory_pressure if cost else None,
        "estimated_cache_cost": cost.cache_access if cost else None,
        "estimated_migration_cost": cost.migration + cost.network if cost else None,
        "cache_location": chosen.cache_location if chosen else None,
        "cache_state": (("resident" if chosen.kv_bytes_on_node else "absent") if chosen else None),
        "gpu_hbm_available": chosen.hbm_free_bytes if chosen else None,
        "queue_length": queue_length,
        "priority": demand.priority,
    }


def _ours(demand: PodDemand, *, at: datetime, trace_id: str | None) -> dict[str, Any]:
    return {
        "time": at,
        "namespace": demand.namespace,
        "pod": demand.name,
        "resource": demand.resource,
        "gpus": demand.gpus,
        "hbm_per_gpu_bytes": demand.hbm_per_gpu_bytes,
        "trace_id": trace_id,
    }


def _terms(candidate: CandidateView | None) -> dict[str, float] | None:
    if candidate is None or candidate.cost is None:
        return None
    terms = {f.name: getattr(candidate.cost, f.name) for f in fields(CostTerms)}
    return {"total": candidate.cost.total, **terms}
