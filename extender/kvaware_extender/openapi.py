"""``/openapi.json``, made from the table of routes, so that no route is missing."""

import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

from kvaware_extender.routes.table import Route

__all__ = ["describe"]

ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "retryable"],
            "properties": {
                "code": {"type": "string", "description": "CamelCase; what programs look at."},
                "message": {"type": "string", "description": "What was expected and what came."},
                "retryable": {"type": "boolean"},
                "retry_after_ms": {"type": "integer"},
                "details": {"type": "object"},
            },
        }
    },
}
LISTENERS: Final = {
    "scheduler": "On the scheduler listener (setting schedulerPort), for kube-scheduler alone.",
    "api": "On the API listener (setting apiPort).",
}


def describe(routes: Iterable[Route], *, version: str) -> bytes:
    """The OpenAPI document of all routes of both listeners."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "kvaware extender", "version": version},
            "paths": paths,
            "components": {"schemas": {"Error": ERROR}},
        }
    )


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": LISTENERS[route.listener],
        "tags": [route.listener],
        "responses": {str(status): _response(route, status, text) for status, text in sorted(route.answers.items())},
    }
    parameters = re.findall(r"\{(\w+)\}", route.path)
    if parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters
        ]
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": route.request}}}
    return operation


def _response(route: Route, status: int, text: str) -> dict[str, Any]:
    if status >= 400:
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    else:
        content = {route.content_type: {}}
    return {"description": text, "content": content}
