"""Why a request went where it went: each option's terms, who was filtered, the runner-up's distance, what is not exact.

Computed from a snapshot, by the same policy and the same costs as the decision; off the path of requests. The six
questions are answered in ``answers.py``, the smallest change that flips the decision is found in ``flips.py``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from kvaware_engine.profiles import ProfileOrigin
from kvaware_engine.requests.answers import Case, answers
from kvaware_engine.requests.explain_candidates import explained_option, in_order
from kvaware_engine.requests.explain_words import ExplainedCandidate, RequestExplanation, RequestSummary
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.flips import find_flips, replay
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.snapshot import Snapshot, emptiest
from kvaware_engine.requests.split import PairChoice, pair_options
from kvaware_engine.requests.words import Option, Placement, Precision

__all__ = ["RequestExplanation", "explain", "replay"]


def explain(placement: Placement, snapshot: Snapshot) -> RequestExplanation:
    """Say everything about one placement. Takes 20 to 50 ms, most of it for ``flips``: for a thread, not for a loop.

    Args:
        placement: As it was made.
        snapshot: What its decision saw.
    """
    # Of its own, since this may run beside the next decision: the live fleet's reach remembers rows, and a demand loses
    # its hashes when its request is over.
    seen = snapshot.candidates
    seen = replace(seen, demand=replace(seen.demand), reach=Reach(seen.facts))
    snapshot = replace(snapshot, candidates=seen)
    shown = _with_handovers(placement, snapshot, in_order(snapshot))
    case = _case(placement, snapshot, shown)
    total_ms = sum(each.terms.total for each in (placement.option, placement.prefill) if each is not None)
    flips, no_flip = find_flips(snapshot, total_ms=total_ms)
    return RequestExplanation(
        placement_id=placement.placement_id,
        request=_summary(placement, snapshot),
        policy=placement.policy,
        reason=placement.reason,
        precision=placement.precision,
        attempt=placement.attempt,
        decided_at_s=placement.decided_at_s,
        chosen=placement.option.worker,
        prefill=None if placement.prefill is None else placement.prefill.worker,
        terms=placement.option.terms,
        prefill_terms=None if placement.prefill is None else placement.prefill.terms,
        runner_up=None if case.runner_up is None else case.runner_up.worker,
        runner_up_behind=case.behind,
        emptiest=case.emptiest.worker,
        in_the_running=placement.candidates,
        candidates=shown,
        filtered=Counter(each.filtered for each in shown if each.filtered is not None),
        approximations=tuple(_approximations(case)),
        answers=answers(case),
        flip=flips[0] if flips else None,
        flips=flips,
        no_flip=no_flip,
    )


def _with_handovers(
    placement: Placement, snapshot: Snapshot, shown: tuple[ExplainedCandidate, ...]
) -> tuple[ExplainedCandidate, ...]:
    """With split roles the options of the chosen and of the runner-up include the hand-over: so they were compared."""
    if snapshot.split is None:
        return shown
    made = {} if placement.prefill is None else {placement.option.worker: placement.option}
    choice, seen = replay(snapshot), snapshot.candidates
    if isinstance(choice, PairChoice) and choice.runner_up is not None and choice.runner_up.prefill is not None:
        prefill, whole = snapshot.split.prefill(seen), snapshot.split.whole(seen)
        pair = pair_options(snapshot.policy, choice.runner_up, prefill=prefill, decode=seen, whole=whole)
        made.setdefault(pair.option.worker, pair.option)
    return tuple([_first_as(each, made.get(each.worker)) for each in shown])


def _first_as(candidate: ExplainedCandidate, made: Option | None) -> ExplainedCandidate:
    """The same with its first option as it was made."""
    if made is None or not candidate.options:
        return candidate
    first, *others = candidate.options
    return replace(candidate, options=(explained_option(made, phase=first.phase), *others))


def _case(placement: Placement, snapshot: Snapshot, shown: tuple[ExplainedCandidate, ...]) -> Case:
    by_name: Mapping[str, ExplainedCandidate] = {each.worker: each for each in shown}
    runner_up = snapshot.runner_up
    chosen = by_name[snapshot.facts(snapshot.chosen).worker]
    holds = max(shown, key=lambda each: (each.matched_tokens, each.worker == chosen.worker))
    return Case(
        placement=placement,
        snapshot=snapshot,
        chosen=chosen,
        prefill=None if placement.prefill is None else by_name.get(placement.prefill.worker),
        runner_up=None if runner_up is None else by_name[snapshot.facts(runner_up).worker],
        emptiest=by_name[snapshot.facts(emptiest(snapshot.candidates, snapshot.costs)).worker],
        deepest=holds if holds.matched_tokens > 0 else None,
        behind=None if runner_up is None else snapshot.costs.item(runner_up) - snapshot.costs.item(snapshot.chosen),
    )


def _summary(placement: Placement, snapshot: Snapshot) -> RequestSummary:
    demand = placement.demand
    return RequestSummary(
        request_id=demand.request_id,
        model=demand.model,
        tenant=demand.tenant,
        input_tokens=demand.input_tokens,
        expected_output_tokens=snapshot.candidates.expected_output_tokens,
        told_output_tokens=demand.expected_output_tokens,
        priority=demand.priority,
        phase=demand.phase,
        adapter=demand.adapter,
        session=demand.session,
    )


def _approximations(case: Case) -> Iterator[str]:
    """What of the figures is not exact."""
    seen, worker = case.snapshot.candidates, case.chosen
    if worker.precision is Precision.APPROXIMATE:
        how = (
            "text or the caller's own hashes"
            if seen.demand.precision is Precision.APPROXIMATE
            else "the worker tells no KV events"
        )
        yield f"Matched tokens are approximate: {how}, so they follow from what was sent where."
    if worker.age_s is None:
        yield f"{worker.worker} has not reported: its state is believed to {worker.confidence_ratio:.2f}."
    elif worker.confidence_ratio < 1:
        yield f"{worker.worker} reported {worker.age_s:,.1f} s before: believed to {worker.confidence_ratio:.2f}."
    if worker.extrapolated and (slot := case.snapshot.slot_of(worker.worker)) is not None:
        profile = seen.classes[int(seen.figures.item(Figure.HARDWARE_CLASS, slot))]
        name = f"{profile.model} on {profile.gpus} {profile.product.name}"
        if profile.origin is not ProfileOrigin.MEASURED:
            yield f"Times are extrapolated: the profile of {name} is {_ORIGINS[profile.origin]}."
        else:
            yield f"Times are extrapolated: {name} was measured for shorter prompts or smaller batches."
    if worker.kv_free_tokens is None:
        yield f"How much of {worker.worker}'s KV pool is free is unknown."
    if seen.bytes_per_token is None:
        yield "The size of a token's KV cache is unknown: no transfer was priced."
    if seen.demand.expected_output_tokens is None:
        yield f"The client did not say how long the answer will be: {seen.expected_output_tokens:,.0f} tokens as usual."
    if not case.snapshot.whole:
        kept, slots = len(seen.facts), case.snapshot.slots
        yield f"Of {slots:,} columns {kept:,} were kept: the cheapest, the emptiest, and those that hold most."


_ORIGINS: Final[dict[ProfileOrigin, str]] = {
    ProfileOrigin.MEASURED: "measured",
    ProfileOrigin.SCALED: "scaled from another that was measured",
    ProfileOrigin.GUESS: "a guess, since the GPU or the model's size is unknown",
}
