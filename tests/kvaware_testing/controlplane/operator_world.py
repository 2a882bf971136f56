"""Everything that scales a model, running: our extender, kube-scheduler with it, our operator; on a control plane.

The operator reaches the API server through a proxy, so that a test sees, holds and loses its calls.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kvaware_testing.chart import Helm
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.operator_process import OperatorProcess
from kvaware_testing.controlplane.plane import ControlPlane
from kvaware_testing.controlplane.proxy import Proxy
from kvaware_testing.controlplane.versions import REPOSITORY

__all__ = ["EXTENDER_CONFIG", "OPERATOR_CONFIG", "OperatorWorld"]

_MANIFESTS: Final = REPOSITORY / "tests" / "e2e" / "manifests"
EXTENDER_CONFIG: Final[Mapping[str, Any]] = {
    "workers": {"reportIntervalS": 2, "rateWindowS": 4},
    "workerScrape": {"intervalS": 1, "slowAfterMissesIntervalS": 2},
    # Tests send several in a row; what comes of that has tests of its own.
    "heartbeat": {"minIntervalS": 0},
    "decisionLog": "off",
}
"""Seconds where users have tens of them: a test waits for several rounds."""
OPERATOR_CONFIG: Final[Mapping[str, Any]] = {
    "pollS": 1,
    "loadGraceS": 3,
    "statusIntervalS": 1,
    # A quiet kind is proven fresh when its watch is opened again; by default every 30 s, and stale after 90 s.
    "kubernetes": {"watchTimeoutS": 5},
    "maxViewAgeS": 15,
    "queue": {"backoffFirstS": 0.5, "backoffMaxS": 5},
    "scaling": {"downStepIntervalS": 1},
    # A killed operator would keep its lease for a while; tests of the lease have their own.
    "lease": {"enabled": False},
}


class OperatorWorld:
    """Start it with ``with OperatorWorld(control_plane, folder) as world``; the operator itself by ``start``.

    Args:
        control_plane: With our CRDs.
        folder: For configuration and logs.
        extender_config: Over ``EXTENDER_CONFIG``.
        operator_config: Over ``OPERATOR_CONFIG``.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        folder: Path,
        *,
        extender_config: Mapping[str, Any] | None = None,
        operator_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.control_plane = control_plane
        self._folder = folder
        self._extender_config = {**EXTENDER_CONFIG, **(extender_config or {})}
        self._operator_config = {**OPERATOR_CONFIG, **(operator_config or {})}
        self._stack = contextlib.ExitStack()
        self.proxy: Proxy
        self.extender: ExtenderProcess
        self.operator: OperatorProcess

    def __enter__(self) -> Self:
        with self._stack:  # closes what was started when a later part fails
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        plane, enter = self.control_plane, self._stack.enter_context
        plane.apply_file(_MANIFESTS / "scale-targets.yaml")
        rights = Helm(plane.binaries["helm"], self._folder).render(more=["--show-only=templates/operator/rbac.yaml"])
        plane.apply(*rights)
        self.extender = ExtenderProcess(
            self._folder,
            plane.service_account_kubeconfig("kvaware-system", "kvaware-extender"),
            config=self._extender_config,
        )
        self._stack.callback(self.extender.stop)
        self.extender.start()
        self._stack.callback(plane.stop_scheduler)
        plane.start_scheduler(self.extender.scheduler_url)
        self.proxy = enter(Proxy(plane.api_url, upstream_ca=plane.ca_file, serving=plane.serving_certificate))
        self.operator = self.another_operator(self._folder)
        self._stack.callback(self.operator.stop)
        self.operator.start()

    def another_operator(self, folder: Path, *, config: Mapping[str, Any] | None = None) -> OperatorProcess:
        """Return an operator that is not started, with the world's settings and ``config`` over them."""
        return OperatorProcess(
            folder,
            self.control_plane.service_account_kubeconfig("kvaware-system", "kvaware-operator", server=self.proxy.url),
            self.extender.api_url,
            config={**self._operator_config, **(config or {})},
        )
