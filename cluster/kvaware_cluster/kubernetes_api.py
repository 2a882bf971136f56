"""What the operator asks and writes at the API server, beside watching."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlencode

from kvaware_cluster.discovery import Discovery
from kvaware_cluster.errors import ClusterApiError, ConflictError, NotFoundError
from kvaware_cluster.kubernetes_http import METADATA_LIST, KubernetesHttp, object_of, object_path, pod_path
from kvaware_cluster.kubernetes_source import PATHS
from kvaware_cluster.settings import DiscoverySettings
from kvaware_cluster.source import Kind, RawObject
from kvaware_cluster.workloads import Scale, ScaleTarget
from kvaware_crds.errors import UpstreamError
from kvaware_crds.names import ANNOTATION_DELETION_COST, FIELD_MANAGER_OPERATOR
from kvaware_engine.observations import ObjectKey

__all__ = ["KubernetesApi"]

MANAGED = urlencode({"fieldManager": FIELD_MANAGER_OPERATOR})


class KubernetesApi:
    """A ``ClusterApi``. Shares connections and credentials with whoever owns ``http``, and the loop."""

    def __init__(
        self,
        http: KubernetesHttp,
        *,
        clock: Callable[[], float],
        discovery: Discovery | None = None,
        settings: DiscoverySettings | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            http: Closed by its own owner.
            clock: Monotonic seconds.
            discovery: To share it with the watches; its own otherwise, with these settings.
            settings: See there.
        """
        self._http = http
        self.discovery = discovery or Discovery(http, settings=settings, clock=clock)

    async def read_scale(self, target: ScaleTarget) -> Scale:
        """See ``ClusterApi``. One read, and one of the kind's discovery where that is too old."""
        what = f"scale of {_named(target)}"
        path = await self._scale_path(target)
        try:
            raw = await self._http.read(path, what=what)
        except NotFoundError:
            await self.discovery.scalable(target.workload_kind, doubted=True)  # perhaps the whole kind is gone
            raise
        return _scale(raw, what=what)

    async def write_scale(self, target: ScaleTarget, *, replicas: int, seen: Scale) -> Scale:
        """See ``ClusterApi``. The resource version of what was seen is the precondition, its UID another one."""
        what = f"scaling of {_named(target)} to {replicas}"
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "uid": seen.uid,
                "resourceVersion": seen.resource_version,
            },
            "spec": {"replicas": replicas},
        }
        path = await self._scale_path(target)
        answer = await self._http.write("PUT", f"{path}?{MANAGED}", body, what=what)
        return _scale(object_of(answer, what=what), what=what)

    async def write_status(self, kind: Kind, key: ObjectKey, *, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """See ``ClusterApi``.

        A JSON patch: it tests the UID and replaces the status as a whole. In a merge patch of a custom resource's
        status the UID is passed over (seen on 1.37.2), and the status would land on an object of the same name.
        """
        what = f"status of {kind} {'/'.join(part for part in key if part)}"
        path = object_path(PATHS[kind], key.namespace, key.name)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": _without_nulls(status)},
        ]
        try:
            answer = await self._http.write(
                "PATCH", f"{path}/status?{MANAGED}", patch, content_type="application/json-patch+json", what=what
            )
        except ClusterApiError as error:
            if error.status != 422:
                raise
            # a test that failed is answered like any fault, without a word about it
            found = await self._uid_now(path, what=what)
            if found == uid:
                raise
            raise ConflictError(f"{what}: expected UID {uid}, found {found}", status=409, reason="Conflict") from error
        raw = object_of(answer, what=what)
        stored = raw.get("status", {})
        _metadata(raw, what=what)
        if type(stored) is not dict:
            raise UpstreamError(f"{what}: expected the object with its status")
        return stored

    async def write_deletion_cost(self, pod: ObjectKey, *, uid: str, cost: int | None) -> None:
        """See ``ClusterApi``."""
        what = f"deletion cost of pod {pod.namespace}/{pod.name}"
        annotations = {ANNOTATION_DELETION_COST: None if cost is None else str(cost)}
        await self._http.write(
            "PATCH",
            f"{pod_path(pod.namespace, pod.name)}?{MANAGED}",
            {"metadata": {"uid": uid, "annotations": annotations}},
            content_type="application/merge-patch+json",
            what=what,
        )

    async def _uid_now(self, path: str, *, what: str) -> str | None:
        """UID of the object of that path; None: there is none. By a list of one, since who watches may list."""
        collection, name = path.rsplit("/", 1)
        query = urlencode({"fieldSelector": f"metadata.name={unquote(name)}"})
        page = await self._http.read(f"{collection}?{query}", what=what, accept=METADATA_LIST)
        items = page.get("items") or []
        if type(items) is not list or not all(type(item) is dict for item in items):
            raise UpstreamError(f"{what}: expected a list of objects")
        uids = [_metadata(item, what=what).get("uid") for item in items]
        return str(uids[0]) if uids else None

    async def _scale_path(self, target: ScaleTarget) -> str:
        served = await self.discovery.scalable(target.workload_kind)
        return f"{object_path(served.path, target.namespace, target.name)}/scale"


def _named(target: ScaleTarget) -> str:
    return f"{target.kind} {target.namespace}/{target.name}"


def _scale(raw: RawObject, *, what: str) -> Scale:
    """A Scale as it was answered. Absent numbers are 0: the API server leaves zeros out."""
    metadata, spec, status = _metadata(raw, what=what), raw.get("spec", {}), raw.get("status", {})
    if type(spec) is not dict or type(status) is not dict:
        raise UpstreamError(f"{what}: expected a Scale with spec and status")
    replicas, current = spec.get("replicas", 0), status.get("replicas", 0)
    uid, version, selector = metadata.get("uid"), metadata.get("resourceVersion"), status.get("selector", "")
    if type(replicas) is not int or type(current) is not int or type(uid) is not str or type(version) is not str:
        raise UpstreamError(f"{what}: expected a Scale with uid, resourceVersion and whole replicas")
    return Scale(
        uid=uid,
        replicas=replicas,
        current_replicas=current,
        selector=selector if type(selector) is str else "",
        resource_version=version,
    )


def _metadata(raw: RawObject, *, what: str) -> RawObject:
    metadata = raw.get("metadata")
    if type(metadata) is not dict or not metadata:
        raise UpstreamError(f"{what}: expected an object with metadata")
    return metadata


def _without_nulls(value: Any) -> Any:
    """The value with every field left out that is None, inside lists too: the schema refuses nulls."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
