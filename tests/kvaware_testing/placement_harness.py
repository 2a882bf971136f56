"""The routes of placements at work over a placer, and a client of them; and a placer that is simple and exact."""

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvaware_cluster import Kind
from kvaware_engine import CostTerms, ModelObservation, ObjectKey, Tier
from kvaware_engine.blocks.hashing import root_hash
from kvaware_engine.requests.limits import LimitRefusal
from kvaware_engine.requests.placer import Placer
from kvaware_engine.requests.words import (
    Action,
    EventType,
    EventVerdict,
    Mode,
    Option,
    Placement,
    PlacementEvent,
    PlacementReason,
    PlacementRefusal,
    RequestDemand,
    RunnerUp,
)
from kvaware_extender.answering import Answering
from kvaware_extender.express import express
from kvaware_extender.freshness import Freshness
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_extender.openapi import describe
from kvaware_extender.prompts import Prompts
from kvaware_extender.replies import MAX_BODY, errors_as_json
from kvaware_extender.routes.block_groups import block_group_routes
from kvaware_extender.routes.placements import placement_routes
from kvaware_extender.routes.stream import Streams, stream_routes
from kvaware_extender.routes.table import Route, add_routes
from kvaware_extender.settings import StaleView
from kvaware_testing.store_harness import FakeClock

__all__ = [
    "LLAMA",
    "PLACED",
    "CountedPlacer",
    "FakeView",
    "Gateway",
    "SimplePlacer",
    "demand",
    "gateway",
    "placement_app",
]

EXPRESS = True
"""Whether the two calls of each request are answered before the router, as in production."""
ANSWERING = web.AppKey("answering", Answering)
AUTH = web.AppKey("auth", GatewayAuth)
LLAMA = ObjectKey("ml", "llama")
BLOCK_TOKENS = 16
TTL_S = 30.0
TERMS = CostTerms(compute_wait=30.0, cache_access=182.0, memory_pressure=0.5, locality_gain=0.25)
"""In all 212.25."""
PLACED: Mapping[str, Any] = {
    "placement_id": "p0",
    "worker": {"id": "ml:w0:0", "address": "10.0.0.7:8000"},
    "prefill_worker": None,
    "kv": {
        "action": "local",
        "mode": "expected",
        "source": None,
        "tier": "hbm",
        "matched_tokens": 16,
        "transfer_bytes": 0,
        "precision": "precise",
    },
    "cost_ms": {
        "total": 212.25,
        "compute_wait": 30.0,
        "cache_access": 182.0,
        "migration": 0.0,
        "memory_pressure": 0.5,
        "network": 0.0,
        "risk": 0.0,
        "locality_gain": 0.25,
    },
    "reason": "PrefixResident",
    "runner_up": {"worker": "ml:w1:0", "total_ms": 212.25},
    "expires_in_ms": 30000,
}
"""What the first demand with token ids is answered."""


def demand(request_id: str = "r0", **sent: Any) -> dict[str, Any]:
    """A body; 20 token ids unless the prompt is said otherwise."""
    known = {"token_ids", "prompt", "messages", "block_hashes", "input_tokens"}
    prompt = {} if known & sent.keys() else {"token_ids": list(range(20))}
    return {"request_id": request_id, "model": "llama", **prompt, **sent}


