"""The seam where bytes come in and writes go out: Kubernetes, or a folder of YAML."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from kvaware_engine.observations import ObjectKey

__all__ = [
    "CUSTOM_KINDS",
    "OBSERVED_KINDS",
    "EventType",
    "ExporterTarget",
    "Kind",
    "ListPage",
    "RawObject",
    "Source",
    "TokenIdentity",
    "WatchEvent",
    "Watchable",
]

RawObject = dict[str, Any]
"""One Kubernetes object as JSON gave it."""


class Kind(StrEnum):
    """What a store can watch."""

    NODE = "node"
    POD = "pod"
    INFERENCE_MODEL = "inferencemodel"
    KV_CACHE_BLOCK_GROUP = "kvcacheblockgroup"
    TENANT_QUOTA = "tenantquota"
    AUTOSCALER = "horizontalpodautoscaler"
    """``autoscaling/v2``, read only to see who else scales."""


CUSTOM_KINDS: Final = frozenset({Kind.INFERENCE_MODEL, Kind.KV_CACHE_BLOCK_GROUP, Kind.TENANT_QUOTA})
"""Those of ``kvaware.io``."""
OBSERVED_KINDS: Final = CUSTOM_KINDS | {Kind.NODE, Kind.POD}
"""Those that the engine is told of; what a store watches unless told otherwise."""


class EventType(StrEnum):
    """The watch events that reach a store; ERROR becomes an exception before."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a list; all pages of one list show the same moment."""

    items: list[RawObject]
    resource_version: str


@dataclass(slots=True)
class WatchEvent:
    """One change. Not frozen: built 40,000 times in a burst, and a frozen one takes twice as long to build."""

    type: EventType
    object: RawObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterTarget:
    """One DCGM exporter pod that can be scraped."""

    uid: str
    node: str
    address: str
    """``ip:port``, IPv6 in brackets."""
    created_at: str = ""
    """The pod's creationTimestamp, RFC 3339 in UTC: sorts as text, and nobody but the API server sets it."""


K_contra = TypeVar("K_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIdentity:
    """Who a bearer token belongs to, as TokenReview says."""

    username: str
    """``system:serviceaccount:<namespace>:<name>`` for a pod."""
    pod: ObjectKey | None
    """The pod that the token is bound to, where it is."""
    pod_uid: str | None


class Watchable(Protocol[K_contra]):
    """What can be listed and watched, by kind.

    Errors: those of ``kvaware_cluster.errors``. Every call is bounded in time by the other side itself.
    """

    def list_pages(self, kind: K_contra) -> AsyncGenerator[ListPage, None]:
        """All objects of a kind, page by page. GoneError when the list took too long to page through."""
        ...

    def watch(self, kind: K_contra, resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """Changes after ``resource_version``, until the server closes the stream, which it does after a while.

        The first event is a bookmark of ``resource_version`` itself: the stream is open. GoneError when the version is
        too old; NotFoundError when the kind is not served (any more).
        """
        ...


class Source(Watchable[Kind], Protocol):
    """What a store reads from and what writes go to; errors and times as for ``Watchable``."""

    async def get_pod(self, namespace: str, name: str) -> RawObject | None:
        """The pod as the API server has it now; None when there is none."""
        ...

    async def bind(self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Assign a pod to a node and annotate it, in one write. ConflictError: bound already, or another UID."""
        ...

    async def patch_pod_condition(self, *, namespace: str, name: str, uid: str, condition: Mapping[str, Any]) -> None:
        """Set one condition in the pod's status. ConflictError when the pod of that name has another UID."""
        ...

    async def read_exporter(self, target: ExporterTarget) -> str:
        """The metrics text of one DCGM exporter. WorkerError when it cannot be had."""
        ...

    async def read_metrics(self, address: str, *, what: str, timeout_s: float, body_bytes: int) -> str:
        """The text of ``http://<address>/metrics``, whole and in time; ``what`` names it in errors. WorkerError."""
        ...

    async def review_token(self, token: str, *, audiences: Sequence[str]) -> TokenIdentity | None:
        """Whose bearer token this is; None when it is nobody's, or not meant for one of the audiences.

        ConfigError when there is nobody who could say.
        """
        ...

    async def close(self) -> None:
        """Let connections go."""
        ...
