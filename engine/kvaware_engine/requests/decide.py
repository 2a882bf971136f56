"""From candidates to a reservation: the policy's choice, what it holds where, and whether it comes too late."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from typing import Final, cast

import numpy as np

from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.columns import begin_ms
from kvaware_engine.requests.deadlines import barred_as_late, first_token_ms, first_tokens_ms
from kvaware_engine.requests.fit import precision_at
from kvaware_engine.requests.ledger import Reservation
from kvaware_engine.requests.model_state import ModelState
from kvaware_engine.requests.roles import DECODE, PREFILL
from kvaware_engine.requests.rows import CONFIDENCE, KV_FREE, REQUESTS
from kvaware_engine.requests.snapshot import Snapshot, take, take_pair
from kvaware_engine.requests.split import choose_pair, in_phase, pair_options
from kvaware_engine.requests.words import (
    FloatArray,
    Option,
    Phase,
    Placement,
    PlacementReason,
    PlacementRefusal,
    RunnerUp,
)

__all__ = ["Decision", "decide", "reserve", "too_late"]

_MS_PER_S: Final = 1000.0
_ROUNDED_MS: Final = 0.001
"""A wait that is longer by no more is as long: else who waits exactly as long as told may be told to wait again."""
_INFINITE: Final = np.array(np.inf)  # an array: numpy makes one of a Python number each time, 0.7 µs


@dataclass(slots=True)
class Decision:
    """What a policy chose. Never changed once made."""

    option: Option
    """Where it is decoded, or all of it is done."""
    prefill: Option | None
    runner_up: RunnerUp | None
    seen: Candidates
    """What it was chosen from: of a pair, by where it is decoded."""
    begins: Candidates
    """The same, of a pair by where its prompt is computed."""
    costs: FloatArray
    """The policy's. Shape (slots,), infinite for who was not in the running."""
    keep: Callable[[], Snapshot]
    """Keeps what was seen; to be called before anything is reserved."""


def decide(state: ModelState, candidates: Candidates) -> Decision | None:
    """Let the model's policy choose; None: nobody is in the running.

    Where that comes too late for the demand's deadline, it chooses again among those that come in time, if there are
    any. Where roles are split it does not: a worker that decodes is not late for what it would take to compute.
    """
    decision = _decide(state, candidates)
    deadline_ms = candidates.demand.deadline_ms
    if deadline_ms is None or decision is None or decision.begins is not candidates:
        return decision
    if first_token_ms(decision.option, None) <= deadline_ms:
        return decision
    barred = barred_as_late(candidates, deadline_ms)
    return decision if barred is None else _decide(state, replace(candidates, barred=barred)) or decision


def _decide(state: ModelState, candidates: Candidates) -> Decision | None:
    if state.fleet.roles.splits and candidates.demand.phase is None:
        return _decide_pair(state, candidates)
    policy = state.policy
    choice = choose(policy, candidates)
    if choice is None:
        return None
    option = policy.best_option(candidates, choice.chosen)
    runner_up = None
    if choice.runner_up is not None:
        if policy.in_ms:
            total_ms = choice.costs.item(choice.runner_up)
        else:
            total_ms = policy.best_option(candidates, choice.runner_up).terms.total
        runner_up = RunnerUp(state.name_of(choice.runner_up), total_ms)
    keep = partial(take, policy, candidates, choice)
    return Decision(option, None, runner_up, candidates, candidates, choice.costs, keep)


def _decide_pair(state: ModelState, whole: Candidates) -> Decision | None:
    """A worker that prefills and one that decodes, or one that does both."""
    policy, roles = state.policy, state.fleet.roles
    prefill = in_phase(whole, Phase.PREFILL, barred=whole.barred + roles.barred(DECODE))
    decode = in_phase(whole, Phase.DECODE, barred=whole.barred + roles.barred(PREFILL))
    single = in_phase(whole, Phase.PREFILL, barred=decode.barred + roles.barred(DECODE))
    undivided = None
    if np.isfinite(single.barred).any():
        single.demand = whole.demand
        undivided = single
    choice = choose_pair(policy, prefill=prefill, decode=decode, whole=undivided)
    if choice is None:
        return None
    chosen = pair_options(policy, choice.chosen, prefill=prefill, decode=decode, whole=undivided)
    runner_up = None
    if choice.runner_up is not None:
        other = pair_options(policy, choice.runner_up, prefill=prefill, decode=decode, whole=undivided)
        total_ms = other.option.terms.total
        if other.prefill is not None:
            total_ms += other.prefill.terms.total
        runner_up = RunnerUp(other.option.worker, total_ms)
    return Decision(
        option=chosen.option,
        prefill=chosen.prefill,
        runner_up=runner_up,
        seen=decode if chosen.prefill is not None else undivided or decode,
        begins=prefill,
        costs=choice.costs,
        keep=partial(take_pair, policy, choice, prefill=prefill, decode=decode, whole=undivided),
    )