class SimplePlacer:
    """Two workers that take everything in turn, with the promises of the engine's ``Placer`` about ids and events."""

    def __init__(self) -> None:
        self.workers = ("ml:w0:0", "ml:w1:0")
        self.demands: list[RequestDemand] = []
        """As they came."""
        self.events: list[tuple[str, PlacementEvent]] = []
        self.refusals: list[PlacementRefusal] = []
        """Of demands that it was not asked for."""
        self.refusal: PlacementRefusal | None = None
        """What everybody is told instead."""
        self.reserved: dict[str, Placement] = {}
        self.ended: dict[str, Placement] = {}
        self.traces: list[str | None] = []

    def resolve(self, name: str) -> ObjectKey | None:
        return LLAMA if name in {"llama", "ml/llama"} else None

    def adapter(self, model: ObjectKey, served_name: str) -> str | None:
        return None

    def root(self, model: ObjectKey, adapter: str | None, salt: str | None) -> int:
        return root_hash(model=model, revision="main", adapter=adapter, salt=salt)

    def block_tokens(self, model: ObjectKey) -> int:
        return BLOCK_TOKENS

    def priority(self, tenant: str, asked: int | None) -> int:
        return 7 if asked is None else asked

    def place(
        self, demand: RequestDemand, *, now_s: float, trace_id: str | None = None
    ) -> Placement | PlacementRefusal:
        self.tick(now_s)
        self.demands.append(demand)
        self.traces.append(trace_id)
        for known in self.reserved.values():
            if known.demand.request_id == demand.request_id and known.demand.tenant == demand.tenant:
                if known.demand == demand:
                    return known
                return PlacementRefusal(
                    demand=demand, reason=PlacementReason.DUPLICATE_REQUEST, message="expected the same demand"
                )
        if self.refusal is not None:
            return replace(self.refusal, demand=demand)
        return self._reserve(demand, f"p{len(self.reserved) + len(self.ended)}", now_s=now_s, attempt=1)

    def _reserve(self, demand: RequestDemand, placement_id: str, *, now_s: float, attempt: int) -> Placement:
        chosen, other = (self.workers[(attempt + turn) % 2] for turn in (1, 0))
        option = Option(
            slot=0,
            worker=chosen,
            action=Action.LOCAL,
            mode=Mode.EXPECTED,
            terms=TERMS,
            tier=Tier.HBM if demand.block_hashes else None,
            matched_tokens=len(demand.block_hashes) * demand.block_tokens,
        )
        placement = Placement(
            placement_id=placement_id,
            demand=demand,
            option=option,
            address="10.0.0.7:8000",
            runner_up=RunnerUp(other, option.terms.total),
            reason=PlacementReason.PREFIX_RESIDENT,
            policy="cost",
            precision=demand.precision,
            expected_output_tokens=256,
            candidates=2,
            confidence_ratio=1.0,
            queue_length=0,
            hbm_free_bytes=None,
            attempt=attempt,
            decided_at_s=now_s,
            expires_in_s=TTL_S,
        )
        self.reserved[placement_id] = placement
        return placement

    def event(
        self, placement_id: str, event: PlacementEvent, *, now_s: float, trace_id: str | None = None
    ) -> tuple[EventVerdict, Placement | PlacementRefusal | None]:
        self.tick(now_s)
        self.events.append((placement_id, event))
        if placement_id in self.ended:
            return EventVerdict.LATE, None
        placement = self.reserved.get(placement_id)
        if placement is None:
            return EventVerdict.UNKNOWN_PLACEMENT, None
        if event.worker is not None and event.worker not in self.workers:
            return EventVerdict.UNKNOWN_WORKER, None
        placement.decided_at_s = now_s
        if event.type is EventType.FINISHED:
            self.ended[placement_id] = self.reserved.pop(placement_id)
        if event.type is EventType.REFUSED:
            if placement.attempt < 2:
                return EventVerdict.TAKEN, self._reserve(
                    placement.demand, placement_id, now_s=now_s, attempt=placement.attempt + 1
                )
            self.ended[placement_id] = self.reserved.pop(placement_id)
            return EventVerdict.TAKEN, PlacementRefusal(
                demand=placement.demand, reason=PlacementReason.TOO_MANY_REFUSALS, message="refused twice"
            )
        return EventVerdict.TAKEN, None

    def refused(self, refusal: PlacementRefusal, *, trace_id: str | None = None) -> None:
        self.refusals.append(refusal)

    def explain(self, placement_id: str) -> Any | None:
        return {"placement_id": placement_id} if placement_id in self.reserved else None

    def tick(self, now_s: float) -> None:
        for placement_id, placement in list(self.reserved.items()):
            if now_s - placement.decided_at_s > TTL_S:
                del self.reserved[placement_id]


class CountedPlacer:
    """A ``Placer`` as the routes have it: they hand it traces, which are for the log."""

    def __init__(self, placer: Placer) -> None:
        self.placer = placer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.placer, name)

    def refused(self, refusal: PlacementRefusal, *, trace_id: str | None = None) -> None:
        """What nobody was asked for."""

    def place(
        self, demand: RequestDemand, *, now_s: float, trace_id: str | None = None
    ) -> Placement | PlacementRefusal:
        return self.placer.place(demand, now_s=now_s)

    def event(
        self, placement_id: str, event: PlacementEvent, *, now_s: float, trace_id: str | None = None
    ) -> tuple[EventVerdict, Placement | PlacementRefusal | None]:
        return self.placer.event(placement_id, event, now_s=now_s)


