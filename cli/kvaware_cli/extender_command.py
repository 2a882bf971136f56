"""``kvaware extender``: settings from file and environment, options on top, then the extender until it is stopped."""

import asyncio
import dataclasses
import errno
import logging
import os
import socket
import sys
from pathlib import Path

import structlog

from kvaware_cli.errors import InputError, reading
from kvaware_cluster import DirectorySource, KubernetesSource
from kvaware_crds.errors import KvawareError, UpstreamError
from kvaware_extender import ExtenderSettings, load_settings, run_extender

__all__ = ["run", "start_error", "with_options"]


def run(
    *,
    config: Path | None,
    kubeconfig: Path | None,
    cluster_dir: Path | None,
    host: str | None,
    api_port: int | None,
    scheduler_host: str | None,
    scheduler_port: int | None,
) -> None:
    """Run until SIGTERM or SIGINT. None: as the settings say."""
    if kubeconfig is not None and cluster_dir is not None:
        raise InputError("expected either --kubeconfig or --cluster-dir, got both")
    if cluster_dir is not None and not cluster_dir.is_dir():
        raise InputError(f"--cluster-dir: expected a folder with YAML files, got {str(cluster_dir)!r}")
    if kubeconfig is not None and not kubeconfig.is_file():
        raise InputError(f"--kubeconfig: expected a file, got {str(kubeconfig)!r}")
    if kubeconfig is None and cluster_dir is None:
        _expect_credentials()
    with reading(f"settings file {config}"):
        settings = load_settings(config, os.environ)
    settings = with_options(
        settings, host=host, api_port=api_port, scheduler_host=scheduler_host, scheduler_port=scheduler_port
    )
    _log_to_stderr()
    try:
        with reading(f"--cluster-dir {cluster_dir}"):
            asyncio.run(_serve(settings, kubeconfig=kubeconfig, cluster_dir=cluster_dir))
    except OSError as e:
        raise start_error(e, settings) from e


def _expect_credentials() -> None:
    """The client library's own words for it are a warning about a file and an error about a key."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return
    files = os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)
    if not any(Path(file).expanduser().is_file() for file in files if file):
        raise InputError(
            f"expected Kubernetes credentials in {' or '.join(files)}, found no such file: name one with --kubeconfig, "
            "or serve a folder of YAML with --cluster-dir"
        )


def start_error(error: OSError, settings: ExtenderSettings) -> KvawareError:
    """What the operating system refused, by the name of the setting and of the option."""
    why = error.strerror or str(error)
    if error.filename is not None and str(error.filename) == settings.decision_log:
        return InputError(f"setting decisionLog: cannot write to {settings.decision_log!r}: {why}")
    if isinstance(error, socket.gaierror):
        hosts = f"{settings.api_host!r} (--host) or {settings.scheduler_host!r} (--scheduler-host)"
        return UpstreamError(f"cannot listen at {hosts}: {why}")
    if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}:
        return UpstreamError(why)
    # asyncio puts the address into its message, and nowhere else
    scheduler = f"({settings.scheduler_host!r}, {settings.scheduler_port})" in str(error)
    option, host, port = (
        ("scheduler", settings.scheduler_host, settings.scheduler_port)
        if scheduler
        else ("api", settings.api_host, settings.api_port)
    )
    host_option = "--scheduler-host" if scheduler else "--host"
    reason = os.strerror(error.errno).lower()
    return UpstreamError(
        f"cannot listen at {host}:{port}: {reason}; choose another with {host_option} or --{option}-port"
    )


def with_options(
    settings: ExtenderSettings,
    *,
    host: str | None,
    api_port: int | None,
    scheduler_host: str | None,
    scheduler_port: int | None,
) -> ExtenderSettings:
    """Put what was given on the command line over the settings."""
    return dataclasses.replace(
        settings,
        scheduler_host=settings.scheduler_host if scheduler_host is None else scheduler_host,
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
