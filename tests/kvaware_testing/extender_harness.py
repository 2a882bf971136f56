"""What tests of the extender need: a cluster in memory with switches to break it, and a client of an extender."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

import aiohttp
import orjson

from kvaware_cluster import DcgmSettings, DirectorySource, Kind, TokenIdentity, WatchEvent, WorkerError
from kvaware_cluster.manifests import Folder, complete
from kvaware_cluster.source import EventType, ExporterTarget, RawObject
from kvaware_engine.observations import ObjectKey
from kvaware_extender import Extender, ExtenderSettings, HeartbeatSettings, WakeUpSettings, running_extender
from kvaware_testing.fake_api import Raw
from kvaware_testing.store_harness import QUICK, FakeClock, eventually

__all__ = [
    "API_SERVER",
    "SCRAPED",
    "Caller",
    "MemoryCluster",
    "exporter_pod",
    "in_use",
    "offer",
    "quiet_settings",
    "serving",
    "shared_node",
]

KINDS = {
    "Node": Kind.NODE,
    "Pod": Kind.POD,
    "InferenceModel": Kind.INFERENCE_MODEL,
    "KVCacheBlockGroup": Kind.KV_CACHE_BLOCK_GROUP,
    "TenantQuota": Kind.TENANT_QUOTA,
}

API_SERVER = "https://kubernetes.default.svc"
"""The API server's own audience: that of the token that every pod gets."""


