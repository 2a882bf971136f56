"""Credentials for the API server as ``kubernetes.aio`` finds them, read again while the process lives."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import yaml

from kvaware_crds.errors import ConfigError

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration

__all__ = ["load_configuration"]

TOKEN_REFRESH_S: Final = 60.0
"""How often a kubeconfig's credentials (exec plugins, token files) are looked at again, as kubernetes.aio does."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def load_configuration(*, kubeconfig: str | None = None, context: str | None = None) -> "Configuration":
    """Read credentials: of the given kubeconfig, else of the service account, else of the user's kubeconfig.

    Raises: ConfigError when there are none or they cannot be used.
    """
    # imported here: kubernetes.aio costs 0.7 s and 20 MB, which a demo on a folder of YAML need not pay
    from kubernetes.aio import config  # noqa: PLC0415
    from kubernetes.aio.client.configuration import Configuration  # noqa: PLC0415

    configuration = Configuration()

    def load() -> Callable[[], object]:
        """Blocks (files, plugins), so it runs in a thread. Returns: what reads the credentials again."""
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
            return partial(configuration.refresh_api_key_hook, configuration)
        loader = asyncio.run(
            config.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
            )
        )

        def reload() -> None:
            asyncio.run(loader.load_and_set(configuration))

        return reload

    try:
        configuration.refresh_api_key_hook = _refreshing(await asyncio.to_thread(load))
    except (
        config.ConfigException,
        yaml.YAMLError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as error:
        where = kubeconfig or "the default kubeconfig or service account"
        raise ConfigError(
            f"expected usable Kubernetes credentials in {where}, got: {type(error).__name__}: {error}"[:500]
        ) from error
    return configuration


def _refreshing(load: Callable[[], object]) -> Callable[["Configuration"], Awaitable[None]]:
    """A refresh hook, which ``kubernetes.aio`` asks before every request: reads credentials again once in a while."""
    next_s: float | None = None

    async def refresh(configuration: "Configuration") -> None:
        nonlocal next_s
        now_s = asyncio.get_running_loop().time()
        due = next_s is not None and now_s >= next_s  # the first time they were read a moment ago
        if next_s is not None and not due:
            return
        next_s = now_s + TOKEN_REFRESH_S
        if not due:
            return
        try:
            await asyncio.to_thread(load)
        except Exception as error:  # noqa: BLE001  # plugins of any make; the old credentials may still hold
            log.warning("credentials not refreshed", error=type(error).__name__)
        finally:
            configuration.refresh_api_key_hook = refresh  # the service account's loader puts its own back

    return refresh
