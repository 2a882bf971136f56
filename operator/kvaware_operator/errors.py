"""The operator's branch of the error tree.

::

    KvawareError
    └── NotLeadingError  the lease may be another's → nothing is written; the lease's own task ends the work
"""

from kvaware_crds.errors import KvawareError

__all__ = ["NotLeadingError"]


class NotLeadingError(KvawareError):
    """A write was not made, because another operator may lead now."""
