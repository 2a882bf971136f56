"""``/v1``: what people and other rooms ask. While the view is stale the answer is 503: old must not look new."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from aiohttp import web

from kvaware_cluster import parse_pod
from kvaware_crds.errors import WireError
from kvaware_engine import Engine, NodeView, PodObservation, TenantView
from kvaware_engine.requests.limits import RequestUse
from kvaware_extender.errors import ApiError
from kvaware_extender.explained import recorded
from kvaware_extender.freshness import Freshness
from kvaware_extender.memory import Memory
from kvaware_extender.render import render_json
from kvaware_extender.replies import json_response
from kvaware_extender.routes.bodies import read_at_most
from kvaware_extender.routes.table import Route
from kvaware_extender.view import View
from kvaware_extender.wire import decode

__all__ = ["STALE", "answer", "v1_routes"]

MOST_BYTES: Final = 2**20
"""Of one pod; real ones are some 10 kB. Whoever reaches this address may send it, and it is read in the loop."""
DRY_RUN_UID: Final = "dry-run"
"""Of a pod that does not exist yet; it holds nothing."""
POD: Final = {"type": "object", "description": "A v1.Pod as in a manifest; namespace default unless set."}
NODES_AT_A_TIME: Final = 32
"""Some 3 ms; 5,000 nodes at once would hold up kube-scheduler's calls for 0.5 s. So the list is no single moment's."""
STALE: Final = {503: "The view of the cluster is stale (code StaleView, retryable)."}


def v1_routes(
    *,
    engine: Engine,
    requests: Callable[[float], Sequence[RequestUse]],
    view: View,
    freshness: Freshness,
    memory: Memory,
    clock: Callable[[], float],
) -> tuple[Route, ...]:
    """The routes under ``/v1`` about pods, nodes and tenants; ``requests`` tells tenants' use of requests now."""

    async def explain(request: web.Request) -> web.Response:
        pod = read_pod(decode(await read_at_most(request, MOST_BYTES)))
        freshness.require()
        return await answer(engine.explain(engine.demand(pod), now_s=clock()))

    async def explanation(request: web.Request) -> web.Response:
        freshness.require()
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        pod = view.pod(namespace, name)
        if pod is None:
            message = f"pod {namespace}/{name}: there is none that asks for GPUs or names a model"
            raise ApiError(status=404, code="PodNotFound", message=message)
        # A pending pod may have been chosen a node that is taken by now: what was decided answers for bound pods only.
        decided = memory.decision(pod.uid) if pod.node is not None else None
        if decided is not None:
            return await answer(recorded(decided, pod))
        return await answer(engine.explain(engine.demand(pod), now_s=clock()))

    async def nodes(_request: web.Request) -> web.Response:
        freshness.require()
        items: list[NodeView] = []
        names = engine.node_names()
        for start in range(0, len(names), NODES_AT_A_TIME):
            items += engine.nodes(names[start : start + NODES_AT_A_TIME], now_s=clock())
            await asyncio.sleep(0)  # calls of kube-scheduler come between
        return await answer({"items": items})

    async def tenants(_request: web.Request) -> web.Response:
        freshness.require()
        uses = {use.tenant: use for use in requests(clock())}
        views = [(view, uses.get(view.tenant)) for view in engine.tenants()]
        return await answer({"items": [tenant_of(view, use) for view, use in views]})

    def route(method: str, path: str, handler: Any, summary: str, answers: Mapping[int, str], **more: Any) -> Route:
        return Route(
            method=method,
            path=path,
            handler=handler,
            summary=summary,
            listener="api",
            answers={**answers, **STALE},
            **more,
        )

    return (
        route(
            "POST",
            "/v1/pods:explain",
            explain,
            "Where a pod would go now, and why; nothing is reserved.",
            {
                200: "An Explanation.",
                400: "The body is no pod that asks for GPUs or names a model.",
                413: f"The body is longer than {MOST_BYTES} bytes.",
            },
            request=POD,
        ),
        route(
            "GET",
            "/v1/pods/{namespace}/{name}/explanation",
            explanation,
            "Why a bound pod went where it is (the recorded decision, if kept), or why a pending one waits now.",
            {200: "An Explanation.", 404: "There is no such pod that asks for GPUs or names a model."},
        ),
        route("GET", "/v1/nodes", nodes, "Every node with its GPUs and what they hold.", {200: "A list of nodes."}),
        route(
            "GET",
            "/v1/tenants",
            tenants,
            "Every tenant with its use and limits, of pods and of requests.",
            {200: "A list of tenants."},
        ),
    )


async def answer(value: Any) -> web.Response:
    """Frozen values, rendered in a thread: 5,000 candidates take some 50 ms."""
    return json_response(await asyncio.to_thread(render_json, value))


def tenant_of(view: TenantView, use: RequestUse | None) -> dict[str, Any]:
    """One tenant; ``requests`` is null where no quota names it for requests."""
    told = {field.name: getattr(view, field.name) for field in fields(view)}
    if use is None:
        return {**told, "requests": None}
    return {
        **told,
        "requests": {field.name: getattr(use, field.name) for field in fields(use) if field.name != "tenant"},
    }


def read_pod(raw: dict[str, Any]) -> PodObservation:
    """A pod from a manifest, as it would be when created. Raises: WireError, ApiError."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict):
        raise WireError("metadata: expected an object")
    named = {"name": "unnamed", "namespace": "default", **{key: value for key, value in metadata.items() if value}}
    pod = parse_pod({**raw, "metadata": {**named, "uid": named.get("uid") or DRY_RUN_UID}})
    if pod is None:
        raise ApiError(
            status=400,
            code="NotOurs",
            message="the pod asks for no GPU and has no label kvaware.io/model: kvaware has no say in where it goes",
        )
    return replace(pod, node=None)
