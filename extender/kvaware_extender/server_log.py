"""What the HTTP server itself has to say, as lines of our log.

aiohttp logs through the standard library, with a traceback, whenever a caller hangs up in the middle of a body or sends
what is no HTTP; its text repeats what came, a header with a token as well. Anybody can do that as often as they like,
and nobody here can mend it.
"""

import logging
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["server_log"]

log = structlog.get_logger(__name__)

NAME: Final = "kvaware.http"
CALLERS_FAULTS: Final = (ConnectionError, HttpProcessingError, web.RequestPayloadError)


class _ToOurLog(logging.Handler):
    """Callers' faults are told to those who debug, by their kind alone; what is unforeseen is an error."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CALLERS_FAULTS):
            log.debug("caller broke off or sent no HTTP", kind=type(error).__name__)
        elif record.levelno >= logging.WARNING:
            log.error("HTTP server", text=record.getMessage(), exc_info=error)


def server_log() -> logging.Logger:
    """The logger for ``web.AppRunner``."""
    logger = logging.getLogger(NAME)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.handlers = [_ToOurLog()]
    return logger
