"""Bodies on the pod's address, where anybody may send them: bounded in length and time."""

import asyncio
from typing import Final

from aiohttp import web

from kvaware_extender.errors import ApiError

__all__ = ["BODY_WITHIN_S", "read_at_most"]

BODY_WITHIN_S: Final = 5.0
"""A body that drips does not hold a place for longer."""


async def read_at_most(request: web.Request, limit: int) -> bytes:
    """The body. Raises: ApiError 413 without having read more than a little of a longer one, 408 for a slow one."""
    body = bytearray()
    if (request.content_length or 0) <= limit:
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                async for chunk in request.content.iter_chunked(limit + 1):
                    body += chunk
                    if len(body) > limit:
                        break
                else:
                    return bytes(body)
        except TimeoutError as error:
            message = f"body: expected all of it within {BODY_WITHIN_S:g} s"
            raise ApiError(status=408, code="RequestTimeout", message=message, retryable=True) from error
    message = f"body: expected at most {limit} bytes, got more"
    raise ApiError(status=413, code="RequestEntityTooLarge", message=message)
