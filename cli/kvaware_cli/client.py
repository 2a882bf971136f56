"""The extender over HTTP: its ``/v1`` API for people, and the verbs that kube-scheduler calls for the demo.

The standard library's client is enough for a handful of calls one after another, and keeps ``--help`` quick.
"""

import ipaddress
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvaware_cli.errors import InputError, ServerError
from kvaware_cli.program import program

__all__ = ["DEFAULT_SERVER", "SCHEDULER_NAME", "ApiClient", "SchedulerVerbs"]

DEFAULT_SERVER: Final = "http://127.0.0.1:8900"
SCHEDULER_NAME: Final = "kvaware-scheduler"
"""The engine's default, said here once more: to import the engine takes half a second."""
TIMEOUT_S: Final = 15.0  # an explanation over 5,000 nodes takes well under a second; a port-forward may be slow to open
STALE_FOR_S: Final = 5.0  # a first list of a large cluster takes some seconds; longer than that is worth a word
STALE_EVERY_S: Final = 0.25


class ApiClient:
    """``/v1`` on the extender's API listener."""

    def __init__(self, server: str) -> None:
        self._http = _JsonHttp(server)

    def explain(self, pod: Mapping[str, Any]) -> Any:
        """What would happen to this pod now; nothing is reserved."""
        return self._http.call("POST", "/v1/pods:explain", pod)

    def explanation(self, namespace: str, name: str) -> Any:
        """What happened to a pod of the cluster, or would happen to it now."""
        pod = f"{urllib.parse.quote(namespace, safe='')}/{urllib.parse.quote(name, safe='')}"
        return self._http.call("GET", f"/v1/pods/{pod}/explanation")

    def placement(self, placement_id: str) -> Any:
        """Why a request went where it is."""
        return self._http.call("GET", f"/v1/placements/{urllib.parse.quote(placement_id, safe='')}/explanation")

    def nodes(self) -> Any:
        """Every node with its GPUs."""
        return self._http.call("GET", "/v1/nodes")

    def tenants(self) -> Any:
        """Every tenant with its use and limits."""
        return self._http.call("GET", "/v1/tenants")

    def workers(self) -> Any:
        """Every worker as it says of itself."""
        return self._http.call("GET", "/v1/workers")

    def models(self) -> Any:
        """Every model with its load."""
        return self._http.call("GET", "/v1/models")

    def ready(self) -> bool:
        """Whether the extender answers and has seen the whole cluster once."""
        try:
            self._http.text("/readyz")
        except ServerError:
            return False
        return True


class SchedulerVerbs:
    """kube-scheduler's side of the extender protocol, v1: Go field names, only HTTP 200 is success."""

    def __init__(self, server: str) -> None:
        self._http = _JsonHttp(server)

    def filter(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> Any:
        """Which of the nodes can take the pod: ``NodeNames`` and ``FailedAndUnresolvableNodes``."""
        return self._http.call("POST", "/scheduler/filter", _extender_args(pod, nodes))

    def prioritize(self, pod: Mapping[str, Any], nodes: Sequence[str]) -> Any:
        """``[{"Host", "Score"}]``, 0..10."""
        return self._http.call("POST", "/scheduler/prioritize", _extender_args(pod, nodes))

    def bind(self, pod: Mapping[str, Any], node: str) -> Any:
        """Bind the pod; ``Error`` is empty on success."""
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        return self._http.call("POST", "/scheduler/bind", body)


def _extender_args(pod: Mapping[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


class _StaleViewError(ServerError):
    """The extender asks for patience."""


class _JsonHttp:
    def __init__(self, server: str) -> None:
        parts = urllib.parse.urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InputError(f"--server: expected a URL like {DEFAULT_SERVER}, got {server!r}")
        self._server = server.rstrip("/")
        # A proxy configured for the outside world cannot reach this machine's own ports (or a port-forward on them).
        proxies: dict[str, str] | None = {} if _is_loopback(parts.hostname) else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        text = self._send(method, path, body)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as e:
            raise ServerError(f"{method} {self._server}{path}: expected JSON, got {_cut(text)!r}") from e

    def text(self, path: str) -> str:
        return self._send("GET", path, None)

    def _send(self, method: str, path: str, body: Any) -> str:
        """Ask again while the extender says that its view is stale: just started, or cut off for a moment."""
        deadline_s = time.monotonic() + STALE_FOR_S
        while True:
            try:
                return self._send_once(method, path, body)
            except _StaleViewError:
                if time.monotonic() + STALE_EVERY_S > deadline_s:
                    raise
            time.sleep(STALE_EVERY_S)

    def _send_once(self, method: str, path: str, body: Any) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked in __init__
            self._server + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                content: bytes = response.read()
        except urllib.error.HTTPError as e:
            text = e.read().decode(errors="replace")
            e.close()
            kind = _StaleViewError if _is_stale(text) else ServerError
            raise kind(f"{_error_text(text)} ({method} {self._server}{path}: HTTP {e.code})") from e
        except (urllib.error.URLError, OSError) as e:
            reason = getattr(e, "reason", e)
            raise ServerError(
                f"no kvaware extender answers at {self._server} ({reason}). Start one with '{program()} extender', or "
                "reach the one in your cluster by port-forward and name it with --server or KVAWARE_SERVER"
            ) from e
        return content.decode(errors="replace")


def _error_text(text: str) -> str:
    """The message of ``{"error": {"code", "message"}}``; another program's body is cut."""
    try:
        error = json.loads(text)["error"]
        return f"{error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return _cut(text) or "no message"


def _is_stale(text: str) -> bool:
    try:
        error = json.loads(text)["error"]
        return error["code"] == "StaleView" and error["retryable"] is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:200] + "…"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
