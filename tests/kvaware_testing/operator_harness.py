"""What tests of the operator need: facts without a cluster, and a whole operator between two fake servers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from kvaware_cluster import ExtenderClient, Kind, KubernetesHttp, KubernetesSettings, KubernetesSource
from kvaware_cluster.parse.custom_resources import parse_custom_resource
from kvaware_cluster.workloads import CustomResource, Owner, Scale, WorkerPod
from kvaware_crds import InferenceModel
from kvaware_engine import ModelLoad, RoleHeadroom, RoleLoad, ScalingPlan, ScalingReason, ScalingSettings, TenantView
from kvaware_engine.observations import ObjectKey
from kvaware_operator import LeaseSettings, Operator, OperatorSettings, QueueSettings, running_operator
from kvaware_operator.model_facts import ModelFacts, RoleFacts, scale_target, split_by_role
from kvaware_testing.fake_api import FakeApi, Raw, raw_pod
from kvaware_testing.store_harness import QUICK, eventually

__all__ = [
    "NOW",
    "AnsweringExtender",
    "Stage",
    "facts",
    "model_of",
    "quick_settings",
    "raw_autoscaler",
    "raw_group",
    "raw_replica",
    "raw_scaled_model",
    "role_load",
    "scale",
    "scaling_plan",
    "staged",
    "tenant",
    "worker_pod",
]

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


# -- facts, without a cluster ---------------------------------------------------------------------------------------


def raw_scaled_model(
    name: str = "llama",
    *,
    namespace: str = "ml",
    uid: str | None = None,
    generation: int = 1,
    created_at: str = "2026-01-01T00:00:00Z",
    mode: str | None = "Auto",
    least: int = 1,
    most: int = 4,
    target: str | None = "llama",
    target_kind: tuple[str, str] = ("apps/v1", "Deployment"),
    windows: tuple[str, str] = ("0s", "0s"),
    roles: Sequence[Raw] | None = None,
    status: Raw | None = None,
    **spec: Any,
) -> Raw:
    """An InferenceModel with one role of one GPU and 40 GiB, scaled at once in both directions."""
    role: Raw = {"name": "both", "replicas": {"min": least, "max": most}}
    role["footprint"] = {"gpusPerPod": 1, "hbmPerGPU": "40Gi"}
    if target is not None:
        role["scaleTargetRef"] = {"apiVersion": target_kind[0], "kind": target_kind[1], "name": target}
    written: Raw = {"modelId": "meta-llama/Llama-3.1-8B", "roles": list(roles or [role]), **spec}
    if mode is not None:
        up, down = windows
        written["scaling"] = {"mode": mode, "windows": {"scaleUp": up, "scaleDown": down}}
    metadata = {"name": name, "namespace": namespace, "generation": generation, "creationTimestamp": created_at}
    raw: Raw = {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": metadata,
        "spec": written,
    }
    if uid is not None:
        metadata["uid"] = uid
    return raw if status is None else {**raw, "status": status}


def model_of(raw: Raw | None = None, **changes: Any) -> CustomResource:
    """The same as the store has it."""
    found = raw or raw_scaled_model(**changes)
    found["metadata"].setdefault("uid", f"uid-{found['metadata']['name']}")
    return parse_custom_resource(found, Kind.INFERENCE_MODEL)


def worker_pod(
    name: str = "llama-0",
    *,
    namespace: str = "ml",
    model: str | None = "llama",
    role: str | None = None,
    ready: bool = True,
    owner: str | None = "ReplicaSet",
    labels: Mapping[str, str] | None = None,
    cost: int | None = None,
    cost_by: str | None = "kvaware-operator",
    **changes: Any,
) -> WorkerPod:
    """A Ready pod of the model, owned by a ReplicaSet."""
    of_model = {} if model is None else {"kvaware.io/model": model}
    of_role = {} if role is None else {"kvaware.io/role": role}
    return WorkerPod(
        uid=f"uid-{name}",
        key=ObjectKey(namespace, name),
        model=model,
        role=role,
        node="n1",
        ip="10.0.0.1",
        ready=ready,
        **{"finished": False, "terminating": False, "unschedulable": False, **changes},
        labels={**of_model, **of_role, **(labels or {})},
        owner=None if owner is None else Owner("apps/v1", owner, "llama-7c", "uid-owner"),
        deletion_cost=cost,
        deletion_cost_by=None if cost is None else cost_by,
    )


def scale(replicas: int = 1, *, current: int | None = None) -> Scale:
    """A workload's scale; all that was asked for exists."""
    return Scale(
        uid="uid-target",
        replicas=replicas,
        current_replicas=replicas if current is None else current,
        selector="app=llama",
        resource_version="1",
    )


