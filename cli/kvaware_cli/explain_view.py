"""One pod's explanation as text: what it needs, each candidate's figures and cost, the choice, the refusals."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from kvaware_cli.output import (
    Fact,
    Listing,
    gib,
    gib_pair,
    kept_whole,
    leading_terms,
    ms,
    plural,
    print_facts,
    print_table,
    shown_ms,
    table,
)
from kvaware_cli.wire import Candidate, Cost, Demand, Explanation

__all__ = [
    "candidates_table",
    "choice_facts",
    "dearer_by",
    "demand_facts",
    "difference",
    "print_explanation",
    "refusal_facts",
    "shortlist",
]

MOST_CANDIDATES: Final = 12
MOST_NAMES: Final = 6
TELLS_LITTLE: Final = "NoSuchGPU"
"""Most nodes of a mixed cluster have another kind of GPU: said last, however many they are."""
TELLING_FOREIGN_BYTES: Final = 1 << 30
"""Drivers and agents hold some hundred MiB on every node: not worth a word."""


def print_explanation(out: Console, explanation: Explanation, *, note: str = "") -> None:
    """Everything about one pod, for ``kvaware explain``; ``note`` is what the asker should know besides."""
    facts = list(demand_facts(explanation.demand))
    if explanation.reservation:
        held = explanation.reservation
        facts.append(("holds", f"{held.get('gpus', '?')} x {held.get('resource', '?')}, written with its binding"))
    if note:
        facts.append(("note", Text(note, style="yellow")))
    print_facts(out, facts)
    out.print()
    if any(c.refusal is None for c in explanation.candidates):
        print_table(out, candidates_table(explanation))
        out.print()
    print_facts(out, [*choice_facts(explanation), *refusal_facts(explanation)])
    for question, answer in explanation.answers.items():
        out.print()
        out.print(Text(question, style="bold"))
        print_facts(out, [("", answer)], indent=2)


def demand_facts(demand: Demand) -> Iterator[Fact]:
    """Which pod, what it asks for, for whom."""
    yield "pod", Text(f"{demand.namespace}/{demand.name}", style="bold")
    yield "asks for", _request(demand)
    if demand.model is not None:
        yield "model", demand.model_id or demand.model
    yield "tenant", demand.tenant


def _request(demand: Demand) -> str:
    """What cannot be read is said to be so: nothing asked for, or whole GPUs, would be another request."""
    if demand.resource is None:
        return "no GPU" if demand.problem is None else f"what cannot be understood ({demand.problem})"
    if demand.hbm_per_gpu_bytes is not None:
        hbm = f"{gib(demand.hbm_per_gpu_bytes)} GiB of HBM on each"
    else:
        hbm = "whole GPUs" if demand.problem is None else f"HBM unknown ({demand.problem})"
    return f"{demand.gpus} x {demand.resource}, {hbm}"


def candidates_table(explanation: Explanation) -> Listing:
    """The nodes that can take the pod, cheapest first; the choice is marked."""
    admitted = [c for c in explanation.candidates if c.refusal is None]
    made = table(
        "", "NODE", "HBM FREE", "GPUS", "KV", "WEIGHTS", "COST MS", "MADE OF",
        right=frozenset({"HBM FREE", "GPUS", "COST MS"}), wrap=frozenset({"MADE OF"}),
        names=frozenset({"NODE"}),
    )  # fmt: skip
    for candidate in admitted[:MOST_CANDIDATES]:
        chosen = candidate.node == explanation.chosen
        made.add_row(
            "→" if chosen else "",
            candidate.node,
            gib_pair(candidate.hbm_free_bytes, candidate.hbm_capacity_bytes),
            str(candidate.free_gpus),
            candidate.cache_location,
            candidate.weights_location,
            "" if candidate.cost is None else ms(candidate.cost.total),
            "" if candidate.cost is None else _made_of(candidate.cost),
            style="green" if chosen else "",
        )
    if len(admitted) > MOST_CANDIDATES:
        made.add_row("", f"and {len(admitted) - MOST_CANDIDATES} more, dearer", "", "", "", "", "", "")
    return made


def _made_of(cost: Cost) -> str:
    told = leading_terms(cost.terms(), total=shown_ms(cost.total), count=2)
    return ", ".join(kept_whole(term) for term in told.split(", "))


def choice_facts(explanation: Explanation) -> Iterator[Fact]:
    """The verdict, and the runner-up with what it would cost more."""
    chosen = explanation.candidate(explanation.chosen)
    if chosen is None:
        text = "no node can take it" if _reasons_differ(explanation) else explanation.text.removeprefix("kvaware: ")
        yield "refused", Text.assemble((explanation.reason, "bold red"), f": {text}")
        return
    yield "choice", Text.assemble((chosen.node, "bold green"), f" ({explanation.reason})")
    runner_up = explanation.candidate(explanation.runner_up)
    if runner_up is None:
        yield "runner-up", "none: no other node can take it"
    elif runner_up.cost is not None and chosen.cost is not None:
        more = dearer_by(runner_up.cost, chosen.cost)
        yield "runner-up", f"{runner_up.node}, {ms(more)} ms dearer{difference(runner_up, chosen)}"


def dearer_by(dearer: Cost, cheaper: Cost) -> float:
    """The difference between two totals as they are shown; the exact one where both look alike."""
    return shown_ms(dearer.total) - shown_ms(cheaper.total) or dearer.total - cheaper.total


def difference(dearer: Candidate, cheaper: Candidate, *, count: int = 3) -> str:
    """The terms that make the difference between two candidates, as `` (network +13,400, risk -20)``."""
    if dearer.cost is None or cheaper.cost is None:
        return ""
    base = cheaper.cost.terms()
    changes = {name: value - base[name] for name, value in dearer.cost.terms().items()}
    told = leading_terms(changes, total=dearer_by(dearer.cost, cheaper.cost), count=count, sign="+")
    return f" ({told})" if told else ""


def refusal_facts(explanation: Explanation) -> Iterator[Fact]:
    """The refused nodes, grouped by reason, most first. A reason of the pod's own is said once, in the verdict."""
    groups: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for candidate in explanation.candidates:
        if candidate.refusal is not None:
            groups[candidate.refusal, candidate.text].append(candidate)
    if explanation.chosen is None and not _reasons_differ(explanation):
        return
    for (_, text), members in sorted(
        groups.items(), key=lambda item: (item[0][0] == TELLS_LITTLE, -len(item[1]), item[0])
    ):
        names = shortlist([_refused_name(c) for c in members])
        yield "refused", f"{plural(len(members), 'node')}, {text.removeprefix('kvaware: ')}: {', '.join(names)}"


def shortlist(names: Sequence[str]) -> list[str]:
    """The first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return [*names[:MOST_NAMES], f"and {more} more"] if more > 0 else list(names)


def _reasons_differ(explanation: Explanation) -> bool:
    return len({c.refusal for c in explanation.candidates}) > 1


def _refused_name(candidate: Candidate) -> str:
    """A node whose HBM is held by programs without a reservation says so: kube-scheduler cannot see them."""
    if candidate.refusal == "NotEnoughHBM" and (candidate.foreign_bytes or 0) >= TELLING_FOREIGN_BYTES:
        return f"{candidate.node} ({gib(candidate.foreign_bytes)} GiB held by programs without a reservation)"
    return candidate.node
