"""``/openapi.json``, made from the table of routes, so that no route is missing."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from kvaware_extender.gateway_auth import TENANT_HEADER, TENANT_PATTERN
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
TENANT: Final = {
    "name": TENANT_HEADER,
    "in": "header",
    "schema": {"type": "string", "pattern": TENANT_PATTERN},
    "description": "Whose request it is; looked at only beside a gateway's token.",
}
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
        for schema in (route.request, route.reply, *(route.frames or {}).values()):
            schemas.update((schema or {}).get("$defs", {}))
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
    if route.gateway:
        described.append(TENANT)
        operation["security"] = [{}, {"bearer": []}]
    if described:
        operation["parameters"] = described
    if route.request is not None:
        content = {"application/json": {"schema": _without_parts(route.request)}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.frames is not None:
        operation["x-frames"] = {way: _without_parts(schema) for way, schema in route.frames.items()}
    if route.bearer:
        operation["security"] = [{"bearer": []}]
    return operation


def _without_parts(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$defs"}


def _response(route: Route, status: int, text: str) -> dict[str, Any]:
    if status >= 400:
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    elif status < 200:
        content = {}
    else:
        content = {route.content_type: {"schema": _without_parts(route.reply)} if route.reply is not None else {}}
    return {"description": text, "content": content}
