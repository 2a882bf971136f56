"""What a gateway and its workers say to the extender over HTTP: place, events, heartbeats."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson

from kvaware_cli.errors import ServerError

__all__ = ["Gateway", "Placed", "Refused", "open_gateway"]

TIMEOUT_S: Final = 15.0
MOST_TEXT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a request goes."""

    placement_id: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a request goes nowhere."""

    code: str
    message: str


class Gateway:
    """One session. Connections are kept, so that a call costs what it costs."""

    def __init__(self, session: aiohttp.ClientSession, server: str, token: str) -> None:
        self._session = session
        self._server = server
        self._heartbeat_headers = {"Authorization": f"Bearer {token}"}

    async def place(self, demand: Mapping[str, Any]) -> Placed | Refused:
        """Ask for a worker. Raises: ServerError where the answer is none of those that are promised."""
        return _placement(await self._call("POST", "/v1/placements", demand))

    async def report(self, placement_id: str, event: Mapping[str, Any]) -> Placed | Refused | None:
        """Tell what became of a request. Returns: after ``refused``, where to go next."""
        status, body = await self._call("POST", f"/v1/placements/{quote(placement_id, safe='')}/events", event)
        if status >= 400:
            raise ServerError(f"event {event['type']}: {_error(status, body).message}")
        if event["type"] != "refused":
            return None
        return _error(status, body) if body.get("error") else _placement((status, body.get("placement")))

    async def beat(self, worker: str, figures: Mapping[str, Any]) -> bool:
        """Send a heartbeat. Returns: whether it was taken; the extender may not know the worker yet."""
        path = f"/v1/workers/{quote(worker, safe=':')}/heartbeat"
        status, _ = await self._call("PUT", path, figures, headers=self._heartbeat_headers)
        return status == 202

    async def explanation(self, placement_id: str) -> Any | None:
        """Why a request went where it went; None: the extender does not know it any more."""
        status, body = await self._call("GET", f"/v1/placements/{quote(placement_id, safe='')}/explanation", None)
        return body if status == 200 else None

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        data = None if body is None else orjson.dumps(body)
        sent = {"Content-Type": "application/json", **(headers or {})}
        try:
            async with self._session.request(method, self._server + path, data=data, headers=sent) as response:
                status, content = response.status, await response.read()
        except (aiohttp.ClientError, OSError) as e:  # a time-out is an OSError, without a text
            raise ServerError(f"{method} {self._server}{path}: no answer: {str(e) or type(e).__name__}") from e
        try:
            return status, orjson.loads(content) if content else None
        except orjson.JSONDecodeError as e:
            raise ServerError(f"{method} {self._server}{path}: expected JSON, got {content[:MOST_TEXT]!r}") from e


@contextlib.asynccontextmanager
async def open_gateway(server: str, *, token: str) -> AsyncIterator[Gateway]:
    """A gateway for the extender at ``server``, whose workers sign with ``token``; closed on leaving."""
    # No limit of connections: a placement must not wait behind the reports on those before it.
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
        yield Gateway(session, server, token)
        await asyncio.sleep(0)  # closed transports leave the loop before the session does


def _placement(answer: tuple[int, Any]) -> Placed | Refused:
    status, body = answer
    if status != 200:
        return _error(status, body)
    try:
        return Placed(placement_id=body["placement_id"], worker=body["worker"]["id"])
    except (KeyError, TypeError) as e:
        raise ServerError(f"placement: expected placement_id and worker.id, got {str(body)[:MOST_TEXT]}") from e


def _error(status: int, body: Any) -> Refused:
    try:
        error = body["error"]
        return Refused(code=str(error["code"]), message=str(error["message"]))
    except (KeyError, TypeError) as e:
        raise ServerError(f"expected an error with code and message, got HTTP {status} {str(body)[:MOST_TEXT]}") from e
