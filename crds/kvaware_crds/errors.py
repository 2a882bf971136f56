"""The errors of kvaware, one tree. Each room adds its branch in its own ``errors.py``.

::

    KvawareError
    ├── ConfigError          a setting or spec cannot be used     → do not start / condition False, no retry until it
    │                                                               changes
    ├── WireError            outside bytes we cannot read         → 400 / drop and count
    ├── StaleViewError       the view is older than allowed       → 503 on /v1, a constant refusal on scheduler verbs
    └── UpstreamError        something we called failed; the cause is chained
        ├── ClusterApiError  .status .reason: ConflictError (read again), GoneError (list again),
        │                    ThrottledError (.retry_after_s)
        └── WorkerError      a scrape or event stream broke       → lower that worker's confidence

Callers look at classes and fields, never at message text. A message says what was expected, what came, and on which
object; it never holds prompts, token ids, credentials or whole bodies.
"""

__all__ = ["ConfigError", "KvawareError", "StaleViewError", "UpstreamError", "WireError"]


class KvawareError(Exception):
    """The root: everything that kvaware raises on purpose."""


class ConfigError(KvawareError):
    """A setting or a spec cannot be used; trying again does not help until it changes."""


class WireError(KvawareError):
    """Bytes from outside cannot be read as what they should be."""


class StaleViewError(KvawareError):
    """The view of the cluster is older than the settings allow, or a kind in it is unknown."""


class UpstreamError(KvawareError):
    """Something that kvaware called failed; the cause is chained."""
