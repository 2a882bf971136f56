"""The demo from start to end: serve the cluster, place each pod, show the decision, then the emptiest GPU's price."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvaware_cli.demo.emptiest import Comparison, compare, dearest
from kvaware_cli.demo.kube_scheduler import Attempt, offered_nodes, schedule
from kvaware_cli.demo.process import Extender, running_extender
from kvaware_cli.demo.scene import Scene, examples, read_scene
from kvaware_cli.explain_view import candidates_table, choice_lines, demand_line, difference, refusal_lines
from kvaware_cli.output import console, gib, gib_pair, ms, plural, used_of
from kvaware_cli.top_command import print_nodes, print_tenants
from kvaware_cli.wire import Explanation, NodeList, Tenant, TenantList, read

__all__ = ["run_demo"]


def run_demo(*, cluster: Path | None, pods: Path | None, plain: bool) -> None:
    """Place the pods and print every decision.

    Args:
        cluster: A folder of YAML; None: the example cluster.
        pods: A folder with the pods to place; None: the example's, or the pending ones of ``cluster``.
        plain: No colour, 100 columns.
    """
    out = console(plain=plain)
    if cluster is None:
        cluster, pods = examples() / "cluster", pods or examples() / "pods"
    scene = read_scene(cluster, pods)
    with tempfile.TemporaryDirectory(prefix="kvaware-demo-") as folder:
        scene.write(Path(folder))
        with running_extender(Path(folder)) as extender:
            _headline(out, scene, extender, cluster)
            placed = [_place(out, number, pod, scene, extender) for number, pod in enumerate(scene.pending, start=1)]
            _tenants(out, extender)
    _emptiest(out, [explanation for explanation, _ in placed])
    _summary(out, [attempt for _, attempt in placed], cluster)


def _headline(out: Console, scene: Scene, extender: Extender, cluster: Path) -> None:
    counts = Counter(o["kind"] for o in scene.objects)
    running = counts["Pod"] - len(scene.pending)
    parts = [plural(counts["Node"], "node"), plural(running, "running pod"), plural(counts["InferenceModel"], "model")]
    parts += [plural(counts["KVCacheBlockGroup"], "KV block group"), plural(counts["TenantQuota"], "tenant quota")]
    out.print(Text("kvaware demo", style="bold"))
    out.print(f"The cluster of {cluster}: {', '.join(parts)}.")
    out.print(f"The extender runs at {extender.api_url} and is asked as kube-scheduler asks: filter, prioritize, bind.")
    _rule(out, "before")
    print_nodes(out, read(NodeList, extender.api.nodes()).items)


def _place(
    out: Console, number: int, pod: dict[str, Any], scene: Scene, extender: Extender
) -> tuple[Explanation, Attempt]:
    """One pod: the explanation first, so that it shows the state in which the decision is made."""
    explanation = read(Explanation, extender.api.explain(pod))
    tenants = read(TenantList, extender.api.tenants()).items
    attempt = schedule(extender.verbs, pod, scene.nodes)
    _rule(out, f"{number} of {len(scene.pending)}")
    story = pod["metadata"].get("annotations", {}).get("kvaware.io/demo")
    out.print(demand_line(explanation.demand))
    if story:
        out.print(Text(story, style="italic"))
    out.print(_quota_line(explanation, tenants))
    out.print()
    offered = frozenset(offered_nodes(pod, scene.nodes))
    if any(c.refusal is None for c in explanation.candidates):
        out.print(candidates_table(explanation))
        out.print()
    for line in [*choice_lines(explanation), *refusal_lines(explanation)]:
        out.print(line)
    kept_back = [name for name in attempt.kept_back if name not in offered]
    if kept_back:
        out.print(
            f"not asked  {plural(len(kept_back), 'node')} that kube-scheduler itself keeps back: {', '.join(kept_back)}"
        )
    _outcome(out, explanation, attempt)
    return explanation, attempt


def _quota_line(explanation: Explanation, tenants: tuple[Tenant, ...]) -> str:
    tenant = next((t for t in tenants if t.tenant == explanation.demand.tenant), None)
    if tenant is None:
        return f"quota: no TenantQuota names namespace {explanation.demand.namespace}: no limit"
    gpus = used_of(str(tenant.used_gpus), None if tenant.limit_gpus is None else str(tenant.limit_gpus))
    limit = tenant.limit_hbm_bytes
    hbm = gib_pair(tenant.used_hbm_bytes, limit) if limit is not None else f"{gib(tenant.used_hbm_bytes)}/-"
    return f"quota: tenant {tenant.tenant} uses {gpus} GPUs and {hbm} GiB of HBM (used/limit)"


def _outcome(out: Console, explanation: Explanation, attempt: Attempt) -> None:
    if attempt.bind_error:
        out.print(Text(f"bind was refused: {attempt.bind_error}", style="red"))
    elif attempt.node is None and explanation.chosen is not None:
        out.print("stays pending: every node that can take it is kept back by kube-scheduler's own rules")
    elif attempt.node is not None and attempt.node != explanation.chosen:
        out.print(f"bound to   {attempt.node}: the choice above is kept back by kube-scheduler's own rules")


def _tenants(out: Console, extender: Extender) -> None:
    _rule(out, "tenants, after")
    print_tenants(out, read(TenantList, extender.api.tenants()).items)


def _emptiest(out: Console, explanations: list[Explanation]) -> None:
    _rule(out, 'why not "the emptiest GPU"?')
    worst = dearest(explanations)
    if worst is None:
        out.print("Here the node with the most free HBM was the cheapest for every pod that was placed.")
        return
    demand = worst.explanation.demand
    out.print(
        Text.assemble("For pod ", (f"{demand.namespace}/{demand.name}", "bold"), " the emptiest GPU was the wrong one.")
    )
    out.print()
    _side_by_side(out, worst)
    out.print()
    terms = difference(worst.emptiest, worst.chosen, count=4)
    out.print(f"Placing it there would have cost {ms(worst.extra_ms)} ms more{terms}.")
    comparisons = [c for e in explanations if (c := compare(e)) is not None]
    wrong = sum(c.emptiest.node != c.chosen.node for c in comparisons)
    out.print(f"Of {plural(len(comparisons), 'pod')} placed, {wrong} went elsewhere than to the emptiest GPU.")


def _side_by_side(out: Console, worst: Comparison) -> None:
    pair = worst.explanation.model_copy(update={"candidates": (worst.chosen, worst.emptiest)})
    out.print(candidates_table(pair))


def _summary(out: Console, attempts: list[Attempt], cluster: Path) -> None:
    bound = sum(attempt.node is not None for attempt in attempts)
    _rule(out, f"{bound} placed, {len(attempts) - bound} pending")
    out.print("Try next:")
    out.print(f"  kvaware extender --cluster-dir {cluster}     keep it running, then in another shell:")
    out.print("  kvaware top, kvaware top tenants, kvaware explain -f FILE")
    out.print("  kvaware demo --cluster DIR     the same on your own YAML")
    out.print("  make demo CLUSTER=real         the same, with a real kube-apiserver and kube-scheduler")


def _rule(out: Console, title: str) -> None:
    out.print()
    out.rule(Text(title, style="bold"), align="left", characters="─" if out.encoding.startswith("utf") else "-")
