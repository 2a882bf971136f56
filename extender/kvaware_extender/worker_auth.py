"""Who may report for a worker: its own pod, a service account that the settings name, or a holder of the token file."""

from typing import Final

import structlog

from kvaware_cluster import TokenIdentity
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_engine import ObjectKey, PodObservation
from kvaware_extender.errors import ApiError
from kvaware_extender.token_file import TokenFile
from kvaware_extender.token_reviews import TokenReviews

__all__ = ["CHALLENGE", "MOST_CHARACTERS", "Reporter", "WorkerAuth", "bearer_token"]

log = structlog.get_logger(__name__)

CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="kvaware"'}
MOST_CHARACTERS: Final = 8192
"""A token of a service account has some 1,000; nothing longer is asked about."""

Reporter = TokenIdentity | None
"""Who sent a report. None: a holder of the token file, who may speak for every worker."""


class WorkerAuth:
    """Checks bearer tokens against the token file first, then by TokenReview."""

    def __init__(
        self,
        *,
        token_file: TokenFile | None,
        reviews: TokenReviews | None,
        audiences: tuple[str, ...],
        service_accounts: tuple[str, ...],
    ) -> None:
        self._token_file = token_file
        self._reviews = reviews
        self._audiences = audiences
        self._silent = False
        """Whether it was logged that the API server cannot be asked; each heartbeat would say it again."""
        self._trusted = frozenset(f"system:serviceaccount:{account.replace('/', ':')}" for account in service_accounts)

    async def open(self) -> None:
        """Read what has to be there from the start. Raises: ConfigError."""
        if self._token_file is not None:
            await self._token_file.open()

    async def who(self, authorization: str | None) -> Reporter:
        """Whose token a request carries.

        Raises: ApiError: 401 without one, or with one that nobody knows; 503 when it cannot be asked about now.
        """
        token = bearer_token(authorization)
        if token is None:
            raise self._unauthorized("expected a header 'Authorization: Bearer TOKEN'")
        if len(token) > MOST_CHARACTERS:
            raise self._unauthorized(f"expected a token of at most {MOST_CHARACTERS} characters, got {len(token)}")
        if self._token_file is not None and await self._token_file.holds(token):
            return None
        if self._reviews is None:
            raise self._unauthorized("nobody knows the token")
        try:
            identity = await self._reviews.identity(token)
        except ConfigError:
            self._reviews = None  # there is no cluster, and none will come
            raise self._unauthorized("the token cannot be checked") from None
        except (UpstreamError, TimeoutError) as e:
            if not self._silent:
                log.warning("worker tokens cannot be reviewed", error=str(e) or type(e).__name__)
            self._silent = True
            message = "the API server cannot be asked about the token now"
            raise ApiError(status=503, code="TokenReviewUnavailable", message=message, retryable=True) from e
        self._silent = False
        if identity is None:
            raise self._unauthorized("the API server does not know the token")
        return identity

    def allow(self, reporter: Reporter, pod: ObjectKey, seen: PodObservation) -> None:
        """Let the reporter speak for a pod as the API server shows it. Raises: ApiError 403."""
        if reporter is None or reporter.username in self._trusted:
            return
        if reporter.pod == pod and reporter.pod_uid == seen.uid:
            return
        whose = f"of pod {reporter.pod.namespace}/{reporter.pod.name}" if reporter.pod is not None else "of no pod"
        if reporter.pod == pod:
            whose = "of an earlier pod of that name"
        raise ApiError(
            status=403,
            code="Forbidden",
            message=f"expected the token of pod {pod.namespace}/{pod.name}, or of a service account that setting "
            f"heartbeat.serviceAccounts names; got one of {reporter.username}, {whose}",
        )

    def _unauthorized(self, problem: str) -> ApiError:
        """What would be taken is part of it: where nothing is configured, that is what has to be known."""
        ways = []
        if self._token_file is not None:
            ways.append("a token of the file that setting heartbeat.tokenFile names")
        if self._reviews is not None:
            audience = " or ".join(self._audiences) or "of the API server"
            ways.append(f"a service account token of the worker's pod, for the audience {audience}")
        taken = " or ".join(ways) if ways else "none: setting heartbeat.tokenFile names no file"
        return ApiError(status=401, code="Unauthorized", message=f"{problem}; taken here: {taken}", headers=CHALLENGE)


def bearer_token(authorization: str | None) -> str | None:
    """The token of an Authorization header; None without one."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None
