"""How a parser says that it read an object only in part."""

from collections.abc import Callable

__all__ = ["Report", "silent"]

Report = Callable[[str], None]
"""Takes a sentence: what was expected, what came, on which object."""


def silent(sentence: str) -> None:
    """For callers who do not want to know, such as the extender on a pod that the store has reported already."""
