"""What the commands that run a service share: credentials, log lines, what a listener cannot do."""

import errno
import logging
import os
import socket
import sys
from pathlib import Path

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from kvaware_cli.errors import InputError
from kvaware_crds.errors import KvawareError, UpstreamError

__all__ = ["expect_credentials", "listen_error", "log_to_stderr"]


def expect_credentials(*, otherwise: str = "") -> None:
    """Raise InputError where there are none: the client library's own words are a warning and an error about a key.

    Args:
        otherwise: What the command can do without them, as the rest of a sentence.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return
    files = os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)
    if not any(Path(file).expanduser().is_file() for file in files if file):
        raise InputError(
            f"expected Kubernetes credentials in {' or '.join(files)}, found no such file: name one with --kubeconfig"
            f"{otherwise}"
        )


def listen_error(error: OSError, *, host: str, port: int, host_option: str, port_option: str) -> KvawareError:
    """What the operating system refused, by the options that change it."""
    if isinstance(error, socket.gaierror):
        return UpstreamError(f"cannot listen at {host!r} ({host_option}): {error.strerror or error}")
    if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}:
        return UpstreamError(error.strerror or str(error))
    reason = os.strerror(error.errno).lower()
    return UpstreamError(
        f"cannot listen at {host}:{port}: {reason}; choose another with {host_option} or {port_option}"
    )


def log_to_stderr() -> None:
    """Log lines to standard error, which leaves standard output to records: JSON, or readable on a terminal.

    Tracebacks tell no variables: those hold tokens and prompts.
    """
    readable = sys.stderr.isatty()
    tracebacks = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    terminal = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if readable else (tracebacks,)),
            terminal if readable else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
