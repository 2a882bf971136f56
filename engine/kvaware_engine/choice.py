"""The choice among judged nodes: a score for each, and the decision that says which one is taken, and why."""

from collections.abc import Sequence

import numpy as np

from kvaware_engine.costs import scores
from kvaware_engine.decisions import CandidateView, PodDecision
from kvaware_engine.explain import reason_of_choice, view_candidate
from kvaware_engine.fleet import Fleet
from kvaware_engine.judge import Judged

__all__ = ["candidates", "choose"]


def choose(judged: Judged, *, decision_id: str, fleet: Fleet, scale_ms: float) -> PodDecision:
    """Take the cheapest node. Of equal costs the first name wins.

    Args:
        judged: The offered nodes. Those that cannot take the pod score 0 and are never chosen.
        decision_id: For the decision.
        fleet: The nodes, as they were judged.
        scale_ms: See ``costs.scores``.
    """
    order = judged.cheapest(2)
    result = _scores(judged, order, scale_ms=scale_ms)
    if judged.costs is None:
        return PodDecision(
            decision_id=decision_id,
            demand=judged.demand,
            nodes=judged.nodes,
            scores=result,
            chosen=None,
            runner_up=None,
            emptiest=None,
            reason=judged.main_refusal(),
        )
    chosen = _candidate(judged, int(judged.admitted[order[0]]), result, fleet=fleet)
    runner_up = _candidate(judged, int(judged.admitted[order[1]]), result, fleet=fleet) if len(order) > 1 else None
    columns = fleet.columns(judged.demand.resource)
    rows = judged.indexes[judged.admitted]
    empty = judged.emptiest(columns.free[rows], columns.fit_bytes[rows])
    return PodDecision(
        decision_id=decision_id,
        demand=judged.demand,
        nodes=judged.nodes,
        scores=result,
        chosen=chosen,
        runner_up=runner_up,
        emptiest=_candidate(judged, int(judged.admitted[empty]), result, fleet=fleet),
        reason=reason_of_choice(chosen, runner_up),
    )


def candidates(judged: Judged, *, fleet: Fleet, scale_ms: float) -> list[CandidateView]:
    """Every offered node, as offered. Some 0.05 ms each: for people, not for kube-scheduler."""
    result = _scores(judged, judged.cheapest(1), scale_ms=scale_ms)
    return [_candidate(judged, position, result, fleet=fleet) for position in range(len(judged.nodes))]


def _scores(judged: Judged, order: Sequence[int], *, scale_ms: float) -> list[int]:
    """kube-scheduler's integers for all offered nodes, 0 for those that cannot take the pod.

    Args:
        judged: The offered nodes.
        order: Positions in ``judged.admitted``, cheapest first; at least the first where there are any.
        scale_ms: See ``costs.scores``.
    """
    result = np.zeros(len(judged.nodes), dtype=np.int64)
    if judged.costs is not None:
        result[judged.admitted] = scores(judged.costs.total, order[0], scale_ms=scale_ms)
    values: list[int] = result.tolist()
    return values


def _candidate(judged: Judged, position: int, result: Sequence[int], *, fleet: Fleet) -> CandidateView:
    row = fleet.get(judged.nodes[position])
    return view_candidate(judged, position, score=result[position], row=row, fleet=fleet)
