"""``kvaware operator``: settings from file and environment, options on top, then the operator until it is stopped."""

import asyncio
import dataclasses
import os
from pathlib import Path

from kvaware_cli.errors import InputError, reading
from kvaware_cli.service import expect_credentials, listen_error, log_to_stderr
from kvaware_operator import OperatorSettings, load_settings, run_operator

__all__ = ["run", "with_options"]


def run(
    *,
    config: Path | None,
    kubeconfig: Path | None,
    extender_url: str | None,
    host: str | None,
    port: int | None,
    lease: bool | None,
) -> None:
    """Run until SIGTERM or SIGINT. None: as the settings say."""
    if kubeconfig is not None and not kubeconfig.is_file():
        raise InputError(f"--kubeconfig: expected a file, got {str(kubeconfig)!r}")
    if kubeconfig is None:
        expect_credentials()
    else:
        os.environ["KUBECONFIG"] = str(kubeconfig)  # the only place where kopf looks for one
    with reading(f"settings file {config}"):
        settings = load_settings(config, os.environ)
    settings = with_options(settings, extender_url=extender_url, host=host, port=port, lease=lease)
    log_to_stderr()
    try:
        asyncio.run(run_operator(settings, kubeconfig=None if kubeconfig is None else str(kubeconfig)))
    except OSError as e:
        raise listen_error(e, host=settings.host, port=settings.port, host_option="--host", port_option="--port") from e


def with_options(
    settings: OperatorSettings, *, extender_url: str | None, host: str | None, port: int | None, lease: bool | None
) -> OperatorSettings:
    """Put what was given on the command line over the settings."""
    return dataclasses.replace(
        settings,
        extender_url=settings.extender_url if extender_url is None else extender_url,
        host=settings.host if host is None else host,
        port=settings.port if port is None else port,
        lease=settings.lease if lease is None else dataclasses.replace(settings.lease, enabled=lease),
    )
