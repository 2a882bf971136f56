"""Nothing may block an event loop: blocking calls made from a room's code are errors while a test runs."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from blockbuster import BlockBuster

__all__ = ["blocking_calls_are_errors"]


@contextmanager
def blocking_calls_are_errors(*rooms: str, but_in: Mapping[str, Iterable[str]] | None = None) -> Iterator[None]:
    """Watch the code of these packages, but for some functions by file: what has a loop and a thread of its own."""
    guard = BlockBuster(scanned_modules=list(rooms))
    for file, functions in (but_in or {}).items():
        for call in guard.functions.values():
            call.can_block_in(file, set(functions))
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()
