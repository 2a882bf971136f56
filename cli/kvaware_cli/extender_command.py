"""``kvaware extender``: settings from file and environment, options on top, then the extender until it is stopped."""

import asyncio
import dataclasses
import os
import socket
from collections.abc import Callable
from pathlib import Path

from kvaware_cli.errors import InputError, reading
from kvaware_cli.service import expect_credentials, listen_error, log_to_stderr
from kvaware_cluster import DirectorySource, KubernetesSource
from kvaware_crds.errors import KvawareError, UpstreamError
from kvaware_extender import ExtenderSettings, load_settings, run_extender

__all__ = ["loop_factory", "run", "start_error", "with_options"]


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
        expect_credentials(otherwise=", or serve a folder of YAML with --cluster-dir")
    with reading(f"settings file {config}"):
        settings = load_settings(config, os.environ)
    settings = with_options(
        settings, host=host, api_port=api_port, scheduler_host=scheduler_host, scheduler_port=scheduler_port
    )
    log_to_stderr()
    try:
        with reading(f"--cluster-dir {cluster_dir}"), asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, kubeconfig=kubeconfig, cluster_dir=cluster_dir))
    except OSError as e:
        raise start_error(e, settings) from e


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, which takes less time per request than the standard loop; None: that one, where there is no other."""
    try:
        import uvloop  # noqa: PLC0415 - Windows has none
    except ImportError:
        return None
    return uvloop.new_event_loop


def start_error(error: OSError, settings: ExtenderSettings) -> KvawareError:
    """What the operating system refused, by the name of the setting and of the option."""
    why = error.strerror or str(error)
    if error.filename is not None and str(error.filename) == settings.decision_log:
        return InputError(f"setting decisionLog: cannot write to {settings.decision_log!r}: {why}")
    # asyncio puts the address into its message, and nowhere else
    scheduler = f"({settings.scheduler_host!r}, {settings.scheduler_port})" in str(error)
    if isinstance(error, socket.gaierror):
        hosts = f"{settings.api_host!r} (--host) or {settings.scheduler_host!r} (--scheduler-host)"
        return UpstreamError(f"cannot listen at {hosts}: {why}")
    if scheduler:
        return listen_error(
            error,
            host=settings.scheduler_host,
            port=settings.scheduler_port,
            host_option="--scheduler-host",
            port_option="--scheduler-port",
        )
    return listen_error(
        error, host=settings.api_host, port=settings.api_port, host_option="--host", port_option="--api-port"
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
