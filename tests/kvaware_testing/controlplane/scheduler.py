"""Renders ``examples/kube-scheduler/config.yaml`` for one run, so that what is shown to users is what is tested."""

from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_testing.controlplane.versions import REPOSITORY

__all__ = ["EXAMPLE_CONFIG", "PROFILE", "render_default_config", "render_scheduler_config"]

EXAMPLE_CONFIG: Final = REPOSITORY / "examples" / "kube-scheduler" / "config.yaml"
PROFILE: Final = "kvaware-scheduler"


def render_scheduler_config(
    *,
    kubeconfig: Path,
    extender_url: str,
    http_timeout: str | None = None,
    qps: float | None = None,
    example: Path = EXAMPLE_CONFIG,
) -> str:
    """Return the example with what differs in a test.

    Args:
        kubeconfig: Whose rights the scheduler has.
        extender_url: ``urlPrefix`` of the extender.
        http_timeout: A Go duration; None keeps the example's.
        qps: Requests per second that the scheduler may send to the API server, twice that in a burst; None keeps
            Kubernetes' 50 and 100, which bound its throughput long before the extender does.
        example: The file to start from.
    """
    config = _load(example)
    config["clientConnection"] = {**config.get("clientConnection", {}), **_connection(kubeconfig, qps)}
    # One scheduler per profile and run: waiting for a Lease would only slow the start, and needs one more right.
    config["leaderElection"] = {"leaderElect": False}
    (extender,) = config["extenders"]
    extender["urlPrefix"] = extender_url
    if http_timeout is not None:
        extender["httpTimeout"] = http_timeout
    return yaml.safe_dump(config, sort_keys=False)


def render_default_config(*, kubeconfig: Path, qps: float | None = None) -> str:
    """Return a configuration of the cluster's own scheduler: the one that takes pods which name no scheduler."""
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": _connection(kubeconfig, qps),
        "leaderElection": {"leaderElect": False},
    }
    return yaml.safe_dump(config, sort_keys=False)


def _load(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return config


def _connection(kubeconfig: Path, qps: float | None) -> dict[str, Any]:
    connection: dict[str, Any] = {"kubeconfig": str(kubeconfig)}
    return connection if qps is None else {**connection, "qps": qps, "burst": round(2 * qps)}
