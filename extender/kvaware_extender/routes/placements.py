"""``/v1/placements``: where a request goes, what became of it, and why it went there.

Bodies are typed structs in and out, and a refusal is rendered instead of raised: two of these calls come with every
request. ``express.py`` answers those two before the router where it can.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, Protocol

import msgspec
from aiohttp import web

from kvaware_engine.requests.limits import LimitRefusal
from kvaware_engine.requests.words import CODE_OF_REFUSAL, Placement, PlacementRefusal
from kvaware_extender import demand_wire, placement_wire
from kvaware_extender.answering import LONG_BYTES, Answering, read_demand, unknown_placement
from kvaware_extender.demand_wire import MOST_ITEMS, Event, RawBatch, read
from kvaware_extender.errors import ApiError
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_extender.openapi import REFERENCE
from kvaware_extender.placement_wire import BatchAnswer, encode, placement_answer, refusal_error
from kvaware_extender.replies import error_response, json_response
from kvaware_extender.routes.bodies import BODY_WITHIN_S, read_at_most
from kvaware_extender.routes.scheduler import trace_id
from kvaware_extender.routes.table import Route
from kvaware_extender.routes.v1 import answer

__all__ = [
    "EVENT",
    "EVENT_BYTES",
    "Explaining",
    "charge",
    "placement_routes",
    "received",
    "sent",
    "told",
]

EVENT_BYTES: Final = 16 * 1024
"""Of one event; one with every field is 0.3 kB, and a reason at most 1,024 characters."""
BODIES_AT_A_TIME: Final = 32
"""Long bodies that are read together, batches included; the others wait in their sockets. At 32 MB each, the most that
a batch may have, they are 1 GB at worst."""

EVENT: Final = msgspec.json.Decoder(Event)
BATCH: Final = msgspec.json.Decoder(RawBatch)
REFUSALS: Final = {
    status: ", ".join(sorted(reason for reason, code in CODE_OF_REFUSAL.items() if code == status))
    for status in sorted(set(CODE_OF_REFUSAL.values()))
}
"""Status to the codes of the engine's refusals that are told by it."""


class Explaining(Protocol):
    """The engine's ``Placer``, as far as explanations are concerned."""

    def explain(self, placement_id: str) -> Any | None:
        """Why it went there; None: unknown. Called in a thread, one after another: it takes some 30 ms."""
        ...


