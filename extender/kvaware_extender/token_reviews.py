"""Whose a bearer token is, as the API server's TokenReview says; answers are kept for a while, by the token's hash."""

import asyncio
from collections.abc import Callable
from typing import Final

from cachetools import TTLCache

from kvaware_cluster import Source, TokenIdentity
from kvaware_extender.errors import ApiError
from kvaware_extender.pace import Pace
from kvaware_extender.token_file import fingerprint

__all__ = ["TokenReviews"]

AT_A_TIME: Final = 16
"""Reviews that are asked for together: whoever sends made-up tokens costs the API server no more than that."""
WITHIN_S: Final = 3.0
GOOD_BEFORE: Final = 10
"""Times ``good_s`` for which it is known that a token was good."""
ASK_AGAIN_S: Final = 1.0
"""What those are told for whom there is no review now."""


class TokenReviews:
    """Remembers tokens that were good for long, and others shortly: one may become good when its pod is seen."""

    def __init__(
        self,
        source: Source,
        *,
        audiences: tuple[str, ...],
        good_s: float,
        bad_s: float,
        most: int,
        per_s: float,
        burst: int,
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._audiences = audiences
        self._good: TTLCache[bytes, TokenIdentity] = TTLCache(most, good_s, timer=clock)
        self._bad: TTLCache[bytes, bool] = TTLCache(most, bad_s, timer=clock)
        self._good_before: TTLCache[bytes, bool] = TTLCache(most, good_s * GOOD_BEFORE, timer=clock)
        self._pace = Pace(per_s=per_s, burst=burst, clock=clock)
        self._kept = burst // 2
        """Reviews for tokens that were good before: made-up ones take no worker's turn."""
        self._slots = asyncio.Semaphore(AT_A_TIME)

    async def identity(self, token: str) -> TokenIdentity | None:
        """Whose it is; None: nobody's.

        Raises: UpstreamError or TimeoutError when the API server cannot be asked, ConfigError when there is none,
            ApiError 503 when it was asked too often.
        """
        key = fingerprint(token)
        if (known := self._good.get(key)) is not None:
            return known
        if key in self._bad:
            return None
        async with asyncio.timeout(WITHIN_S), self._slots:
            # It may have been answered while this one waited for its turn.
            if (known := self._good.get(key)) is not None:
                return known
            if key in self._bad:
                return None
            if not self._pace.take(leave=0 if key in self._good_before else self._kept):
                message = "too many unknown tokens wait for the API server's word (setting heartbeat.reviewsPerS)"
                raise ApiError(
                    status=503, code="TooManyReviews", message=message, retryable=True, retry_after_s=ASK_AGAIN_S
                )
            found = await self._source.review_token(token, audiences=self._audiences)
        if found is None:
            self._bad[key] = True
        else:
            self._good[key] = found
            self._good_before[key] = True
        return found
