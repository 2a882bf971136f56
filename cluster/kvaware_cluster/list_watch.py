"""List and watch of one path of the API server: pages of one moment, then changes until the stream ends."""

import asyncio
import random
from collections.abc import AsyncGenerator
from urllib.parse import urlencode

import aiohttp
import orjson

from kvaware_cluster.api_errors import error_from_status
from kvaware_cluster.errors import ClusterApiError
from kvaware_cluster.kubernetes_http import JSON, KubernetesHttp, in_doubt
from kvaware_cluster.source import EventType, ListPage, WatchEvent
from kvaware_crds.errors import UpstreamError

__all__ = ["list_pages", "watch"]


async def list_pages(
    http: KubernetesHttp, path: str, *, what: str, accept: str = JSON
) -> AsyncGenerator[ListPage, None]:
    """All objects under a path, page by page. Each page has its own time limit; ``what`` names the kind in errors."""
    query = {"limit": str(http.settings.page_size)}
    while True:
        page = await http.read(f"{path}?{urlencode(query)}", what=f"list of {what}", accept=accept)
        metadata, items = page.get("metadata"), page.get("items")
        if type(metadata) is not dict or type(items) not in {list, type(None)}:
            raise UpstreamError(f"list of {what}: expected an object with metadata and items")
        yield ListPage(items or [], str(metadata.get("resourceVersion", "")))
        if not metadata.get("continue"):
            return
        query["continue"] = metadata["continue"]


async def watch(
    http: KubernetesHttp, path: str, resource_version: str, *, what: str, rng: random.Random, accept: str = JSON
) -> AsyncGenerator[WatchEvent, None]:
    """Changes after ``resource_version``. Ends when the server has closed the stream at its time-out."""
    spread = http.settings.watch_jitter_ratio * (2 * rng.random() - 1)
    timeout_s = max(1, round(http.settings.watch_timeout_s * (1 + spread)))
    query = urlencode(
        {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
    )
    what = f"watch of {what}"
    deadline = asyncio.get_running_loop().time() + timeout_s + http.settings.watch_grace_s
    async with http.answer("GET", f"{path}?{query}", what=what, deadline=deadline, accept=accept) as response:
        yield WatchEvent(EventType.BOOKMARK, {"metadata": {"resourceVersion": resource_version}})
        async for line in _lines(response.content, deadline=deadline, what=what):
            yield _event(line, what=what)


async def _lines(content: aiohttp.StreamReader, *, deadline: float, what: str) -> AsyncGenerator[bytes, None]:
    """Lines of a stream, cut from whatever has arrived: a burst of 40,000 events takes a few hundred reads."""
    rest = b""
    while True:
        with in_doubt(what):
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
