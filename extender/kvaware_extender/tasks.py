"""The owner of every task: loops that run for as long as the process, jobs that must finish, errands that need not."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from kvaware_cluster import TaskEndedError

__all__ = ["Tasks"]

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Tasks:
    """Starts named tasks, keeps a reference until they end, notices a loop that ends by itself."""

    def __init__(self) -> None:
        self._loops: set[asyncio.Task[None]] = set()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._closing = False
        self._died = asyncio.Event()
        self.ended: str | None = None
        """Name of the first loop that ended by itself; None: all run."""

    def loop(self, name: str, coro: Coroutine[Any, Any, None]) -> None:
        """Start a task that is to run until ``close``. Its end before that is an incident."""
        task = asyncio.create_task(coro, name=name)
        self._loops.add(task)
        task.add_done_callback(self._loop_ended)

    def job(self, name: str, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that ends and must not be cut off: ``close`` waits for it. The caller awaits its result."""
        task = asyncio.create_task(coro, name=name)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    def errand(self, name: str, coro: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends, that nobody waits for, and that a restart makes up for: ``close`` cancels it."""
        if self._closing:
            coro.close()
            return
        task = asyncio.create_task(coro, name=name)
        self._errands.add(task)
        task.add_done_callback(self._errand_ended)

    async def failure(self) -> TaskEndedError:
        """Wait until a loop ends by itself."""
        await self._died.wait()
        return TaskEndedError(self.ended or "")

    async def close(self, *, grace_s: float) -> None:
        """Let the jobs finish for ``grace_s``, then cancel what is left, the loops last (jobs may need them)."""
        self._closing = True
        if self._jobs:
            await asyncio.wait(set(self._jobs), timeout=grace_s)
        for tasks in (self._jobs, self._errands, self._loops):
            pending = set(tasks)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _errand_ended(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("errand failed", task=task.get_name(), exc_info=error)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        self._loops.discard(task)
        if self._closing:
            return
        error = None if task.cancelled() else task.exception()
        log.error("background task ended by itself", task=task.get_name(), exc_info=error)
        self.ended = self.ended or task.get_name()
        self._died.set()
