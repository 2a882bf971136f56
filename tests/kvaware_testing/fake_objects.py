"""The part of the fake API server that serves single objects of any kind, by the paths that the real one has.

Discovery; get, create, update and merge patch; the subresources ``status`` and ``scale`` with their preconditions; an
older CRD, which drops status fields that it does not know.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

__all__ = ["CORE_KINDS", "FakeKind", "FakeKinds", "answer", "merged", "projected", "raw_workload", "status_answer"]

Raw = dict[str, Any]
Key = tuple[str, str]
RESOURCE_GONE = "the server could not find the requested resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeKind:
    """How one kind is served."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    scalable: bool = False
    status_fields: frozenset[str] | None = None
    """What the CRD's schema knows of the status; None: everything."""

    @property
    def prefix(self) -> str:
        """``/api/v1`` or ``/apis/<group>/<version>``."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    @property
    def path(self) -> str:
        """Of all its objects."""
        return f"{self.prefix}/{self.plural}"


OURS = "kvaware.io/v1alpha1"
CORE_KINDS: dict[str, FakeKind] = {
    "node": FakeKind(api_version="v1", kind="Node", plural="nodes", namespaced=False),
    "pod": FakeKind(api_version="v1", kind="Pod", plural="pods"),
    "inferencemodel": FakeKind(api_version=OURS, kind="InferenceModel", plural="inferencemodels"),
    "kvcacheblockgroup": FakeKind(api_version=OURS, kind="KVCacheBlockGroup", plural="kvcacheblockgroups"),
    "tenantquota": FakeKind(api_version=OURS, kind="TenantQuota", plural="tenantquotas", namespaced=False),
    "horizontalpodautoscaler": FakeKind(
        api_version="autoscaling/v2", kind="HorizontalPodAutoscaler", plural="horizontalpodautoscalers"
    ),
    "lease": FakeKind(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases"),
    "deployment": FakeKind(api_version="apps/v1", kind="Deployment", plural="deployments", scalable=True),
}


class FakeKinds(Protocol):
    """What this module needs of the fake server."""

    kinds: dict[str, FakeKind]
    objects: dict[str, dict[Key, Raw]]
    hidden: set[str]
    broken: set[str]
    forbidden: set[str]

    async def put(self, kind: str, raw: Raw) -> Raw:
        """Create or change an object."""
        ...


async def answer(api: FakeKinds, request: web.Request) -> web.Response:
    """Answer for discovery or one object."""
    parts = request.path.strip("/").split("/")
    if len(parts) == 1:
        return _versions(api, parts[0])
    depth = 2 if parts[0] == "api" else 3
    prefix, rest = "/" + "/".join(parts[:depth]), parts[depth:]
    if prefix in api.broken:
        return status_answer(503, "ServiceUnavailable", "the server is currently unable to handle the request")
    if not rest:
        return _discovery(api, prefix)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = next((name for name, each in api.kinds.items() if each.path == f"{prefix}/{rest[0]}"), None)
    if kind is None or kind in api.hidden:
        return status_answer(404, "NotFound", RESOURCE_GONE)
    if request.method != "GET" and f"{kind}:write" in api.forbidden:
        return status_answer(403, "Forbidden", f"{kind} may not be written")
    if len(rest) == 1:
        return await _collection(api, kind, namespace, request)
    old = api.objects[kind].get((namespace, rest[1]))
    if old is None:
        plural = api.kinds[kind].plural
        return status_answer(404, "NotFound", f'{plural} "{rest[1]}" not found', details={"name": rest[1]})
    match rest[2:]:
        case []:
            return await _object(api, kind, old, request)
        case ["scale"] if api.kinds[kind].scalable:
            return await _scale(api, kind, old, request)
        case ["status"] if request.method == "PATCH":
            return await _status_replaced(api, kind, old, request)
        case _:
            return status_answer(404, "NotFound", RESOURCE_GONE)


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch applied (RFC 7396)."""
    if type(patch) is not dict:
        return patch
    result = dict(old) if type(old) is dict else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def projected(raw: Raw, accept: str) -> Raw:
    """The object, or only its metadata where the client asks for that."""
    if "as=PartialObjectMetadata" not in accept:
        return raw
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": raw["metadata"]}


def status_answer(
    code: int, reason: str, message: str, *, success: bool = False, details: Raw | None = None
) -> web.Response:
    """A ``Status`` object."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if success else "Failure",
        "message": message,
        "reason": reason,
        "code": code,
        "details": details or {},
    }
    return web.json_response(body, status=code)


def raw_workload(
    name: str = "llama",
    *,
    namespace: str = "ml",
    replicas: int = 1,
    running: int | None = None,
    selector: Mapping[str, str] | None = None,
) -> Raw:
    """A Deployment, or anything of its shape; ``running`` is what exists of its replicas."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": dict(selector or {"app": name})}},
        "status": {"replicas": replicas if running is None else running},
    }


def _discovery(api: FakeKinds, prefix: str) -> web.Response:
    kinds = [kind for name, kind in api.kinds.items() if kind.prefix == prefix and name not in api.hidden]
    if not kinds:
        return web.Response(status=404, text="404 page not found\n")
    resources: list[Raw] = []
    for kind in kinds:
        resources.append(
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "kind": kind.kind,
                "namespaced": kind.namespaced,
                "verbs": ["get", "list", "watch"],
            }
        )
        resources.append({"name": f"{kind.plural}/status", "kind": kind.kind, "namespaced": kind.namespaced})
        if kind.scalable:
            resources.append({"name": f"{kind.plural}/scale", "kind": "Scale", "namespaced": kind.namespaced})
    return web.json_response({"kind": "APIResourceList", "groupVersion": kinds[0].api_version, "resources": resources})


