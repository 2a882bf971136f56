"""Writing statuses: only what differs, seldom, and never again what the API server does not keep.

An installed CRD that is older than this program drops fields that it does not know, without a word. Writing them again
and again because what is read back differs would never end (slauger/openvox-operator#555), so an object whose status
lost fields is left alone until its spec or the CRD changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import structlog

from kvaware_cluster import ConflictError, Kind, NotFoundError
from kvaware_cluster.workloads import ClusterApi, CustomResource
from kvaware_engine.observations import ObjectKey

__all__ = ["StatusWriter", "WriteResult", "differs", "missing_paths", "without"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ITEM_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "roles": ("name",),
    "copies": ("worker", "tier"),
}
"""Lists that are maps, by field name: their items are matched by these keys, and their order means nothing."""


class WriteResult(StrEnum):
    """What became of a status."""

    WRITTEN = "written"
    FIELDS_LOST = "fields_lost"
    FAILED = "failed"


@dataclass(slots=True)
class _Written:
    uid: str
    at_s: float
    before: Mapping[str, Any]
    """The status as the store had it when this was written."""
    stored: Mapping[str, Any]
    """As the API server answered."""
    lost_at_generation: int | None = None
    """Generation of the spec for which fields were lost; None: all were kept."""


class StatusWriter:
    """Remembers per object what was written when. It has one owner; looks at one object do not overlap."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        interval_s: float,
        clock: Callable[[], float],
        wrote: Callable[[Kind, WriteResult], None] = lambda _kind, _result: None,
    ) -> None:
        self._api = api
        self._interval_s = interval_s
        self._clock = clock
        self._wrote = wrote
        self._written: dict[tuple[Kind, ObjectKey], _Written] = {}
        self._lost: dict[Kind, frozenset[str]] = {}

    def lost_fields(self) -> Mapping[Kind, frozenset[str]]:
        """Status fields that the installed CRD does not know, by kind; empty while nothing was lost."""
        return self._lost

    def present(self, resource: CustomResource) -> Mapping[str, Any]:
        """The status as it is, own writes included that the watch has not brought yet."""
        written = self._written.get((resource.kind, resource.key))
        if written is not None and written.uid == resource.uid and written.before == resource.status:
            return written.stored
        return resource.status

    async def write(self, resource: CustomResource, status: Mapping[str, Any]) -> float | None:
        """Bring the status about, if it differs from what the API server has.

        Returns: seconds after which to try again, because the last write was too short a time ago; None: done.
        Raises: what ``ClusterApi.write_status`` raises, but for an object that is not there any more.
        """
        where = (resource.kind, resource.key)
        known = without(status, self._lost.get(resource.kind, frozenset()))
        if not differs(self.present(resource), known):
            return None
        last = self._written.get(where)
        if last is not None and last.uid == resource.uid:
            if last.lost_at_generation == resource.generation:
                return None
            wait_s = last.at_s + self._interval_s - self._clock()
            if wait_s > 0:
                return wait_s
        try:
            answer = await self._api.write_status(resource.kind, resource.key, uid=resource.uid, status=status)
        except (NotFoundError, ConflictError):
            return None  # it is gone, or another one has its name: the watch tells, and that one is looked at
        except Exception:
            self._wrote(resource.kind, WriteResult.FAILED)
            raise
        lost = missing_paths(status, answer)
        self._written[where] = _Written(
            uid=resource.uid,
            at_s=self._clock(),
            before=resource.status,
            stored=answer,
            lost_at_generation=resource.generation if lost else None,
        )
        self._wrote(resource.kind, WriteResult.FIELDS_LOST if lost else WriteResult.WRITTEN)
        self._note(resource.kind, status, lost)
        return None

    def forget(self, kind: Kind, key: ObjectKey) -> None:
        """The object is gone."""
        self._written.pop((kind, key), None)

    def crd_changed(self, kind: Kind) -> None:
        """Another CRD is installed: what it keeps is to be found out anew."""
        self._lost.pop(kind, None)
        for (of, _), written in self._written.items():
            if of is kind:
                written.lost_at_generation = None

    def _note(self, kind: Kind, sent: Mapping[str, Any], lost: frozenset[str]) -> None:
        known = self._lost.get(kind, frozenset())
        if lost and not lost <= known:
            self._lost[kind] = known | lost
            log.error(
                "the installed CRD is older than this operator: it drops status fields",
                kind=kind,
                fields=sorted(lost),
                remedy="apply the CRDs of this version (kvaware crds | kubectl apply --server-side -f -)",
            )
        elif not lost and missing_paths(sent, without(sent, known)):  # what was dropped before is kept now
            self.crd_changed(kind)
            log.info("the installed CRD keeps every status field again", kind=kind)


def differs(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two statuses say different things; the order of lists that are maps does not matter."""
    return present != wanted and bool(_ordered(present) != _ordered(wanted))  # mostly they are the same


def missing_paths(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> frozenset[str]:
    """Fields of ``sent`` that are not in ``kept``, as ``roles[].reason``."""
    return frozenset(_missing(sent, kept, ""))


def without(status: Mapping[str, Any], paths: frozenset[str]) -> dict[str, Any]:
    """The status less some fields, named as by ``missing_paths``."""
    return {name: _without(value, _below(paths, name)) for name, value in status.items() if name not in paths}


def _without(value: Any, paths: frozenset[str]) -> Any:
    if not paths:
        return value
    if isinstance(value, Mapping):
        return without(value, frozenset(path[1:] for path in paths if path.startswith(".")))
    if isinstance(value, list):
        inside = frozenset(path[3:] for path in paths if path.startswith("[]."))
        return [without(item, inside) if isinstance(item, Mapping) else item for item in value]
    return value


def _below(paths: frozenset[str], name: str) -> frozenset[str]:
    return frozenset(path[len(name) :] for path in paths if path.startswith((f"{name}.", f"{name}[]")))


def _missing(sent: Mapping[str, Any], kept: Mapping[str, Any], path: str) -> set[str]:
    found: set[str] = set()
    for name, value in sent.items():
        here = f"{path}{name}"
        if name not in kept:
            if value not in ({}, [], None):  # nothing was said
                found.add(here)
        elif isinstance(value, Mapping) and isinstance(kept[name], Mapping):
            found |= _missing(value, kept[name], f"{here}.")
        elif isinstance(value, list) and isinstance(kept[name], list):
            theirs = {_item_key(name, item): item for item in kept[name]}
            for item in value:
                match = theirs.get(_item_key(name, item))
                if isinstance(item, Mapping) and isinstance(match, Mapping):
                    found |= _missing(item, match, f"{here}[].")
    return found


def _item_key(name: str, item: Any) -> Any:
    keys = ITEM_KEYS.get(name)
    if keys is None or not isinstance(item, Mapping):
        return repr(item)
    return tuple(str(item.get(key)) for key in keys)


def _ordered(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _ordered(each, key) for key, each in value.items() if each not in ({}, [], None)}
    if isinstance(value, list):
        items = [_ordered(each) for each in value]
        return sorted(items, key=lambda item: _item_key(name, item)) if name in ITEM_KEYS else items
    return value
