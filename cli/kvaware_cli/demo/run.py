"""The demo from start to end: serve the cluster, place each pod, show the decision, then the emptiest GPU's price.

Then recorded requests are placed, on a cluster of their own.
"""

import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from kvaware_cli.client import SCHEDULER_NAME
from kvaware_cli.demo.emptiest import compare, dearest
from kvaware_cli.demo.kube_scheduler import Attempt, schedule
from kvaware_cli.demo.process import Extender, running_extender
from kvaware_cli.demo.scene import Scene, examples, read_scene
from kvaware_cli.errors import reading
from kvaware_cli.explain_view import candidates_table, choice_facts, demand_facts, difference, refusal_facts, shortlist
from kvaware_cli.output import Fact, console, gib, ms, plural, print_facts, print_rule, print_table, seconds, used_of
from kvaware_cli.program import program, shown
from kvaware_cli.replay.run import ReplayPlan, replay
from kvaware_cli.top_command import print_nodes, print_tenants
from kvaware_cli.wire import Explanation, NodeList, Tenant, TenantList, read

__all__ = ["run_demo"]

EXPORTERS_S: Final = 10.0  # they are scraped every second here
MOST_NODES: Final = 40


def run_demo(*, cluster: Path | None, pods: Path | None, trace: Path | None, plain: bool) -> None:
    """Place the pods and print every decision; then place requests.

    Args:
        cluster: A folder of YAML; None: the example cluster.
        pods: A folder with the pods to place; None: the example's, or the pending ones of ``cluster``.
        trace: Recorded requests to replay; None: none.
        plain: No colour, 100 columns.
    """
    out = console(plain=plain)
    if cluster is None:
        cluster, pods = examples() / "cluster", pods or examples() / "pods"
    with reading(str(cluster)):
        scene = read_scene(cluster, pods)
    with tempfile.TemporaryDirectory(prefix="kvaware-demo-") as folder:
        scene.write(Path(folder))
        with running_extender(Path(folder)) as extender:
            _hear_exporters(extender, scene)
            _headline(out, scene, extender, cluster)
            placed = [_place(out, number, pod, scene, extender) for number, pod in enumerate(scene.pending, start=1)]
            _tenants(out, extender)
    _emptiest(out, [explanation for explanation, _ in placed])
    if trace is not None:
        replay(out, ReplayPlan(trace=trace))
    _summary(out, [attempt for _, attempt in placed], cluster)


def _hear_exporters(extender: Extender, scene: Scene) -> None:
    """Wait for the first scrape of every exporter: before it, HBM use is unknown, which is another story to tell."""
    texts = set() if scene.exporter_texts is None else {path.stem for path in scene.exporter_texts.glob("*.txt")}
    deadline_s = time.monotonic() + EXPORTERS_S
    while True:
        heard = {node.name for node in read(NodeList, extender.api.nodes()).items if node.use_age_s is not None}
        if texts <= heard or time.monotonic() > deadline_s:
            return
        time.sleep(0.1)


def _headline(out: Console, scene: Scene, extender: Extender, cluster: Path) -> None:
    counts = Counter(o["kind"] for o in scene.objects)
    parts = [plural(counts["Node"], "node"), _pods(scene), plural(counts["InferenceModel"], "model")]
    parts += [plural(counts["KVCacheBlockGroup"], "KV block group"), plural(counts["TenantQuota"], "tenant quota")]
    facts = [
        ("cluster", f"{shown(cluster)}: {', '.join(parts)}"),
        ("extender", f"{extender.api_url}, asked as kube-scheduler asks: filter, prioritize, bind"),
        ("costs", "milliseconds of delay to the pod and to those around it; the least wins"),
        ("KV, WEIGHTS", "where the model's KV block groups and weights lie: on the node, near (rack, clique), far"),
    ]
    if scene.taken_over:
        names = ", ".join(shortlist(scene.taken_over))
        facts.append(("as if ours", f"placed as if they had schedulerName {SCHEDULER_NAME}, which they lack: {names}"))
    if scene.left_out:
        facts.append(("left out", f"{plural(scene.left_out, 'pending pod')} without GPUs and without a model"))
    print_facts(out, facts, indent=13)
    print_rule(out, "before")
    if len(scene.nodes) > MOST_NODES:
        out.print(f"{len(scene.nodes)} nodes are too many to show here: see kvaware top.")
        return
    print_nodes(out, read(NodeList, extender.api.nodes()).items)


def _pods(scene: Scene) -> str:
    pods = [o for o in scene.objects if o["kind"] == "Pod"]
    finished = [p for p in pods if (p.get("status") or {}).get("phase") in {"Succeeded", "Failed"}]
    running = [p for p in pods if p not in finished and (p.get("spec") or {}).get("nodeName")]
    pending = len(scene.pending) + len(pods) - len(finished) - len(running)
    ended = f", {len(finished)} finished" if finished else ""
    return f"{plural(len(pods) + len(scene.pending), 'pod')} ({len(running)} running, {pending} pending{ended})"