def _versions(api: FakeKinds, root: str) -> web.Response:
    """``/api`` and ``/apis``: what there is to discover."""
    served = {kind.api_version for name, kind in api.kinds.items() if name not in api.hidden}
    if root == "api":
        return web.json_response(
            {"kind": "APIVersions", "versions": sorted(each for each in served if "/" not in each)}
        )
    groups = []
    for version in sorted(each for each in served if "/" in each):
        entry = {"groupVersion": version, "version": version.split("/")[1]}
        groups.append({"name": version.split("/")[0], "versions": [entry], "preferredVersion": entry})
    return web.json_response({"kind": "APIGroupList", "groups": groups})


async def _collection(api: FakeKinds, kind: str, namespace: str, request: web.Request) -> web.Response:
    if request.method == "GET":
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        found = api.objects[kind].get((namespace, name))
        return web.json_response({"metadata": {}, "items": [] if found is None else [found]})
    if request.method != "POST":
        return status_answer(405, "MethodNotAllowed", request.method)
    raw = await request.json()
    if raw["metadata"].get("namespace", "") != namespace:
        return status_answer(400, "BadRequest", "the namespace of the object does not match the request")
    if (namespace, raw["metadata"]["name"]) in api.objects[kind]:
        return status_answer(409, "AlreadyExists", "already exists")
    return web.json_response(await api.put(kind, raw), status=201)


async def _object(api: FakeKinds, kind: str, old: Raw, request: web.Request) -> web.Response:
    if request.method == "GET":
        return web.json_response(old)
    if request.method == "PATCH":
        return await _patched(api, kind, old, request)
    if request.method != "PUT":
        return status_answer(405, "MethodNotAllowed", request.method)
    new = await request.json()
    refusal = _precondition(old, new)
    return refusal or web.json_response(await api.put(kind, new))


async def _scale(api: FakeKinds, kind: str, old: Raw, request: web.Request) -> web.Response:
    if request.method == "PUT":
        wanted = await request.json()
        refusal = _precondition(old, wanted)
        if refusal is not None:
            return refusal
        new = copy.deepcopy(old)
        new["spec"]["replicas"] = wanted["spec"].get("replicas", 0)
        old = await api.put(kind, new) if new != old else old
    selector = ",".join(f"{key}={value}" for key, value in old["spec"]["selector"]["matchLabels"].items())
    metadata = {each: old["metadata"][each] for each in ("name", "namespace", "uid", "resourceVersion")}
    scale: Raw = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {}}
    scale["status"] = {"replicas": old["status"]["replicas"], "selector": selector}
    if old["spec"]["replicas"]:  # zero is left out, as the real one does
        scale["spec"]["replicas"] = old["spec"]["replicas"]
    return web.json_response(scale)


def _precondition(old: Raw, new: Raw) -> web.Response | None:
    metadata = new["metadata"]
    if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        return status_answer(409, "Conflict", "Precondition failed: UID in precondition")
    if metadata.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
        return status_answer(409, "Conflict", "the object has been modified")
    return None


async def _patched(api: FakeKinds, kind: str, old: Raw, request: web.Request) -> web.Response:
    if request.content_type != "application/merge-patch+json":
        return status_answer(415, "UnsupportedMediaType", request.content_type)
    patch = await request.json()
    if patch.get("metadata", {}).get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
        return status_answer(422, "Invalid", "metadata.uid: field is immutable", details={"causes": causes})
    new = merged(copy.deepcopy(old), patch)
    if "fieldManager" in request.query:
        _manage(new, patch, request.query["fieldManager"])
    return web.json_response(await api.put(kind, new) if new != old else old)


async def _status_replaced(api: FakeKinds, kind: str, old: Raw, request: web.Request) -> web.Response:
    """A JSON patch that tests the UID and replaces the status. What fails is told without a cause, as really."""
    if request.content_type != "application/json-patch+json":
        return status_answer(415, "UnsupportedMediaType", request.content_type)
    test, replace = await request.json()
    if (test["op"], test["path"], replace["op"], replace["path"]) != ("test", "/metadata/uid", "add", "/status"):
        return status_answer(400, "BadRequest", "this server knows no other patch")
    if test["value"] != old["metadata"]["uid"]:
        return status_answer(422, "Invalid", "the server rejected our request due to an error in our request")
    known, status = api.kinds[kind].status_fields, replace["value"]
    if known is not None:
        status = {field: value for field, value in status.items() if field in known}
    new = {**copy.deepcopy(old), "status": status}
    return web.json_response(await api.put(kind, new) if new != old else old)


def _manage(new: Raw, patch: Raw, manager: str) -> None:
    """Who wrote which annotation, as far as kvaware looks at it: the last writer owns it."""
    written = {f"f:{name}" for name in patch.get("metadata", {}).get("annotations", {})}
    kept = set(new["metadata"].get("annotations", {}))
    entries = new["metadata"].setdefault("managedFields", [])
    for entry in entries:
        owned = entry["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})
        for name in written:
            owned.pop(name, None)
    mine: Raw = {name: {} for name in written if name.removeprefix("f:") in kept}
    if mine:
        fields = {"f:metadata": {"f:annotations": mine}}
        entries.append({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields})
