"""Say what the columns said: candidates, nodes and the answers to the questions that people ask about a decision.

Built only for the chosen node, the runner-up and what somebody asks about; nothing here decides.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from kvaware_engine.decisions import CandidateView, CostTerms, Explanation, GpuView, NodeView, PodDemand, PoolView
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.judge import Judged
from kvaware_engine.nearness import FAR, NEAR, NONE, ON_NODE
from kvaware_engine.observations import GpuClass, Reservation
from kvaware_engine.pools import UNKNOWN, DeviceState
from kvaware_engine.reasons import REFUSAL_TEXTS, Reason

__all__ = ["emptiest", "explain_pod", "node_view", "reason_of_choice", "view_candidate"]

_LOCATIONS = {ON_NODE: "node", NEAR: "near", FAR: "far", NONE: "none"}
_GIB = 2**30

_TERM_REASONS = {
    "network": Reason.NEAR_WEIGHTS,
    "cache_access": Reason.CACHE_ON_NODE,
    "migration": Reason.CACHE_ON_NODE,
    "memory_pressure": Reason.LEAST_FRAGMENTATION,
    "locality_gain": Reason.NEAR_PEERS,
    "compute_wait": Reason.LEAST_COST,
    "risk": Reason.LEAST_COST,
}
"""Cost term by which a choice beat the runner-up, to the reason given."""


def _foreign_bytes(states: Sequence[DeviceState]) -> int | None:
    seen = [state.foreign_bytes for state in states if state.foreign_bytes is not None]
    return sum(seen) if seen else None


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def view_candidate(judged: Judged, position: int, *, score: int, row: NodeRow | None, fleet: Fleet) -> CandidateView:
    """One offered node with everything a reader asks about it."""
    demand, name = judged.demand, judged.nodes[position]
    refusal = judged.refusal(position)
    cost: CostTerms | None = None
    if refusal is None and judged.costs is not None:
        cost = judged.costs.at(int(np.searchsorted(judged.admitted, position)))
    if row is None:
        return CandidateView(
            node=name,
            refusal=refusal,
            text=REFUSAL_TEXTS[refusal] if refusal is not None else "",
            cost=cost,
            score=None,
            gpu_class=None,
            free_gpus=0,
            hbm_free_bytes=None,
            hbm_capacity_bytes=None,
            foreign_bytes=None,
            cache_location="none",
            weights_location="far",
            kv_bytes_on_node=0,
            confidence_ratio=0.0,
            problems=(),
        )
    pool = row.pool(demand.resource) if demand.resource is not None else None
    summary = fleet.summary(row, pool, intents=True, but_not_uid=demand.uid) if pool is not None else None
    states = (
        fleet.devices(row, pool, intents=True, but_not_uid=demand.uid)
        if pool is not None and row.use is not None
        else []
    )
    places, index = judged.places, row.index
    return CandidateView(
        node=name,
        refusal=refusal,
        text=REFUSAL_TEXTS[refusal] if refusal is not None else "",
        cost=cost,
        score=score if refusal is None else None,
        gpu_class=pool.gpu_class if pool is not None else None,
        free_gpus=summary.free if summary is not None else 0,
        hbm_free_bytes=_known(summary.fit_bytes) if summary is not None else None,
        hbm_capacity_bytes=_known(summary.capacity_bytes) if summary is not None else None,
        foreign_bytes=_foreign_bytes(states),
        cache_location=_LOCATIONS[int(places.kv_at[index])],
        weights_location=_LOCATIONS[int(places.weights_at[index])],
        kv_bytes_on_node=int(places.kv_bytes[index]),
        confidence_ratio=float(fleet.confidence[index]),
        problems=row.node.problems if row.node is not None else (),
    )


def reason_of_choice(chosen: CandidateView, runner_up: CandidateView | None) -> Reason:
    """Name the cost term in which the chosen node beats the runner-up most."""
    if runner_up is None or chosen.cost is None or runner_up.cost is None:
        return Reason.ONLY_CANDIDATE
    leads = {
        field.name: getattr(runner_up.cost, field.name) - getattr(chosen.cost, field.name)
        for field in fields(CostTerms)
    }
    leads["locality_gain"] = -leads["locality_gain"]
    term = max(leads, key=lambda name: leads[name])
    if leads[term] <= 0:
        return Reason.LEAST_COST
    if term == "network" and chosen.weights_location == "node":
        return Reason.WEIGHTS_ON_NODE
    return _TERM_REASONS[term]


def explain_pod(
    demand: PodDemand, candidates: Sequence[CandidateView], *, refusal: Reason, reservation: Reservation | None
) -> Explanation:
    """Order the candidates and answer the questions."""
    ordered = sorted(candidates, key=lambda c: (c.cost is None, c.cost.total if c.cost is not None else 0.0, c.node))
    fitting = [candidate for candidate in ordered if candidate.cost is not None]
    chosen = fitting[0] if fitting else None
    runner_up = fitting[1] if len(fitting) > 1 else None
    reason = reason_of_choice(chosen, runner_up) if chosen is not None else refusal
    empty = emptiest(ordered)
    return Explanation(
        demand=demand,
        verdict="admitted" if chosen is not None else "refused",
        reason=reason,
        text=REFUSAL_TEXTS[refusal] if chosen is None else "",
        candidates=ordered,
        chosen=chosen.node if chosen is not None else None,
        runner_up=runner_up.node if runner_up is not None else None,
        emptiest=empty.node if empty is not None else None,
        answers=_answers(demand, ordered, chosen, runner_up, reason),
        reservation=reservation,
    )


def emptiest(candidates: Sequence[CandidateView]) -> CandidateView | None:
    """What "send it to the emptiest GPU" takes, of the nodes that can take the pod (see ``Judged.emptiest``)."""
    fitting = [candidate for candidate in candidates if candidate.cost is not None]
    return min(fitting, key=lambda c: (-(c.hbm_free_bytes or 0), -c.free_gpus, c.node), default=None)


def _text(reason: Reason) -> str:
    return REFUSAL_TEXTS[reason].removeprefix("kvaware: ")


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / _GIB:.1f} GiB"


def _answers(
    demand: PodDemand,
    candidates: Sequence[CandidateView],
    chosen: CandidateView | None,
    runner_up: CandidateView | None,
    reason: Reason,
) -> dict[str, str]:
    return {
        "Where should it go?": _where(chosen, runner_up, reason),
        "Why not the emptiest GPU?": _why_not_emptiest(chosen, emptiest(candidates), candidates),
        "If the cache is elsewhere: read, migrate or recompute?": _cache(chosen),
        "Could this blow up HBM?": _hbm(demand, chosen),
        "Will it slow the batch?": _batch(demand, chosen),
        "Does background migration hurt online P99?": (
            "Placing a pod starts no copy. What is cheaper to copy than to recompute is only priced, as migration."
        ),
    }


def _where(chosen: CandidateView | None, runner_up: CandidateView | None, reason: Reason) -> str:
    if chosen is None or chosen.cost is None:
        return f"Nowhere now: {_text(reason)}."
    if runner_up is None or runner_up.cost is None:
        return f"{chosen.node}, the only node that can take it ({chosen.cost.total:,.0f} ms)."
    return (
        f"{chosen.node} at {chosen.cost.total:,.0f} ms ({reason}); next {runner_up.node}"
        f" at {runner_up.cost.total:,.0f} ms."
    )


def _why_not_emptiest(
    chosen: CandidateView | None, empty: CandidateView | None, candidates: Sequence[CandidateView]
) -> str:
    """Compare with the emptiest that fits, and name a refused node that only looks emptier."""
    if all(candidate.gpu_class is None for candidate in candidates):
        return "No node has a GPU of the requested resource."
    answer = "No node can take the pod."
    if chosen is not None and empty is not None and chosen.cost is not None and empty.cost is not None:
        answer = (
            f"The node with the most free HBM, {empty.node}, is the choice."
            if empty.node == chosen.node
            else f"{empty.node} has the most free HBM and would cost"
            f" {empty.cost.total - chosen.cost.total:,.0f} ms more than {chosen.node}."
        )
    free_gpus = chosen.free_gpus if chosen is not None else 0
    looking = [c for c in candidates if c.refusal is not None and c.gpu_class is not None and c.free_gpus > free_gpus]
    if looking:
        worst = min(looking, key=lambda c: (-c.free_gpus, c.node))
        if worst.refusal is not None:
            answer += f" {worst.node} has {worst.free_gpus} GPUs free and cannot take it: {_text(worst.refusal)}."
    return answer


def _cache(chosen: CandidateView | None) -> str:
    if chosen is None or chosen.cost is None:
        return "Not asked: no node can take the pod."
    if chosen.cache_location == "none":
        return "No block group of the model is known, so nothing is read, migrated or recomputed."
    if chosen.cache_location == "node":
        return f"The node holds {_gib(chosen.kv_bytes_on_node)} of the model's block groups."
    if chosen.cost.migration > 0:
        return f"Migrate: copying what is elsewhere is estimated at {chosen.cost.migration:,.0f} ms."
    return "Recompute: it is estimated to be cheaper than copying."


def _hbm(demand: PodDemand, chosen: CandidateView | None) -> str:
    wanted = "whole GPUs" if demand.hbm_per_gpu_bytes is None else f"{_gib(demand.hbm_per_gpu_bytes)} per GPU"
    if demand.gpus == 0:
        return "The pod asks for no GPU."
    if chosen is None:
        return f"It asks for {wanted}; no GPU that it could get is sure to have that."
    foreign = (
        "use by others is unknown (no exporter), a margin is kept"
        if chosen.foreign_bytes is None
        else f"others use {_gib(chosen.foreign_bytes)} on the node"
    )
    return f"It asks for {wanted}; the worst GPU that it could get has {_gib(chosen.hbm_free_bytes)} free; {foreign}."


def _batch(demand: PodDemand, chosen: CandidateView | None) -> str:
    if chosen is None or chosen.cost is None:
        return "Not asked: no node can take the pod."
    shared = "It shares its GPU with other pods." if chosen.gpu_class is GpuClass.SHARED else "Its GPUs are its own."
    if demand.gpus == 0:
        shared = "It uses no GPU."
    return f"{shared} Crowding with pods of the same model on the node is priced at {chosen.cost.compute_wait:,.0f} ms."


def node_view(
    row: NodeRow,
    *,
    fleet: Fleet,
    reserved_for: str | None,
    confidence_ratio: float,
    use_age_s: float | None,
) -> NodeView:
    """One node with what each of its GPUs holds."""
    node = row.node
    if node is None:
        raise ValueError(f"node {row.name}: expected an observed node, got only bookings")
    pools = []
    for pool in node.pools:
        added_up = fleet.summary(row, pool, intents=False)
        pools.append(
            PoolView(
                resource=pool.resource,
                gpu_class=pool.gpu_class,
                product=pool.product,
                devices=pool.devices,
                replicas=pool.replicas,
                allocatable=pool.allocatable,
                free=added_up.free,
                intended=added_up.free - fleet.summary(row, pool, intents=True).free,
                hbm_free_bytes=_known(added_up.fit_bytes),
                gpus=tuple(
                    GpuView(
                        index=state.index,
                        capacity_bytes=state.capacity_bytes,
                        reserved_bytes=state.reserved_bytes,
                        foreign_bytes=state.foreign_bytes,
                        pods=state.pods,
                    )
                    for state in fleet.devices(row, pool, intents=False)
                ),
            )
        )
    return NodeView(
        name=row.name,
        ready=node.ready,
        reserved_for=reserved_for,
        clique=node.clique,
        rack=node.rack,
        zone=node.zone,
        weights=node.weights,
        pools=tuple(pools),
        confidence_ratio=confidence_ratio,
        use_age_s=use_age_s,
        problems=node.problems,
    )
