"""kopf in a thread with a loop of its own: a second pair of eyes beside the store's watches.

It posts no events, sets no finalizers, writes nothing, and is no single point of failure: what it tells, the store
tells too. When it breaks (it gives up on some errors of the API server for good) it is started again; only when the
thread itself ends is that an incident of the process.
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable
from typing import Any, Final

import kopf
import structlog

from kvaware_cluster.backoff import Backoff
from kvaware_operator.handlers import Memo, register_crds, register_kinds

__all__ = ["KopfThread"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

RESTART_FIRST_S: Final = 1.0
RESTART_MAX_S: Final = 60.0


class _ToStructlog(logging.Handler):
    """kopf's warnings and errors, as lines of our log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; its logger is kopf's own word for where it comes from."""
        if "OS signals are ignored" not in record.msg:  # we see to them
            log.warning("kopf says", level=record.levelname.lower(), text=record.getMessage()[:300])


def _hear_kopf() -> None:
    logger = logging.getLogger("kopf")
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    if not any(isinstance(handler, _ToStructlog) for handler in logger.handlers):
        logger.addHandler(_ToStructlog())


def _tell_forgotten(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio would print at length: errors of tasks that kopf left behind when it gave up."""
    error = context.get("exception")
    log.info("kopf left an error behind", trouble=type(error).__name__, text=str(context.get("message"))[:300])


class KopfThread:
    """One thread. ``run`` belongs to the loop of whoever made it."""

    def __init__(self, memo: Memo, *, login: Callable[..., Any] | None = None) -> None:
        """Start nothing yet.

        Args:
            memo: What the handlers reach.
            login: Where kopf's credentials come from; None: the pod's account, else the kubeconfig file.
        """
        self._memo = memo
        self._login = login
        self._stopping = threading.Event()
        self._stop_kopf: Callable[[], None] = lambda: None
        """Ends the kopf that runs now; thread-safe."""
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._backoff = Backoff(RESTART_FIRST_S, RESTART_MAX_S, random.Random())  # noqa: S311  # jitter, not a secret
        self._restarts = 0

    @property
    def restarts(self) -> int:
        """How often kopf ended and was started again."""
        return self._restarts

    async def run(self) -> None:
        """Keep the thread until cancelled, then let it end.

        Raises: RuntimeError when the thread ended by itself.
        """
        _hear_kopf()
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._main, args=(loop,), name="kopf", daemon=True)
        thread.start()
        try:
            await self._ended.wait()
        finally:
            self._stopping.set()
            self._stop_kopf()
            # It ends within a second or two. Whoever is in a hurry need not wait: the thread is a daemon.
            await asyncio.shield(asyncio.to_thread(thread.join, 2.0))
        raise RuntimeError("kopf's thread ended by itself") from self._error

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._stopping.is_set():
                self._once()
                if not self._stopping.is_set():
                    self._restarts += 1
                    self._stopping.wait(self._backoff.next_s())
        except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this thread: ``run`` tells of it
            self._error = error
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ended.set)

    def _once(self) -> None:
        """Run kopf until it is told to stop, or gives up."""
        try:
            asyncio.run(self._operate())
        except Exception as error:  # noqa: BLE001  # whatever it gave up on, it is started again
            log.warning("kopf ended, and is started again", trouble=type(error).__name__, error=str(error)[:300])

    async def _operate(self) -> None:
        # Not a threading.Event: kopf would wait for it in a thread that outlives a kopf which gave up, and the end of
        # its loop would wait for that thread for ever.
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(_tell_forgotten)

        def stop_kopf() -> None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
                loop.call_soon_threadsafe(stop.set)

        self._stop_kopf = stop_kopf
        if self._stopping.is_set():
            return
        await kopf.operator(
            registry=self._registry(),
            settings=_settings(),
            memo=self._memo,
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        for login in (kopf.login_with_service_account, kopf.login_with_kubeconfig):
            kopf.on.login(registry=registry)(self._login or login)
            if self._login is not None:
                break
        register_kinds(registry)
        register_crds(registry)
        return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # else kopf kills the whole process some time after it ended
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.watching.server_timeout = 300
    settings.watching.reconnect_backoff = 1.0  # 0.1 s against a kind that is gone would be a hot loop
    settings.queueing.exit_timeout = 0.5
    settings.watching.chunk_size = 100
    settings.execution.max_workers = 1
    return settings
