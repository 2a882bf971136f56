"""The chart's processes, started outside a cluster with what the chart gives them: settings, rights, nothing else.

Under kwok no container runs. Our processes have a proxy each between themselves and the API server, which remembers
what they asked and what they were answered. kube-scheduler, whose role is upstream's, counts its answers itself.
"""

import contextlib
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvaware_testing.chart import NAMESPACE, Manifests
from kvaware_testing.controlplane import ControlPlane, Process, free_ports
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.operator_process import OperatorProcess
from kvaware_testing.controlplane.proxy import Call, Proxy

__all__ = ["ChartProcesses", "Right", "rights_of", "rights_used"]

SCHEDULER_ACCOUNT: Final = "kvaware-scheduler"
OPERATOR_ACCOUNT: Final = "kvaware-operator"


class Right(NamedTuple):
    """One thing that RBAC can allow."""

    verb: str
    group: str
    resource: str
    """With its subresource: ``pods/status``."""


class ChartProcesses:
    """Extender, kube-scheduler and operator of a rendered chart. A context manager; all are ready inside it."""

    def __init__(self, plane: ControlPlane, manifests: Manifests, folder: Path) -> None:
        self._plane = plane
        self._manifests = manifests
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.proxies: dict[str, Proxy] = {}
        self.extender: ExtenderProcess
        self.operator: OperatorProcess
        self.scheduler: Process
        self.scheduler_port = 0

    def __enter__(self) -> Self:
        with self._stack:  # closes what was started when a later part fails
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def calls(self, process: str) -> list[Call]:
        """What a process (``extender``, ``operator``) asked the API server so far."""
        return self.proxies[process].calls_since(0.0)

    def scheduler_answers(self, token: str) -> dict[str, float]:
        """How often kube-scheduler was answered with each status code; ``token`` is of who may read its metrics."""
        url = f"https://127.0.0.1:{self.scheduler_port}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10, context=self._plane.tls) as reply:  # noqa: S310  own URL
            text = reply.read().decode("utf-8")
        answers: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "rest_client_requests_total":
                    code = sample.labels["code"]
                    answers[code] = answers.get(code, 0.0) + sample.value
        return answers

    def _start(self) -> None:
        kubeconfig = self._connect("extender", SCHEDULER_ACCOUNT)
        settings = self._manifests.file("kvaware-scheduler", "extender.yaml")
        self.extender = ExtenderProcess(self._folder, kubeconfig, config=settings)
        self._stack.callback(self.extender.stop)
        self.extender.start()
        self.scheduler = self._scheduler(self._plane.service_account_kubeconfig(NAMESPACE, SCHEDULER_ACCOUNT))
        self._stack.callback(self.scheduler.stop)
        self.scheduler.start()
        self.scheduler.wait_ready()
        settings = self._manifests.file("kvaware-operator", "operator.yaml")
        # in a pod the namespace is the pod's own
        settings = {**settings, "lease": {"namespace": NAMESPACE, **settings.get("lease", {})}}
        kubeconfig = self._connect("operator", OPERATOR_ACCOUNT)
        self.operator = OperatorProcess(self._folder, kubeconfig, self.extender.api_url, config=settings)
        self._stack.callback(self.operator.stop)
        self.operator.start()

    def _connect(self, process: str, account: str) -> Path:
        plane = self._plane
        proxy = Proxy(plane.api_url, upstream_ca=plane.ca_file, serving=plane.serving_certificate)
        self.proxies[process] = self._stack.enter_context(proxy)
        return plane.service_account_kubeconfig(NAMESPACE, account, server=proxy.url)

    def _scheduler(self, kubeconfig: Path) -> Process:
        """kube-scheduler with the chart's configuration, leader election included."""
        config = self._manifests.file("kvaware-scheduler", "scheduler.yaml")
        config["clientConnection"]["kubeconfig"] = str(kubeconfig)
        (extender,) = config["extenders"]
        extender["urlPrefix"] = self.extender.scheduler_url
        path = self._folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config), "utf-8")
        (self.scheduler_port,) = free_ports(1)
        certificate, key = self._plane.serving_certificate
        command: list[str | Path] = [
            self._plane.binaries["kube-scheduler"],
            f"--config={path}",
            # in a pod these two are the pod's own account
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.scheduler_port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
        ]
        return Process(
            "chart-kube-scheduler",
            command,
            log=self._folder / "kube-scheduler.log",
            ready_url=f"https://127.0.0.1:{self.scheduler_port}/readyz",
            tls=self._plane.tls,
        )


def rights_of(rules: list[Mapping[str, Any]]) -> set[Right]:
    """What the rules of a role allow, names of objects left aside."""
    return {
        Right(verb, group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rights_used(calls: list[Call]) -> set[Right]:
    """What the calls needed, those for discovery and health left out: everybody may make them."""
    return set(_rights(calls))


def _rights(calls: list[Call]) -> Iterator[Right]:
    for call in calls:
        match call.path.strip("/").split("/"):
            case ["api", _, *rest]:
                group = ""
            case ["apis", group, _, *rest]:
                pass
            case _:
                continue
        named = rest[0] == "namespaces" and len(rest) > 2 if rest else False
        what = rest[2:] if named else rest
        if not what:
            continue
        one = len(what) > 1
        resource = "/".join((what[0], *what[2:]))
        match call.method:
            case "GET" if call.watch:
                verb = "watch"
            case "GET":
                verb = "get" if one else "list"
            case method:
                verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
        yield Right(verb, group, resource)
