"""The extender's branch of the error tree.

::

    KvawareError
    ├── ApiError        an answer that is an error: status, code, message       → the one error shape
    └── TaskEndedError  a background task that must run for ever ended by itself → not ready, the process exits
"""

from collections.abc import Mapping
from typing import Any

from kvaware_crds.errors import KvawareError

__all__ = ["ApiError", "TaskEndedError"]


class ApiError(KvawareError):
    """A request that cannot be served, as the caller is told about it."""

    def __init__(
        self,
        *,
        status: int,
        code: str,
        message: str,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details = details or {}
        self.headers = headers or {}


class TaskEndedError(KvawareError):
    """A background task ended although nobody asked it to; what it kept up to date is frozen now."""

    def __init__(self, task: str) -> None:
        super().__init__(f"the background task {task!r} ended by itself")
        self.task = task
