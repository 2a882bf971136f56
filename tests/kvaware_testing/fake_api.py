"""A kube-apiserver for tests: real HTTP on 127.0.0.1, the part of the API that kvaware uses, and switches to break it.

It keeps objects in memory with one growing version, pages lists by ``limit`` and ``continue`` from a snapshot, streams
watches with bookmarks, answers 410 for versions that were compacted away, and refuses bindings as the real one does.
"""

import asyncio
import copy
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

import orjson
from aiohttp import web

from kvaware_testing.fake_objects import CORE_KINDS, FakeKind, answer, projected, status_answer

__all__ = ["FakeApi", "Key", "Raw", "raw_model", "raw_node", "raw_pod", "raw_quota"]

Raw = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


@dataclass(slots=True)
class _Event:
    version: int
    type: str
    object: Raw


@dataclass(slots=True)
class Failure:
    """An answer that comes instead of the real one."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Raw = field(default_factory=dict)
    times: int = 1


class FakeApi:
    """Objects and switches. Start it with ``async with FakeApi.serve() as api``; every method is for the test."""

    def __init__(self) -> None:
        self.kinds: dict[str, FakeKind] = dict(CORE_KINDS)
        """What is served; a test may add kinds, or replace how one is served."""
        self.objects: dict[str, dict[Key, Raw]] = defaultdict(dict)
        self.requests: list[tuple[str, str, dict[str, str], dict[str, str]]] = []
        """Method, path, query, headers (names in lower case) of every request."""
        self.hidden: set[str] = set()
        """Kinds that are not served: 404."""
        self.broken: set[str] = set()
        """Paths of API versions whose server does not answer, as an aggregated API's may: listed, and 503."""
        self.forbidden: set[str] = set()
        """Kinds that may not be listed: 403; with ``:write`` behind it, kinds that may not be written."""
        self.failures: dict[str, Failure] = {}
        """By kind for lists and watches, ``object`` for other reads, ``write`` for bindings and all else."""
        self.garbage_lines: dict[str, bytes] = {}
        """Sent once in the next watch of the kind instead of an event."""
        self.watch_limit_s: float | None = None
        """Closes watches sooner than they ask for; None: as they ask."""
        self.gone_as_event = False
        """Answer a compacted version by an ERROR event instead of HTTP 410."""
        self.write_delay_s = 0.0
        """Between carrying out a write and answering it."""
        self.read_gate = asyncio.Event()
        """While clear, lists wait: a slow server."""
        self.read_gate.set()
        self.url = ""
        self._port = 0
        self._versions = count(1)
        self._version = 0
        self._floor = 0
        self._uids = count(1)
        self._events: dict[str, list[_Event]] = defaultdict(list)
        self._snapshots: dict[str, tuple[list[Raw], int]] = {}
        self._tokens = count(1)
        self._more = asyncio.Condition()
        self._open: dict[int, tuple[web.Request, str]] = {}
        self._streams = count(1)
        self._closing: dict[str, int] = defaultdict(int)
        self._bookmarks: dict[str, int] = defaultdict(int)
        self._runner: web.AppRunner | None = None

    @classmethod
    @asynccontextmanager
    async def serve(cls) -> AsyncIterator[Self]:
        """Run on a free port until the block ends."""
        api = cls()
        await api.start()
        try:
            yield api
        finally:
            await api.stop()

    async def start(self) -> None:
        """Listen; after ``stop`` on the same port as before, with the same objects."""
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self._get_pod)
        app.router.add_post("/api/v1/namespaces/{namespace}/pods/{name}/binding", self._bind)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}/status", self._patch_status)
        app.router.add_route("*", "/{path:.*}", self._any)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Drop every connection and stop listening, as a crashed server."""
        for kind in self.kinds:
            self.cut(kind)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def put(self, kind: str, raw: Raw) -> Raw:
        """Create or change an object; without a UID it keeps the present one's, or gets a new one."""
        stored = copy.deepcopy(raw)
        metadata = stored["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        old = self.objects[kind].get(key)
        if "uid" not in metadata:
            metadata["uid"] = old["metadata"]["uid"] if old else f"uid-{next(self._uids)}"
        await self._store(kind, key, stored, "MODIFIED" if old else "ADDED")
        return stored

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""
        raw = copy.deepcopy(self.objects[kind].pop((namespace, name)))
        self._version = next(self._versions)
        raw["metadata"]["resourceVersion"] = str(self._version)
        self._events[kind].append(_Event(self._version, "DELETED", raw))
        await self._wake()

    async def compact(self) -> None:
        """Forget all events: a watch from before now is answered 410, and so is a continue token."""
        self._floor = self._version
        self._snapshots.clear()
        for events in self._events.values():
            events.clear()

    def cut(self, kind: str) -> None:
        """Break the kind's open watches, in the middle of the stream."""
        for request, of in list(self._open.values()):
            if of == kind and request.transport is not None:
                request.transport.abort()

    async def end_watches(self, kind: str) -> None:
        """Close the kind's open watches in order."""
        self._closing[kind] += 1
        await self._wake()

    async def bookmark(self, kind: str) -> None:
        """Send a bookmark in the kind's open watches."""
        self._bookmarks[kind] += 1
        await self._wake()

    @property
    def version(self) -> int:
        """Of the last change."""
        return self._version

    def count(self, kind: str, *, watch: bool) -> int:
        """How many lists (pages) or watches of the kind were asked for."""
        return sum(path == self.kinds[kind].path and ("watch" in query) is watch for _, path, query, _ in self.requests)

    def watching(self, kind: str) -> int:
        """How many watches of the kind are open."""
        return sum(of == kind for _, of in self._open.values())

    async def _store(self, kind: str, key: Key, raw: Raw, type_: str) -> None:
        self._version = next(self._versions)
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind][key] = raw
        self._events[kind].append(_Event(self._version, type_, raw))
        await self._wake()

    async def _wake(self) -> None:
        async with self._more:
            self._more.notify_all()

    async def _any(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        kind = next((name for name, each in self.kinds.items() if each.path == request.path), None)
        refusal = self._refusal("write" if request.method != "GET" else kind or "object")
        if refusal is not None:
            return refusal
        if kind is None or request.method != "GET":
            answered = await answer(self, request)
            if request.method != "GET":
                await asyncio.sleep(self.write_delay_s)
            return answered
        if "watch" in request.query:
            return await self._watch(kind, request)
        await self.read_gate.wait()
        return self._list(kind, request)

    def _note(self, request: web.Request) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.path, dict(request.query), headers))

    def _refusal(self, kind: str) -> web.Response | None:
        if kind in self.hidden:
            return status_answer(404, "NotFound", "the server could not find the requested resource")
        if kind in self.forbidden:
            return status_answer(403, "Forbidden", f"{kind} is forbidden")
        failure = self.failures.get(kind)
        if failure is None:
            return None
        failure.times -= 1
        if failure.times <= 0:
            del self.failures[kind]
        return web.json_response(failure.body, status=failure.status, headers=failure.headers)

    def _list(self, kind: str, request: web.Request) -> web.Response:
        query = request.query
        limit = int(query.get("limit", "0"))
        token = query.get("continue")
        if token is None:
            items, version = list(self.objects[kind].values()), self._version
            if "fieldSelector" in query:
                name = query["fieldSelector"].removeprefix("metadata.name=")
                items = [item for item in items if item["metadata"]["name"] == name]
        elif token in self._snapshots:
            items, version = self._snapshots.pop(token)
        else:
            return status_answer(410, "Expired", "The provided continue parameter is too old")
        metadata = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            token = f"t{next(self._tokens)}"
            self._snapshots[token] = (items[limit:], version)
            metadata["continue"] = token
            items = items[:limit]
        items = [projected(item, request.headers.get("Accept", "")) for item in items]
        body = orjson.dumps({"kind": f"{kind}List", "apiVersion": "v1", "metadata": metadata, "items": items})
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, kind: str, request: web.Request) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        if seen < self._floor and not self.gone_as_event:
            return status_answer(410, "Expired", f"too old resource version: {seen} ({self._floor})")
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        closing, bookmarks = self._closing[kind], self._bookmarks[kind]
        limit_s = float(request.query.get("timeoutSeconds", "60")) if self.watch_limit_s is None else self.watch_limit_s
        deadline = asyncio.get_running_loop().time() + limit_s
        stream = next(self._streams)
        self._open[stream] = (request, kind)
        try:
            while True:
                if seen < self._floor:
                    code = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    await _send(response, "ERROR", code)
                    break
                if kind in self.garbage_lines:
                    await response.write(self.garbage_lines.pop(kind))
                for event in [each for each in self._events[kind] if each.version > seen]:
                    seen = event.version
                    await _send(response, event.type, projected(event.object, request.headers.get("Accept", "")))
                if bookmarks != self._bookmarks[kind]:
                    bookmarks = self._bookmarks[kind]
                    seen = max(seen, self._version)
                    await _send(response, "BOOKMARK", {"metadata": {"resourceVersion": str(seen)}})
                if closing != self._closing[kind] or kind in self.hidden:
                    break
                try:
                    async with asyncio.timeout_at(deadline), self._more:
                        if not self._news(kind, seen, closing, bookmarks):
                            await self._more.wait()
                except TimeoutError:
                    break
        except ConnectionError:
            return response
        finally:
            del self._open[stream]
        return response

    def _news(self, kind: str, seen: int, closing: int, bookmarks: int) -> bool:
        events = self._events[kind]
        fresh = bool(events) and events[-1].version > seen
        return fresh or closing != self._closing[kind] or bookmarks != self._bookmarks[kind] or seen < self._floor

    async def _get_pod(self, request: web.Request) -> web.Response:
        self._note(request)
        pod = self.objects["pod"].get((request.match_info["namespace"], request.match_info["name"]))
        return status_answer(404, "NotFound", "pods not found") if pod is None else web.json_response(pod)

    async def _bind(self, request: web.Request) -> web.Response:
        body = await request.json()
        pod, refusal = self._writable(request, body["metadata"].get("uid"))
        if pod is None:
            assert refusal is not None
            return refusal
        if pod["metadata"].get("deletionTimestamp"):
            return status_answer(409, "Conflict", "pod is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            return status_answer(409, "Conflict", f"pod is already assigned to node {pod['spec']['nodeName']!r}")
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = body["target"]["name"]
        bound["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations", {}))
        await self.put("pod", bound)
        await asyncio.sleep(self.write_delay_s)
        return status_answer(201, "", "", success=True)

    async def _patch_status(self, request: web.Request) -> web.Response:
        body = await request.json()
        pod, refusal = self._writable(request, body["metadata"].get("uid"))
        if pod is None:
            assert refusal is not None
            return refusal
        if request.content_type != "application/strategic-merge-patch+json":
            return status_answer(415, "UnsupportedMediaType", request.content_type)
        patched = copy.deepcopy(pod)
        conditions = patched.setdefault("status", {}).setdefault("conditions", [])
        for condition in body["status"]["conditions"]:
            same = [each for each in conditions if each["type"] == condition["type"]]
            if same:
                same[0].update(condition)
            else:
                conditions.append(condition)
        if patched["status"] != pod.get("status"):
            await self.put("pod", patched)
        await asyncio.sleep(self.write_delay_s)
        return web.json_response(patched)

    def _writable(self, request: web.Request, uid: str | None) -> tuple[Raw | None, web.Response | None]:
        self._note(request)
        refusal = self._refusal("write")
        if refusal is not None:
            return None, refusal
        pod = self.objects["pod"].get((request.match_info["namespace"], request.match_info["name"]))
        if pod is None:
            return None, status_answer(404, "NotFound", "pods not found")
        if uid is not None and uid != pod["metadata"]["uid"]:
            if request.method == "PATCH":
                causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
                return None, status_answer(
                    422, "Invalid", "metadata.uid: field is immutable", details={"causes": causes}
                )
            return None, status_answer(409, "Conflict", "Precondition failed: UID in precondition")
        return pod, None


