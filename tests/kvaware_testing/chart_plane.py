"""A control plane of its own with the chart on it: the chart's policies and names are for a whole cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kvaware_testing.chart import CHART, IMAGE, NAMESPACE, Helm
from kvaware_testing.controlplane import Binaries, ControlPlane, kwok_node

__all__ = ["EXTENDER", "OPERATOR", "TEAM", "chart_plane", "install"]

EXTENDER: Final = f"system:serviceaccount:{NAMESPACE}:kvaware-scheduler"
OPERATOR: Final = f"system:serviceaccount:{NAMESPACE}:kvaware-operator"
TEAM: Final = "team"
"""A namespace of somebody else."""


@contextmanager
def chart_plane(folder: Path, programs: Binaries) -> Iterator[ControlPlane]:
    """A cluster with nodes and without anything of kvaware; the chart's namespace is as strict as it can be."""
    with ControlPlane(folder, programs, accounts=False) as plane:
        plane.add_nodes([kwok_node("cpu-1", gpus=0), kwok_node("gpu-1", gpus=2)])
        plane.create(
            _namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"}),
            _namespace(TEAM, {}),
        )
        yield plane


def install(helm: Helm, name: str = "kvaware") -> str:
    """Install the chart and wait until all of it is Ready, as kwok has it. Returns: what helm printed."""
    return helm("install", name, CHART, f"--namespace={NAMESPACE}", "--wait", "--timeout=60s", values=IMAGE)


def _namespace(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
