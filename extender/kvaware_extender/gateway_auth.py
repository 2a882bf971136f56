"""Whose a request is: a gateway shows its token and names the tenant; who shows none is the default tenant's.

A line of the token file is ``TOKEN``, which may ask for any tenant, or ``TOKEN TENANT``, which asks for this one alone.
"""

import re
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs

from kvaware_crds.errors import ConfigError
from kvaware_extender.errors import ApiError
from kvaware_extender.token_file import TokenFile
from kvaware_extender.worker_auth import CHALLENGE, MOST_CHARACTERS, bearer_token

__all__ = ["TENANT_HEADER", "TENANT_PATTERN", "GatewayAuth", "token_and_tenant"]

TENANT_HEADER: Final = "x-kvaware-tenant"
TENANT_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""As in a TenantQuota, at most 63 characters: nothing else can be limited, or is worth a place in a log."""
TENANT: Final = re.compile(TENANT_PATTERN[1:-1])


def token_and_tenant(line: str) -> tuple[str, str]:
    """A line of a gateways' token file. Raises: ConfigError."""
    token, _, tenant = line.partition(" ")
    tenant = tenant.strip()
    if tenant and not TENANT.fullmatch(tenant):
        raise ConfigError("expected lines TOKEN or TOKEN TENANT, with a tenant's name as in a TenantQuota")
    return token, tenant


class GatewayAuth:
    """Checks the tokens of gateways."""

    def __init__(self, token_file: TokenFile | None, *, default_tenant: str) -> None:
        """Know where to look; None: there are no tokens, and all requests are the default tenant's."""
        self._token_file = token_file
        self._default_tenant = default_tenant

    async def open(self) -> None:
        """Read what has to be there from the start. Raises: ConfigError."""
        if self._token_file is not None:
            await self._token_file.open()

    async def tenant(self, headers: Mapping[str, str]) -> str:
        """Whose a request with these headers is.

        Raises: ApiError: 401 for a token that is not in the file, 403 for a tenant that the token may not ask for,
            400 for what is no tenant's name.
        """
        if self._token_file is None or hdrs.AUTHORIZATION not in headers:
            return self._default_tenant
        token = bearer_token(headers[hdrs.AUTHORIZATION])
        own = await self._token_file.said_of(token) if token is not None and len(token) <= MOST_CHARACTERS else None
        if own is None:
            message = (
                "expected no Authorization header, or 'Bearer TOKEN' with a token of the file that setting "
                "gateway.tokenFile names"
            )
            raise ApiError(status=401, code="Unauthorized", message=message, headers=CHALLENGE)
        asked = headers.get(TENANT_HEADER)
        if asked is None:
            return own or self._default_tenant
        if not TENANT.fullmatch(asked):
            message = f"{TENANT_HEADER}: expected a tenant's name of at most 63 letters, digits, '-', '_' and '.'"
            raise ApiError(status=400, code="InvalidRequest", message=message)
        if own and asked != own:
            message = f"{TENANT_HEADER}: expected {own}, the tenant of this token, got {asked}"
            raise ApiError(status=403, code="Forbidden", message=message)
        return asked
