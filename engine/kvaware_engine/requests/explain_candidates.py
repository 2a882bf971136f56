"""What a snapshot's workers were believed to be, what their options would cost, why some could not be chosen."""

from collections.abc import Iterator
from math import isfinite, isnan

import numpy as np

from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.costs import queue_ms
from kvaware_engine.requests.deadlines import first_tokens_ms
from kvaware_engine.requests.explain_words import ExplainedCandidate, ExplainedOption
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.fit import FilterReason, precision_at, unfit
from kvaware_engine.requests.options import options
from kvaware_engine.requests.snapshot import Snapshot
from kvaware_engine.requests.words import FloatArray, Option, Phase

__all__ = ["explained_option", "in_order", "known"]


def in_order(snapshot: Snapshot) -> tuple[ExplainedCandidate, ...]:
    """All workers of a snapshot: the chosen, then as the policy prefers them, then those that could not be chosen.

    With split roles first as places for decoding, then those that could only compute the prompt, its choice first.
    """
    if snapshot.split is None:
        order = _order(snapshot, snapshot.costs, (snapshot.chosen, snapshot.runner_up))
        return tuple([_explained(snapshot, slot, snapshot.costs.item(slot)) for slot in order])
    decoding = _order(snapshot, snapshot.costs, (snapshot.chosen, snapshot.runner_up))
    seconds = [slot for slot in decoding if isfinite(snapshot.costs.item(slot))]
    costs = snapshot.policy.costs_ms(snapshot.split.prefill(snapshot.candidates))
    taken = set(seconds)
    firsts = [slot for slot in _order(snapshot, costs, (snapshot.split.chosen,)) if slot not in taken]
    return tuple(
        [_explained(snapshot, slot, snapshot.costs.item(slot)) for slot in seconds]
        + [_explained(snapshot, slot, costs.item(slot)) for slot in firsts]
    )


def _order(snapshot: Snapshot, costs: FloatArray, first: tuple[int | None, ...]) -> list[int]:
    """Slots with a worker by cost, but for those named: of equal ones the least recently chosen goes first."""
    facts = snapshot.candidates.facts
    order = [int(slot) for slot in np.argsort(costs, kind="stable") if facts[int(slot)] is not None]
    order.sort(key=lambda slot: first.index(slot) if slot in first else len(first))
    return order


def _views(snapshot: Snapshot) -> Iterator[Candidates]:
    """What the request, or each of its parts, saw."""
    seen = snapshot.candidates
    yield seen
    if snapshot.split is not None:
        yield snapshot.split.prefill(seen)
        if (whole := snapshot.split.whole(seen)) is not None:
            yield whole


def _explained(snapshot: Snapshot, slot: int, cost: float) -> ExplainedCandidate:
    """The worker of one slot, with the policy's cost, infinite where it could not be chosen."""
    seen, facts = snapshot.candidates, snapshot.facts(slot)
    figures = seen.figures
    running = isfinite(cost)
    waits = seen.waits_ahead_ms
    profile = seen.classes[int(figures[Figure.HARDWARE_CLASS, slot])]
    batch = float(figures[Figure.BATCH, slot])
    observed_at_s = known(seen, Figure.OBSERVED_AT_S, slot)
    return ExplainedCandidate(
        worker=facts.worker,
        role=facts.role,
        node=facts.node,
        filtered=None if running else _filtered(seen, slot, facts),
        policy_cost=cost if running else None,
        options=_options(snapshot, slot) if running else (),
        matched_tokens=int(seen.matched_tokens[slot]),
        requests=int(figures[Figure.REQUESTS, slot]),
        batch=int(batch),
        wait_ms=queue_ms(figures.item(Figure.FREE_AT_S, slot), now_s=seen.now_s)
        if waits is None
        else max(0.0, waits.item(slot)),
        kv_free_tokens=_whole(known(seen, Figure.KV_FREE_TOKENS, slot)),
        kv_total_tokens=_whole(known(seen, Figure.KV_TOTAL_TOKENS, slot)),
        gpu_utilization_ratio=known(seen, Figure.GPU_UTILIZATION_RATIO, slot),
        confidence_ratio=float(figures[Figure.CONFIDENCE_RATIO, slot]),
        age_s=None if observed_at_s is None else max(0.0, seen.now_s - observed_at_s),
        precision=precision_at(facts, seen.demand),
        extrapolated=profile.extrapolates(prompt_tokens=seen.demand.input_tokens, batch=batch + 1),
    )


def _options(snapshot: Snapshot, slot: int) -> tuple[ExplainedOption, ...]:
    """Of all that it could do, the cheapest first; with split roles by parts, that for which it is shown first."""
    alone = snapshot.split is not None and snapshot.split.chosen is None and slot == snapshot.chosen
    parts = (None, Phase.DECODE, Phase.PREFILL) if alone else (Phase.DECODE, None, Phase.PREFILL)
    found = [
        explained_option(option, phase=view.demand.phase)
        for view in _views(snapshot)
        if isfinite(view.barred.item(slot))
        for option in options(view, slot)
    ]
    if snapshot.split is None:
        return tuple(found)
    return tuple(sorted(found, key=lambda option: (parts.index(option.phase), option.terms.total)))


def explained_option(option: Option, *, phase: Phase | None) -> ExplainedOption:
    """One option as it was priced."""
    return ExplainedOption(
        phase=phase,
        action=option.action,
        mode=option.mode,
        source=option.source,
        tier=option.tier,
        matched_tokens=option.matched_tokens,
        transfer_bytes=option.transfer_bytes,
        wait_ms=option.wait_ms,
        prefill_ms=option.prefill_ms,
        terms=option.terms,
    )


def known(candidates: Candidates, figure: Figure, slot: int) -> float | None:
    """A figure, or None where it is unknown."""
    value = float(candidates.figures[figure, slot])
    return None if isnan(value) else value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _filtered(candidates: Candidates, slot: int, facts: WorkerFacts) -> FilterReason:
    """The first reason that holds, the worker's own before those of this demand.

    If none does, it refused this request before: of that nothing else is left in the columns.
    """
    demand = candidates.demand
    pool_tokens = known(candidates, Figure.KV_TOTAL_TOKENS, slot)
    if not isfinite(candidates.figures[Figure.BARRED, slot]):
        return FilterReason.UNAVAILABLE
    if (reason := unfit(facts, demand)) is not None:
        return reason
    if pool_tokens is not None and demand.input_tokens > pool_tokens:
        return FilterReason.POOL_TOO_SMALL
    if demand.deadline_ms is not None and first_tokens_ms(candidates).item(slot) > demand.deadline_ms:
        return FilterReason.TOO_LATE
    return FilterReason.PASSED_OVER