def facts(
    resource: CustomResource | None = None, *, pods: Sequence[WorkerPod] = (), found: Any = None, **changes: Any
) -> ModelFacts:
    """A model as it stands.

    Args:
        resource: The model; one role that is scaled unless said otherwise.
        pods: All of its pods.
        found: The scale of every target; as many as there are pods unless said otherwise.
        changes: Fields of every role first, else of the model.
    """
    resource = resource or model_of()
    model = resource.resource
    assert isinstance(model, InferenceModel)
    of, strangers = split_by_role(model.spec.roles, pods)
    of_roles = {name: changes.pop(name) for name in ("load", "autoscalers", "target_owner") if name in changes}
    roles = []
    for role in model.spec.roles:
        target = scale_target(resource, role)
        seen = None if target is None else found or scale(len(of[role.name]))
        roles.append(RoleFacts(role=role, pods=of[role.name], target=target, scale=seen, **of_roles))
    return ModelFacts(resource=resource, spec=model.spec, roles=roles, strangers=strangers, **changes)


def scaling_plan(**changes: Any) -> ScalingPlan:
    """One replica, which the load fits."""
    plan = ScalingPlan(desired=1, target=1, reason=ScalingReason.LOAD_FITS, message="1 replica does the work")
    return replace(plan, **changes)


def role_load(role: str = "both", **changes: Any) -> RoleLoad:
    """One worker with nothing to do."""
    quiet = RoleLoad(
        role=role,
        workers=1,
        reporting=1,
        waiting=0,
        running=0,
        queued_tokens=0,
        kv_usage_ratio=0.0,
        requests_per_s=0.0,
        prompt_tokens_per_s=0.0,
        generation_tokens_per_s=0.0,
        preemptions_per_s=0.0,
        prefix_hit_ratio=None,
        ttft_p99_ms=None,
        tpot_p99_ms=None,
        age_s=1.0,
    )
    return replace(quiet, **changes)


def tenant(name: str = "a", *, quota: str = "team-a", **changes: Any) -> TenantView:
    """A tenant that uses nothing."""
    view = TenantView(
        tenant=name,
        quotas=(quota,),
        namespaces=("ml",),
        used_gpus=0,
        used_hbm_bytes=0,
        intended_gpus=0,
        intended_hbm_bytes=0,
        limit_gpus=None,
        limit_hbm_bytes=None,
        guaranteed_gpus=None,
        guaranteed_hbm_bytes=None,
        conflicts=(),
    )
    return replace(view, **changes)


# -- an operator between two fake servers ----------------------------------------------------------------------------


def raw_replica(name: str, *, ready: bool = True, owner: str = "ReplicaSet", gpus: int = 1, **changes: Any) -> Raw:
    """A bound pod of the model ``llama``, as a ReplicaSet makes it."""
    labels = {"kvaware.io/model": "llama", **changes.pop("labels", {})}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    raw = raw_pod(name, gpus=gpus, node="n1", labels=labels, conditions=conditions, **changes)
    reference = {"apiVersion": "apps/v1", "kind": owner, "name": "llama-7c", "uid": "uid-rs", "controller": True}
    raw["metadata"]["ownerReferences"] = [reference]
    return raw


def raw_autoscaler(name: str = "theirs", *, target: str = "llama", kind: str = "Deployment") -> Raw:
    """A HorizontalPodAutoscaler."""
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": target}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 3},
    }


def raw_group(name: str = "system-prompt", *, model: str = "llama", **spec: Any) -> Raw:
    """A KVCacheBlockGroup."""
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "KVCacheBlockGroup",
        "metadata": {"name": name, "namespace": "ml", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"modelRef": {"name": model}, "prefix": {"text": "You are"}, **spec},
    }


