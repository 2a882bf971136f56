"""``make demo CLUSTER=real``: the example cluster on a real control plane, its pods placed by a real kube-scheduler.

Real are etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kvaware's extender and operator, each with an
account of its own. The kubelets are kwok's, and the DCGM exporters are small servers here that say what
``examples/cluster/dcgm`` holds. At the end a model gets hot and quiet again (``scaling_demo``).
"""

import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from kvaware_cli.client import ApiClient
from kvaware_cli.demo.scene import Scene, read_scene
from kvaware_cli.explain_view import candidates_table, choice_facts, demand_facts, refusal_facts
from kvaware_cli.output import console, print_facts, print_rule, print_table
from kvaware_cli.top_command import print_nodes, print_tenants
from kvaware_cli.wire import Explanation, NodeList, TenantList, read
from kvaware_crds import ANNOTATION_RESERVATION, render_crds
from kvaware_testing.controlplane import (
    BuildFailedError,
    ControlPlane,
    UnavailableError,
    eventually,
    obtain,
)
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.repository import REPOSITORY
from kvaware_testing.scaling_demo import EXTENDER_SETTINGS, show_scaling

__all__ = ["main"]

EXAMPLES: Final = REPOSITORY / "examples"
SETTLED_S: Final = 30.0
"""For what takes a second or two on an idle machine."""
EXPORTER_NAMESPACE: Final = "gpu-operator"


def main() -> int:
    """Run the demo.

    Returns: The exit status.
    """
    out = console()
    try:
        binaries = obtain(report=out.print)
    except (UnavailableError, BuildFailedError) as error:
        sys.stderr.write(f"make demo CLUSTER=real: {error}\n")
        return 1
    began_s = time.monotonic()
    scene = read_scene(EXAMPLES / "cluster", EXAMPLES / "pods")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvaware-real-demo-")))
        out.print("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok")
        plane = stack.enter_context(ControlPlane(folder, binaries))
        _fill(out, plane, scene, stack)
        extender = ExtenderProcess(
            folder,
            plane.service_account_kubeconfig("kvaware-system", "kvaware-extender"),
            config={"store": {"dcgm": {"intervalS": 1}}, **EXTENDER_SETTINGS},
        )
        stack.callback(extender.stop)
        out.print("starting kvaware extender and kvaware's kube-scheduler, each with the rights of its ServiceAccount")
        extender.start()
        api = ApiClient(extender.api_url)
        _wait_for_exporters(api, scene)
        plane.start_scheduler(extender.scheduler_url)
        print_rule(out, "before")
        print_nodes(out, read(NodeList, api.nodes()).items)
        for number, pod in enumerate(scene.pending, start=1):
            print_rule(out, f"pod {number} of {len(scene.pending)}")
            _place(out, plane, api, pod)
        print_rule(out, "where the pods are")
        columns = "NAMESPACE:.metadata.namespace,POD:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName"
        out.out(plane.kubectl("get", "pods", "-A", f"--output=custom-columns={columns}", _SELECTOR).stdout.rstrip())
        out.print()
        print_tenants(out, read(TenantList, api.tenants()).items)
        show_scaling(out, plane, extender, folder)
    out.print()
    out.print(f"All processes are stopped again. It took {time.monotonic() - began_s:.0f} s.")
    return 0


# -- the example, as an API server takes it -------------------------------------------------------------------------

_LABEL: Final = "kvaware-demo/place"
_SELECTOR: Final = f"--selector={_LABEL}=true"
_NEVER_READY: Final = frozenset({"h100-b7"})
"""kwok's kubelets are always well: a node that is not Ready cannot be shown here."""


def _fill(out: Console, plane: ControlPlane, scene: Scene, stack: contextlib.ExitStack) -> None:
    """Bring in CRDs, nodes, running pods, our objects with their status, and exporters."""
    out.print("applying the CRDs and the example cluster (without h100-b7: kwok's nodes are always Ready)")
    plane.apply_text("---\n".join(render_crds().values()))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in scene.objects:
        by_kind.setdefault(document["kind"], []).append(document)
    every = [*scene.objects, *scene.pending]
    namespaces = {o["metadata"]["namespace"] for o in every if "namespace" in o["metadata"]} | {EXPORTER_NAMESPACE}
    plane.create(
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in sorted(namespaces))
    )
    nodes = [_as_new(node) for node in by_kind["Node"] if node["metadata"]["name"] not in _NEVER_READY]
    for node in nodes:  # Ready is said by the (fake) kubelet
        node["status"] = {key: value for key, value in node["status"].items() if key != "conditions"}
    plane.add_nodes(nodes)
    for kind in ("InferenceModel", "TenantQuota", "KVCacheBlockGroup"):
        for document in by_kind.get(kind, []):
            plane.create(_as_new(document))
            if "status" in document:
                _write_status(plane, document)
    for pod in by_kind["Pod"]:
        _start(plane, pod)
    texts = {path.stem: path.read_text("utf-8") for path in (EXAMPLES / "cluster" / "dcgm").glob("*.txt")}
    ports = stack.enter_context(_exporters(texts))
    plane.create(*(_exporter_pod(node, port) for node, port in ports.items()))


