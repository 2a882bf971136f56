"""The ``kvaware`` command: starts the extender, prints the CRDs, explains decisions, shows headroom and use."""

from kvaware_cli.errors import InputError, ServerError

__all__ = ["InputError", "ServerError"]