@dataclass
class AnsweringExtender:
    """The extender's ``/v1`` as far as the operator asks it, with a real socket."""

    url: str = ""
    loads: dict[ObjectKey, tuple[RoleLoad, ...]] = field(default_factory=dict)
    """By model; a model without an entry is answered 404."""
    fits: int | None = None
    """How many more replicas fit; None: all that are asked for."""
    tenants: list[TenantView] = field(default_factory=list)
    values: dict[str, float | None] = field(default_factory=dict)
    """Cache value by worker."""
    down: bool = False
    """Answers nothing but 500."""
    asked: list[str] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """While clear, questions whose path ends with ``held`` are not answered."""
    held: str = ""

    def tell(self, *loads: RoleLoad, model: str = "llama") -> None:
        """What the load of a model in the namespace ``ml`` is from now on."""
        self.loads[ObjectKey("ml", model)] = loads

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path.endswith(self.held):
            await self.hold.wait()
        if self.down:
            return web.Response(status=500, text="down")
        match request.path.split("/")[2:]:
            case ["models", namespace, name, "load"]:
                key = ObjectKey(namespace, name)
                if key not in self.loads:
                    return _not_found(key)
                return web.json_response(asdict(ModelLoad(model=key, roles=self.loads[key])) | {"model": _key(key)})
            case ["models", namespace, name, "headroom"]:
                key, asked = ObjectKey(namespace, name), int(request.query["replicas"])
                fits = asked if self.fits is None else min(asked, self.fits)
                short = fits < asked
                roles = [
                    RoleHeadroom(
                        role=each.role,
                        asked_replicas=asked,
                        fits_replicas=fits,
                        nodes=("n1",) * fits,
                        reason=None,
                        text="kvaware: not enough free HBM on the node's GPUs" if short else "",
                    )
                    for each in self.loads.get(key, ())
                ]
                return web.json_response({"model": _key(key), "roles": [asdict(each) for each in roles]})
            case ["tenants"]:
                return web.json_response({"items": [asdict(each) for each in self.tenants]})
            case ["workers"]:
                namespace, name = request.query["model"].split("/")
                return web.json_response(
                    {
                        "items": [
                            _worker(worker, _key(ObjectKey(namespace, name)), v) for worker, v in self.values.items()
                        ]
                    }
                )
        return web.Response(status=404, text=request.path)


def _key(key: ObjectKey) -> Raw:
    return {"namespace": key.namespace, "name": key.name}


def _not_found(key: ObjectKey) -> web.Response:
    error = {"code": "ModelNotFound", "message": f"no model {key.name}", "retryable": False}
    return web.json_response({"error": error}, status=404)


def _worker(worker: str, model: Raw, value_ms: float | None) -> Raw:
    unknown = dict.fromkeys(
        [
            "address", "waiting", "running", "queued_tokens", "batch_size", "kv_blocks_total", "kv_blocks_free",
            "kv_usage_ratio", "block_size_tokens", "gpu_utilization_ratio", "hbm_used_bytes", "prefix_hit_ratio",
            "requests_per_s", "age_s",
        ]
    )  # fmt: skip
    known = {"worker": worker, "model": model, "role": "both", "node": "n1", "ready": True, "reporting": True}
    flags = {"confidence_ratio": 1.0, "draining": False, "asleep": False, "capabilities": []}
    return {**unknown, **known, **flags, "cache_value_ms": value_ms}


def quick_settings(**changes: Any) -> OperatorSettings:
    """Hundredths of seconds where users have seconds, so that a test waits for states, not for time."""
    given: dict[str, Any] = {
        "port": 0,
        "poll_s": 0.02,
        "load_grace_s": 0.1,
        "status_interval_s": 0.05,
        "settle_s": 0.2,
        "stop_timeout_s": 0.5,
        "kopf": False,
        "kopf_after_s": 0.1,
        "lease": LeaseSettings(enabled=False),
        "queue": QueueSettings(backoff_first_s=0.01, backoff_max_s=0.05),
        "store": QUICK,
        "scaling": ScalingSettings(),
        **changes,
    }
    return OperatorSettings(**given)


