"""The operator's branch of the error tree.

::

    KvawareError
    ├── TaskEndedError   a background task that must run for ever ended by itself → not ready, the process exits
    └── NotLeadingError  the lease may be another's → nothing is written; the lease's own task ends the work
"""

from kvaware_crds.errors import KvawareError

__all__ = ["NotLeadingError", "TaskEndedError"]


class NotLeadingError(KvawareError):
    """A write was not made, because another operator may lead now."""


class TaskEndedError(KvawareError):
    """A background task ended although nobody asked it to; what it kept up to date is frozen now."""

    def __init__(self, task: str) -> None:
        super().__init__(f"the background task {task!r} ended by itself")
        self.task = task
