"""``/openapi.json``, made from the table of routes, so that no route is missing."""

import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

from kvaware_extender.routes.table import Route

__all__ = ["REFERENCE", "describe"]

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
REFERENCE: Final = "#/components/schemas/{model}"
"""Where the parts of a request's schema are found."""
BEARER: Final = {"type": "http", "scheme": "bearer"}
LISTENERS: Final = {
    "scheduler": "On the scheduler listener (setting schedulerPort), for kube-scheduler alone.",
    "api": "On the API listener (setting apiPort).",
}


def describe(routes: Iterable[Route], *, version: str) -> bytes:
    """The OpenAPI document of all routes of both listeners."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": ERROR}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        schemas.update((route.request or {}).get("$defs", {}))
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "kvaware extender", "version": version},
            "paths": paths,
            "components": {"schemas": schemas, "securitySchemes": {"bearer": BEARER}},
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
    described: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters
    ]
    described += [{"name": name, "in": "query", "schema": schema} for name, schema in route.query.items()]
    if described:
        operation["parameters"] = described
    if route.request is not None:
        schema = {key: value for key, value in route.request.items() if key != "$defs"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.bearer:
        operation["security"] = [{"bearer": []}]
    return operation


def _response(route: Route, status: int, text: str) -> dict[str, Any]:
    if status >= 400:
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    else:
        content = {route.content_type: {}}
    return {"description": text, "content": content}
