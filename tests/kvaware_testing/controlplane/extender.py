"""Our extender, and the no-op one, as processes of their own beside the control plane."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvaware_testing.controlplane.process import Process, free_ports
from kvaware_testing.controlplane.versions import REPOSITORY

__all__ = ["ExtenderProcess", "noop_extender"]

_TIMEOUT_S: Final = 10.0


class ExtenderProcess:
    """The real ``kvaware extender`` on free ports, which stay the same over restarts."""

    def __init__(self, folder: Path, kubeconfig: Path, *, config: Mapping[str, Any] | None = None) -> None:
        scheduler_port, api_port = free_ports(2)
        self.scheduler_url = f"http://127.0.0.1:{scheduler_port}/scheduler"
        self.api_url = f"http://127.0.0.1:{api_port}"
        command: list[str | Path] = [sys.executable, "-m", "kvaware_cli", "extender"]
        command += ["--kubeconfig", kubeconfig, "--host", "127.0.0.1"]
        command += ["--scheduler-port", str(scheduler_port), "--api-port", str(api_port)]
        if config is not None:
            path = folder / "extender.yaml"
            path.write_text(yaml.safe_dump(dict(config)), "utf-8")
            command += ["--config", path]
        # Settings of whoever runs the tests must not reach the process under test.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVAWARE_")}
        self.process = Process(
            "extender", command, log=folder / "extender.log", ready_url=f"{self.api_url}/readyz", environ=environ
        )

    def start(self) -> None:
        """Start it and wait until it has seen the cluster."""
        self.process.start()
        self.process.wait_ready(timeout_s=30.0)

    def stop(self) -> None:
        """End it as a rolling update does."""
        self.process.stop()

    def kill(self) -> None:
        """End it without any chance to write down what it knows."""
        self.process.kill()

    def restart(self) -> None:
        """End it in order and start it again on the same ports."""
        self.stop()
        self.start()

    def not_ready(self) -> str:
        """Return why ``/readyz`` does not answer 200; empty when it does."""
        try:
            self._call(urllib.request.Request(f"{self.api_url}/readyz"))  # noqa: S310  own URL
        except (AssertionError, OSError) as error:
            return str(error)
        return ""

    def get(self, path: str) -> Any:
        """Return the JSON of a ``GET`` on the API's address, such as ``/v1/nodes``."""
        return json.loads(self._call(urllib.request.Request(f"{self.api_url}{path}")))  # noqa: S310  own URL

    def post(self, path: str, body: object) -> Any:
        """Return the JSON of a ``POST`` on the API's address, such as ``/v1/pods:explain``."""
        return json.loads(self._call(_post(f"{self.api_url}{path}", body)))

    def verb(self, name: str, body: object) -> Any:
        """Call a scheduler verb (``filter``, ``prioritize``, ``bind``) as kube-scheduler would."""
        return json.loads(self._call(_post(f"{self.scheduler_url}/{name}", body)))

    def metrics(self) -> dict[str, float]:
        """Return every sample of ``/metrics`` by its name with its labels, as Prometheus writes it, sorted."""
        text = self._call(urllib.request.Request(f"{self.api_url}/metrics")).decode("utf-8")  # noqa: S310  own URL
        return {
            sample.name + _labels(sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample; 0 where there is none."""
        return self.metrics().get(name + _labels(labels), 0.0)

    def _call(self, request: urllib.request.Request) -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310  own URL
                body: bytes = reply.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(2000).decode("utf-8", errors="replace")
            raise AssertionError(f"{request.get_method()} {request.full_url}: {error.code} {said}") from error


def noop_extender(folder: Path, kubeconfig: Path | None) -> tuple[Process, str]:
    """Return a no-op extender that is not started yet, and its ``urlPrefix``."""
    (port,) = free_ports(1)
    command: list[str | Path] = [sys.executable, "-m", "kvaware_testing.noop_extender", "--port", str(port)]
    if kubeconfig is not None:
        command += ["--kubeconfig", kubeconfig]
    process = Process(
        "noop-extender",
        command,
        log=folder / "noop-extender.log",
        ready_url=f"http://127.0.0.1:{port}/readyz",
        environ={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")},
    )
    return process, f"http://127.0.0.1:{port}/scheduler"


def _post(url: str, body: object) -> urllib.request.Request:
    return urllib.request.Request(  # noqa: S310  own URL
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}" if labels else ""