async def _send(response: web.StreamResponse, type_: str, raw: Raw) -> None:
    await response.write(orjson.dumps({"type": type_, "object": raw}) + b"\n")


def raw_node(name: str = "n1", *, labels: Mapping[str, str] | None = None, gpus: int = 8, ready: bool = True) -> Raw:
    """A node with H100 GPUs, as feature discovery labels it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "nvidia.com/gpu.count": str(gpus),
                "nvidia.com/gpu.memory": "81559",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                "nvidia.com/gpu.replicas": "1",
                **(labels or {}),
            },
        },
        "spec": {},
        "status": {
            "capacity": {"cpu": "192", "memory": "2113434788Ki", "nvidia.com/gpu": str(gpus)},
            "allocatable": {"cpu": "192", "memory": "2113434788Ki", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def raw_pod(
    name: str = "p1",
    *,
    namespace: str = "ml",
    gpus: int = 1,
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **status: Any,
) -> Raw:
    """A pod that asks for NVIDIA GPUs; keyword arguments beyond these become its status."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    spec: Raw = {
        "schedulerName": "kvaware-scheduler",
        "containers": [{"name": "server", "image": "vllm", "resources": resources}],
    }
    if node is not None:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": spec,
        "status": {"phase": "Pending" if node is None else "Running", **status},
    }


def raw_model(name: str = "llama", *, namespace: str = "ml", hbm_per_gpu: str | None = "40Gi", gpus: int = 1) -> Raw:
    """An InferenceModel with one role."""
    footprint: Raw = {"gpusPerPod": gpus}
    if hbm_per_gpu is not None:
        footprint["hbmPerGPU"] = hbm_per_gpu
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"modelId": "meta-llama/Llama-3.3-70B-Instruct", "roles": [{"name": "both", "footprint": footprint}]},
    }


def raw_quota(name: str = "team-a", *, tenant: str = "a", namespaces: tuple[str, ...] = ("ml",), **limits: Any) -> Raw:
    """A TenantQuota; keyword arguments become its limits."""
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "TenantQuota",
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"tenant": tenant, "namespaces": list(namespaces), "limits": limits},
    }
