"""Asks the extender what it knows: loads, headroom, tenants, workers; its JSON becomes the engine's frozen words.

A field that is missing or of another type is an error that names it; fields that a newer extender adds are passed over.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import orjson
from pydantic import TypeAdapter, ValidationError

from kvaware_cluster.errors import NotFoundError
from kvaware_cluster.kubernetes_http import in_doubt, read_up_to
from kvaware_cluster.settings import ExtenderClientSettings
from kvaware_crds.errors import ConfigError, StaleViewError, UpstreamError
from kvaware_engine import ModelHeadroom, ModelLoad, ObjectKey, TenantView, WorkerView

__all__ = ["ExtenderClient"]


@dataclass(frozen=True, slots=True)
class _Tenants:
    items: list[TenantView]


@dataclass(frozen=True, slots=True)
class _Workers:
    items: list[WorkerView]


LOAD: Final = TypeAdapter(ModelLoad)
HEADROOM: Final = TypeAdapter(ModelHeadroom)
TENANTS: Final = TypeAdapter(_Tenants)
WORKERS: Final = TypeAdapter(_Workers)
SHOWN_CHARACTERS: Final = 300
IN_THE_LOOP_BYTES: Final = 2**18
"""Some 3 ms of reading; a longer answer is read in a thread."""

T = TypeVar("T")


class ExtenderClient:
    """One extender. One per event loop; connections are made at the first question and kept.

    Errors of every question: StaleViewError when the extender answers that its view is stale (503); UpstreamError when
    it gives no answer in time, or one that cannot be read.
    """

    def __init__(self, base_url: str, *, settings: ExtenderClientSettings | None = None) -> None:
        """Connect nothing yet.

        Args:
            base_url: ``http://host:port``, a path behind it allowed.
            settings: See there.
        Raises: ConfigError when the URL is none.
        """
        try:
            parts = urlsplit(base_url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query
            usable = usable and parts.port != 0 and not parts.fragment
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"expected the extender's URL, such as http://kvaware-extender:8900, got {base_url!r}")
        self._base_url = base_url.rstrip("/")
        self._settings = settings or ExtenderClientSettings()
        self._session: aiohttp.ClientSession | None = None

    async def load(self, key: ObjectKey) -> ModelLoad:
        """A model's traffic now. NotFoundError: the extender knows no such model."""
        what = f"load of model {key.namespace}/{key.name}"
        load = await self._ask(f"{_model_path(key)}/load", LOAD, what=what)
        return _of(load, key, what=what)

    async def headroom(self, key: ObjectKey, *, replicas: int) -> ModelHeadroom:
        """Whether so many more replicas of each role would fit. NotFoundError: the extender knows no such model."""
        what = f"headroom of model {key.namespace}/{key.name}"
        query = urlencode({"replicas": replicas})
        headroom = await self._ask(f"{_model_path(key)}/headroom?{query}", HEADROOM, what=what)
        return _of(headroom, key, what=what)

    async def tenants(self) -> list[TenantView]:
        """All tenants and what they hold."""
        return (await self._ask("/v1/tenants", TENANTS, what="tenants")).items

    async def workers(self, key: ObjectKey) -> list[WorkerView]:
        """A model's workers. NotFoundError: the extender knows no such model."""
        query = urlencode({"model": f"{key.namespace}/{key.name}"})
        what = f"workers of model {key.namespace}/{key.name}"
        return (await self._ask(f"/v1/workers?{query}", WORKERS, what=what)).items

    async def close(self) -> None:
        """Let connections go; the next question makes new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, path: str, words: TypeAdapter[T], *, what: str) -> T:
        status, body = await self._get(path, what=what)
        if status != 200:
            raise _error(status, body, what=what)
        try:
            if len(body) < IN_THE_LOOP_BYTES:
                return _read(words, body)
            return await asyncio.to_thread(_read, words, body)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"{what}: expected JSON from the extender, got {len(body)} other bytes") from error
        except ValidationError as error:
            raise UpstreamError(f"{what}: cannot read the extender's answer: {_fault(error)}") from error

    async def _get(self, path: str, *, what: str) -> tuple[int, bytes]:
        limit = self._settings.body_bytes
        with in_doubt(what):
            async with (
                asyncio.timeout(self._settings.timeout_s),
                self._opened().get(self._base_url + path, allow_redirects=False) as response,
            ):
                body = await read_up_to(response.content, limit + 1)
                if len(body) > limit:
                    response.close()
                    raise UpstreamError(f"{what}: expected at most {limit} bytes from the extender, got more")
                return response.status, body

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.connections),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_timeout_s),
                headers={"Accept": "application/json", "User-Agent": "kvaware"},
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # the extender is a neighbour: the environment's proxy is for elsewhere
            )
        return self._session


def _read(words: TypeAdapter[T], body: bytes) -> T:
    orjson.loads(body)  # which takes neither NaN nor Infinity, unlike the validator
    return words.validate_json(body, strict=True)


def _model_path(key: ObjectKey) -> str:
    return f"/v1/models/{quote(key.namespace, safe='')}/{quote(key.name, safe='')}"


A = TypeVar("A", ModelLoad, ModelHeadroom)


def _of(answer: A, key: ObjectKey, *, what: str) -> A:
    if answer.model != key:
        raise UpstreamError(f"{what}: the extender answered for {answer.model.namespace}/{answer.model.name}")
    return answer


def _error(status: int, body: bytes, *, what: str) -> StaleViewError | UpstreamError:
    """Errors have one shape; whatever else comes is not the extender's, or not this version's."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    told = value.get("error") if type(value) is dict else None
    code = told.get("code") if type(told) is dict else None
    message = told.get("message") if type(told) is dict else None
    sentence = f"{what}: the extender answered {status} {code or ''}: {message or ''}"[:SHOWN_CHARACTERS]
    if type(code) is str and status == 503:
        return StaleViewError(sentence)
    if status == 404 and code == "ModelNotFound":
        return NotFoundError(sentence, status=404, reason=code)
    return UpstreamError(sentence)


def _fault(error: ValidationError) -> str:
    """The first fault: the field, what was expected, and what came where it is short."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"]) or "body"
    if fault["type"] in {"missing", "missing_argument"}:
        return f"{where}: required, and missing"
    value = fault["input"]
    shown = repr(value)[:64] if value is None or isinstance(value, bool | int | float | str) else type(value).__name__
    return f"{where}: {fault['msg']}, got {shown}"
