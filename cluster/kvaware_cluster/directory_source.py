"""A folder of YAML as a source: an API server in memory, small and honest, for demos and dry runs.

It keeps versions, refuses what an API server refuses, and tells its watchers of every write.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from kvaware_cluster.errors import ConflictError, GoneError, NotFoundError, WorkerError
from kvaware_cluster.manifests import CREATED_AT, Folder, complete, load_folder
from kvaware_cluster.source import EventType, ExporterTarget, Kind, ListPage, RawObject, TokenIdentity, WatchEvent
from kvaware_crds.errors import ConfigError, WireError
from kvaware_engine.observations import ObjectKey

__all__ = ["DirectorySource"]

PAGE_SIZE: Final = 500
BOOKMARK_EVERY_S: Final = 5.0
"""A silent watch proves so often that it is fresh."""
KEPT_EVENTS: Final = 10_000
"""Per kind. Who watches from an older version gets 410, as an API server's cache would answer."""
EXPORTER_NAMESPACE: Final = "gpu-operator"


@dataclass(slots=True)
class _Logged:
    version: int
    event: WatchEvent


class DirectorySource:
    """Objects of a folder, changed by ``bind``, ``patch_pod_condition``, ``add_pod`` and ``delete_pod``.

    A ``Source``. The files are read once and never written.
    """

    def __init__(self, folder: Folder) -> None:
        self._objects: dict[Kind, dict[ObjectKey, RawObject]] = {kind: {} for kind in Kind}
        self._versions = count(1)
        self._version = 0
        self._generations: Counter[ObjectKey] = Counter()
        self._events: dict[Kind, deque[_Logged]] = {kind: deque(maxlen=KEPT_EVENTS) for kind in Kind}
        self._dropped: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._wakes: set[asyncio.Event] = set()
        self._exporters = dict(folder.exporters)
        for kind, objects in folder.objects.items():
            for key, raw in objects.items():
                self._keep(kind, key, raw)
        for node in self._exporters:
            self._keep(Kind.POD, *complete(Kind.POD, _exporter_pod(node)))

    @classmethod
    async def load(cls, folder: str | Path) -> Self:
        """Read a folder, off the loop.

        Raises: ConfigError naming file and document.
        """
        return cls(await asyncio.to_thread(load_folder, Path(folder)))

    async def list_pages(self, kind: Kind) -> AsyncGenerator[ListPage, None]:
        """See ``Source``."""
        items, version = list(self._objects[kind].values()), str(self._version)
        for start in range(0, max(len(items), 1), PAGE_SIZE):
            yield ListPage(items[start : start + PAGE_SIZE], version)

    async def watch(self, kind: Kind, resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """See ``Source``. Never ends by itself."""
        seen = int(resource_version)
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            yield _bookmark(resource_version)
            while True:
                if seen < self._dropped[kind]:
                    raise GoneError(f"watch of {kind}: version {seen} is too old", status=410, reason="Expired")
                wake.clear()
                for logged in [each for each in self._events[kind] if each.version > seen]:
                    seen = logged.version
                    yield logged.event
                try:
                    async with asyncio.timeout(BOOKMARK_EVERY_S):
                        await wake.wait()
                except TimeoutError:
                    seen = self._version if not wake.is_set() else seen
                    yield _bookmark(str(seen))
        finally:
            self._wakes.discard(wake)

    async def get_pod(self, namespace: str, name: str) -> RawObject | None:
        """See ``Source``."""
        return self._objects[Kind.POD].get(ObjectKey(namespace, name))

    async def bind(self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """See ``Source``."""
        what = f"binding of pod {namespace}/{name} to {node}"
        pod = self._pod(namespace, name, uid, what)
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        if metadata.get("deletionTimestamp"):
            raise ConflictError(f"{what}: the pod is being deleted", status=409, reason="Conflict")
        if spec.get("nodeName"):
            raise ConflictError(f"{what}: the pod is on {spec['nodeName']} already", status=409, reason="Conflict")
        bound = {
            **pod,
            "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}},
            "spec": {**spec, "nodeName": node},
        }
        self._change(_with_condition(bound, {"type": "PodScheduled", "status": "True"}))

    async def patch_pod_condition(self, *, namespace: str, name: str, uid: str, condition: Mapping[str, Any]) -> None:
        """See ``Source``."""
        pod = self._pod(namespace, name, uid, f"condition {condition.get('type')} of pod {namespace}/{name}")
        patched = _with_condition(pod, condition)
        if patched["status"] != pod.get("status"):  # an API server writes no version when nothing changes
            self._change(patched)

    async def read_exporter(self, target: ExporterTarget) -> str:
        """See ``Source``: the text of ``dcgm/<node>.txt``."""
        try:
            return self._exporters[target.node]
        except KeyError as error:
            raise WorkerError(
                f"exporter of node {target.node}: expected dcgm/{target.node}.txt, there is none"
            ) from error

    async def read_metrics(self, address: str, *, what: str, timeout_s: float, body_bytes: int) -> str:  # noqa: ARG002  # as in Source
        """See ``Source``: the pods of a folder do not run, and their addresses may be somebody else's."""
        raise WorkerError(f"{what}: a pod in a folder runs no server")

    async def review_token(self, token: str, *, audiences: Sequence[str]) -> TokenIdentity | None:  # noqa: ARG002  # as in Source
        """See ``Source``: nobody here knows tokens."""
        raise ConfigError("no TokenReview without a cluster: expected workers to authenticate by a token file")

    async def close(self) -> None:
        """See ``Source``. There is nothing to let go."""

    def add_pod(self, raw: RawObject) -> RawObject:
        """Create a pod.

        Returns: The pod as stored: with UID, version and what else an API server adds.
        Raises: ConflictError when one of that name exists; WireError when it is invalid.
        """
        if type(raw) is not dict:
            raise WireError(f"pod: expected an object, got {type(raw).__name__}")
        key, _ = complete(Kind.POD, raw)
        if key in self._objects[Kind.POD]:
            raise ConflictError(f"pod {key.namespace}/{key.name} exists", status=409, reason="AlreadyExists")
        _, pod = complete(Kind.POD, raw, generation=self._generations[key])
        stored = self._keep(Kind.POD, key, pod)
        self._log(Kind.POD, EventType.ADDED, stored)
        return stored

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod at once.

        Raises: NotFoundError when there is none.
        """
        key = ObjectKey(namespace, name)
        pod = self._objects[Kind.POD].pop(key, None)
        if pod is None:
            raise NotFoundError(f"pod {namespace}/{name} does not exist", status=404, reason="NotFound")
        self._log(Kind.POD, EventType.DELETED, self._versioned(pod))

    def _pod(self, namespace: str, name: str, uid: str, what: str) -> RawObject:
        pod = self._objects[Kind.POD].get(ObjectKey(namespace, name))
        if pod is None:
            raise NotFoundError(f"{what}: the pod does not exist", status=404, reason="NotFound")
        if pod["metadata"]["uid"] != uid:
            raise ConflictError(f"{what}: the pod has another UID", status=409, reason="Conflict")
        return pod

    def _change(self, pod: RawObject) -> None:
        metadata = pod["metadata"]
        stored = self._keep(Kind.POD, ObjectKey(metadata["namespace"], metadata["name"]), pod)
        self._log(Kind.POD, EventType.MODIFIED, stored)

    def _keep(self, kind: Kind, key: ObjectKey, raw: RawObject) -> RawObject:
        if key not in self._objects[kind]:
            self._generations[key] += 1
        stored = self._objects[kind][key] = self._versioned(raw)
        return stored

    def _versioned(self, raw: RawObject) -> RawObject:
        self._version = next(self._versions)
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self._version)}}

    def _log(self, kind: Kind, type_: EventType, raw: RawObject) -> None:
        events = self._events[kind]
        if len(events) == KEPT_EVENTS:
            self._dropped[kind] = events[0].version
        events.append(_Logged(self._version, WatchEvent(type_, raw)))
        for wake in self._wakes:
            wake.set()


def _bookmark(version: str) -> WatchEvent:
    return WatchEvent(EventType.BOOKMARK, {"metadata": {"resourceVersion": version}})


def _with_condition(pod: RawObject, condition: Mapping[str, Any]) -> RawObject:
    status = pod.get("status") or {}
    conditions = list(status.get("conditions") or [])
    for index, old in enumerate(conditions):
        if old.get("type") == condition.get("type"):
            conditions[index] = {**old, **condition}
            break
    else:
        conditions.append(dict(condition))
    return {**pod, "status": {**status, "conditions": conditions}}


def _exporter_pod(node: str) -> RawObject:
    """The exporter's pod, by which the store finds what ``dcgm/<node>.txt`` holds."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"dcgm-exporter-{node}"[:253],
            "namespace": EXPORTER_NAMESPACE,
            "labels": {"app": "nvidia-dcgm-exporter"},
            "creationTimestamp": CREATED_AT,
        },
        "spec": {"nodeName": node, "containers": [{"name": "exporter"}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1"},
    }
