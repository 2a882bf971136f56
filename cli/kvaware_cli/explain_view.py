"""One pod's explanation as text: what it needs, each candidate's figures and cost, the choice, the refusals."""

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvaware_cli.output import gib, gib_pair, leading_terms, ms, plural, table
from kvaware_cli.wire import Candidate, Demand, Explanation

__all__ = ["candidates_table", "choice_lines", "demand_line", "difference", "print_explanation", "refusal_lines"]

MOST_CANDIDATES = 12
MOST_NAMES = 6


def print_explanation(out: Console, explanation: Explanation, *, answers: bool = True) -> None:
    """Everything about one pod, for ``kvaware explain``."""
    out.print(demand_line(explanation.demand))
    if explanation.reservation:
        held = explanation.reservation
        out.print(f"It holds {held.get('gpus', '?')} x {held.get('resource', '?')} (written with its binding).")
    out.print()
    admitted = [c for c in explanation.candidates if c.refusal is None]
    if admitted:
        out.print(candidates_table(explanation))
        out.print()
    out.print(Group(*choice_lines(explanation)))
    refused = list(refusal_lines(explanation))
    if refused:
        out.print(Group(*refused))
    if answers and explanation.answers:
        out.print()
        for question, answer in explanation.answers.items():
            out.print(Text(question, style="bold"))
            out.print(Text(f"  {answer}"))


def demand_line(demand: Demand) -> Text:
    """``pod ml/chat-0: 4 x nvidia.com/gpu, 70.0 GiB of HBM each; model …; tenant …``."""
    line = Text.assemble("pod ", (f"{demand.namespace}/{demand.name}", "bold"), ": ")
    if demand.resource is None:
        line.append("no GPU")
    else:
        hbm = "whole GPUs" if demand.hbm_per_gpu_bytes is None else f"{gib(demand.hbm_per_gpu_bytes)} GiB of HBM each"
        line.append(f"{demand.gpus} x {demand.resource}, {hbm}")
    line.append(f"; model {demand.model_id or demand.model}" if demand.model else "; no model")
    line.append(f"; tenant {demand.tenant}")
    return line


def candidates_table(explanation: Explanation) -> Table:
    """The nodes that can take the pod, cheapest first; the choice is marked."""
    admitted = [c for c in explanation.candidates if c.refusal is None]
    made = table(
        "", "NODE", "HBM FREE", "GPUS", "KV", "WEIGHTS", "COST MS", "MADE OF",
        right=frozenset({"HBM FREE", "GPUS", "COST MS"}), wrap=frozenset({"MADE OF"}),
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
            "" if candidate.cost is None else leading_terms(candidate.cost.terms()),
            style="green" if chosen else "",
        )
    if len(admitted) > MOST_CANDIDATES:
        made.add_row("", f"and {len(admitted) - MOST_CANDIDATES} more, dearer", "", "", "", "", "", "")
    return made


def choice_lines(explanation: Explanation) -> Iterator[RenderableType]:
    """The verdict, and the runner-up with what it would cost more."""
    chosen = explanation.candidate(explanation.chosen)
    if chosen is None:
        text = explanation.text.removeprefix("kvaware: ")
        why = f": {text}" if text else ""
        yield Text.assemble(("refused", "bold red"), f" ({explanation.reason}){why}")
        return
    yield Text.assemble("choice     ", (chosen.node, "bold green"), f" ({explanation.reason})")
    runner_up = explanation.candidate(explanation.runner_up)
    if runner_up is None:
        yield Text("runner-up  none: no other node can take it")
    elif runner_up.cost is not None and chosen.cost is not None:
        more = runner_up.cost.total - chosen.cost.total
        yield Text.assemble(
            "runner-up  ", (runner_up.node, "bold"), f", {ms(more)} ms dearer{difference(runner_up, chosen)}"
        )


def difference(dearer: Candidate, cheaper: Candidate, *, count: int = 3) -> str:
    """The terms that make the difference between two candidates, as `` (network +13,400, risk -20)``."""
    if dearer.cost is None or cheaper.cost is None:
        return ""
    base = cheaper.cost.terms()
    changes = {name: value - base[name] for name, value in dearer.cost.terms().items()}
    largest = sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))
    told = [f"{name} {'+' if value > 0 else ''}{ms(value)}" for name, value in largest[:count] if abs(value) >= 0.05]
    return f" ({', '.join(told)})" if told else ""


def refusal_lines(explanation: Explanation) -> Iterator[RenderableType]:
    """The refused nodes, grouped by reason, most first."""
    groups: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for candidate in explanation.candidates:
        if candidate.refusal is not None:
            groups[candidate.refusal, candidate.text].append(candidate)
    for (_, text), members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        names = [_refused_name(c) for c in members[:MOST_NAMES]]
        if len(members) > MOST_NAMES:
            names.append(f"and {len(members) - MOST_NAMES} more")
        yield Text(f"refused    {plural(len(members), 'node')}, {text.removeprefix('kvaware: ')}: {', '.join(names)}")


def _refused_name(candidate: Candidate) -> str:
    """A node whose HBM is held by programs without a reservation says so: nobody can see that in kube-scheduler."""
    if candidate.refusal == "NotEnoughHBM" and candidate.foreign_bytes:
        return f"{candidate.node} ({gib(candidate.foreign_bytes)} GiB held by programs without a reservation)"
    return candidate.node
