"""The command line's branch of the error tree.

::

    KvawareError
    ├── ConfigError
    │   └── InputError           a file or an argument of the user's cannot be used   → one line, exit code 2
    └── UpstreamError
        └── ServerError          the extender cannot be reached, or answered an error → one line, exit code 1
"""

import contextlib
from collections.abc import Iterator

from kvaware_crds.errors import ConfigError, UpstreamError

__all__ = ["InputError", "ServerError", "reading"]


class InputError(ConfigError):
    """A file or an argument cannot be used; the message names it, what was expected and what came."""


class ServerError(UpstreamError):
    """The extender cannot be reached or answered with an error."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Around what reads the user's YAML: thousands of brackets inside each other exhaust every reader's stack."""
    try:
        yield
    except RecursionError as e:
        raise InputError(f"{what}: cannot be read, it is nested too deeply") from e
