"""The objects of one kind as last seen, and what changed in them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from kvaware_cluster.source import RawObject
from kvaware_engine.observations import ObjectKey

__all__ = ["Change", "Table"]

T = TypeVar("T")


@dataclass(slots=True)
class Change(Generic[T]):
    """One object changed: added (``old`` is None), removed (``new`` is None), or different in what is kept of it.

    Not frozen: built once per event in bursts of 40,000.
    """

    kind: str
    """A ``Kind``."""
    key: ObjectKey
    old: T | None
    new: T | None


class Table(Generic[T]):
    """Observations by key, fed by a list and then by watch events.

    An object of the same name with another UID is a removal and an addition. What a listener has not taken (it raised)
    is undone here, so that the next list finds the difference again.
    """

    def __init__(
        self,
        kind: str,
        parse: Callable[[RawObject], T | None],
        *,
        notify: Callable[[Change[T]], None],
        unreadable: Callable[[ObjectKey, Exception], None],
    ) -> None:
        self._kind = kind
        self._parse = parse
        self._notify = notify
        self._unreadable = unreadable
        self._objects: dict[ObjectKey, T] = {}
        self._seen: set[ObjectKey] = set()

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """A read-only view."""
        return MappingProxyType(self._objects)

    def get(self, key: ObjectKey) -> T | None:
        """The object as last seen."""
        return self._objects.get(key)

    def begin_list(self) -> None:
        """A list begins: nothing has been seen in it."""
        self._seen = set()

    def see(self, key: ObjectKey, raw: RawObject) -> None:
        """An object of a list."""
        self.put(key, raw)
        if key in self._objects:
            self._seen.add(key)

    def missing(self) -> set[ObjectKey]:
        """What the list did not hold, once it is complete."""
        return self._objects.keys() - self._seen

    def end_list(self, *, keep: Collection[ObjectKey] = ()) -> None:
        """The list is complete: what was not in it is gone, but for ``keep``."""
        for key in self.missing().difference(keep):
            self._set(key, self._objects[key], None)
        self._seen = set()

    def put(self, key: ObjectKey, raw: RawObject) -> None:
        """An object as it is now. One that cannot be read leaves what was known of it."""
        try:
            new = self._parse(raw)
        except Exception as error:  # noqa: BLE001  # WireError, or a fault of ours: one object must not blind us to all others
            self._unreadable(key, error)
            return
        old = self._objects.get(key)
        if old is not None and new is not None and _uid(old) != _uid(new):
            self._set(key, old, None)
            old = None
        if old != new:
            self._set(key, old, new)

    def remove(self, key: ObjectKey, uid: Any) -> None:
        """An object is gone, unless another one of its name has taken its place already."""
        old = self._objects.get(key)
        if old is not None and _uid(old) in {uid, None}:
            self._set(key, old, None)

    def _set(self, key: ObjectKey, old: T | None, new: T | None) -> None:
        self._store(key, new)
        try:
            self._notify(Change(self._kind, key, old, new))
        except BaseException:
            self._store(key, old)
            raise

    def _store(self, key: ObjectKey, value: T | None) -> None:
        if value is None:
            self._objects.pop(key, None)
        else:
            self._objects[key] = value


def _uid(value: object) -> str | None:
    """Block groups keep no UID: one that replaces another of its name is a change of it."""
    return getattr(value, "uid", None)
