"""Engine values as JSON: the field names of the dataclasses, costs with their total, lists wrapped in ``items``."""

import dataclasses
from math import ceil
from typing import Any

import orjson

from kvaware_engine import CostTerms, ObjectKey
from kvaware_extender.errors import ApiError

__all__ = ["render_error", "render_json"]


def render_json(value: Any) -> bytes:
    """Render a tree of dataclasses, mappings and lists. Takes some 10 µs per candidate: large trees in a thread."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS)


def render_error(error: ApiError) -> bytes:
    """The one shape of errors (design, §6)."""
    body: dict[str, Any] = {"code": error.code, "message": error.message, "retryable": error.retryable}
    if error.retry_after_s is not None:
        body["retry_after_ms"] = ceil(error.retry_after_s * 1000)
    if error.details:
        body["details"] = error.details
    return orjson.dumps({"error": body}, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, CostTerms):
        return {"total": value.total, **_fields(value)}
    if isinstance(value, ObjectKey):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    raise TypeError(f"expected a dataclass, got {type(value).__name__}")


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
