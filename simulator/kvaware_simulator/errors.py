"""What goes wrong before anything is simulated: this room's branch of the error tree.

::

    ConfigError
    └── TraceError           a file of requests cannot be used; the message names file, line, what was expected and came
"""

from kvaware_crds.errors import ConfigError

__all__ = ["TraceError"]


class TraceError(ConfigError):
    """A trace cannot be used."""
