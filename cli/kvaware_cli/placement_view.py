"""One placement's explanation as text: the request, what each worker would have cost, the choice, the six answers."""

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from kvaware_cli.output import (
    UNKNOWN,
    Fact,
    Listing,
    kept_whole,
    leading_terms,
    ms,
    plural,
    print_facts,
    print_table,
    shown_ms,
    table,
)
from kvaware_cli.wire import Cost, PlacementCandidate, PlacementExplanation, PlacementOption, read

__all__ = ["print_placement", "request_facts", "verdict_facts", "workers_table"]

MOST_WORKERS: Final = 12
TERMS_SHOWN: Final = 3
COST_POLICY: Final = "cost"
"""Its measure is the cost that the table shows; every other policy has one of its own."""
MARK: Final = "→"


def print_placement(out: Console, body: Any) -> None:
    """Everything about one placement, from the JSON of ``GET /v1/placements/{id}/explanation``.

    Raises: ServerError where the answer cannot be read.
    """
    explanation = read(PlacementExplanation, body)
    print_facts(out, request_facts(explanation))
    out.print()
    print_table(out, workers_table(explanation))
    out.print()
    print_facts(out, verdict_facts(explanation))
    for each in explanation.answers:
        out.print()
        out.print(Text(each.question, style="bold"))
        print_facts(out, [("", each.answer)], indent=2)


def _told(told_tokens: float | None, expected_tokens: float) -> str:
    if told_tokens is None:
        return "as others before it"
    if told_tokens > expected_tokens:
        return f"the client told {told_tokens:,.0f}, more than can be"
    return "told by the client"


def request_facts(explanation: PlacementExplanation) -> Iterator[Fact]:
    """Which request, what it needs, for whom, by which policy."""
    request = explanation.request
    yield "request", Text.assemble((request.request_id, "bold"), f", placement {explanation.placement_id}")
    told = _told(request.told_output_tokens, request.expected_output_tokens)
    phase = f", {request.phase} only" if request.phase else ""
    out = f"{request.expected_output_tokens:,.0f} out expected ({told})"
    yield "needs", f"{request.input_tokens:,} tokens in, {out}{phase}"
    yield "model", request.model + (f", adapter {request.adapter}" if request.adapter else "")
    priority = f", priority {request.priority}" if request.priority else ""
    yield "tenant", f"{request.tenant}{priority}"
    yield "policy", explanation.policy
    if explanation.attempt > 1:
        yield "attempt", f"{explanation.attempt}: {plural(explanation.attempt - 1, 'worker')} refused it before"


def workers_table(explanation: PlacementExplanation) -> Listing:
    """The workers in the running, best first, each with its best option.

    The other options of the chosen and of the runner-up stand below them. Where the policy compares something else than
    cost, its measure has a column.
    """
    shown = _shown(explanation)
    columns = _columns(explanation, shown)
    right = frozenset({"HELD", "QUEUE", "WAIT MS", "KV FREE", "CONF", "MEASURE", "COST MS"})
    made = table(*columns, right=right, wrap=frozenset({"MADE OF"}), names=frozenset({"WORKER", "FROM"}))

    def add(style: str, **cells: str) -> None:
        made.add_row(*[cells.get(_CELL_OF[column], "") for column in columns], style=style)

    for candidate in shown:
        chosen = candidate.worker in {explanation.chosen, explanation.prefill}
        best, *others = candidate.options or (None,)
        add(
            "green" if chosen else "",
            mark=MARK if chosen else "",
            worker=candidate.worker,
            held=f"{candidate.matched_tokens:,}",
            queue=str(candidate.requests),
            wait=ms(candidate.wait_ms),
            free=UNKNOWN if candidate.kv_free_tokens is None else f"{candidate.kv_free_tokens:,}",
            confidence=f"{candidate.confidence_ratio:.2f}",
            measure=UNKNOWN if candidate.policy_cost is None else f"{candidate.policy_cost:,.4g}",
            **_option_cells(best),
        )
        if chosen or candidate.worker == explanation.runner_up:
            for other in others:
                add("dim", worker="  or", **_option_cells(other))
    if (left := explanation.in_the_running - len(shown)) > 0:
        add("", worker=f"and {left} more")
    return made


_CELL_OF: Final = {
    "": "mark", "WORKER": "worker", "ACTION": "action", "FROM": "source", "HELD": "held", "QUEUE": "queue",
    "WAIT MS": "wait", "KV FREE": "free", "CONF": "confidence", "MEASURE": "measure", "COST MS": "cost",
    "MADE OF": "made_of",
}  # fmt: skip
"""Heading to the cell below it, in the order of the columns."""


def _shown(explanation: PlacementExplanation) -> list[PlacementCandidate]:
    """The first of those in the running, and whoever else is told of."""
    running = [each for each in explanation.candidates if each.filtered is None]
    told = {explanation.chosen, explanation.prefill, explanation.runner_up, explanation.emptiest}
    return running[:MOST_WORKERS] + [each for each in running[MOST_WORKERS:] if each.worker in told]


def _columns(explanation: PlacementExplanation, shown: list[PlacementCandidate]) -> list[str]:
    """All but those that would be empty."""
    left_out = set()
    if explanation.policy == COST_POLICY:
        left_out.add("MEASURE")
    if not any(option.source for candidate in shown for option in candidate.options):
        left_out.add("FROM")
    return [heading for heading in _CELL_OF if heading not in left_out]


def _option_cells(option: PlacementOption | None) -> dict[str, str]:
    if option is None:
        return {"action": UNKNOWN}
    return {
        "action": f"{option.phase}: {option.action}" if option.phase else option.action,
        "source": option.source or "",
        "cost": ms(option.terms.total),
        "made_of": _made_of(option.terms),
    }


def _made_of(cost: Cost) -> str:
    told = leading_terms(cost.terms(), total=shown_ms(cost.total), count=TERMS_SHOWN)
    return ", ".join(kept_whole(term) for term in told.split(", "))


def verdict_facts(explanation: PlacementExplanation) -> Iterator[Fact]:
    """The choice, the runner-up, what would have flipped it, who was not in the running, what is not exact."""
    yield "choice", Text.assemble((explanation.chosen, "bold green"), f" ({explanation.reason})")
    if explanation.prefill is not None:
        yield "prefill", Text.assemble("at ", (explanation.prefill, "bold green"))
    if explanation.runner_up is None:
        yield "runner-up", "none: no other worker could take it"
    elif explanation.runner_up_behind is not None:
        unit = " ms dearer" if explanation.policy == COST_POLICY else f" behind, as {explanation.policy} measures"
        yield "runner-up", f"{explanation.runner_up}, {ms(explanation.runner_up_behind)}{unit}"
    if explanation.flip is None:
        yield "flips", explanation.no_flip
    for number, flip in enumerate(explanation.flips):
        yield "flips" if number == 0 else "", flip.text if number else Text(flip.text, style="bold")
    chosen = explanation.candidate(explanation.chosen)
    if chosen is not None:
        heard = "it has not reported" if chosen.age_s is None else f"by a report {chosen.age_s:,.1f} s old"
        yield "believed", f"to {chosen.confidence_ratio:.2f}, {heard}"
    filtered = sorted(explanation.filtered.items(), key=lambda item: (-item[1], item[0]))
    if filtered:
        yield "filtered", ", ".join(f"{plural(count, 'worker')} {reason}" for reason, count in filtered)
    for number, sentence in enumerate(explanation.approximations):
        yield "" if number else "note", Text(sentence, style="yellow")
