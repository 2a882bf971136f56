"""Which removals are believed at once, and which only when a later list confirms them."""

from collections.abc import Collection
from dataclasses import dataclass, field

from kvaware_engine.observations import ObjectKey

__all__ = ["RemovalHold"]


@dataclass(slots=True)
class RemovalHold:
    """When each object was first missed, in a watch or a list; times are the caller's monotonic seconds."""

    hold_s: float | None
    """An object goes when a list, begun at least this long after it was first missed, lacks it. None: at once."""
    _missed_at_s: dict[ObjectKey, float] = field(default_factory=dict)

    def deleted(self, key: ObjectKey, *, at_s: float) -> bool:
        """A watch says that it is gone. Returns: whether it stays until a list confirms that."""
        if self.hold_s is not None:
            self._missed_at_s.setdefault(key, at_s)
        return self.hold_s is not None

    def present(self, key: ObjectKey) -> None:
        """A watch says that it is there (again)."""
        self._missed_at_s.pop(key, None)

    def listed(self, missing: Collection[ObjectKey], *, began_at_s: float) -> Collection[ObjectKey]:
        """A complete list lacks these objects. Returns: those that stay until another list confirms that."""
        if self.hold_s is None:
            return ()
        first_at_s = {key: self._missed_at_s.get(key, began_at_s) for key in missing}
        self._missed_at_s = {key: at_s for key, at_s in first_at_s.items() if began_at_s < at_s + self.hold_s}
        return self._missed_at_s.keys()

    def look_at_s(self) -> float | None:
        """From when on a list can confirm a removal; None when none is held."""
        return None if self.hold_s is None or not self._missed_at_s else min(self._missed_at_s.values()) + self.hold_s

    def start_over(self) -> None:
        """The kind could not be listed: what is missing when it is back has not been missing for any time."""
        self._missed_at_s.clear()
