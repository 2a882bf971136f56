"""Errors become answers in one place: a status code and the one error shape, on both listeners."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from math import ceil
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kvaware_crds.errors import StaleViewError, WireError
from kvaware_extender.errors import ApiError
from kvaware_extender.render import render_error

__all__ = ["answer_to", "api_error", "error_response", "errors_as_json", "json_response", "unforeseen"]

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON: Final = {"Content-Type": "application/json"}


def json_response(body: bytes, *, status: int = 200) -> web.Response:
    """JSON bytes as they are."""
    return web.Response(body=body, status=status, headers=JSON)


def api_error(error: ApiError | WireError | StaleViewError) -> ApiError:
    """What a caller is told of it."""
    match error:
        case WireError():
            return ApiError(status=400, code="InvalidRequest", message=str(error))
        case StaleViewError():
            return ApiError(status=503, code="StaleView", message=str(error), retryable=True)
        case ApiError():
            return error


def error_response(error: ApiError) -> web.Response:
    """The one error shape."""
    response = json_response(render_error(error), status=error.status)
    response.headers.update(error.headers)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, ceil(error.retry_after_s)))  # HTTP has whole seconds only
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Translate what handlers and the router raise."""
    try:
        return await handler(request)
    except Exception as e:  # noqa: BLE001 - what is unforeseen is logged there
        return answer_to(request, e)


def answer_to(request: web.Request, error: Exception) -> web.Response:
    """What a caller is told instead of an answer. Raises: the error, when nobody is there to be told."""
    match error:
        case ApiError() | WireError() | StaleViewError():
            return error_response(api_error(error))
        case web.HTTPException():
            return _http_error(request, error)
        case HttpProcessingError() | web.RequestPayloadError():
            # The body is not encoded as its headers say; aiohttp's words for it, without its figures.
            message = f"body: expected the content encoding that the headers name, got {type(error).__name__}"
            return error_response(ApiError(status=400, code="InvalidRequest", message=message))
        case ConnectionError():
            log.debug("caller hung up", method=request.method, path=request.path)
            raise error
        case _:
            return error_response(unforeseen(error, method=request.method, path=request.path))


def unforeseen(error: Exception, **where: object) -> ApiError:
    """Log a mistake of ours. Returns: what its caller is told of it."""
    log.error("unforeseen error", exc_info=error, **where)
    return ApiError(status=500, code="InternalError", message="an unforeseen error; the log has it", retryable=True)


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """What aiohttp itself refuses: unknown paths, wrong methods, long bodies."""
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.path}: expected {allowed}, got {request.method}"
        case web.HTTPNotFound():
            message = f"no route {request.path}; /openapi.json on the API listener lists all"
        case web.HTTPRequestEntityTooLarge():
            message = f"body: expected at most {request.app[MAX_BODY]} bytes (setting maxBodyBytes), got more"
        case _:
            message = error.reason
    code = HTTPStatus(error.status).phrase.replace(" ", "")
    response = error_response(ApiError(status=error.status, code=code, message=message))
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return response


MAX_BODY: Final = web.AppKey("max_body", int)
