"""Who owns what several objects claim: served names, scale targets, namespaces. The older object owns, ties by name."""

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from kvaware_engine.observations import ObjectKey

__all__ = ["Claims"]

T = TypeVar("T", bound=Hashable)


class _Claimant(NamedTuple):
    created_at: str
    key: ObjectKey


class Claims(Generic[T]):
    """Claims of objects on things."""

    def __init__(self) -> None:
        self._of: dict[ObjectKey, tuple[_Claimant, frozenset[T]]] = {}
        self._claimants: dict[T, set[_Claimant]] = {}
        self._owner: dict[T, _Claimant] = {}

    def put(self, key: ObjectKey, created_at: str, things: Iterable[T]) -> set[ObjectKey]:
        """Set what an object claims; nothing where it is gone.

        Returns: the other claimants of what has another owner now.
        """
        claimant, wanted = _Claimant(created_at, key), frozenset(things)
        before, had = self._of.pop(key, (claimant, frozenset[T]()))
        if wanted:
            self._of[key] = (claimant, wanted)
        touched: set[ObjectKey] = set()
        for thing in had - wanted if before == claimant else had:
            touched |= self._drop(thing, before)
        for thing in wanted - had if before == claimant else wanted:
            touched |= self._add(thing, claimant)
        return touched - {key}

    def owner(self, thing: T) -> ObjectKey | None:
        """The oldest object that claims it; None: nobody does."""
        owner = self._owner.get(thing)
        return None if owner is None else owner.key

    def claimants(self, thing: T) -> set[ObjectKey]:
        """Everybody who claims it."""
        return {each.key for each in self._claimants.get(thing, ())}

    def _add(self, thing: T, claimant: _Claimant) -> set[ObjectKey]:
        self._claimants.setdefault(thing, set()).add(claimant)
        owner = self._owner.get(thing)
        if owner is not None and owner < claimant:
            return set()
        self._owner[thing] = claimant
        return self.claimants(thing)

    def _drop(self, thing: T, claimant: _Claimant) -> set[ObjectKey]:
        rest = self._claimants[thing]
        rest.discard(claimant)
        if not rest:
            del self._claimants[thing], self._owner[thing]
            return set()
        if self._owner[thing] != claimant:
            return set()
        self._owner[thing] = min(rest)
        return self.claimants(thing)
