"""A route and what is said about it: the router and ``/openapi.json`` are made from the same list."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

__all__ = ["Route", "add_routes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path."""

    method: str
    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    summary: str
    listener: str
    """``scheduler`` or ``api``."""
    answers: Mapping[int, str] = field(default_factory=dict)
    """Status code to what it means."""
    request: Mapping[str, Any] | None = None
    """JSON schema of the body; None: no body."""
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Optional parameters of the query, and their JSON schemas."""
    bearer: bool = False
    """Whether a bearer token is needed."""
    gateway: bool = False
    """Whether a gateway may show its token and name a tenant."""
    content_type: str = "application/json"
    """Of the answer."""
    reply: Mapping[str, Any] | None = None
    """JSON schema of the answer when all went well; None: not described."""
    frames: Mapping[str, Mapping[str, Any]] | None = None
    """Of a WebSocket: JSON schemas of its frames, ``received`` and ``sent``."""


def add_routes(app: web.Application, routes: tuple[Route, ...]) -> None:
    """Register the routes. What can be got can be asked for by HEAD too: some load balancers probe so."""
    for route in routes:
        if route.method == "GET" and route.frames is None:
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
