"""``kvaware extender``: settings from file and environment, options on top, then the extender until it is stopped."""

import asyncio
import dataclasses
import os
from pathlib import Path

from kvaware_cli.errors import InputError
from kvaware_extender import ExtenderSettings, load_settings, run_extender

__all__ = ["run", "with_options"]


def run(
    *,
    config: Path | None,
    kubeconfig: Path | None,
    cluster_dir: Path | None,
    host: str | None,
    scheduler_port: int | None,
    api_port: int | None,
) -> None:
    """Run until SIGTERM or SIGINT. None: as the settings say."""
    if kubeconfig is not None and cluster_dir is not None:
        raise InputError("expected either --kubeconfig or --cluster-dir, got both")
    if cluster_dir is not None and not cluster_dir.is_dir():
        raise InputError(f"--cluster-dir: expected a folder with YAML files, got {str(cluster_dir)!r}")
    if kubeconfig is not None and not kubeconfig.is_file():
        raise InputError(f"--kubeconfig: expected a file, got {str(kubeconfig)!r}")
    settings = with_options(
        load_settings(config, os.environ), host=host, scheduler_port=scheduler_port, api_port=api_port
    )
    asyncio.run(run_extender(settings, kubeconfig=kubeconfig, cluster_dir=cluster_dir))


def with_options(
    settings: ExtenderSettings, *, host: str | None, scheduler_port: int | None, api_port: int | None
) -> ExtenderSettings:
    """Put what was given on the command line over the settings."""
    given = {"scheduler_host": host, "api_host": host, "scheduler_port": scheduler_port, "api_port": api_port}
    return dataclasses.replace(settings, **{name: value for name, value in given.items() if value is not None})
