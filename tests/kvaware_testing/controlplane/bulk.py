"""Creating many objects at once: kubectl sends one after another, 50 a second at most: 20 s and more for 1,000."""

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["create_all"]

_CONNECTIONS: Final = 4
_TIMEOUT_S: Final = 30.0


def create_all(url: str, objects: Sequence[Mapping[str, Any]], *, tls: ssl.SSLContext) -> None:
    """POST objects of one kind to its collection, such as ``https://127.0.0.1:6443/api/v1/nodes``.

    Raises: AssertionError with the API server's words for the first that it refuses.
    """
    with ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="create") as pool:
        for done in [pool.submit(_create, url, objects[start::_CONNECTIONS], tls) for start in range(_CONNECTIONS)]:
            done.result()


def _create(url: str, objects: Sequence[Mapping[str, Any]], tls: ssl.SSLContext) -> None:
    where = urlsplit(url)
    connection = http.client.HTTPSConnection(where.netloc, timeout=_TIMEOUT_S, context=tls)
    try:
        for one in objects:
            connection.request("POST", where.path, json.dumps(one), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            body = reply.read()
            assert reply.status == 201, f"{one['metadata']['name']}: {reply.status} {body[:500]!r}"
    finally:
        connection.close()