def too_late(candidates: Candidates, decision: Decision) -> PlacementRefusal | None:
    """Whether the request has to wait too long even where it waits least: it is shed; None: it has not.

    What waits at a lower priority is not waited for, so that of several the lowest priority is shed first.
    """
    demand = candidates.demand
    wait_ms = (decision.prefill or decision.option).wait_ms
    limit_ms = candidates.settings.ledger.saturation_wait_s * _MS_PER_S
    if wait_ms > limit_ms:
        least_ms = float(np.min(begin_ms(decision.begins) + decision.begins.barred))
        if least_ms > limit_ms + _ROUNDED_MS:
            return PlacementRefusal(
                demand=demand,
                reason=PlacementReason.SATURATED,
                message=f"every worker is saturated at priority {demand.priority}: expected a wait of at most "
                f"{limit_ms:,.0f} ms, the shortest is {least_ms:,.0f} ms",
                retryable=True,
                retry_after_s=(least_ms - limit_ms) / _MS_PER_S,
                details={"wait_ms": round(least_ms, 3), "wait_max_ms": limit_ms, "priority": demand.priority},
            )
    if demand.deadline_ms is None:
        return None
    comes_ms = first_token_ms(decision.option, decision.prefill)
    if comes_ms <= demand.deadline_ms + _ROUNDED_MS:
        return None
    if decision.prefill is None:  # the choice costs least, and another may be quicker
        times = first_tokens_ms(decision.begins) + decision.begins.barred
        quickest = int(times.argmin())
        if times.item(quickest) < comes_ms:
            comes_ms, wait_ms = times.item(quickest), begin_ms(decision.begins).item(quickest)
    helps = comes_ms - wait_ms <= demand.deadline_ms
    return PlacementRefusal(
        demand=demand,
        reason=PlacementReason.DEADLINE_UNREACHABLE,
        message=f"expected a first token within {demand.deadline_ms:g} ms, the quickest worker needs {comes_ms:,.0f} ms"
        + ("" if helps else ", which no waiting shortens enough"),
        retryable=helps,
        retry_after_s=(comes_ms - demand.deadline_ms) / _MS_PER_S if helps else None,
        details={"deadline_ms": demand.deadline_ms, "first_token_ms": round(comes_ms, 3)},
    )


def reserve(
    state: ModelState, candidates: Candidates, decision: Decision, *, placement_id: str, attempt: int
) -> Reservation:
    """The reservation of a decision, with its placement and what it saw; not charged to anybody yet."""
    demand, option, prefill, seen = candidates.demand, decision.option, decision.prefill, decision.seen
    figures, facts, slot = seen.figures, state.fleet.facts, option.slot
    now_s, expected = candidates.now_s, candidates.expected_output_tokens
    there = cast("WorkerFacts", facts[slot])
    free_tokens, bytes_per_token = figures.item(KV_FREE, slot), candidates.bytes_per_token
    first = None if prefill is None else cast("WorkerFacts", facts[prefill.slot])
    placement = Placement(
        placement_id,
        demand,
        option,
        there.address,
        state.policy.reason(seen, option, alone=decision.runner_up is None),
        state.policy.name,
        precision_at(there, demand),
        int(expected),
        # Where the demand bars nobody more than the fleet does, the column is the fleet's own: 1 µs less.
        state.fleet.able if seen.barred.base is not None else int(np.count_nonzero(decision.costs < _INFINITE)),
        figures.item(CONFIDENCE, slot),
        int(figures.item(REQUESTS, slot)),
        None if bytes_per_token is None or isnan(free_tokens) else int(max(0.0, free_tokens) * bytes_per_token),
        now_s,
        state.settings.ledger.ttl_s,
        decision.runner_up,
        attempt,
        prefill,
        None if first is None else first.address,
    )
    tokens = demand.input_tokens
    output = 0 if demand.phase is Phase.PREFILL else expected
    reservation = Reservation(
        placement_id,
        demand,
        slot,
        option.worker,
        there.incarnation,
        now_s,
        placement,
        0.0 if prefill is not None else option.prefill_ms,
        0 if prefill is not None else tokens - option.matched_tokens,
        output,
        tokens + output,
        option.transfer_bytes,
        attempt,
    )
    if prefill is not None and first is not None:
        placement.prefill_confidence_ratio = figures.item(CONFIDENCE, prefill.slot)
        reservation.prefill = Reservation(
            placement_id=placement_id,
            demand=demand,
            slot=prefill.slot,
            worker=prefill.worker,
            incarnation=first.incarnation,
            reserved_at_s=now_s,
            prefill_ms=prefill.prefill_ms,
            uncached_tokens=demand.input_tokens - prefill.matched_tokens,
            kv_tokens=demand.input_tokens,
            transfer_bytes=prefill.transfer_bytes,
            placement=placement,
        )
    reservation.snapshot = decision.keep()
    return reservation
