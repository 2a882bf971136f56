"""The operator with 1,000 InferenceModels and 5,000 pods on a real API server.

Named so, and not ``operator.py``: this folder is on the path of ``run.py``, and that name is the standard library's.
"""

import contextlib
import http.client
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil
from prometheus_client.parser import text_string_to_metric_families
from report import Row

from kvaware_crds import render_crds
from kvaware_testing.chart import Helm
from kvaware_testing.controlplane import ControlPlane, Process, eventually, free_ports, obtain
from kvaware_testing.controlplane.bulk import Write, send_all
from kvaware_testing.controlplane.operator_process import OperatorProcess
from kvaware_testing.controlplane.scaled_model import inference_model
from kvaware_testing.repository import REPOSITORY

__all__ = ["measure_operator"]

MODELS, REPLICAS, NAMESPACES = 1_000, 5, 10
POLL_S = 10.0
"""``pollS``, the default."""
IDLE_S = 30.0
CHANGED = 12
"""Models whose load changes, one after another."""
MERGE_PATCH = "application/merge-patch+json"
RUNNING = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "Ready")],
    "containerStatuses": [
        {
            "name": "server",
            "image": "registry.invalid/server:1",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
    ],
}
RECONCILE_S, IDLE_PER_S, RSS_MB, REACTION_S = 30.0, 1.0, 250.0, POLL_S + 1.0


def measure_operator() -> list[Row]:
    """Run everything. Takes some four minutes once the control plane's programs are built."""
    with (
        tempfile.TemporaryDirectory(prefix="kvaware-bench-") as name,
        ControlPlane(Path(name) / "plane", obtain(report=print), client_qps=5_000) as plane,
    ):
        folder = Path(name)
        _fill(plane, folder)
        (port,) = free_ports(1)
        loads = f"http://127.0.0.1:{port}"
        told = _told_loads(folder, port, f"{loads}/readyz")
        told.start()
        told.wait_ready()
        operator = OperatorProcess(
            folder,
            plane.service_account_kubeconfig("kvaware-system", "kvaware-operator"),
            loads,
            config={"lease": {"namespace": "kvaware-system"}},
        )
        try:
            return _measure(plane, operator, loads)
        except AssertionError as error:
            error.add_note(operator.process.tail(6000))  # its log goes with the folder
            raise
        finally:
            operator.stop()
            told.stop()


def _measure(plane: ControlPlane, operator: OperatorProcess, loads: str) -> list[Row]:
    bare_s = _bare(plane)
    without_s = _requests_per_s(plane, IDLE_S / 2)
    began_s = time.monotonic()
    operator.process.start()
    with _watching(plane, "/apis/kvaware.io/v1alpha1/inferencemodels", _said) as said_at_s:
        eventually(lambda: len(said_at_s) == MODELS, 180, "every model's status is written")
    reconciled_s = max(said_at_s.values()) - began_s
    operator.process.wait_ready()
    assert operator.process.pid is not None
    process = psutil.Process(operator.process.pid)
    time.sleep(2 * POLL_S)  # two polls: what the first loads still bring about is written
    busy_s = sum(process.cpu_times()[:2])
    idle_per_s = _requests_per_s(plane, IDLE_S) - without_s
    cpu_ratio = (sum(process.cpu_times()[:2]) - busy_s) / IDLE_S
    reactions_s = _reactions(plane, loads)
    rss_mb = process.memory_info().rss / 1e6
    size = f"{MODELS:,} models, {MODELS * REPLICAS:,} pods"
    return [
        Row(
            name=f"operator, reconcile of all from start, {size}",
            value=reconciled_s,
            unit="s",
            against="bare reads and writes",
            ratio=reconciled_s / bare_s,
            reach=f"<= {RECONCILE_S:g} s",
            ok=reconciled_s <= RECONCILE_S,
        ),
        _row(f"operator, idle requests beyond watches, {size}", max(0.0, idle_per_s), "1/s", IDLE_PER_S),
        _row(f"operator, RSS, {size}", rss_mb, "MB", RSS_MB),
        _row(f"operator, slowest reaction to a load change, poll {POLL_S:g} s", max(reactions_s), "s", REACTION_S),
        Row(
            name="operator, CPU while idle",
            value=cpu_ratio,
            unit="cores",
            against="",
            ratio=None,
            reach="no target",
            ok=True,
        ),
    ]


