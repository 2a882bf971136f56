"""Answers of the API server that are no success → this room's errors."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from kvaware_cluster.errors import ClusterApiError, ConflictError, GoneError, NotFoundError, ThrottledError

__all__ = ["error_from_answer", "error_from_status"]

SHOWN_CHARACTERS: Final = 300
"""Of the API server's message: enough to find the fault, too little for a whole object."""
DEFAULT_RETRY_AFTER_S: Final = 1.0
"""For a 429 without Retry-After; what the API server itself usually says."""


def error_from_answer(status: int, headers: Mapping[str, str], body: bytes, *, what: str) -> ClusterApiError:
    """The error for an HTTP answer; the body is a ``Status`` object, or something else from a proxy in between."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = {"message": body[:SHOWN_CHARACTERS].decode(errors="replace")}
    detail = value if type(value) is dict else {}
    return error_from_status({**detail, "code": status}, retry_after=headers.get("Retry-After"), what=what)


def error_from_status(status: Mapping[str, Any], *, what: str, retry_after: str | None = None) -> ClusterApiError:
    """The error for a ``Status`` object, which also comes as the object of a watch event ERROR.

    Args:
        status: The object; ``code`` decides, and ``reason`` where a watch reports an expired version as a server error.
        what: The call, as ``list of pods``.
        retry_after: The header, in seconds; ``details.retryAfterSeconds`` stands in for it.
    """
    code = status.get("code") if type(status.get("code")) is int else 500
    assert isinstance(code, int)  # noqa: S101  # for the type checker; the line above has made sure
    reason = str(status.get("reason") or "")
    told = str(status.get("message") or "")[:SHOWN_CHARACTERS]
    message = f"{what}: the API server answered {code} {reason}: {told}"
    if code == 410 or reason in {"Expired", "Gone"}:
        return GoneError(message, status=410, reason=reason)
    if code == 404:
        return NotFoundError(message, status=code, reason=reason)
    if code == 409 or _names_another_uid(status):
        return ConflictError(message, status=code, reason=reason)
    wait_s = _seconds(retry_after, status)
    if code == 429 or (code == 503 and wait_s is not None):
        wait_s = DEFAULT_RETRY_AFTER_S if wait_s is None else wait_s
        return ThrottledError(message, status=code, reason=reason, retry_after_s=wait_s)
    return ClusterApiError(message, status=code, reason=reason)


def _names_another_uid(status: Mapping[str, Any]) -> bool:
    """A patch that carries another UID is answered 422, since a UID cannot be changed (seen on 1.37.2)."""
    details = status.get("details")
    causes = details.get("causes") if type(details) is dict else None
    return type(causes) is list and any(
        type(cause) is dict and cause.get("field") == "metadata.uid" for cause in causes
    )


def _seconds(header: str | None, status: Mapping[str, Any]) -> float | None:
    """Retry-After in seconds; the other legal form, a date, is not used by API servers and reads as absent."""
    if header is not None and header.isascii() and header.isdecimal() and len(header) <= 6:
        return float(header)
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if type(details) is dict else None
    return float(seconds) if type(seconds) is int and 0 < seconds < 10**6 else None
