"""What goes wrong again and again is logged when it begins, changes, and ends."""

import structlog

from kvaware_crds.errors import KvawareError

__all__ = ["Troubles"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Troubles:
    """The present trouble with each thing that is asked or written; one line per change of it."""

    def __init__(self) -> None:
        self._present: dict[str, str] = {}

    def failed(self, what: str, error: KvawareError, **about: str) -> None:
        """It failed; ``about`` says with whom it was seen."""
        trouble = type(error).__name__
        if self._present.get(what) != trouble:
            self._present[what] = trouble
            log.warning("failing", what=what, trouble=trouble, error=str(error), **about)

    def worked(self, what: str) -> None:
        """It worked."""
        if self._present.pop(what, None) is not None:
            log.info("works again", what=what)

    def forget(self, what: str) -> None:
        """Nobody tries it any more."""
        self._present.pop(what, None)
