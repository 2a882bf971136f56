"""The memory that all block indexes together may take, and who gives way when it is used up."""

from typing import Final, Protocol

__all__ = ["IndexBudget", "Part"]

STEP_RATIO: Final = 0.01
STEP_BYTES: Final = 2**16
"""So much below the budget, the smaller of the two, is gone down to when it is used up: often enough to keep each pause
at some milliseconds, seldom enough that sizes are not added up at every block."""
BATCH_GROUPS: Final = 16
"""Forgotten between two looks at the sizes."""


class Part(Protocol):
    """Something that takes memory of the budget."""

    @property
    def size_bytes(self) -> int:
        """All that it takes."""
        ...

    def oldest_tick(self) -> int | None:
        """When its group that goes first was matched or stored last; None: it has none to give."""
        ...

    def forget_oldest(self) -> None:
        """Forget that group."""
        ...

    def tidy(self) -> None:
        """Give back what stands for groups that others have forgotten."""
        ...


class IndexBudget:
    """Shared by the indexes of all models.

    Forgotten are the groups that were matched or stored longest ago, whichever model's, ends of prompts first; the
    workers keep them, and a block that is stored after a forgotten one is an orphan until its worker tells all again.
    """

    __slots__ = ("_parts", "forgotten_groups", "max_bytes", "spare_bytes", "tick")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.tick = 0
        """Counts matches and changes: the time by which groups are old."""
        self.forgotten_groups = 0
        """In all, for want of memory."""
        self._parts: list[Part] = []
        self.spare_bytes = 0
        """Until sizes are added up again; who takes memory subtracts about as much."""

    @property
    def size_bytes(self) -> int:
        """What all parts take."""
        return sum(part.size_bytes for part in self._parts)

    def join(self, part: Part) -> None:
        """Count it from now on."""
        self._parts.append(part)

    def leave(self, part: Part) -> None:
        """Count it no longer: its model is gone."""
        self._parts.remove(part)

    def settle(self) -> None:
        """Forget what is too much; called when nothing is half done.

        Sizes are added up only when half of what was left before is spent.
        """
        if self.spare_bytes < 0:
            self.spare_bytes = max(0, self.max_bytes - self._fit()) // 2

    def _fit(self) -> int:
        """Forget until it fits, if it does not. Returns: What all parts take then."""
        used = self.size_bytes
        if used <= self.max_bytes:
            return used
        target = self.max_bytes - min(int(self.max_bytes * STEP_RATIO), STEP_BYTES)
        while used > target and self._forget_some():
            for part in self._parts:
                part.tidy()
            used = self.size_bytes
        return used

    def _forget_some(self) -> bool:
        for number in range(BATCH_GROUPS):
            ages = [(tick, place) for place, part in enumerate(self._parts) if (tick := part.oldest_tick()) is not None]
            if not ages:
                return number > 0
            self._parts[min(ages)[1]].forget_oldest()
            self.forgotten_groups += 1
        return True