def _row(name: str, value: float, unit: str, most: float) -> Row:
    return Row(name=name, value=value, unit=unit, against="", ratio=None, reach=f"<= {most:g} {unit}", ok=value <= most)


# -- the cluster ----------------------------------------------------------------------------------------------------


def _fill(plane: ControlPlane, folder: Path) -> None:
    """Models, their Deployments and their Ready pods, written by hand: nobody but API server and etcd runs.

    Their players need minutes for so many, and would take the cores from what is measured.
    """
    plane.apply_text("---\n".join(render_crds().values()))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    plane.apply(*Helm(plane.binaries["helm"], folder).render(more=["--show-only=templates/operator/rbac.yaml"]))
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/kvaware-operator-aggregated"
    eventually(lambda: plane.read(role).get("rules"), 30, "the controller manager has filled in the operator's rights")
    for program in ("kwok", "kube-controller-manager", "kube-scheduler"):
        plane.stop(program)
    names = [f"team-{index}" for index in range(NAMESPACES)]
    plane.create(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names))
    everything = [(f"m{number}", names[number % NAMESPACES]) for number in range(MODELS)]
    creates: list[Write] = []
    states: list[Write] = []
    for name, namespace in everything:
        models = f"/apis/kvaware.io/v1alpha1/namespaces/{namespace}/inferencemodels"
        deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        creates += [
            Write("POST", models, _model(name, namespace)),
            Write("POST", deployments, _deployment(name, namespace)),
        ]
        there = {"replicas": REPLICAS, "readyReplicas": REPLICAS, "availableReplicas": REPLICAS}
        states.append(Write("PATCH", f"{deployments}/{name}/status", {"status": there}, MERGE_PATCH))
        for index in range(REPLICAS):
            pods = f"/api/v1/namespaces/{namespace}/pods"
            creates.append(Write("POST", pods, _pod(name, namespace, index)))
            states.append(Write("PATCH", f"{pods}/{name}-{index}/status", {"status": RUNNING}, MERGE_PATCH))
    send_all(plane.api_url, creates, tls=plane.admin_tls)
    send_all(plane.api_url, states, tls=plane.admin_tls)


def _template(name: str) -> dict[str, Any]:
    labels = {"app": name, "kvaware.io/model": name, "kvaware.io/role": "both"}
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    server = {"name": "server", "image": "registry.invalid/server:1", "resources": {"limits": limits}}
    return {"metadata": {"labels": labels}, "spec": {"containers": [server]}}


def _deployment(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": {"app": name}}, "template": _template(name)},
    }


