"""The chart ``helm/kvaware`` in the hands of the real helm."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_testing.repository import REPOSITORY

__all__ = ["CHART", "IMAGE", "NAMESPACE", "Helm", "HelmFailedError", "Manifests"]

CHART: Final = REPOSITORY / "helm" / "kvaware"
NAMESPACE: Final = "kvaware-system"
IMAGE: Final = {"image": {"repository": "registry.example/kvaware"}}
"""The only value that has no default."""

Manifest = dict[str, Any]


class HelmFailedError(Exception):
    """What helm wrote to standard error."""


class Manifests(list[Manifest]):
    """What the chart renders to."""

    def one(self, kind: str, name: str) -> Manifest:
        """Return the only object of that kind and name."""
        (found,) = [one for one in self if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found

    def of(self, kind: str) -> list[Manifest]:
        """Return all objects of a kind."""
        return [one for one in self if one["kind"] == kind]

    def container(self, deployment: str, name: str) -> Manifest:
        """Return a container of a Deployment, sidecars included."""
        pod = self.one("Deployment", deployment)["spec"]["template"]["spec"]
        containers: list[Manifest] = [*pod.get("initContainers", ()), *pod["containers"]]
        (found,) = [one for one in containers if one["name"] == name]
        return found

    def file(self, config_map: str, name: str) -> Any:
        """Return what a YAML file in a ConfigMap says."""
        return yaml.safe_load(self.one("ConfigMap", config_map)["data"][name])


class Helm:
    """Runs helm in a home of its own; without a kubeconfig it only renders."""

    def __init__(self, program: Path, home: Path, *, kubeconfig: Path | None = None) -> None:
        self._program = program
        self._home = home
        self._kubeconfig = kubeconfig

    def __call__(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Run one command. ``values`` become ``--values``. Returns: what it printed. Raises: HelmFailedError."""
        command: list[str | Path] = [self._program, *arguments]
        if self._kubeconfig is not None:
            command.append(f"--kubeconfig={self._kubeconfig}")
        if values is not None:
            command.append("--values=-")
        done = subprocess.run(
            command,
            input=None if values is None else yaml.safe_dump(dict(values)),
            capture_output=True,
            text=True,
            check=False,
            # an empty environment: neither the user's repositories nor the user's clusters
            env={"HOME": str(self._home), "PATH": os.environ.get("PATH", "")},
        )
        if done.returncode:
            raise HelmFailedError(done.stderr.strip())
        return done.stdout

    def render(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        kube_version: str = "v1.37.2",
        more: Sequence[str] = (),
        namespace: str = NAMESPACE,
    ) -> Manifests:
        """Return what ``helm template`` renders; ``values`` go over ``IMAGE``. Raises: HelmFailedError."""
        where = f"--namespace={namespace}", f"--kube-version={kube_version}"
        text = self("template", "kvaware", CHART, *where, *more, values={**IMAGE, **(values or {})})
        return Manifests(one for one in yaml.safe_load_all(text) if one is not None)