class Stage:
    """An operator at work between a fake API server and a fake extender."""

    def __init__(self, api: FakeApi, extender: AnsweringExtender, operator: Operator, work: Any, port: int) -> None:
        self.api = api
        self.extender = extender
        self.operator = operator
        self.work = work
        self.url = f"http://127.0.0.1:{port}"

    def raw(self, name: str = "llama", *, kind: str = "inferencemodel", namespace: str = "ml") -> Raw:
        """An object as the API server has it."""
        return self.api.objects[kind][namespace, name]

    def condition(self, type_: str, name: str = "llama", **where: str) -> Raw:
        """One condition of an object; empty while it is not there."""
        conditions = self.raw(name, **where).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == type_), {})

    async def until_condition(self, type_: str, status: str = "True", name: str = "llama", **where: str) -> Raw:
        """Wait for a condition. Returns: it."""
        await self.until(lambda: self.condition(type_, name, **where).get("status") == status)
        return self.condition(type_, name, **where)

    def replicas(self, name: str = "llama") -> int:
        """What the Deployment is told."""
        replicas: int = self.raw(name, kind="deployment")["spec"]["replicas"]
        return replicas

    def costs(self) -> dict[str, str]:
        """Deletion costs of pods, by name."""
        annotation = "controller.kubernetes.io/pod-deletion-cost"
        pods = {name: pod["metadata"].get("annotations", {}) for (_, name), pod in self.api.objects["pod"].items()}
        return {name: annotations[annotation] for name, annotations in pods.items() if annotation in annotations}

    def writes(self) -> list[str]:
        """Method and path of everything that was written so far."""
        return [f"{method} {path}" for method, path, _, _ in self.api.requests if method != "GET"]

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a probe."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def metric(self, sample: str) -> float | None:
        """One sample of ``/metrics``; None: there is none."""
        _, text = await self.get("/metrics")
        found = (line for line in text.splitlines() if line.startswith(f"{sample} "))
        return next((float(line.rsplit(" ", 1)[1]) for line in found), None)

    async def until_ready(self, status: int = 200, word: str = "") -> str:
        """Wait for an answer of ``/readyz`` that holds a word. Returns: its text."""
        async with asyncio.timeout(30):
            while True:
                told, text = await self.get("/readyz")
                if told == status and word in text:
                    return text
                await asyncio.sleep(0.005)

    async def until_metric(self, sample: str, *, at_least: float) -> None:
        """Wait for a sample of ``/metrics``; kopf takes 5 s to give up."""
        async with asyncio.timeout(30):
            while (await self.metric(sample) or 0.0) < at_least:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a state of a fake server."""

        def now() -> bool:
            if self.work.done():
                self.work.result()
            with contextlib.suppress(KeyError):
                return holds()
            return False

        await eventually(now)

    async def rounds(self, number: int = 3) -> None:
        """Let every scaled model be asked about and looked at so many more times."""

        def asked() -> int:
            return sum(path.endswith("/load") for path in self.extender.asked)

        wanted = asked() + number * max(1, len(self.operator.view.scaled_models()))
        await self.until(lambda: asked() > wanted)


@asynccontextmanager
async def staged(
    *objects: tuple[str, Raw],
    api: FakeApi | None = None,
    extender: AnsweringExtender | None = None,
    kopf_login: Callable[..., Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """An operator at work on these objects, each with its kind in lower case."""
    async with contextlib.AsyncExitStack() as stack:
        server: FakeApi = await stack.enter_async_context(FakeApi.serve()) if api is None else api
        for kind, raw in objects:
            await server.put(kind, raw)
        answering = extender or AnsweringExtender()
        answering.hold.set()
        app = web.Application()
        app.router.add_get("/{path:.*}", answering._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        answering.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        configuration = Configuration(host=server.url)
        source = KubernetesSource(configuration, settings=KubernetesSettings())
        http = KubernetesHttp(configuration, settings=KubernetesSettings())
        client = ExtenderClient(answering.url)
        for thing in (source, http, client):
            stack.push_async_callback(thing.close)
        operator = Operator(
            quick_settings(extender_url=answering.url, **settings),
            source=source,
            http=http,
            extender=client,
            kopf_login=kopf_login,
        )
        work, port = await stack.enter_async_context(running_operator(operator, lease=None))
        yield Stage(server, answering, operator, work, port)
