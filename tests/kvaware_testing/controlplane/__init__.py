"""The real control plane for e2e tests and benches; ``python -m kvaware_testing.controlplane`` builds its programs."""

from kvaware_testing.controlplane.binaries import Binaries, BuildFailedError, UnavailableError, obtain
from kvaware_testing.controlplane.eventually import eventually, stays
from kvaware_testing.controlplane.nodes import kwok_node
from kvaware_testing.controlplane.plane import ControlPlane
from kvaware_testing.controlplane.process import Process, ProcessFailedError, free_ports

__all__ = [
    "Binaries",
    "BuildFailedError",
    "ControlPlane",
    "Process",
    "ProcessFailedError",
    "UnavailableError",
    "eventually",
    "free_ports",
    "kwok_node",
    "obtain",
    "stays",
]
