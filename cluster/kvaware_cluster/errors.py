"""What goes wrong between kvaware and the cluster: this room's branch of the error tree.

::

    UpstreamError            no answer, or a broken one: whether a write happened is in doubt
    ├── ClusterApiError      the API server answered with an error: .status .reason (a 5xx to a write: in doubt too)
    │   ├── NotFoundError    404: the object, or the whole kind, is not there
    │   ├── ConflictError    409, or 422 about the UID: read again (bound, another UID, being deleted)
    │   ├── GoneError        410: the version is too old, list again
    │   └── ThrottledError   429, or 503 with Retry-After: .retry_after_s
    ├── LeaseLostError       another one may lead now: end at once
    └── WorkerError          a scrape or event stream broke
    ConfigError              a setting or spec cannot be used
    └── ScaleTargetError     a scaleTargetRef names a kind that is unknown, cluster-scoped, or has no scale
    TaskEndedError           a background task that must run for ever ended by itself: not ready, the process exits
"""

from kvaware_crds.errors import ConfigError, KvawareError, UpstreamError

__all__ = [
    "ClusterApiError",
    "ConflictError",
    "GoneError",
    "LeaseLostError",
    "NotFoundError",
    "ScaleTargetError",
    "TaskEndedError",
    "ThrottledError",
    "WorkerError",
]


class ClusterApiError(UpstreamError):
    """The API server answered with an error."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        """The API's own CamelCase word (``AlreadyExists``, ``Forbidden``); empty when it gave none."""


class NotFoundError(ClusterApiError):
    """404: there is no such object, or no such kind."""


class ConflictError(ClusterApiError):
    """What was to be changed is not as expected; read it again."""


class GoneError(ClusterApiError):
    """410: the resource version or continue token is too old; list again."""


class ThrottledError(ClusterApiError):
    """The API server asks to come back later."""

    def __init__(self, message: str, *, status: int, reason: str, retry_after_s: float) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after_s = retry_after_s


class LeaseLostError(UpstreamError):
    """The lease was taken by another, or could not be renewed in time; who led has been stopped."""


class ScaleTargetError(ConfigError):
    """A workload of this kind cannot be scaled. It may be later, when the kind is installed or changed."""


class TaskEndedError(KvawareError):
    """A background task ended although nobody asked it to; what it kept up to date is frozen now."""

    def __init__(self, task: str) -> None:
        super().__init__(f"the background task {task!r} ended by itself")
        self.task = task


class WorkerError(UpstreamError):
    """A scrape or event stream of something that runs on a node broke; lower the confidence in it."""