class MemoryCluster(DirectorySource):
    """An API server in memory; every call is noted, and every kind of trouble can be switched on."""

    def __init__(self, *objects: Raw) -> None:
        kinds: dict[Kind, dict[ObjectKey, RawObject]] = {kind: {} for kind in Kind}
        for raw in objects:
            kind = KINDS[raw["kind"]]
            key, completed = complete(kind, raw)
            kinds[kind][key] = completed
        super().__init__(Folder(kinds, {}))
        self.calls: list[str] = []
        """Names of the calls that left the extender, ``list`` and ``watch`` left out."""
        self.conditions: list[tuple[str, str]] = []
        """Pod and status of every condition written."""
        self.answer_bind = asyncio.Event()
        """While clear, a binding is carried out and its answer waits."""
        self.answer_bind.set()
        self.answer_reads = asyncio.Event()
        """While clear, reads of single pods do not answer."""
        self.answer_reads.set()
        self.carry_out = True
        """False: a binding that is lost on its way; its answer is an error or waits."""
        self.bind_error: Exception | None = None
        """Raised after the binding was carried out (or lost)."""
        self.read_error: Exception | None = None
        self.patch_error: Exception | None = None
        self.patch_errors: dict[str, Exception] = {}
        """The same for single pods, by name."""
        self.deliver = {kind: asyncio.Event() for kind in Kind}
        """While clear, events of the kind are held back."""
        for gate in self.deliver.values():
            gate.set()
        self.unlistable: dict[Kind, Exception] = {}
        self.scrapes = 0
        """Exporters asked so far."""
        self.metrics: dict[str, str] = {}
        """Address to what the worker there says of itself; others do not answer."""
        self.tokens: dict[str, TokenIdentity] = {}
        """Bearer tokens and whose they are."""
        self.audience = "kvaware"
        """For whom all of them are meant."""
        self.review_error: Exception | None = None
        self.answer_exporters = asyncio.Event()
        """While clear, exporters are asked and do not answer."""
        self.answer_exporters.set()

    def token_of(self, pod: Raw) -> str:
        """A service account token of the pod, as the kubelet mounts one, for ``audience``."""
        metadata = pod["metadata"]
        token = f"token-of-{metadata['namespace']}-{metadata['name']}-{metadata['uid']}"
        self.tokens[token] = TokenIdentity(
            username=f"system:serviceaccount:{metadata['namespace']}:default",
            pod=ObjectKey(metadata["namespace"], metadata["name"]),
            pod_uid=metadata["uid"],
        )
        return token

    def add_exporter(self, node: str, text: str) -> None:
        """An exporter pod on the node that answers with this text; an exporter there already says this from now on."""
        known = node in self._exporters
        self._exporters[node] = text
        if not known:
            self.add_pod(exporter_pod(node))

    def raw_pod(self, name: str, namespace: str = "ml") -> Raw:
        """The pod as the cluster has it."""
        return self._objects[Kind.POD][ObjectKey(namespace, name)]

    def node_of(self, name: str) -> str | None:
        """Where the pod is bound."""
        node: str | None = self.raw_pod(name)["spec"].get("nodeName")
        return node

    async def list_pages(self, kind: Kind) -> AsyncGenerator[Any, None]:
        if kind in self.unlistable:
            raise self.unlistable[kind]
        async for page in super().list_pages(kind):
            yield page

    async def watch(self, kind: Kind, resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        async for event in super().watch(kind, resource_version):
            await self.deliver[kind].wait()
            yield event

    async def read_exporter(self, target: ExporterTarget) -> str:
        self.scrapes += 1
        await self.answer_exporters.wait()
        return await super().read_exporter(target)

    async def read_metrics(self, address: str, *, what: str, timeout_s: float, body_bytes: int) -> str:
        try:
            return self.metrics[address]
        except KeyError as error:
            raise WorkerError(f"{what}: nobody listens") from error

    async def review_token(self, token: str, *, audiences: Sequence[str]) -> TokenIdentity | None:
        self.calls.append("review_token")
        if self.review_error is not None:
            raise self.review_error
        meant = self.audience in audiences if audiences else self.audience == API_SERVER
        return self.tokens.get(token) if meant else None

    async def get_pod(self, namespace: str, name: str) -> RawObject | None:
        self.calls.append("get_pod")
        await self.answer_reads.wait()
        if self.read_error is not None:
            raise self.read_error
        return await super().get_pod(namespace, name)

    async def bind(self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        self.calls.append("bind")
        if self.carry_out:
            await super().bind(namespace=namespace, name=name, uid=uid, node=node, annotations=annotations)
        await self.answer_bind.wait()
        if self.bind_error is not None:
            raise self.bind_error

    def put(self, raw: Raw) -> Raw:
        """Create or replace an object of any kind."""
        kind = KINDS[raw["kind"]]
        key, completed = complete(kind, raw)
        known = key in self._objects[kind]
        stored = self._keep(kind, key, completed)
        self._log(kind, EventType.MODIFIED if known else EventType.ADDED, stored)
        return stored

    def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Delete an object of any kind."""
        self._log(kind, EventType.DELETED, self._versioned(self._objects[kind].pop(ObjectKey(namespace, name))))

    def prove_fresh(self) -> None:
        """A bookmark for every watch."""
        self._version = next(self._versions)
        for kind in Kind:
            self._log(kind, EventType.BOOKMARK, {"metadata": {"resourceVersion": str(self._version)}})

    async def bind_unasked(self, name: str, node: str, *, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod behind the extender's back: another scheduler, or a request of ours that arrives late."""
        uid = self.raw_pod(name)["metadata"]["uid"]
        await super().bind(namespace="ml", name=name, uid=uid, node=node, annotations=annotations or {})

    async def patch_pod_condition(self, *, namespace: str, name: str, uid: str, condition: Mapping[str, Any]) -> None:
        self.calls.append("patch_pod_condition")
        error = self.patch_errors.get(name, self.patch_error)
        if error is not None:
            raise error
        await super().patch_pod_condition(namespace=namespace, name=name, uid=uid, condition=condition)
        self.conditions.append((name, condition["status"]))


def shared_node(name: str = "n1", *, gpus: int = 1, replicas: int = 4) -> Raw:
    """A node whose GPUs of 80 GB are time-sliced."""
    offered = str(gpus * replicas)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "nvidia.com/gpu.count": str(gpus),
                "nvidia.com/gpu.memory": "81920",
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
                "nvidia.com/gpu.replicas": str(replicas),
                "nvidia.com/gpu.sharing-strategy": "time-slicing",
            },
        },
        "status": {
            "capacity": {"nvidia.com/gpu": offered},
            "allocatable": {"nvidia.com/gpu": offered},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def exporter_pod(node: str) -> Raw:
    """A DCGM exporter of the GPU operator, running on the node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"dcgm-{node}", "namespace": "gpu-operator", "labels": {"app": "nvidia-dcgm-exporter"}},
        "spec": {"nodeName": node, "containers": [{"name": "exporter"}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1"},
    }


def in_use(mib: int) -> str:
    """What the exporter of a node with one GPU of 80 GB says."""
    gpu = '{gpu="0",UUID="GPU-0",modelName="NVIDIA A100-SXM4-80GB"}'
    return f"DCGM_FI_DEV_FB_USED{gpu} {mib}\nDCGM_FI_DEV_FB_FREE{gpu} {81_920 - mib}\n"


SCRAPED = replace(
    QUICK, dcgm=DcgmSettings(interval_s=0.05, interval_jitter_ratio=0.0, missed_limit=1, first_round_limit_s=1e6)
)
"""Settings of a store that asks exporters, often."""


def offer(pod: Raw, nodes: Sequence[str]) -> Raw:
    """What kube-scheduler posts to filter and prioritize."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


def quiet_settings(**changes: Any) -> ExtenderSettings:
    """Free ports, no log of decisions, quick retries, heartbeats as often as a test likes."""
    given: dict[str, Any] = {
        "scheduler_port": 0,
        "api_port": 0,
        "decision_log": "off",
        "store": QUICK,
        "wake_up": WakeUpSettings(debounce_s=0.005),
        "heartbeat": HeartbeatSettings(min_interval_s=0),
        **changes,
    }
    return ExtenderSettings(**given)


class Caller:
    """kube-scheduler's and people's side of a running extender, over real HTTP."""

    def __init__(self, extender: Extender, session: aiohttp.ClientSession) -> None:
        self.extender = extender
        self._session = session
        self.scheduler = f"http://127.0.0.1:{extender.scheduler_port}"
        self.api = f"http://127.0.0.1:{extender.api_port}"

    async def filter(self, pod: Raw, *nodes: str) -> Any:
        """The reply of filter."""
        status, reply = await self.post("/scheduler/filter", offer(pod, nodes))
        assert status == 200, reply
        return reply

    async def prioritize(self, pod: Raw, *nodes: str) -> dict[str, int]:
        """Node to score."""
        status, reply = await self.post("/scheduler/prioritize", offer(pod, nodes))
        assert status == 200, reply
        return {entry["Host"]: entry["Score"] for entry in reply}

    async def bind(self, pod: Raw, node: str) -> str:
        """The error text of bind."""
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        status, reply = await self.post("/scheduler/bind", body)
        assert status == 200, reply
        assert list(reply) == ["Error"]
        error: str = reply["Error"]
        return error

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and decoded reply; bytes are sent as they are."""
        base = self.scheduler if path.startswith("/scheduler") else self.api
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self._session.post(base + path, **sent) as answer:
            return answer.status, await answer.json()

    async def beat(self, worker: str, *, token: str | None = None, **figures: Any) -> tuple[int, Any]:
        """Send a heartbeat; status and reply. ``body`` stands for all figures."""
        status, reply, _ = await self.put(f"/v1/workers/{worker}/heartbeat", figures.pop("body", figures), token=token)
        return status, reply

    async def put(self, path: str, body: Any, *, token: str | None = None) -> tuple[int, Any, Mapping[str, str]]:
        """Status, decoded reply (None without one) and headers; bytes are sent as they are."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self._session.put(self.api + path, headers=headers, **sent) as answer:
            text = await answer.text()
            return answer.status, orjson.loads(text) if text else None, dict(answer.headers)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and reply, decoded when it is JSON."""
        async with self._session.get(self.api + path) as answer:
            if answer.content_type == "application/json":
                return answer.status, await answer.json()
            return answer.status, await answer.text()

    async def metric(self, name: str, labels: str = "") -> float | None:
        """One sample of ``/metrics``; None: there is none."""
        _, text = await self.get("/metrics")
        sample = f"{name}{labels} "
        return next((float(line[len(sample) :]) for line in text.splitlines() if line.startswith(sample)), None)

    def seen(self, pod: Raw) -> bool:
        """Whether the store has the pod as the cluster has it."""
        metadata = pod["metadata"]
        observed = self.extender.store.pod(metadata["namespace"], metadata["name"])
        return observed is not None and observed.uid == metadata["uid"]

    async def until_seen(self, pod: Raw) -> None:
        """Wait until the store has the pod."""
        await eventually(lambda: self.seen(pod))

    async def until_bound(self, name: str, namespace: str = "ml") -> None:
        """Wait until the store has the pod bound."""

        def bound() -> bool:
            observed = self.extender.store.pod(namespace, name)
            return observed is not None and observed.node is not None

        await eventually(bound)


@asynccontextmanager
async def serving(
    cluster: Any, *, clock: FakeClock | None = None, synced: bool = True, **settings: Any
) -> AsyncIterator[Caller]:
    """An extender at work on this cluster, and a client of it."""
    async with (
        running_extender(quiet_settings(**settings), cluster, clock=clock or monotonic) as extender,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(extender, session)
        if synced:
            await eventually(extender.store.synced)
        yield caller
