"""The last part of ``make demo CLUSTER=real``: a model gets hot and quiet again, told by ``kubectl get im -w``."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from kvaware_cli.output import print_facts, print_rule, print_table, table
from kvaware_testing.chart import Helm
from kvaware_testing.controlplane import ControlPlane, eventually, kwok_node
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.operator_process import OperatorProcess
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.scaled_model import ScaledModel
from kvaware_testing.controlplane.workers_under_kwok import ModelServer, Worker, beating, model_server, pod_token

__all__ = ["EXTENDER_SETTINGS", "show_scaling"]

EXTENDER_SETTINGS: Final[Mapping[str, Any]] = {
    "workers": {"reportIntervalS": 2, "rateWindowS": 4},
    "workerScrape": {"intervalS": 1},
}
OPERATOR_SETTINGS: Final[Mapping[str, Any]] = {
    "pollS": 1,
    "statusIntervalS": 1,
    "scaling": {"downStepIntervalS": 1},
    "lease": {"enabled": False},
}
"""Seconds where clusters have tens of them, so that the demo is short."""
NAMESPACE: Final = "demo-scaling"
NODE_GPUS: Final = 3
"""One less than the model may have replicas: the fourth does not fit."""
MOST: Final = 4
HBM: Final = "120Gi"
QUEUE: Final = 40
SETTLED_S: Final = 60.0
POOL: Final = {"block_size": 16, "kv_blocks_total": 10_000, "running": 0, "waiting": 0, "queued_tokens": 0}


def show_scaling(out: Console, plane: ControlPlane, extender: ExtenderProcess, folder: Path) -> None:
    """Start the operator beside the extender and its kube-scheduler, and let one model have a busy minute."""
    print_rule(out, "a model gets hot, and quiet again")
    plane.apply(*Helm(plane.binaries["helm"], folder).render(more=["--show-only=templates/operator/rbac.yaml"]))
    kubeconfig = plane.service_account_kubeconfig("kvaware-system", "kvaware-operator")
    operator = OperatorProcess(folder, kubeconfig, extender.api_url, config=OPERATOR_SETTINGS)
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(plane, NAMESPACE))
        server = stack.enter_context(model_server())
        stack.callback(operator.stop)
        operator.start()
        # larger than the example's GPUs, and the model needs it: kvaware looks for room on every node, whatever
        # kube-scheduler may rule out
        node = kwok_node("demo-node", gpus=NODE_GPUS, product="NVIDIA-H200", memory_mib=143771, labels=sandbox.owner)
        plane.add_nodes([node])
        print_facts(
            out,
            [
                (
                    "model",
                    f"chat, 1 to {MOST} replicas of 1 GPU with {HBM} of HBM each; mode Auto, scale down after 2 s",
                ),
                ("room", f"demo-node, {NODE_GPUS} GPUs of 140 GiB"),
                ("processes", "kvaware operator as well, with the chart's rights"),
            ],
        )
        out.print()
        _tell(out, extender, ScaledModel(sandbox, "chat", server=server), server)


def _tell(out: Console, extender: ExtenderProcess, model: ScaledModel, server: ModelServer) -> None:
    sandbox = model.sandbox
    server.say(running=1)
    with _watched(out, sandbox):
        model.start(most=MOST, hbm=HBM)
        model.wait_figures(1, 1, 1, timeout_s=SETTLED_S)
        server.say(running=8, waiting=QUEUE)
        model.wait_ready(NODE_GPUS, timeout_s=SETTLED_S)
        model.wait_condition("HBMConstrained", timeout_s=SETTLED_S)
        model.wait_figures(MOST, NODE_GPUS, NODE_GPUS, timeout_s=SETTLED_S)
    _conditions(out, model, f"{QUEUE} requests wait at each replica")
    pods = model.pods()
    workers = [Worker(extender, pod, model=model.name, token=pod_token(sandbox.control_plane, pod)) for pod in pods]
    figures = {
        worker.id: {**POOL, "kv_blocks_free": 9_900 if place == 1 else 9_000 - 100 * place}
        for place, worker in enumerate(workers)
    }
    server.broken = True  # from here on the replicas tell by heartbeats, each of its own cache
    with beating(workers, figures):
        # one is kept more than the load needs, for long enough to look at them
        plane = sandbox.control_plane
        plane.apply(model.manifest(least=NODE_GPUS, most=MOST, hbm=HBM))
        model.wait_figures(NODE_GPUS, NODE_GPUS, NODE_GPUS, timeout_s=SETTLED_S)  # else its first lines tell of before
        eventually(lambda: _valued(extender, model) == NODE_GPUS, SETTLED_S, "every worker told what it holds")
        _workers(out, extender, model)
        with _watched(out, sandbox):
            plane.apply(model.manifest(least=1, most=MOST, hbm=HBM))
            eventually(lambda: len(model.pods()) == NODE_GPUS - 1, SETTLED_S, "the first replica went")
            (gone,) = {pod["metadata"]["name"] for pod in pods} - model.pod_names()
            model.wait_ready(1, timeout_s=SETTLED_S)
            model.wait_figures(1, 1, 1, timeout_s=SETTLED_S)
    out.print()
    print_facts(out, [("first went", f"{gone}, whose cache was worth least")])
    _conditions(out, model, "nothing waits")


@contextlib.contextmanager
def _watched(out: Console, sandbox: Sandbox) -> Iterator[None]:
    """Print what ``kubectl get im -w`` prints, as it comes."""
    plane = sandbox.control_plane
    command = [str(plane.binaries["kubectl"]), f"--kubeconfig={plane.admin_kubeconfig}"]
    command += ["get", "im", "-w", "-n", sandbox.namespace]
    out.print(f"$ kubectl get im -w -n {sandbox.namespace}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watch:
        stdout = watch.stdout
        assert stdout is not None

        def read() -> None:
            before = ""
            for line in stdout:
                told = line.rstrip().rsplit(maxsplit=1)[0]  # the age differs each time
                if told != before:
                    out.out(line.rstrip())
                before = told

        thread = threading.Thread(target=read, name="kubectl-get-im")
        thread.start()
        try:
            yield
        finally:
            watch.terminate()
            thread.join()


def _conditions(out: Console, model: ScaledModel, when: str) -> None:
    out.print()
    out.print(f"conditions while {when}:")
    listing = table("TYPE", "STATUS", "REASON", "MESSAGE", wrap=frozenset({"MESSAGE"}))
    for type_, one in model.conditions().items():
        listing.add_row(type_, one["status"], one["reason"], one["message"])
    print_table(out, listing)
    print_facts(out, [("why", model.role().get("message", ""))])
    out.print()


def _valued(extender: ExtenderProcess, model: ScaledModel) -> int:
    return sum(1 for worker in _told(extender, model) if worker["cache_value_ms"] is not None)


def _workers(out: Console, extender: ExtenderProcess, model: ScaledModel) -> None:
    listing = table("WORKER", "KV BLOCKS HELD", "CACHE VALUE", right=frozenset({"KV BLOCKS HELD", "CACHE VALUE"}))
    for one in _told(extender, model):
        held = one["kv_blocks_total"] - one["kv_blocks_free"]
        listing.add_row(one["worker"], f"{held:,}", f"{one['cache_value_ms'] / 1000:,.2f} s")
    print_table(out, listing)
    out.print()


def _told(extender: ExtenderProcess, model: ScaledModel) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = extender.get(f"/v1/workers?model={NAMESPACE}/{model.name}")["items"]
    return found
