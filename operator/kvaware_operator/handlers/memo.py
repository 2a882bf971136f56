"""What handlers reach: ways out of kopf's thread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvaware_cluster import Kind
from kvaware_engine.observations import ObjectKey

__all__ = ["Memo", "Requests"]


class Requests:
    """The queue of one kind, as seen from kopf's thread."""

    def __init__(self, request: Callable[[ObjectKey], None]) -> None:
        """Take what hands a key over; it must be safe to call in any thread."""
        self._request = request

    def request(self, key: ObjectKey) -> None:
        """Look at an object. Thread-safe, one entry per key."""
        self._request(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """One per process."""

    models: Requests
    groups: Requests
    quotas: Requests
    crd_seen: Callable[[Kind, str], None]
    """A kind of ours has this CRD: its UID and generation, as one text. Thread-safe."""

    def __copy__(self) -> "Memo":
        """Kopf copies the memo for each object that it meets; there is nothing in it that belongs to one."""
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Memo":
        return self
