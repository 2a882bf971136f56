"""Our operator as a process of its own beside the control plane."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kvaware_testing.controlplane.process import free_ports
from kvaware_testing.controlplane.service import Service

__all__ = ["OperatorProcess"]


class OperatorProcess(Service):
    """The real ``kvaware operator`` on a free port, which stays the same over restarts."""

    def __init__(
        self, folder: Path, kubeconfig: Path, extender_url: str, *, config: Mapping[str, Any] | None = None
    ) -> None:
        (port,) = free_ports(1)
        arguments: list[str | Path] = ["operator", "--kubeconfig", kubeconfig, "--extender-url", extender_url]
        arguments += ["--host", "127.0.0.1", "--port", str(port)]
        if config is not None:
            path = folder / "operator.yaml"
            path.write_text(yaml.safe_dump(dict(config)), "utf-8")
            arguments += ["--config", path]
        super().__init__("operator", arguments, api_url=f"http://127.0.0.1:{port}", folder=folder)