def placement_routes(
    *,
    answering: Answering,
    placer: Explaining,
    auth: GatewayAuth,
    control: Callable[[str], LimitRefusal | None],
    max_body_bytes: int,
    batch_max_body_bytes: int,
) -> tuple[Route, ...]:
    """The routes under ``/v1/placements``, but for the stream.

    Args:
        answering: Decides.
        placer: Explains.
        auth: Knows the gateways.
        control: Charges a tenant one call that places nothing; see ``RequestLimits.control``.
        max_body_bytes: Of one demand.
        batch_max_body_bytes: Of a batch.
    """
    bodies, free, explaining = asyncio.Semaphore(BODIES_AT_A_TIME), nullcontext(), asyncio.Lock()

    async def place(request: web.Request) -> web.Response:
        tenant = await auth.tenant(request.headers)
        length = request.content_length
        async with free if length is not None and length <= LONG_BYTES else bodies:
            demand = await read_demand(await read_at_most(request, max_body_bytes))
            return told(await answering.place(demand, tenant=tenant, trace_id=trace_id(request)))

    async def batch(request: web.Request) -> web.Response:
        tenant = await auth.tenant(request.headers)
        async with bodies:
            demands = read(BATCH, await read_at_most(request, batch_max_body_bytes)).demands
            answers = await answering.place_many(demands, tenant=tenant, trace_id=trace_id(request))
        return json_response(encode(BatchAnswer(answers=answers)))

    async def event(request: web.Request) -> web.Response:
        sent = read(EVENT, await read_at_most(request, EVENT_BYTES))
        return json_response(encode(answering.event(request.match_info["id"], sent, trace_id=trace_id(request))))

    async def explanation(request: web.Request) -> web.Response:
        charge(control, await auth.tenant(request.headers))
        placement_id = request.match_info["id"]
        async with explaining:
            explained = await asyncio.to_thread(placer.explain, placement_id)
        if explained is None:
            raise unknown_placement(placement_id)
        return await answer(explained)

    return (
        Route(
            method="POST",
            path="/v1/placements",
            handler=place,
            summary="Where one request goes; a place there is reserved for it.",
            listener="api",
            answers={
                200: "A placement. The same request_id with the same demand gets the same one until it is finished.",
                **refused(max_body_bytes),
            },
            request=received("Demand"),
            reply=sent("PlacementAnswer"),
            gateway=True,
        ),
        Route(
            method="POST",
            path="/v1/placements:batch",
            handler=batch,
            summary=f"Where up to {MOST_ITEMS} requests go, placed one after another; each succeeds or fails alone.",
            listener="api",
            answers={
                200: "Of each demand, in order, a placement or a failure with the error that it would have got alone.",
                400: "The body is no batch (code InvalidRequest).",
                **UNKNOWN_CALLER,
                **too_long(batch_max_body_bytes),
            },
            request=received("Batch"),
            reply=sent("BatchAnswer"),
            gateway=True,
        ),
        Route(
            method="POST",
            path="/v1/placements/{id}/events",
            handler=event,
            summary="What became of a placed request. Events may come twice and in any order. A request whose end is "
            "not told keeps its place until it expires.",
            listener="api",
            answers={
                200: "result: taken, repeated (known before) or late (finished before); after a refused one where the "
                "request goes next (placement), or why nowhere (error).",
                400: "The body is no event (code InvalidRequest).",
                404: "There is no such placement (code PlacementNotFound), or the model has no such worker "
                "(WorkerNotFound).",
                **too_long(EVENT_BYTES),
                503: "Another worker is asked for and the view of the cluster is stale (code StaleView, retryable).",
            },
            request=received("Event"),
            reply=sent("EventAnswer"),
        ),
        Route(
            method="GET",
            path="/v1/placements/{id}/explanation",
            handler=explanation,
            summary="Why a request went where it did: every option with its cost, and what would have changed it.",
            listener="api",
            answers={
                200: "A RequestExplanation, with the figures of the decision.",
                400: f"{TENANT_PROBLEM}.",
                **UNKNOWN_CALLER,
                404: "There is no such placement (code PlacementNotFound).",
                429: "The tenant's limit of control requests is reached (code TenantQuotaExceeded).",
            },
            gateway=True,
        ),
    )


TENANT_PROBLEM: Final = "x-kvaware-tenant is no tenant's name (code InvalidRequest)"
UNKNOWN_CALLER: Final = {
    401: "The bearer token is no gateway's (code Unauthorized).",
    403: "The gateway's token is for another tenant (code Forbidden).",
}


def refused(max_body_bytes: int) -> dict[int, str]:
    """What a demand may be told instead of a placement."""
    return {
        400: f"The body is no demand (code InvalidRequest), {TENANT_PROBLEM}, or {REFUSALS[400]}.",
        **UNKNOWN_CALLER,
        404: f"No InferenceModel serves the model under this name ({REFUSALS[404]}).",
        409: f"The request_id stands for another demand ({REFUSALS[409]}).",
        **too_long(max_body_bytes),
        429: f"Not now ({REFUSALS[429]}); Retry-After says when, if waiting helps.",
        503: f"The view of the cluster is stale (StaleView), or nobody can take it ({REFUSALS[503]}).",
    }


def too_long(most_bytes: int) -> dict[int, str]:
    """What is said of bodies that are not read."""
    return {
        408: f"The body did not come within {BODY_WITHIN_S:g} s.",
        413: f"The body is longer than {most_bytes} bytes.",
    }


def received(name: str) -> dict[str, Any]:
    """The schema of a body that comes in, with all its parts."""
    return {"$ref": REFERENCE.format(model=name), "$defs": demand_wire.schemas()}


def sent(name: str) -> dict[str, Any]:
    """The schema of a body that goes out, with all its parts."""
    return {"$ref": REFERENCE.format(model=name), "$defs": placement_wire.schemas()}


def told(outcome: Placement | PlacementRefusal) -> web.Response:
    """A decision as an answer."""
    if isinstance(outcome, Placement):
        return json_response(encode(placement_answer(outcome)))
    return error_response(refusal_error(outcome))


def charge(control: Callable[[str], LimitRefusal | None], tenant: str) -> None:
    """Let a tenant's call that places nothing pass. Raises: ApiError 429."""
    refusal = control(tenant)
    if refusal is not None:
        raise ApiError(
            status=429,
            code="TenantQuotaExceeded",
            message=refusal.message,
            retryable=refusal.retryable,
            retry_after_s=refusal.retry_after_s if refusal.retryable else None,
            details=refusal.details,
        )