def _pod(name: str, namespace: str, index: int) -> dict[str, Any]:
    template = _template(name)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"rs-{name}", "controller": True}
    metadata = {"name": f"{name}-{index}", "namespace": namespace, "ownerReferences": [owner], **template["metadata"]}
    spec = {**template["spec"], "nodeName": f"n{index}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _model(name: str, namespace: str) -> dict[str, Any]:
    target = ("apps/v1", "Deployment", name)
    windows = {"scaleUp": "0s", "scaleDown": "5m"}
    return inference_model(name, namespace, target=target, least=REPLICAS, most=4 * REPLICAS, windows=windows)


def _said(model: dict[str, Any]) -> bool:
    """Whether the model's status is whole."""
    status = model.get("status", {})
    accepted = any(one["type"] == "Accepted" for one in status.get("conditions", ()))
    return accepted and status.get("readyReplicas") == REPLICAS


# -- the figures ----------------------------------------------------------------------------------------------------


def _bare(plane: ControlPlane) -> float:
    """Seconds that the least takes which the operator must do: read each scale, write each status."""
    requests: list[Write] = []
    for number in range(MODELS):
        name, namespace = f"m{number}", f"team-{number % NAMESPACES}"
        requests += [
            Write("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale", {}),
            Write(
                "PATCH",
                f"/apis/kvaware.io/v1alpha1/namespaces/{namespace}/inferencemodels/{name}/status",
                {"status": {"replicas": 0}},
                MERGE_PATCH,
            ),
        ]
    began_s = time.monotonic()
    send_all(plane.api_url, requests, tls=plane.admin_tls)
    return time.monotonic() - began_s


def _requests_per_s(plane: ControlPlane, seconds: float) -> float:
    """Requests about resources that the API server answered, watches left out, by its own count."""
    before, began_s = _requests(plane), time.monotonic()
    time.sleep(seconds)
    return (_requests(plane) - before) / (time.monotonic() - began_s)


def _requests(plane: ControlPlane) -> float:
    text = plane.kubectl("get", "--raw", "/metrics").stdout
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "apiserver_request"
        for sample in family.samples
        if sample.name == "apiserver_request_total"
        and sample.labels.get("resource")
        and sample.labels.get("verb") not in {"WATCH", "CONNECT"}
    )


def _reactions(plane: ControlPlane, loads: str) -> list[float]:
    """Seconds from a change of a model's load to the new number at its Deployment, at moments all over the poll."""
    rng = random.Random(7)  # noqa: S311  which models: not a secret
    told_at_s: dict[str, float] = {}
    with _watching(plane, "/apis/apps/v1/deployments", lambda one: one["spec"]["replicas"] > REPLICAS) as scaled_at_s:
        for number in rng.sample(range(MODELS), CHANGED):
            name, namespace = f"m{number}", f"team-{number % NAMESPACES}"
            told_at_s[f"{namespace}/{name}"] = time.monotonic()
            _tell(f"{loads}/told/{namespace}/{name}", waiting=400)
            time.sleep(POLL_S / CHANGED)  # spreads the changes over one poll
        eventually(lambda: len(scaled_at_s) == CHANGED, 3 * POLL_S, "every change is followed")
    return [scaled_at_s[key] - at_s for key, at_s in told_at_s.items()]


@contextlib.contextmanager
def _watching(
    plane: ControlPlane, path: str, wanted: Callable[[dict[str, Any]], bool]
) -> Iterator[Mapping[str, float]]:
    """Note when each object was first seen as wanted: ``namespace/name`` to monotonic seconds."""
    found: dict[str, float] = {}
    since = json.loads(plane.kubectl("get", "--raw", f"{path}?limit=1").stdout)["metadata"]["resourceVersion"]
    host = urlsplit(plane.api_url)
    connection = http.client.HTTPSConnection(host.netloc, context=plane.admin_tls)
    connection.request("GET", f"{path}?watch=1&resourceVersion={since}&timeoutSeconds=600")
    reply = connection.getresponse()
    assert reply.status == 200, reply.read(500)

    def read() -> None:
        # ValueError, AttributeError: what http.client makes of a connection that is closed under it
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            for line in reply:
                one = orjson.loads(line)["object"]
                if wanted(one):
                    found.setdefault(f"{one['metadata']['namespace']}/{one['metadata']['name']}", time.monotonic())

    thread = threading.Thread(target=read, name="watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        connection.close()


def _tell(url: str, **load: int) -> None:
    request = urllib.request.Request(url, data=json.dumps(load).encode(), method="POST")  # noqa: S310  own URL
    with urllib.request.urlopen(request, timeout=5):  # noqa: S310  own URL
        pass


def _told_loads(folder: Path, port: int, ready_url: str) -> Process:
    return Process(
        "told-loads",
        [sys.executable, REPOSITORY / "tests" / "bench" / "told_loads.py", "--port", str(port)],
        log=folder / "told-loads.log",
        ready_url=ready_url,
        environ={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")},
    )
