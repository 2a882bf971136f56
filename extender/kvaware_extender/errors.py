"""The extender's branch of the error tree.

::

    KvawareError
    └── ApiError        an answer that is an error: status, code, message       → the one error shape
"""

from collections.abc import Mapping
from typing import Any

from kvaware_cluster import ClusterApiError, ThrottledError
from kvaware_crds.errors import KvawareError

__all__ = ["ApiError", "is_of_one_object"]


class ApiError(KvawareError):
    """A request that cannot be served, as the caller is told about it."""

    def __init__(
        self,
        *,
        status: int,
        code: str,
        message: str,
        retryable: bool = False,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        """When it may be tried again; None: not said."""
        self.details = details or {}
        self.headers = headers or {}


def is_of_one_object(error: Exception) -> bool:
    """Whether a refused write may be the object's own fault: a policy or a webhook of its namespace refuses it.

    500 is what the API server says of a webhook that does not answer.
    """
    return isinstance(error, ClusterApiError) and not isinstance(error, ThrottledError) and error.status <= 500
