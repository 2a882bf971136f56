"""A fake extender with a real socket: prepared answers by method and path, and what was asked."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeExtender", "fake_extender"]


@dataclass
class FakeExtender:
    """``answers`` maps ``"GET /v1/nodes"`` to ``(status, body)``; a body that is text is sent as it is."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    first: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """Answers given once each, before those of ``answers``."""
    asked: list[tuple[str, Any]] = field(default_factory=list)


@contextlib.contextmanager
def fake_extender() -> Iterator[FakeExtender]:
    """Serve on a free port of 127.0.0.1 until left."""
    fake = FakeExtender()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length)) if length else None
            fake.asked.append((f"{self.command} {self.path}", sent))
            not_found = (404, {"error": {"code": "NotFound", "message": f"no route {self.path}", "retryable": False}})
            route = f"{self.command} {self.path}"
            first = fake.first.get(route)
            status, body = first.pop(0) if first else fake.answers.get(route, not_found)
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815 - names of the standard library's protocol

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's signature
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="fake-extender")
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