class FakeView:
    """A store that has seen the model ``ml/llama``, unless it is stale."""

    def __init__(self) -> None:
        self.fresh = True

    def synced(self) -> bool:
        return self.fresh

    def ages(self) -> dict[Kind, float | None]:
        return dict.fromkeys(Kind, 0.0)

    def pod(self, namespace: str, name: str) -> None:
        return None

    def objects(self, kind: Kind) -> dict[ObjectKey, Any]:
        if kind is not Kind.INFERENCE_MODEL:
            return {}
        return {LLAMA: ModelObservation(key=LLAMA, uid="u", model_id="llama", revision="main", roles=())}


class Gateway:
    """A gateway's side, over real HTTP."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, decoded reply and headers; bytes are sent as they are."""
        raw = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        data = raw if raw is None else io.BytesIO(raw)
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            return answer.status, orjson.loads(await answer.read()), answer.headers

    async def place(self, body: Any) -> tuple[int, Any]:
        """Ask for one placement."""
        status, reply, _ = await self.call("POST", "/v1/placements", body)
        return status, reply

    async def event(self, placement_id: str, body: Any) -> tuple[int, Any]:
        """Tell an event."""
        status, reply, _ = await self.call("POST", f"/v1/placements/{placement_id}/events", body)
        return status, reply


@asynccontextmanager
async def gateway(
    placer: Any,
    *,
    view: FakeView | None = None,
    auth: GatewayAuth | None = None,
    clock: FakeClock | None = None,
    control: Any = None,
    most_bytes: int = 16 * 2**20,
    streams_max: int = 8,
) -> AsyncIterator[Gateway]:
    """The routes at work, and a client of them."""
    app, _ = placement_app(
        placer,
        view=view or FakeView(),
        auth=auth or GatewayAuth(None, default_tenant="default"),
        clock=clock or FakeClock(),
        control=control or unlimited,
        most_bytes=most_bytes,
        streams_max=streams_max,
    )
    async with TestServer(app, access_log=None) as server, aiohttp.ClientSession(auto_decompress=False) as session:
        if EXPRESS:
            served: Any = server.runner.server  # type: ignore[union-attr]  # it runs
            served.request_handler = express(served.request_handler, answering=app[ANSWERING], auth=app[AUTH])
        yield Gateway(str(server.make_url("")).rstrip("/"), session)


def placement_app(
    placer: Any,
    *,
    view: FakeView,
    auth: GatewayAuth,
    clock: FakeClock,
    control: Any,
    most_bytes: int,
    streams_max: int,
) -> tuple[web.Application, tuple[Route, ...]]:
    """The application, and its routes."""
    freshness = Freshness(view, stale_view=StaleView.REFUSE, max_view_age_s=60)
    prompts = Prompts(placer, chunk_characters=256, worker_at=worker_at)
    answering = Answering(placing=placer, prompts=prompts, freshness=freshness, clock=clock)
    streams = Streams(answering=answering, auth=auth, frame_max_bytes=2**20, streams_max=streams_max)
    routes = (
        *placement_routes(
            answering=answering,
            placer=placer,
            auth=auth,
            control=control,
            max_body_bytes=most_bytes,
            batch_max_body_bytes=2 * most_bytes,
        ),
        *stream_routes(streams),
        *block_group_routes(
            groups=lambda model, limit: [{"model": model, "limit": limit}],
            view=view,
            freshness=freshness,
            auth=auth,
            control=control,
        ),
    )
    app = web.Application(middlewares=[errors_as_json], client_max_size=2 * most_bytes)
    app[MAX_BODY] = 2 * most_bytes
    app[ANSWERING], app[AUTH] = answering, auth
    add_routes(app, routes)

    async def openapi(_request: web.Request) -> web.Response:
        return web.json_response(body=describe(routes, version="0"))

    app.router.add_get("/openapi.json", openapi)
    app.on_shutdown.append(streams.close)
    return app, routes


def worker_at(model: ObjectKey, address: str) -> str | None:
    """Where the two workers listen."""
    return {"10.0.0.7:8000": "ml:w0:0", "[::7]:8000": "ml:w1:0"}.get(address)


def unlimited(_tenant: str) -> LimitRefusal | None:
    """No limit of control requests."""
    return None
