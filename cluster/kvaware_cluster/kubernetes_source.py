"""The API server as a source: configuration and session of ``kubernetes.aio``, raw JSON through orjson.

The typed models are never used: a V1Pod costs 0.4 ms and 42 KB, so 40,000 pods would be 16 s and 1.6 GB.
"""

import asyncio
import gc
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
import structlog
import yaml

from kvaware_cluster.api_errors import error_from_answer, error_from_status
from kvaware_cluster.errors import ClusterApiError, NotFoundError, WorkerError
from kvaware_cluster.settings import KubernetesSettings
from kvaware_cluster.source import EventType, ExporterTarget, Kind, ListPage, RawObject, WatchEvent
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_crds.names import GROUP, VERSION

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

__all__ = ["KubernetesSource"]

PATHS: Final[Mapping[Kind, str]] = {
    Kind.NODE: "/api/v1/nodes",
    Kind.POD: "/api/v1/pods",
    Kind.INFERENCE_MODEL: f"/apis/{GROUP}/{VERSION}/inferencemodels",
    Kind.KV_CACHE_BLOCK_GROUP: f"/apis/{GROUP}/{VERSION}/kvcacheblockgroups",
    Kind.TENANT_QUOTA: f"/apis/{GROUP}/{VERSION}/tenantquotas",
}
MAX_ERROR_BODY_BYTES: Final = 2**16
TOKEN_REFRESH_S: Final = 60.0
"""How often a kubeconfig's credentials (exec plugins, token files) are looked at again, as kubernetes.aio does."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class KubernetesSource:
    """Lists, watches and writes through the API server. One per event loop.

    A ``Source``. Made by ``connect``, or directly from a ``kubernetes.aio`` Configuration.
    """

    def __init__(
        self,
        configuration: "Configuration",
        *,
        settings: KubernetesSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._configuration = configuration
        self._settings = settings or KubernetesSettings()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._rest: RESTClientObject | None = None
        self._opening = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        settings: KubernetesSettings | None = None,
        rng: random.Random | None = None,
    ) -> Self:
        """Read credentials: of the given kubeconfig, else of the service account, else of the user's kubeconfig.

        Raises: ConfigError when there are none or they cannot be used.
        """
        # imported here: kubernetes.aio costs 0.7 s and 20 MB, which a demo on a folder of YAML need not pay
        from kubernetes.aio import config  # noqa: PLC0415
        from kubernetes.aio.client.configuration import Configuration  # noqa: PLC0415

        configuration = Configuration()

        def load() -> Callable[[], object]:
            """Blocks (files, plugins), so it runs in a thread. Returns: what reads the credentials again."""
            if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=configuration)
                return partial(configuration.refresh_api_key_hook, configuration)
            loader = asyncio.run(
                config.load_kube_config(
                    config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
                )
            )

            def reload() -> None:
                asyncio.run(loader.load_and_set(configuration))

            return reload

        try:
            configuration.refresh_api_key_hook = _refreshing(await asyncio.to_thread(load))
        except (
            config.ConfigException,
            yaml.YAMLError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
        ) as error:
            where = kubeconfig or "the default kubeconfig or service account"
            raise ConfigError(
                f"expected usable Kubernetes credentials in {where}, got: {type(error).__name__}: {error}"[:500]
            ) from error
        return cls(configuration, settings=settings, rng=rng)

    async def list_pages(self, kind: Kind) -> AsyncGenerator[ListPage, None]:
        """See ``Source``. Each page has its own time limit."""
        query = {"limit": str(self._settings.page_size)}
        while True:
            page = await self._read(f"{PATHS[kind]}?{urlencode(query)}", what=f"list of {kind}")
            metadata, items = page.get("metadata"), page.get("items")
            if type(metadata) is not dict or type(items) not in {list, type(None)}:
                raise UpstreamError(f"list of {kind}: expected an object with metadata and items")
            yield ListPage(items or [], str(metadata.get("resourceVersion", "")))
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def watch(self, kind: Kind, resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """See ``Source``. Ends when the server has closed the stream at its time-out."""
        spread = self._settings.watch_jitter_ratio * (2 * self._rng.random() - 1)
        timeout_s = max(1, round(self._settings.watch_timeout_s * (1 + spread)))
        query = urlencode(
            {
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": resource_version,
                "timeoutSeconds": str(timeout_s),
            }
        )
        what = f"watch of {kind}"
        deadline = asyncio.get_running_loop().time() + timeout_s + self._settings.watch_grace_s
        async with self._answer("GET", f"{PATHS[kind]}?{query}", what=what, deadline=deadline) as response:
            yield WatchEvent(EventType.BOOKMARK, {"metadata": {"resourceVersion": resource_version}})
            async for line in _lines(response.content, deadline=deadline, what=what):
                yield _event(line, what=what)

    async def get_pod(self, namespace: str, name: str) -> RawObject | None:
        """See ``Source``."""
        try:
            return await self._read(_pod_path(namespace, name), what=f"read of pod {namespace}/{name}")
        except NotFoundError:
            return None

    async def bind(self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """See ``Source``. The API server refuses another UID and writes the annotations into the pod with the node."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write(
            "POST",
            f"{_pod_path(namespace, name)}/binding",
            body,
            content_type="application/json",
            what=f"binding of pod {namespace}/{name} to {node}",
        )

    async def patch_pod_condition(self, *, namespace: str, name: str, uid: str, condition: Mapping[str, Any]) -> None:
        """See ``Source``. A UID in the patch is a precondition; conditions merge by their type."""
        await self._write(
            "PATCH",
            f"{_pod_path(namespace, name)}/status",
            {"metadata": {"uid": uid}, "status": {"conditions": [dict(condition)]}},
            content_type="application/strategic-merge-patch+json",
            what=f"condition {condition.get('type')} of pod {namespace}/{name}",
        )

    async def read_exporter(self, target: ExporterTarget) -> str:
        """See ``Source``. Plain HTTP without our credentials: the exporter is somebody else's program."""
        limit = self._settings.exporter_body_bytes
        try:
            async with (
                asyncio.timeout(self._settings.exporter_timeout_s),
                aiohttp.ClientSession(trust_env=False) as session,
                session.get(f"http://{target.address}/metrics", allow_redirects=False) as response,
            ):
                body = await _read_up_to(response.content, limit + 1)
                if response.status != 200 or len(body) > limit:
                    raise WorkerError(
                        f"exporter of node {target.node}: expected 200 and at most {limit} bytes, "
                        f"got {response.status} and {len(body)} bytes"
                    )
                return body.decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise WorkerError(f"exporter of node {target.node}: no answer: {type(error).__name__}") from error

    async def close(self) -> None:
        """See ``Source``."""
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest.close()

    async def _read(self, path: str, *, what: str) -> RawObject:
        deadline = asyncio.get_running_loop().time() + self._settings.request_timeout_s
        async with self._answer("GET", path, what=what, deadline=deadline) as response:
            with _in_doubt(what):
                async with asyncio.timeout_at(deadline):
                    body = await response.read()
        try:
            value = _loads(body)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(f"{what}: expected JSON, got {len(body)} bytes of something else") from error
        if type(value) is not dict:
            raise UpstreamError(f"{what}: expected an object, got {type(value).__name__}")
        return value

    async def _write(self, method: str, path: str, body: RawObject, *, content_type: str, what: str) -> None:
        deadline = asyncio.get_running_loop().time() + self._settings.write_timeout_s
        async with self._answer(
            method, path, what=what, deadline=deadline, body=body, content_type=content_type
        ) as response:
            with _in_doubt(what):
                async with asyncio.timeout_at(deadline):
                    await response.read()  # to its end, so that the connection can be used again

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        what: str,
        deadline: float,
        body: RawObject | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer, its body not read yet; everything else is raised as this room's errors."""
        with _in_doubt(what):
            async with asyncio.timeout_at(deadline):
                rest = await self._session()
                headers = {
                    "Accept": "application/json",
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
                with _in_doubt(what):
                    async with asyncio.timeout_at(deadline):
                        told = await _read_up_to(response.content, MAX_ERROR_BODY_BYTES)
                raise error_from_answer(response.status, response.headers, told, what=what)
            yield response
        finally:
            # closes the connection unless the body was read to its end: half a watch cannot be used again
            response.release() if response.content.at_eof() else response.close()

    async def _session(self) -> "RESTClientObject":
        """Made at first use: it reads certificates from files, and the connection pool belongs to the running loop."""
        async with self._opening:
            if self._rest is None:
                from kubernetes.aio.client.rest import RESTClientObject  # noqa: PLC0415  # see connect

                _settle_proxy(self._configuration)
                try:
                    self._rest = await asyncio.to_thread(RESTClientObject, self._configuration)
                except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                    raise ConfigError(
                        f"expected usable certificates for {self._configuration.host}: {error}"
                    ) from error
            return self._rest


def _settle_proxy(configuration: "Configuration") -> None:
    """Look the environment's proxy up once: left to the session, every request asks a thread for it.

    Measured: 4 ms of CPU per read and binding with those threads, 2.3 ms without.
    """
    configuration.client_session_kwargs = {"trust_env": False}
    host = urlsplit(configuration.host)
    if not configuration.proxy and not proxy_bypass(host.hostname or ""):
        configuration.proxy = getproxies().get(host.scheme)


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _refreshing(load: Callable[[], object]) -> Callable[["Configuration"], Awaitable[None]]:
    """A refresh hook, which ``kubernetes.aio`` asks before every request: reads credentials again once in a while."""
    next_s: float | None = None

    async def refresh(configuration: "Configuration") -> None:
        nonlocal next_s
        now_s = asyncio.get_running_loop().time()
        due = next_s is not None and now_s >= next_s  # the first time they were read a moment ago
        if next_s is not None and not due:
            return
        next_s = now_s + TOKEN_REFRESH_S
        if not due:
            return
        try:
            await asyncio.to_thread(load)
        except Exception as error:  # noqa: BLE001  # plugins of any make; the old credentials may still hold
            log.warning("credentials not refreshed", error=type(error).__name__)
        finally:
            configuration.refresh_api_key_hook = refresh  # the service account's loader puts its own back

    return refresh


class _in_doubt:  # noqa: N801  # reads as the context it is: `with _in_doubt(what)`
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


async def _read_up_to(content: aiohttp.StreamReader, limit: int) -> bytes:
    """The body, or its beginning."""
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := await content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


async def _lines(content: aiohttp.StreamReader, *, deadline: float, what: str) -> AsyncGenerator[bytes, None]:
    """Lines of a stream, cut from whatever has arrived: a burst of 40,000 events takes a few hundred reads."""
    rest = b""
    while True:
        with _in_doubt(what):
            async with asyncio.timeout_at(deadline):
                chunk = await content.readany()
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
    if rest:
        raise UpstreamError(f"{what}: expected a whole event, the stream ended inside one")


def _event(line: bytes, *, what: str) -> WatchEvent:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UpstreamError(f"{what}: expected an event as JSON, got {len(line)} bytes of something else") from error
    kind = value.get("type") if type(value) is dict else None
    thing = value.get("object") if type(value) is dict else None
    if type(thing) is not dict:
        raise UpstreamError(f"{what}: expected an event with an object, got {type(thing).__name__}")
    if kind == "ERROR":
        raise error_from_status(thing, what=what)
    try:
        return WatchEvent(EventType(str(kind)), thing)
    except ValueError as error:
        raise ClusterApiError(f"{what}: unknown event type {str(kind)[:64]!r}", status=200, reason="") from error
