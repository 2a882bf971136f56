"""Our extender, and the no-op one, as processes of their own beside the control plane."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kvaware_testing.controlplane.process import Process, free_ports
from kvaware_testing.controlplane.service import Service, json_request
from kvaware_testing.controlplane.versions import REPOSITORY

__all__ = ["ExtenderProcess", "noop_extender"]


class ExtenderProcess(Service):
    """The real ``kvaware extender`` on free ports, which stay the same over restarts."""

    def __init__(self, folder: Path, kubeconfig: Path, *, config: Mapping[str, Any] | None = None) -> None:
        scheduler_port, api_port = free_ports(2)
        self.scheduler_url = f"http://127.0.0.1:{scheduler_port}/scheduler"
        arguments: list[str | Path] = ["extender", "--kubeconfig", kubeconfig, "--host", "127.0.0.1"]
        arguments += ["--scheduler-port", str(scheduler_port), "--api-port", str(api_port)]
        if config is not None:
            path = folder / "extender.yaml"
            path.write_text(yaml.safe_dump(dict(config)), "utf-8")
            arguments += ["--config", path]
        super().__init__("extender", arguments, api_url=f"http://127.0.0.1:{api_port}", folder=folder)

    def verb(self, name: str, body: object) -> Any:
        """Call a scheduler verb (``filter``, ``prioritize``, ``bind``) as kube-scheduler would."""
        return json.loads(self._call(json_request("POST", f"{self.scheduler_url}/{name}", body)))


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
