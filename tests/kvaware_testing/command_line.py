"""What a run of the ``kvaware`` command leaves, and the fixture's type."""

from dataclasses import dataclass
from typing import Protocol

from kvaware_testing.fake_extender import FakeExtender

__all__ = ["Kvaware", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code, standard output, standard error."""

    code: int
    out: str
    err: str


class Kvaware(Protocol):
    """Run the command with arguments; ``server`` reaches it as KVAWARE_SERVER, ``argv0`` is its name."""

    def __call__(self, *args: str, server: FakeExtender | None = None, argv0: str = "/usr/bin/kvaware") -> Result:
        """Run it in this process."""
        ...
