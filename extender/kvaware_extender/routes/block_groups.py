"""``/v1/block-groups``: which runs of KV blocks are known of a model, who holds them, and how often they were hit."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from aiohttp import web

from kvaware_engine import ObjectKey
from kvaware_engine.requests.limits import LimitRefusal
from kvaware_extender.errors import ApiError
from kvaware_extender.freshness import Freshness
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_extender.routes.models import find_model
from kvaware_extender.routes.placements import TENANT_PROBLEM, UNKNOWN_CALLER, charge
from kvaware_extender.routes.table import Route
from kvaware_extender.routes.v1 import STALE, answer
from kvaware_extender.routes.workers import model_key
from kvaware_extender.turns import Turn
from kvaware_extender.view import View

__all__ = ["block_group_routes"]

MOST_GROUPS: Final = 1000
USUAL_GROUPS: Final = 100

Groups = Callable[[ObjectKey, int], Iterable[Any]]
"""A model and how many at most → its block groups, those most useful first. They are taken one by one, and the index
may change in between."""


def block_group_routes(
    *,
    groups: Groups,
    view: View,
    freshness: Freshness,
    auth: GatewayAuth,
    control: Callable[[str], LimitRefusal | None],
) -> tuple[Route, ...]:
    """The route of block groups; ``control`` charges a tenant one call that places nothing."""

    async def listing(request: web.Request) -> web.Response:
        charge(control, await auth.tenant(request.headers))
        named, limit = asked_model(request), asked_limit(request)
        freshness.require()
        found: list[Any] = []
        turn = Turn()
        for group in groups(find_model(view, named).key, limit):
            found.append(group)
            if turn.over():
                await turn.pass_on()
        return await answer({"items": found})

    return (
        Route(
            method="GET",
            path="/v1/block-groups",
            handler=listing,
            summary="The block groups of one model that are most useful, with who holds them in which tier.",
            listener="api",
            answers={
                200: "A list of block groups.",
                400: f"model or limit is missing or wrong, or {TENANT_PROBLEM}.",
                **UNKNOWN_CALLER,
                404: "There is no such InferenceModel (code ModelNotFound).",
                429: "The tenant's limit of control requests is reached (code TenantQuotaExceeded).",
                **STALE,
            },
            query={
                "model": {"type": "string", "description": "namespace/name of an InferenceModel; needed"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_GROUPS, "default": USUAL_GROUPS},
            },
            gateway=True,
        ),
    )


def asked_model(request: web.Request) -> ObjectKey:
    """The model in the query. Raises: ApiError 400, WireError."""
    named = request.query.get("model")
    if named is None:
        message = "model: expected namespace/name in the query, got nothing"
        raise ApiError(status=400, code="InvalidRequest", message=message)
    return model_key(named)


def asked_limit(request: web.Request) -> int:
    """The number in the query. Raises: ApiError 400."""
    text = request.query.get("limit", str(USUAL_GROUPS))
    if text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_GROUPS:
        return int(text)
    message = f"limit: expected a whole number from 1 to {MOST_GROUPS}, got {text[:32]!r}"
    raise ApiError(status=400, code="InvalidRequest", message=message)
