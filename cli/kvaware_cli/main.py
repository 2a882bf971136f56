"""The ``kvaware`` command, also installed as ``kubectl-kvaware``: options in, one clear line when something is wrong.

What is heavy (the Kubernetes client, the generator of the CRDs) is imported by the command that needs it: ``--help``
answers at once.
"""

import io
import os
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from kvaware_cli.client import DEFAULT_SERVER
from kvaware_cli.errors import InputError
from kvaware_cli.program import is_plugin
from kvaware_crds.errors import ConfigError, KvawareError
from kvaware_crds.v1alpha1.inference_model import PolicyName

__all__ = ["app", "main"]


def _lines(title: str, *lines: str) -> str:
    """An epilog whose lines stand as they are: that is what the backspace character says to click."""
    return "\n".join(("\b", f"{title}:", *(f"  {line}" for line in lines)))


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, the same on a terminal and in a pipe
    context_settings={"max_content_width": 100},
    epilog=_lines(
        "First steps",
        "kvaware demo                                      watch an example cluster",
        "kvaware crds | kubectl apply --server-side -f -   install the API types",
        "kvaware explain pod ml/llama-70b-0                why there, or why pending?",
    )
    + "\n\nDocumentation: README.md and docs/ of the checkout; why a pod is pending: docs/why-is-my-pod-pending.md.",
)

Server = Annotated[
    str, typer.Option("--server", envvar="KVAWARE_SERVER", metavar="URL", help="Where the extender's API listens.")
]


class Format(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Subject(StrEnum):
    """What ``top`` shows."""

    NODES = "nodes"
    TENANTS = "tenants"
    WORKERS = "workers"
    MODELS = "models"


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 wrong use."""
    program = "kubectl kvaware" if is_plugin(sys.argv[0]) else "kvaware"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII locale shows ? for an arrow, not a traceback
    try:
        try:
            app(prog_name=program)
        finally:
            sys.stdout.flush()  # here, where a full disk can still be told in words
    except ConfigError as e:
        _fail(program, str(e), code=2)
    except KvawareError as e:
        _fail(program, str(e), code=1)
    except BrokenPipeError:
        _abandon_output()  # `kvaware top | head`: the reader has what it wanted
        sys.exit(1)
    except OSError as e:
        # A full disk above all. Files that the user named are reported where they are read.
        _abandon_output()
        where = "" if e.filename is None else f" ({e.filename})"
        _fail(program, f"cannot write: {e.strerror or e}{where}", code=1)


def _abandon_output() -> None:
    """What is still buffered goes nowhere: the interpreter would try again at its end, and fail with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(program: str, message: str, *, code: int) -> None:
    sys.stderr.write(f"{program}: error: {message}\n")
    sys.exit(code)


def _show_version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"kvaware {version('kvaware')}")
        raise typer.Exit


@app.callback()
def kvaware(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=lambda asked: _show_version(asked=asked), help="Show it."),
    ] = False,
) -> None:
    """Place LLM inference pods by HBM headroom, KV cache location and tenant quota, and say why.

    kvaware is an extender of kube-scheduler: it refuses nodes on which a model server would not fit, prefers the node
    where the pod is ready soonest at the least cost to others, and writes a reservation with every binding.
    """


@app.command(
    epilog=_lines(
        "Examples",
        "kvaware extender --kubeconfig ~/.kube/config",
        "kvaware extender --cluster-dir examples/cluster",
    )
)
def extender(
    *,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings, YAML (docs/settings.md); KVAWARE_* variables win.")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Credentials for the API server. [default: the pod's account, else yours]"),
    ] = None,
    cluster_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Serve a folder of YAML, read once at start, instead of a Kubernetes cluster."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where the API listens. [default: 127.0.0.1]")
    ] = None,
    api_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="PORT", help="Its port: /v1, /metrics, /livez, /readyz. [default: 8900]"
        ),
    ] = None,
    scheduler_host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Where kube-scheduler's verbs are answered. Whoever reaches it can place pods: keep it on loopback. "
            "[default: 127.0.0.1]",
        ),
    ] = None,
    scheduler_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Its port. [default: 8901]")
    ] = None,
) -> None:
    """Run the scheduler extender until it is stopped.

    kube-scheduler calls filter, prioritize and bind on the scheduler port; whoever reaches that port can place pods, so
    it listens on loopback by default. People and Prometheus use the API port. What it knows comes from the API server
    (nodes, pods, InferenceModels, KVCacheBlockGroups, TenantQuotas) and from the DCGM exporters.
    """
    from kvaware_cli.extender_command import run  # noqa: PLC0415 - the Kubernetes client takes a second to import

    run(
        config=config, kubeconfig=kubeconfig, cluster_dir=cluster_dir,
        host=host, api_port=api_port, scheduler_host=scheduler_host, scheduler_port=scheduler_port,
    )  # fmt: skip


