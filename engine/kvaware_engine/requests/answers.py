"""The six questions that every decision answers (design.md §9), each with a sentence and the figures behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Final, assert_never

from kvaware_engine.decisions import CostTerms
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.costs import decode_parts_ms
from kvaware_engine.requests.explain_words import Answer, ExplainedCandidate, Figures
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.offers import why_not
from kvaware_engine.requests.snapshot import Snapshot
from kvaware_engine.requests.words import Action, Option, Phase, Placement, PlacementReason

__all__ = ["Case", "answers"]

_TERMS_NAMED: Final = 3
_WORTH_NAMING_MS: Final = 0.05
_TERM_NAMES: Final = tuple(field.name for field in fields(CostTerms))
_WAYS: Final[dict[Action, str]] = {
    Action.LOCAL: "with what it holds",
    Action.REMOTE_READ: "a read",
    Action.MIGRATE: "a copy",
    Action.WARM_UP: "a warm-up",
    Action.RECOMPUTE: "computing all",
    Action.WAIT: "waiting where it is",
}

_BECAUSE: Final[dict[PlacementReason, str]] = {
    PlacementReason.PREFIX_RESIDENT: "nobody holds more of the prompt in HBM",
    PlacementReason.PREFIX_IN_LOWER_TIER: "nobody holds more of the prompt, though part of it is not in HBM",
    PlacementReason.REMOTE_READ: "reading what another worker holds is cheaper than computing it or waiting there",
    PlacementReason.MIGRATE: "copying what another worker holds is cheaper than computing it or waiting there",
    PlacementReason.WARM_UP: "computing a copy there is cheaper than waiting where the prompt is held",
    PlacementReason.SHORTER_WAIT: "others hold more of the prompt, and waiting for them would take longer",
    PlacementReason.COLD: "nobody holds any of the prompt",
    PlacementReason.STAYS: "waiting where it is now is best",
    PlacementReason.ONLY_CANDIDATE: "no other worker could take it",
    PlacementReason.IN_TURN: "it was its turn",
    PlacementReason.LEAST_LOADED: "it has the least load",
    PlacementReason.LESS_LOADED_OF_TWO: "of two that were drawn it has less load",
    PlacementReason.NEAREST_CACHE: "the cache is nearest there",
}
"""Of every reason for a choice; refusals have no placement to explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One decision with everything that the answers are drawn from."""

    placement: Placement
    snapshot: Snapshot
    chosen: ExplainedCandidate
    """Where it goes; with split roles, where it is decoded."""
    prefill: ExplainedCandidate | None
    """With split roles, where its prompt is computed."""
    runner_up: ExplainedCandidate | None
    emptiest: ExplainedCandidate
    deepest: ExplainedCandidate | None
    """Who holds most of the prompt, the chosen one among equals; None: nobody holds any of it."""
    behind: float | None
    """The runner-up's distance by the policy's measure."""

    @property
    def in_ms(self) -> bool:
        """Whether what the policy compares is milliseconds of cost."""
        return self.snapshot.policy.in_ms

    @property
    def computes(self) -> tuple[ExplainedCandidate, Option]:
        """Where the prompt is computed, and the option there."""
        if self.prefill is not None and self.placement.prefill is not None:
            return self.prefill, self.placement.prefill
        return self.chosen, self.placement.option


def answers(case: Case) -> tuple[Answer, ...]:
    """All six, in the order of the design."""
    return (_where(case), _why_not_emptiest(case), _cache(case), _hbm(case), _batch(case), _migration(case))


def _where(case: Case) -> Answer:
    placement, chosen, runner_up = case.placement, case.chosen, case.runner_up
    terms = placement.option.terms
    if placement.prefill is None:
        places = f"To {chosen.worker}"
        made = f"It costs {_ms(terms.total)} ms ({_made_of(terms)})"
    else:
        prefill = placement.prefill
        places = f"Its prompt to {prefill.worker}, its output to {chosen.worker}"
        made = (
            f"The prompt costs {_ms(prefill.terms.total)} ms there ({_made_of(prefill.terms)}), the output "
            f"{_ms(terms.total)} ms ({_made_of(terms)})"
        )
    rest = ", nobody else could take it."
    if runner_up is not None and case.behind is not None:
        if case.in_ms:
            distance = f"{_ms(case.behind)} ms dearer{_difference(runner_up, chosen)}"
        else:
            distance = f"{_number(case.behind)} behind by the policy's measure{_by_cost(runner_up, chosen)}"
        rest = f"; the runner-up, {runner_up.worker}, is {distance}."
    by_policy = "" if case.in_ms else f"The policy {placement.policy} does not compare costs. "
    return Answer(
        question="Where should it go?",
        answer=f"{places}: {_BECAUSE[placement.reason]}. {by_policy}{made}{rest}",
        figures={
            "worker": chosen.worker,
            "prefill_worker": None if placement.prefill is None else placement.prefill.worker,
            "total_ms": terms.total,
            "prefill_total_ms": None if placement.prefill is None else placement.prefill.terms.total,
            "runner_up": None if runner_up is None else runner_up.worker,
            "runner_up_behind": case.behind,
            "policy_cost": chosen.policy_cost,
            "confidence_ratio": chosen.confidence_ratio,
            "age_s": chosen.age_s,
        },
    )


def _by_cost(other: ExplainedCandidate, chosen: ExplainedCandidate) -> str:
    """What a policy did not compare: how another worker would have cost."""
    if other.best is None or chosen.best is None or other.best.phase != chosen.best.phase:
        return ""
    more = other.best.terms.total - chosen.best.terms.total
    word = "more" if more >= 0 else "less"
    return f", and would cost {_ms(abs(more))} ms {word}{_difference(other, chosen)}"


def _why_not_emptiest(case: Case) -> Answer:
    empty, chosen = case.emptiest, case.chosen
    best, taken = empty.best, chosen.best
    surplus = _surplus(case)
    if empty.worker == chosen.worker:
        text = f"It goes to the emptiest: {empty.worker} has {_requests(empty)}, and nobody has fewer."
    elif empty.requests == chosen.requests:
        text = f"{chosen.worker} is as empty as any: it has {_requests(chosen)}, and nobody has fewer."
    else:
        text = (
            f"The emptiest is {empty.worker} with {_requests(empty)} and {_ms(empty.wait_ms)} ms to wait; "
            f"{chosen.worker} has {_requests(chosen)} and {_ms(chosen.wait_ms)} ms."
        )
        if surplus is not None and surplus >= 0:
            text += f" There it would cost {_ms(surplus)} ms more{_difference(empty, chosen)}."
        elif surplus is not None:
            text += f" There it would cost {_ms(-surplus)} ms less{_difference(empty, chosen)}: "
            text += f"the policy {case.placement.policy} does not compare that."
    return Answer(
        question="Why not the emptiest GPU?",
        answer=text,
        figures={
            "emptiest": empty.worker,
            "requests": empty.requests,
            "chosen_requests": chosen.requests,
            "total_ms": None if best is None else best.terms.total,
            "chosen_total_ms": None if taken is None else taken.terms.total,
            "surplus_ms": surplus,
        },
    )


def _surplus(case: Case) -> float | None:
    """By how many milliseconds the emptiest would have been dearer; None: that cannot be told."""
    empty, chosen = case.emptiest, case.chosen
    if case.in_ms and empty.policy_cost is not None and chosen.policy_cost is not None:
        return empty.policy_cost - chosen.policy_cost  # with split roles of pairs
    if empty.best is None or chosen.best is None or empty.best.phase != chosen.best.phase:
        return None
    return empty.best.terms.total - chosen.best.terms.total


def _cache(case: Case) -> Answer:
    worker, option = case.computes
    deepest, tokens = case.deepest, case.placement.demand.input_tokens
    costs = {action: _least(worker, action) for action in _WAYS}
    if deepest is None:
        text = f"Nobody holds any of the prompt: all {tokens:,} tokens are computed, {_ms(option.prefill_ms)} ms."
    elif deepest.worker == worker.worker:
        text = (
            f"It is not elsewhere: {worker.worker} holds {worker.matched_tokens:,} of the prompt's {tokens:,} tokens, "
            f"and nobody holds more. {_taken(option)}"
        )
    else:
        text = (
            f"{deepest.worker} holds {deepest.matched_tokens:,} of the prompt's {tokens:,} tokens, {worker.worker} "
            f"{worker.matched_tokens:,}. {_taken(option)} {_weighed(case, worker, costs)}"
        )
    if case.prefill is not None:
        handed = case.placement.option
        text += (
            f" Then {handed.transfer_bytes / 1e6:,.1f} MB of it are handed over to {handed.worker}, "
            f"{_ms(handed.terms.network)} ms beyond its waiting."
        )
    return Answer(
        question="If the cache is elsewhere: read, migrate or recompute?",
        answer=text,
        figures={
            "holder": None if deepest is None else deepest.worker,
            "holder_tokens": 0 if deepest is None else deepest.matched_tokens,
            "matched_tokens": worker.matched_tokens,
            "input_tokens": tokens,
            "action": option.action,
            "source": option.source,
            "transfer_bytes": option.transfer_bytes,
            **{f"{action}_ms": cost for action, cost in costs.items()},
        },
    )


def _least(worker: ExplainedCandidate, action: Action) -> float | None:
    """Of the options with that action; None: it was not offered."""
    part = worker.options[0].phase if worker.options else None
    return min(
        (each.terms.total for each in worker.options if each.action is action and each.phase is part), default=None
    )


def _taken(option: Option) -> str:
    tokens = f"{option.matched_tokens:,} tokens"
    match option.action:
        case Action.RECOMPUTE:
            return f"All of it is computed there, {_ms(option.prefill_ms)} ms."
        case Action.LOCAL | Action.WAIT:
            return f"{tokens} are taken from its own cache, the rest is computed, {_ms(option.prefill_ms)} ms."
        case Action.WARM_UP:
            return f"A copy of {tokens} is computed there first, {_ms(option.prefill_ms)} ms with the rest."
        case Action.REMOTE_READ | Action.MIGRATE:
            verb = "read" if option.action is Action.REMOTE_READ else "copied"
            return (
                f"{tokens} are used, of which {option.transfer_bytes / 1e6:,.1f} MB are {verb} from {option.source}; "
                f"the rest is computed, {_ms(option.prefill_ms)} ms."
            )
        case unknown:
            assert_never(unknown)


def _weighed(case: Case, worker: ExplainedCandidate, costs: Mapping[Action, float | None]) -> str:
    """What each way would cost at the worker, or why it was none."""
    seen, slot = case.snapshot.candidates, case.snapshot.slot_of(worker.worker)
    offered = [f"{_WAYS[action]} {_ms(cost)} ms" for action, cost in costs.items() if cost is not None]
    missing = [
        f"{_WAYS[action].capitalize()} was not offered: {why_not(seen, slot, action)}"
        for action in (Action.REMOTE_READ, Action.MIGRATE)
        if slot is not None and costs[action] is None
    ]
    return ". ".join(part for part in (f"In all it costs there: {', '.join(offered)}", *missing)) + "."


def _hbm(case: Case) -> Answer:
    chosen, option = case.chosen, case.placement.option
    seen, slot = case.snapshot.candidates, case.snapshot.slot_of(chosen.worker)
    output = 0.0 if case.placement.demand.phase is Phase.PREFILL else seen.expected_output_tokens
    room = case.placement.demand.input_tokens + output
    free, total = chosen.kv_free_tokens, chosen.kv_total_tokens
    per_token = 0.0 if slot is None else seen.figures.item(Figure.PRESSURE_MS_PER_TOKEN, slot)
    displaced = option.terms.memory_pressure / per_token if per_token > 0 else None
    needs = f"Prompt and expected output take {room:,.0f} tokens of {chosen.worker}'s KV pool{_gib(room, seen)}"
    if free is None:
        text = f"{needs}; how much of it is free is unknown, so nothing is known to stand against it."
    else:
        of_all = "" if total is None else f" of {total:,}"
        text = f"{needs}; {free:,}{of_all} are free or can be freed{_gib(free, seen)}"
        text += (
            ". It fits."
            if room <= free
            else f". {room - free:,.0f} tokens have no room yet: the server lets it wait until running requests have "
            f"left some, which is in the {_ms(option.wait_ms)} ms of waiting; it does not drop what runs."
        )
    if displaced:
        text += f" It displaces up to {displaced:,.0f} cached tokens, priced at {_ms(option.terms.memory_pressure)} ms."
    else:
        text += " What it displaces is priced at nothing: no cached token there is expected to be asked for again."
    return Answer(
        question="Could this blow up HBM?",
        answer=text,
        figures={
            "room_tokens": room,
            "kv_free_tokens": free,
            "kv_total_tokens": total,
            "bytes_per_token": seen.bytes_per_token,
            "displaced_tokens": displaced,
            "memory_pressure_ms": option.terms.memory_pressure,
        },
    )


def _batch(case: Case) -> Answer:
    chosen, seen = case.chosen, case.snapshot.candidates
    slot = case.snapshot.slot_of(chosen.worker)
    question = "Will it slow the batch?"
    worker, option = case.computes
    prefill = f"Its prefill keeps {worker.worker} for {_ms(option.prefill_ms)} ms."
    if case.placement.demand.phase is Phase.PREFILL or slot is None:
        figures: Figures = {"batch": chosen.batch, "prefill_ms": option.prefill_ms}
        return Answer(question=question, answer=f"It decodes nothing there. {prefill}", figures=figures)
    profile = seen.classes[int(seen.figures.item(Figure.HARDWARE_CLASS, slot))]
    batch, output = chosen.batch, seen.expected_output_tokens
    before = profile.decode_step_ms(batch) if batch else None
    after = profile.decode_step_ms(batch + 1)
    own, others = decode_parts_ms(
        seen.figures.item(Figure.DECODE_MS_PER_TOKEN, slot), batch=batch, output_tokens=output, profile=profile
    )
    if before is None:
        text = f"Nothing decodes at {chosen.worker}: a step takes {after:,.1f} ms, its output of {output:,.0f} tokens "
        text += f"{_ms(own)} ms."
    else:
        text = (
            f"A step at {chosen.worker} goes from {before:,.1f} to {after:,.1f} ms for the {_count(batch, 'sequence')} "
            f"in its batch: over {output:,.0f} output tokens {_ms(others)} ms for all of them together, beside the "
            f"{_ms(own)} ms that it decodes itself."
        )
    return Answer(
        question=question,
        answer=f"{text} {prefill}",
        figures={
            "batch": batch,
            "step_before_ms": before,
            "step_after_ms": after,
            "own_decode_ms": own,
            "others_decode_ms": others,
            "prefill_ms": option.prefill_ms,
        },
    )


def _migration(case: Case) -> Answer:
    seen = case.snapshot.candidates
    parts = [part for part in (case.placement.prefill, case.placement.option) if part is not None]
    moving = [part for part in parts if part.action in {Action.REMOTE_READ, Action.MIGRATE}]
    at = moving[0] if moving else parts[0]
    slot = case.snapshot.slot_of(at.worker)
    in_flight = 0.0 if slot is None else seen.figures.item(Figure.LINK_BYTES_IN_FLIGHT, slot)
    moved = sum(part.transfer_bytes for part in moving)
    exposed = sum(part.terms.network + part.terms.migration for part in parts)
    under_way = (
        f"kvaware has {in_flight / 1e6:,.1f} MB on the link of {at.worker}'s node"
        if in_flight
        else f"Nothing that kvaware started is on the link of {at.worker}'s node"
    )
    if moving:
        adds = (
            f"; this decision adds {moved / 1e6:,.1f} MB, which go after that. What waiting does not hide of it is "
            f"{_ms(exposed)} ms, in the cost."
        )
    elif any(part.action is Action.WARM_UP for part in parts):
        adds = f"; this decision computes a copy, {_ms(exposed)} ms, in the cost."
    else:
        adds = ", and this decision starts no transfer: it adds nothing to anybody's P99."
    return Answer(
        question="Does background migration hurt online P99?",
        answer=f"{under_way}{adds} {_left_to_move(seen)}",
        figures={
            "link_bytes_in_flight": in_flight,
            "transfer_bytes": moved,
            "exposed_ms": exposed,
            "remote_bytes_left": seen.remote_bytes,
            "migration_bytes_left": seen.migration_bytes,
        },
    )


def _left_to_move(seen: Candidates) -> str:
    if seen.remote_bytes is None and seen.migration_bytes is None:
        return "The tenant's reads and copies are not limited."
    return f"The tenant may still read {_allowed(seen.remote_bytes)} and copy {_allowed(seen.migration_bytes)}."


def _allowed(limit_bytes: float | None) -> str:
    """Of a limit that nothing was charged to lately one transfer may take any amount; it owes it afterwards."""
    if limit_bytes is None:
        return "without limit"
    return f"{limit_bytes / 1e6:,.1f} MB now" if isfinite(limit_bytes) else "any amount now"


def _ms(cost_ms: float) -> str:
    return f"{cost_ms:,.1f}" if 0 < abs(cost_ms) < 10 else f"{cost_ms:,.0f}"


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def _requests(candidate: ExplainedCandidate) -> str:
    return _count(candidate.requests, "request")


def _gib(tokens: float, seen: Candidates) -> str:
    return "" if seen.bytes_per_token is None else f" ({tokens * seen.bytes_per_token / 2**30:,.1f} GiB)"


def _signed(terms: CostTerms) -> dict[str, float]:
    """Each term as it counts in the total: the gain is subtracted."""
    return {name: -getattr(terms, name) if name == "locality_gain" else getattr(terms, name) for name in _TERM_NAMES}


def _made_of(terms: CostTerms) -> str:
    return _largest(_signed(terms), sign="") or "nothing"


def _difference(dearer: ExplainedCandidate, cheaper: ExplainedCandidate) -> str:
    """The terms that make the difference, as `` (cache_access +1,200, compute_wait -90)``."""
    if dearer.best is None or cheaper.best is None or dearer.best.phase != cheaper.best.phase:
        return ""
    base = _signed(cheaper.best.terms)
    told = _largest({name: value - base[name] for name, value in _signed(dearer.best.terms).items()}, sign="+")
    return f" ({told})" if told else ""


def _largest(terms: Mapping[str, float], *, sign: str) -> str:
    """The largest terms, and what is left."""
    ordered = sorted(terms.items(), key=lambda item: -abs(item[1]))
    named = [(name, value) for name, value in ordered[:_TERMS_NAMED] if abs(value) >= _WORTH_NAMING_MS]
    rest = sum(terms.values()) - sum(value for _, value in named)
    if abs(rest) >= _WORTH_NAMING_MS:
        named.append(("other", rest))
    return ", ".join(f"{name} {sign if value > 0 else ''}{_ms(value)}" for name, value in named)