def _place(
    out: Console, number: int, pod: dict[str, Any], scene: Scene, extender: Extender
) -> tuple[Explanation, Attempt]:
    """One pod: the explanation first, so that it shows the state in which the decision is made."""
    explanation = read(Explanation, extender.api.explain(pod))
    tenants = read(TenantList, extender.api.tenants()).items
    attempt = schedule(extender.verbs, pod, scene.nodes)
    print_rule(out, f"pod {number} of {len(scene.pending)}")
    print_facts(out, [*demand_facts(explanation.demand), ("quota", _quota(explanation, tenants))])
    out.print()
    if any(c.refusal is None for c in explanation.candidates):
        print_table(out, candidates_table(explanation))
        out.print()
    print_facts(
        out, [*choice_facts(explanation), *refusal_facts(explanation), *_kube_scheduler_facts(explanation, attempt)]
    )
    return explanation, attempt


def _quota(explanation: Explanation, tenants: tuple[Tenant, ...]) -> str:
    tenant = next((t for t in tenants if t.tenant == explanation.demand.tenant), None)
    if tenant is None:
        return f"no TenantQuota names namespace {explanation.demand.namespace}: no limit"
    gpus = used_of(str(tenant.used_gpus), None if tenant.limit_gpus is None else str(tenant.limit_gpus))
    hbm = used_of(gib(tenant.used_hbm_bytes), None if tenant.limit_hbm_bytes is None else gib(tenant.limit_hbm_bytes))
    return f"{gpus} GPUs, {hbm} GiB of HBM (used/limit)"


def _kube_scheduler_facts(explanation: Explanation, attempt: Attempt) -> Iterator[Fact]:
    """Where kube-scheduler's part made a difference."""
    if attempt.kept_back:
        yield "not asked", f"kept back by kube-scheduler's own rules: {', '.join(shortlist(attempt.kept_back))}"
    if attempt.bind_error:
        yield "bind", Text(f"refused: {attempt.bind_error}", style="red")
    elif attempt.node is not None and attempt.node != explanation.chosen:
        yield "bound to", f"{attempt.node}, the cheapest that kube-scheduler offered"
    elif attempt.node is None and explanation.chosen is not None:
        yield "pending", "every node that could take it is kept back"


def _tenants(out: Console, extender: Extender) -> None:
    print_rule(out, "tenants, after")
    print_tenants(out, read(TenantList, extender.api.tenants()).items)


def _emptiest(out: Console, explanations: list[Explanation]) -> None:
    print_rule(out, 'why not "the emptiest GPU"?')
    worst = dearest(explanations)
    if worst is None:
        out.print("Here the node with the most free HBM was the cheapest for every pod that was placed.")
        return
    demand = worst.explanation.demand
    out.print(f"For pod {demand.namespace}/{demand.name} the emptiest GPU was the wrong one.")
    out.print()
    pair = worst.explanation.model_copy(update={"candidates": (worst.chosen, worst.emptiest)})
    print_table(out, candidates_table(pair))
    out.print()
    terms = difference(worst.emptiest, worst.chosen, count=4)
    print_facts(out, [("there", f"{ms(worst.extra_ms)} ms more, {seconds(worst.extra_ms)} s{terms}")])
    comparisons = [c for e in explanations if (c := compare(e)) is not None]
    wrong = sum(c.emptiest.node != c.chosen.node for c in comparisons)
    out.print(f"Of {plural(len(comparisons), 'pod')} placed, {wrong} went elsewhere than to the emptiest GPU.")


def _summary(out: Console, attempts: list[Attempt], cluster: Path) -> None:
    bound = sum(attempt.node is not None for attempt in attempts)
    print_rule(out, f"{bound} placed, {len(attempts) - bound} pending")
    out.print("Try next:")
    command = program()
    steps = [
        (f"{command} extender --cluster-dir {shlex.quote(shown(cluster))} &", ""),
        (f"{command} top tenants", ""),
        (f"{command} explain -f FILE", "a dry run of your own pod, with the answers to six questions"),
        (f"{command} replay --help", "the same requests, or yours, as you want them"),
        (f"{command} demo --cluster DIR", "the same on your own YAML (kubectl get -o yaml)"),
    ]
    if (make := _make()) is not None:
        steps.append((f"{make} demo CLUSTER=real", "the same with a real kube-apiserver and kube-scheduler"))
    width = max(len(step) for step, meaning in steps if meaning)
    for step, meaning in steps:
        out.print(f"  {step:<{width}}  {meaning}".rstrip(), soft_wrap=True)  # a command is copied as one line


def _make() -> str | None:
    """``make`` where this program runs from a checkout; None: from an installed package."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "Makefile").is_file() or not (checkout / "tests" / "kvaware_testing").is_dir():
        return None
    return "make" if Path.cwd() == checkout else f"make -C {shlex.quote(str(checkout))}"
