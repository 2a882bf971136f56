"""Who owns what several objects claim: served names, scale targets, namespaces. The older object owns, ties by name."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from kvaware_engine.observations import ObjectKey

__all__ = ["Claims"]

T = TypeVar("T", bound=Hashable)


class _Claimant(NamedTuple):
    created_at: str
    key: ObjectKey


class Claims(Generic[T]):
    """Claims of objects on things. Each question costs as much as the things that it is about have claimants."""

    def __init__(self) -> None:
        self._of: dict[ObjectKey, tuple[_Claimant, frozenset[T]]] = {}
        self._claimants: dict[T, set[_Claimant]] = defaultdict(set)

    def put(self, key: ObjectKey, created_at: str, things: Iterable[T]) -> set[ObjectKey]:
        """Set what an object claims; nothing where it is gone.

        Returns: the other objects whose ownership may have changed by it.
        """
        claimant, wanted = _Claimant(created_at, key), frozenset(things)
        before = self._of.get(key)
        if before == (claimant, wanted):
            return set()
        touched: set[T] = set(wanted)
        if before is not None:
            touched |= before[1]
            for thing in before[1]:
                self._claimants[thing].discard(before[0])
                if not self._claimants[thing]:
                    del self._claimants[thing]
            del self._of[key]
        if wanted:
            self._of[key] = (claimant, wanted)
            for thing in wanted:
                self._claimants[thing].add(claimant)
        others = {each.key for thing in touched for each in self._claimants.get(thing, ())}
        return others - {key}

    def owner(self, thing: T) -> ObjectKey | None:
        """The oldest object that claims it; None: nobody does."""
        claimants = self._claimants.get(thing)
        return min(claimants).key if claimants else None

    def claimants(self, thing: T) -> set[ObjectKey]:
        """Everybody who claims it."""
        return {each.key for each in self._claimants.get(thing, ())}
