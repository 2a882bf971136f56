"""Requests to the API server: session and credentials of ``kubernetes.aio``, raw JSON through orjson, our errors.

Every call ends in time, and what goes wrong comes out as one of ``kvaware_cluster.errors``.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson

from kvaware_cluster.api_errors import error_from_answer
from kvaware_cluster.credentials import load_configuration
from kvaware_cluster.errors import NotFoundError
from kvaware_cluster.settings import KubernetesSettings
from kvaware_cluster.source import RawObject
from kvaware_crds.errors import ConfigError, UpstreamError

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

__all__ = [
    "JSON",
    "METADATA",
    "METADATA_LIST",
    "KubernetesHttp",
    "in_doubt",
    "object_of",
    "object_path",
    "pod_path",
    "read_up_to",
    "settle_proxy",
]

JSON: Final = "application/json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""A list without specs and statuses. Whole objects from an API server that does not know how to leave them out."""
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""The same for one object, and for the events of a watch."""
MAX_ERROR_BODY_BYTES: Final = 2**16


class KubernetesHttp:
    """One API server and its connections. One per event loop; the session is made at the first request."""

    def __init__(self, configuration: "Configuration", *, settings: KubernetesSettings | None = None) -> None:
        self.settings = settings or KubernetesSettings()
        self._configuration = configuration
        self._rest: RESTClientObject | None = None
        self._opening = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        settings: KubernetesSettings | None = None,
    ) -> Self:
        """Read credentials: of the given kubeconfig, else of the service account, else of the user's kubeconfig.

        Raises: ConfigError when there are none or they cannot be used.
        """
        return cls(await load_configuration(kubeconfig=kubeconfig, context=context), settings=settings)

    async def read(self, path: str, *, what: str, accept: str = JSON) -> RawObject:
        """One object, within ``request_timeout_s``. ``what`` names the call in errors."""
        deadline = asyncio.get_running_loop().time() + self.settings.request_timeout_s
        async with self.answer("GET", path, what=what, deadline=deadline, accept=accept) as response:
            with in_doubt(what):
                async with asyncio.timeout_at(deadline):
                    body = await response.read()
        return object_of(body, what=what)

    async def write(
        self, method: str, path: str, body: RawObject | list[RawObject], *, what: str, content_type: str = JSON
    ) -> bytes:
        """One write, within ``write_timeout_s``. Returns: the answer's body, read to its end, not parsed."""
        deadline = asyncio.get_running_loop().time() + self.settings.write_timeout_s
        async with self.answer(
            method, path, what=what, deadline=deadline, body=body, content_type=content_type
        ) as response:
            with in_doubt(what):
                async with asyncio.timeout_at(deadline):
                    return await response.read()  # to its end, so that the connection can be used again

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        deadline: float,
        body: RawObject | list[RawObject] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer, its body not read yet; everything else is raised as this room's errors.

        ``deadline`` is a time of the running loop, until which the answer must have begun.
        """
        with in_doubt(what):
            async with asyncio.timeout_at(deadline):
                rest = await self._session()
                headers = {
                    "Accept": accept,
                    # a page of 500 pods is 2.5 MB: unpacking it costs more than the wire inside a cluster
                    "Accept-Encoding": "identity",
                    "User-Agent": "kvaware",
                    "Content-Type": content_type,
                }
                for credential in (await self._configuration.auth_settings()).values():
                    headers[credential["key"]] = credential["value"] or ""
                answer = await rest.request(
                    method,
                    self._configuration.host + path,
                    headers=headers,
                    body=body,
                    _request_timeout=aiohttp.ClientTimeout(total=None),  # the limits are ours
                )
        response: aiohttp.ClientResponse = answer.response
        try:
            if response.status >= 300:
                with in_doubt(what):
                    async with asyncio.timeout_at(deadline):
                        told = await read_up_to(response.content, MAX_ERROR_BODY_BYTES)
                raise error_from_answer(response.status, response.headers, told, what=what)
            yield response
        finally:
            response.release() if response.content.at_eof() else _break_off(response)

    async def close(self) -> None:
        """Let connections go."""
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest.close()

    async def _session(self) -> "RESTClientObject":
        """Made at first use: it reads certificates from files, and the connection pool belongs to the running loop."""
        async with self._opening:
            if self._rest is None:
                # imported here: kubernetes.aio costs 0.7 s and 20 MB, which a demo on a folder of YAML need not pay
                from kubernetes.aio.client.rest import RESTClientObject  # noqa: PLC0415

                settle_proxy(self._configuration)
                try:
                    self._rest = await asyncio.to_thread(RESTClientObject, self._configuration)
                except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                    raise ConfigError(
                        f"expected usable certificates for {self._configuration.host}: {error}"
                    ) from error
            return self._rest


def object_path(resources: str, namespace: str, name: str) -> str:
    """Path of one object; ``resources`` is ``/<group and version>/<plural>``, no namespace: cluster-scoped.

    Raises: NotFoundError for what cannot be a name and would lead to another path: names come from specs and requests.
    """
    # An API server takes %2F apart again: "a/b" would be the subresource b of a, which nobody may read.
    if name in {"", ".", ".."} or namespace in {".", ".."} or any(mark in name + namespace for mark in "/%"):
        raise NotFoundError(f"expected the name of an object, got {namespace}/{name}", status=404, reason="NotFound")
    prefix, plural = resources.rsplit("/", 1)
    within = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
    return f"{prefix}/{within}{plural}/{quote(name, safe='')}"


def pod_path(namespace: str, name: str) -> str:
    """Path of one pod."""
    return object_path("/api/v1/pods", namespace, name)


def object_of(body: bytes, *, what: str) -> RawObject:
    """An answer as the object that it should be."""
    try:
        value = _loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamError(f"{what}: expected JSON, got {len(body)} bytes of something else") from error
    if type(value) is not dict:
        raise UpstreamError(f"{what}: expected an object, got {type(value).__name__}")
    return value


class in_doubt:  # noqa: N801  # reads as the context it is: `with in_doubt(what)`
    """Failures of the transport → UpstreamError: whether the other side did it is not known."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise UpstreamError(f"{self._what}: no answer in time") from error
        if isinstance(error, aiohttp.ClientError | OSError):
            raise UpstreamError(f"{self._what}: no answer: {type(error).__name__}") from error


async def read_up_to(content: aiohttp.StreamReader, limit: int) -> bytes:
    """The body, or its beginning."""
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := await content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def settle_proxy(configuration: "Configuration") -> None:
    """Look the environment's proxy up once: left to the session, every request asks a thread for it.

    Measured: 4 ms of CPU per read and binding with those threads, 2.3 ms without.
    """
    configuration.client_session_kwargs = {"trust_env": False}
    host = urlsplit(configuration.host)
    if not configuration.proxy and not proxy_bypass(host.hostname or ""):
        configuration.proxy = getproxies().get(host.scheme)


def _break_off(response: aiohttp.ClientResponse) -> None:
    """Drop the connection of a body that was not read to its end: half a watch cannot be used again.

    At once: an orderly end of TLS waits for the other side, and nobody waits for that when the session is closed.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _loads(body: bytes) -> Any:
    """JSON, without the garbage collector looking on.

    A page of 500 pods is 60,000 new dicts and lists without a cycle. To search them for cycles again and again takes
    three times as long as to read them: 65 against 16 ms.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        if collecting:
            gc.enable()