@app.command(
    epilog=_lines(
        "Example", "kvaware operator --kubeconfig ~/.kube/config --extender-url http://127.0.0.1:8900 --no-lease"
    )
)
def operator(
    *,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings, YAML (docs/operator-settings.md); KVAWARE_* variables win."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Credentials for the API server. [default: the pod's account, else yours]"),
    ] = None,
    extender_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The extender's API. [default: http://127.0.0.1:8900]")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where probes and metrics are answered. [default: 127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="Its port: /metrics, /livez, /readyz. [default: 8902]"),
    ] = None,
    lease: Annotated[
        bool | None,
        typer.Option("--lease/--no-lease", help="Whether to act only while holding the Lease kvaware-operator."),
    ] = None,
) -> None:
    """Run the operator until it is stopped.

    It scales the workloads of InferenceModels by their load, within bounds and where HBM has room, lets the replica
    with the least valuable KV cache go first, and writes the status of InferenceModels, KVCacheBlockGroups and
    TenantQuotas. Loads come from the extender. Of several operators one acts: the holder of the lease.
    """
    from kvaware_cli.operator_command import run  # noqa: PLC0415 - kopf and the Kubernetes client take a second to import

    run(config=config, kubeconfig=kubeconfig, extender_url=extender_url, host=host, port=port, lease=lease)


@app.command(epilog=_lines("Example", "kvaware crds | kubectl apply --server-side -f -"))
def crds() -> None:
    """Print the CustomResourceDefinitions of this version as YAML."""
    from kvaware_cli.crds_command import crd_yaml  # noqa: PLC0415 - builds every schema at import

    typer.echo(crd_yaml(), nl=False)


@app.command(
    short_help="Place example pods and requests, or your pods, and show every decision.",
    epilog=_lines(
        "Examples",
        "kvaware demo",
        "kubectl get nodes,pods,im,kvbg,tq -A -o yaml > mine/cluster.yaml",
        "kvaware demo --cluster mine",
    ),
)
def demo(
    *,
    cluster: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of YAML. [default: the example cluster]")
    ] = None,
    pods: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Pods to place. [default: the example pods; with --cluster, its pending pods]"
        ),
    ] = None,
    replay: Annotated[
        bool | None,
        typer.Option(
            "--replay/--no-replay",
            help="Whether recorded requests are placed then, as 'kvaware replay' does: some 35 s. [default: without "
            "--cluster]",
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="No colour and 100 columns, wherever it goes.")] = False,
) -> None:
    """Place pods on a cluster described by YAML, and show every decision.

    Starts the real extender on free ports of 127.0.0.1 and speaks to it as kube-scheduler does (filter, prioritize,
    bind). All figures come from the folder: nodes, running pods, InferenceModels, KVCacheBlockGroups, TenantQuotas, and
    dcgm/NODE.txt, the text of a node's DCGM exporter. Nothing outside this machine is touched.

    Then a piece of a real trace is sent through every policy that chooses workers for requests: see kvaware replay.
    """
    from kvaware_cli.demo.run import run_demo  # noqa: PLC0415 - only the demo starts processes
    from kvaware_cli.replay_command import example_trace  # noqa: PLC0415 - as above

    with_requests = cluster is None if replay is None else replay
    run_demo(cluster=cluster, pods=pods, trace=example_trace() if with_requests else None, plain=plain)


@app.command(
    short_help="Send recorded requests through every policy, and compare.",
    epilog=_lines(
        "Examples",
        "kvaware replay",
        "kvaware replay --policy cost --policy least_loaded --seconds 60",
        "kvaware replay --trace conversation_trace.jsonl --requests 2000 --seconds 300",
    ),
)
def replay(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A trace in Mooncake's format. [default: the example, 397 requests]"),
    ] = None,
    policy: Annotated[
        list[PolicyName] | None,
        typer.Option("--policy", help="May be given several times. [default: all five]"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Modelled workers per policy.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="The arrivals are packed into so long.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals: the same seed gives the same.")] = 1,
    requests: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the trace's first N requests. [default: all]")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="No colour and 100 columns, wherever it goes.")] = False,
) -> None:
    """Send recorded requests through the real extender under each policy, and compare hit rate and time to first token.

    Starts the extender on free ports of 127.0.0.1. Each policy has a model and workers of its own, and gets the same
    requests at the same times. The workers are modelled: an LRU prefix cache over a KV pool, prefill one request after
    another, batched decode, all at the speed of a hardware profile, the one by which the extender judges them too.

    Time is real time, since the extender lives by the clock: heartbeats, events and arrivals come when they would. Only
    the gaps between arrivals are shortened, by one factor, so that minutes of a trace become a busy half minute; a turn
    of a conversation may so come before the answer to the one before it. After the last arrival the workers run to
    their end at once. A busy machine makes requests late, which is said, but not the modelled workers slow.
    """
    from kvaware_cli import replay_command  # noqa: PLC0415 - only a replay models workers

    replay_command.run(
        trace=trace, policies=policy, workers=workers, within_s=seconds, seed=seed, requests=requests, plain=plain
    )


