"""The two calls that come with every request, answered before aiohttp's router and middlewares.

Where a body is short and has come with its head, nothing has to be waited for and nothing limited. That saves an eighth
of a pair of calls (place and finish), which may take 50 µs beyond what an aiohttp server that does nothing takes, the
engine's part included. All else goes the usual way, with the same answers.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from kvaware_extender.answering import DEMAND, LONG_BYTES, Answering
from kvaware_extender.demand_wire import read
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_extender.placement_wire import encode
from kvaware_extender.replies import answer_to, json_response
from kvaware_extender.routes.placements import EVENT, EVENT_BYTES, told
from kvaware_extender.routes.scheduler import trace_id

__all__ = ["Handler", "express"]

Handler = Callable[[Any], Awaitable[web.StreamResponse]]
"""As ``web.Server`` calls it."""

PLACE: Final = "/v1/placements"
BEFORE_ID: Final = "/v1/placements/"
AFTER_ID: Final = "/events"
NOT_PLAIN: Final = frozenset("%/?#")
"""Characters of a path that stand for something else."""


def express(otherwise: Handler, *, answering: Answering, auth: GatewayAuth) -> Handler:
    """A handler of requests, for ``web.Server``, that leaves to ``otherwise`` what it does not answer itself."""

    async def handle(request: web.Request) -> web.StreamResponse:
        content = request.content
        if request.method != "POST" or not content.is_eof() or content.total_bytes > LONG_BYTES:
            return await otherwise(request)
        path = request.raw_path
        try:
            if path == PLACE:
                tenant = await auth.tenant(request.headers)
                demand = read(DEMAND, content.read_nowait())
                return told(await answering.place(demand, tenant=tenant, trace_id=trace_id(request)))
            if path.startswith(BEFORE_ID) and path.endswith(AFTER_ID) and content.total_bytes <= EVENT_BYTES:
                placement_id = path[len(BEFORE_ID) : -len(AFTER_ID)]
                if NOT_PLAIN.isdisjoint(placement_id):
                    event = read(EVENT, content.read_nowait())
                    return json_response(encode(answering.event(placement_id, event, trace_id=trace_id(request))))
        except Exception as e:  # noqa: BLE001 - what is unforeseen is logged there
            return answer_to(request, e)
        return await otherwise(request)

    return handle