def _as_new(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only an API server may say."""
    metadata = {key: value for key, value in document["metadata"].items() if key not in {"uid", "resourceVersion"}}
    return {**document, "metadata": metadata}


def _write_status(plane: ControlPlane, document: Mapping[str, Any]) -> None:
    metadata = document["metadata"]
    plane.kubectl(
        "patch",
        f"{document['kind'].lower()}s.kvaware.io",
        metadata["name"],
        *(("-n", metadata["namespace"]) if "namespace" in metadata else ()),
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": document["status"]}),
    )


def _start(plane: ControlPlane, pod: Mapping[str, Any]) -> None:
    """A pod that runs already. Its reservation must name the UID that the API server gave it."""
    new = _as_new(pod)
    annotations = dict(new["metadata"].pop("annotations", {}))
    reservation = annotations.pop(ANNOTATION_RESERVATION, None)
    status = new.pop("status", {})
    new["metadata"]["annotations"] = annotations
    finished = status.get("phase") == "Succeeded"
    if finished:  # kwok leaves pods of this label alone
        new["metadata"]["labels"] = {**new["metadata"].get("labels", {}), "kvaware-test/start": "never"}
    plane.create(new)
    where = ["-n", new["metadata"]["namespace"], new["metadata"]["name"]]
    if finished:
        plane.kubectl(
            "patch", "pod", *where, "--subresource=status", "-p", json.dumps({"status": {"phase": "Succeeded"}})
        )
    if reservation is not None:
        uid = plane.get_json("pod", *where)["metadata"]["uid"]
        text = json.dumps({**json.loads(reservation), "decision_id": f"{uid}-1"})
        plane.kubectl("annotate", "pod", *where, f"{ANNOTATION_RESERVATION}={text}")


def _exporter_pod(node: str, port: int) -> dict[str, Any]:
    """With the host's network: its address is the node's, which kwok makes 127.0.0.1."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"dcgm-exporter-{node}",
            "namespace": EXPORTER_NAMESPACE,
            "labels": {"app": "nvidia-dcgm-exporter"},
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "containers": [
                {"name": "exporter", "image": "dcgm-exporter", "ports": [{"name": "metrics", "containerPort": port}]}
            ],
        },
    }


@contextlib.contextmanager
def _exporters(texts: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Serve each node's text on a port of its own; node to port."""
    servers = {node: _exporter(text) for node, text in sorted(texts.items())}
    threads = [threading.Thread(target=s.serve_forever, name=f"exporter-{n}") for n, s in servers.items()]
    for thread in threads:
        thread.start()
    try:
        yield {node: server.server_address[1] for node, server in servers.items()}
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def _exporter(text: str) -> ThreadingHTTPServer:
    body = text.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's signature
            """Quiet."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _wait_for_exporters(api: ApiClient, scene: Scene) -> None:
    texts = {path.stem for path in (scene.exporter_texts or Path()).glob("*.txt")}

    def all_heard() -> bool:
        heard = {node.name for node in read(NodeList, api.nodes()).items if node.use_age_s is not None}
        assert texts <= heard, f"not yet heard: {sorted(texts - heard)}"
        return True

    eventually(all_heard, SETTLED_S, "every exporter was scraped")


# -- one pod after another ------------------------------------------------------------------------------------------


def _place(out: Console, plane: ControlPlane, api: ApiClient, pod: Mapping[str, Any]) -> None:
    """Create it, wait for the scheduler's verdict, and show kvaware's."""
    dry_run = read(Explanation, api.explain(pod))
    new = _as_new(pod)
    new["metadata"]["labels"] = {**new["metadata"].get("labels", {}), _LABEL: "true"}
    plane.create(new)
    namespace, name = new["metadata"]["namespace"], new["metadata"]["name"]

    def verdict() -> dict[str, Any]:
        found: dict[str, Any] = plane.get_json("pod", "-n", namespace, name)
        conditions = _conditions(found)
        assert found["spec"].get("nodeName") or conditions.get("PodScheduled", {}).get("status") == "False"
        return found

    found = eventually(verdict, SETTLED_S, f"kube-scheduler decided about pod {namespace}/{name}")
    print_facts(out, demand_facts(dry_run.demand))
    out.print()
    if any(c.refusal is None for c in dry_run.candidates):
        print_table(out, candidates_table(dry_run))
        out.print()
    node = found["spec"].get("nodeName")
    facts: Sequence[tuple[str, str | Text]]
    if node:
        recorded = read(Explanation, api.explanation(namespace, name))
        # With one node left kube-scheduler asks for no ranking: no choice was recorded, the dry run's is the same.
        choice = choice_facts(recorded if recorded.chosen is not None else dry_run)
        facts = [("bound to", Text(node, style="bold green")), *choice, *refusal_facts(dry_run)]
    else:
        message = _conditions(found)["PodScheduled"].get("message", "")
        facts = [*choice_facts(dry_run), ("scheduler", message)]
        if dry_run.candidates and len({c.refusal for c in dry_run.candidates}) == 1:
            facts.append(
                ("", "(what is wrong with the pod or its tenant is written beside one node, and holds for all)")
            )
    print_facts(out, facts)


def _conditions(pod: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in pod.get("status", {}).get("conditions", ())}


if __name__ == "__main__":
    sys.exit(main())
