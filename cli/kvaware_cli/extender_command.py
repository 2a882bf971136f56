"""``kvaware extender``: settings from file and environment, options on top, then the extender until it is stopped."""

import asyncio
import dataclasses
import logging
import os
import sys
from pathlib import Path

import structlog

from kvaware_cli.errors import InputError
from kvaware_cluster import DirectorySource, KubernetesSource
from kvaware_crds.errors import UpstreamError
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
    _log_to_stderr()
    try:
        asyncio.run(_serve(settings, kubeconfig=kubeconfig, cluster_dir=cluster_dir))
    except OSError as e:  # a port in use, above all: the message names it
        raise UpstreamError(f"cannot listen: {e.strerror or e}") from e


def with_options(
    settings: ExtenderSettings, *, host: str | None, scheduler_port: int | None, api_port: int | None
) -> ExtenderSettings:
    """Put what was given on the command line over the settings."""
    return dataclasses.replace(
        settings,
        scheduler_host=settings.scheduler_host if host is None else host,
        api_host=settings.api_host if host is None else host,
        scheduler_port=settings.scheduler_port if scheduler_port is None else scheduler_port,
        api_port=settings.api_port if api_port is None else api_port,
    )


async def _serve(settings: ExtenderSettings, *, kubeconfig: Path | None, cluster_dir: Path | None) -> None:
    """Make the source in the loop that uses it; ``run_extender`` closes it."""
    if cluster_dir is not None:
        await run_extender(settings, await DirectorySource.load(cluster_dir))
        return
    where = None if kubeconfig is None else str(kubeconfig)
    await run_extender(settings, await KubernetesSource.connect(kubeconfig=where, settings=settings.kubernetes))


def _log_to_stderr() -> None:
    """Log lines beside the decision log, which owns standard output: JSON, or readable on a terminal."""
    readable = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if readable else (structlog.processors.dict_tracebacks,)),
            structlog.dev.ConsoleRenderer() if readable else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