@app.command(
    epilog=_lines(
        "Examples",
        "kvaware explain -f pod.yaml",
        "kvaware explain pod ml/llama-70b-0",
        "kvaware explain pod llama-70b-0 -n ml -o yaml",
        "kvaware explain placement/4f1c-2a",
    )
)
def explain(
    kind: Annotated[
        str | None, typer.Argument(metavar="pod|placement", help="The word pod, or placement, of a request.")
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAMESPACE/NAME|ID", help="A pod of the cluster, or a placement's id.")
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--filename", "-f", metavar="FILE", help="A pod, or a workload with a pod template; - is stdin."),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="For a name without one.")
    ] = "default",
    output: Annotated[Format, typer.Option("--output", "-o", help="How to print it.")] = Format.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Say where a pod goes and why, or why it is pending; or why a request went to its worker.

    With -f it is a dry run: the pod need not exist and nothing is reserved. Costs are milliseconds of delay to this pod
    and to those around it, by the same cost model that places pods: loading weights, moving or recomputing KV cache,
    what large models lose by it, doubt about the node. HBM figures are the GPUs' size less reservations and less what
    the DCGM exporter shows in use. A placement is explained as it was decided, from what was known then; its id is in
    the answer of /v1/placements, in the header x-kvaware-placement-id and in the log of decisions.
    """
    from kvaware_cli import explain_command  # noqa: PLC0415 - rich and pydantic only where something is shown

    if file is not None:
        if kind is not None:
            raise InputError(f"expected either -f FILE or what to explain, got both (-f {file} and {kind!r})")
        explain_command.explain_file(file, server=server, output=output)
        return
    placement_id = _placement_named(kind, name)
    if placement_id is not None:
        explain_command.explain_placement(placement_id, server=server, output=output)
        return
    explain_command.explain_pod(_pod_named(kind, name, namespace), server=server, output=output)


def _placement_named(kind: str | None, name: str | None) -> str | None:
    """The id from ``placement ID`` or ``placement/ID``; None: it is no placement that was asked for."""
    if kind is not None and name is None and kind.startswith("placement/"):
        kind, _, name = kind.partition("/")
    if kind != "placement":
        return None
    if not name:
        raise InputError("expected 'placement ID' or 'placement/ID', got no ID")
    return name


def _pod_named(kind: str | None, name: str | None, namespace: str) -> tuple[str, str]:
    """Namespace and name from ``pod ns/name``, ``pod name`` or ``pod/name``."""
    if kind is not None and name is None and kind.startswith(("pod/", "pods/")):
        kind, _, name = kind.partition("/")
    if kind not in {"pod", "pods", "po"} or not name:
        got = " ".join(part for part in (kind, name) if part) or "nothing"
        raise InputError(f"expected -f FILE, 'pod NAMESPACE/NAME' or 'placement ID', got {got}")
    before, slash, after = name.partition("/")
    if slash and (not before or not after or "/" in after):
        raise InputError(f"expected a pod as NAMESPACE/NAME, got {name!r}")
    return (before, after) if slash else (namespace, name)


@app.command(
    short_help="Show HBM headroom per node, use per tenant, or what workers and models have to do.",
    epilog=_lines("Examples", "kvaware top", "kvaware top tenants", "kvaware top models", "kvaware top nodes -o json"),
)
def top(
    subject: Annotated[Subject, typer.Argument(help="What to show.")] = Subject.NODES,
    *,
    output: Annotated[Format, typer.Option("--output", "-o", help="How to print it.")] = Format.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show HBM headroom per node, use per tenant against its limits, or what workers and models have to do.

    HBM figures are per GPU where they say so: a pod must fit on one GPU, so the sum over a node tells little. "free" is
    what one more pod is sure to get; "foreign" is in use, by the DCGM exporter, without a reservation. What workers and
    models have to do comes from the workers' own metrics and heartbeats; ? is unknown, which is not 0.
    """
    from kvaware_cli import top_command, top_load  # noqa: PLC0415 - rich and pydantic only where something is shown

    match subject:
        case Subject.NODES:
            top_command.top_nodes(server, output=output)
        case Subject.TENANTS:
            top_command.top_tenants(server, output=output)
        case Subject.WORKERS:
            top_load.top_workers(server, output=output)
        case Subject.MODELS:
            top_load.top_models(server, output=output)
