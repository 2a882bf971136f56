"""Probes, metrics and the description of the API."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from kvaware_extender.errors import ApiError
from kvaware_extender.exposition import render_in_slices
from kvaware_extender.metrics import Metrics
from kvaware_extender.replies import json_response
from kvaware_extender.routes.table import Route

__all__ = ["service_routes"]


def service_routes(
    *,
    problem: Callable[[], str | None],
    metrics: Metrics,
    before_metrics: Callable[[], Awaitable[None]],
    description: Callable[[], bytes],
) -> tuple[Route, ...]:
    """The routes that the platform asks."""

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        reason = problem()
        if reason is not None:
            raise ApiError(status=503, code="NotReady", message=reason, retryable=True)
        return web.Response(text="ok\n")

    async def metrics_text(_request: web.Request) -> web.Response:
        await before_metrics()
        text = await render_in_slices(metrics.registry)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def openapi(_request: web.Request) -> web.Response:
        return json_response(description())

    text = "text/plain"
    return (
        Route(
            method="GET",
            path="/livez",
            handler=livez,
            summary="The process answers.",
            listener="api",
            answers={200: "It does."},
            content_type=text,
        ),
        Route(
            method="GET",
            path="/readyz",
            handler=readyz,
            summary="Decisions can be made: the cluster has been read, the view is fresh, every task runs.",
            listener="api",
            answers={200: "They can.", 503: "They cannot; the message says why."},
            content_type=text,
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=metrics_text,
            summary="Metrics in Prometheus' text format.",
            listener="api",
            answers={200: "The metrics."},
            content_type=text,
        ),
        Route(
            method="GET",
            path="/openapi.json",
            handler=openapi,
            summary="This description.",
            listener="api",
            answers={200: "OpenAPI 3.1."},
        ),
    )
