"""Writing many objects at once: kubectl sends one after another, 50 a second at most: 20 s and more for 1,000."""

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

__all__ = ["Write", "create_all", "send_all"]

_CONNECTIONS: Final = 4
_TIMEOUT_S: Final = 30.0


class Write(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Mapping[str, Any]
    content_type: str = "application/json"


def create_all(url: str, objects: Sequence[Mapping[str, Any]], *, tls: ssl.SSLContext) -> None:
    """POST objects of one kind to its collection, such as ``https://127.0.0.1:6443/api/v1/nodes``.

    Raises: AssertionError with the API server's words for the first that it refuses.
    """
    send_all(url, [Write("POST", urlsplit(url).path, one) for one in objects], tls=tls)


def send_all(url: str, writes: Sequence[Write], *, tls: ssl.SSLContext) -> None:
    """Send requests to the API server at ``url``, some side by side, so in no order.

    Raises: AssertionError with the API server's words for the first that it refuses.
    """
    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="write") as pool:
        for done in [pool.submit(_send, url, writes[start::_CONNECTIONS], tls) for start in range(_CONNECTIONS)]:
            done.result()


def _send(url: str, writes: Sequence[Write], tls: ssl.SSLContext) -> None:
    connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S, context=tls)
    try:
        for one in writes:
            connection.request(one.method, one.path, json.dumps(one.body), {"Content-Type": one.content_type})
            reply = connection.getresponse()
            body = reply.read()
            assert reply.status in {200, 201}, f"{one.method} {one.path}: {reply.status} {body[:500]!r}"
    finally:
        connection.close()
