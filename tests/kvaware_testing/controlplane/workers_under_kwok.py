"""Model servers behind pods that never run: what their ``/metrics`` say, and the heartbeats that they send.

A pod with the host's network has its node's address, which kwok makes 127.0.0.1. So one small server here stands behind
all pods of a model, and each of them says the same; where pods must differ, heartbeats say so.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from kvaware_testing.controlplane.plane import ControlPlane
from kvaware_testing.controlplane.service import Answer, Service

__all__ = ["AUDIENCE", "ModelServer", "Worker", "beating", "model_server", "pod_token"]

PACE_S: Final = 0.25
"""Between two heartbeats of a worker: a little more than the extender's ``heartbeat.minIntervalS``."""


class ModelServer:
    """What vLLM's ``/metrics`` say on one port; the figures are each pod's own."""

    def __init__(self) -> None:
        self.port = 0
        self.scrapes = 0
        """How often it was asked."""
        self.broken = False
        """It answers 500."""
        self._gauges: dict[str, float] = {}
        self.say()

    def say(self, *, waiting: int = 0, running: int = 0, kv_usage: float = 0.0) -> None:
        """From now on: requests in the queue, requests in the batch, share of the KV pool that they hold."""
        self._gauges = {
            "vllm:num_requests_waiting": waiting,
            "vllm:num_requests_running": running,
            "vllm:kv_cache_usage_perc": kv_usage,
        }

    def text(self) -> str:
        """As Prometheus reads it."""
        labels = '{engine="0",model_name="m"}'
        lines = []
        for name, value in self._gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{labels} {float(value)}"]
        for name in ("prompt_tokens", "generation_tokens", "num_preemptions"):
            lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{labels} 0.0"]
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def model_server() -> Iterator[ModelServer]:
    """Serve on a free port of 127.0.0.1 until left."""
    fake = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.scrapes += 1
            body = b"" if fake.broken else fake.text().encode()
            self.send_response(500 if fake.broken else 200)
            self.send_header("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's signature
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # a connection that the scraper keeps open may not keep the test from ending
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="model-server")
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


AUDIENCE: Final = "kvaware"
"""For whom tokens of heartbeats are meant, as the setting heartbeat.audiences says."""


def pod_token(control_plane: ControlPlane, pod: Mapping[str, Any]) -> str:
    """Return a ServiceAccount token that is bound to the pod and meant for us, as the kubelet projects one."""
    metadata = pod["metadata"]
    return control_plane.kubectl(
        "create",
        "token",
        pod["spec"]["serviceAccountName"],
        "-n",
        metadata["namespace"],
        f"--audience={AUDIENCE}",
        "--bound-object-kind=Pod",
        f"--bound-object-name={metadata['name']}",
        f"--bound-object-uid={metadata['uid']}",
    ).stdout.strip()


class Worker:
    """Rank 0 of one pod, as it tells of itself."""

    def __init__(self, extender: Service, pod: Mapping[str, Any], *, model: str, token: str) -> None:
        self.id = f"{pod['metadata']['namespace']}:{pod['metadata']['name']}:0"
        self.model = f"{pod['metadata']['namespace']}/{model}"
        self.seq = 0
        self._extender = extender
        self._next_at_s = 0.0
        self.token = token

    def heartbeat(self, *, seq: int | None = None, token: str | None = "", **figures: Any) -> Answer:
        """Send one, not sooner than the extender takes it; the sequence number goes on by itself.

        ``token`` None sends none, "" its own.
        """
        self.seq = self.seq + 1 if seq is None else seq
        time.sleep(max(0.0, self._next_at_s - time.monotonic()))
        self._next_at_s = time.monotonic() + PACE_S
        body = {"seq": self.seq, "model": self.model, "role": "both", **figures}
        return self._extender.put(f"/v1/workers/{self.id}/heartbeat", body, token=self.token if token == "" else token)

    def __repr__(self) -> str:
        return json.dumps({"id": self.id, "seq": self.seq})


@contextlib.contextmanager
def beating(
    workers: Sequence[Worker], figures: Mapping[str, Mapping[str, Any]], *, every_s: float = 1.0
) -> Iterator[list[Answer]]:
    """Let workers send heartbeats, each with its own figures by its id, until left. Yields what was refused."""
    ended = threading.Event()
    refused: list[Answer] = []

    def beat() -> None:
        while not ended.is_set():
            for worker in workers:
                with contextlib.suppress(OSError):  # the extender may be away
                    answer = worker.heartbeat(**figures[worker.id])
                    if answer.status != 202:
                        refused.append(answer)
            ended.wait(every_s)

    thread = threading.Thread(target=beat, name="heartbeats")
    thread.start()
    try:
        yield refused
    finally:
        ended.set()
        thread.join()
