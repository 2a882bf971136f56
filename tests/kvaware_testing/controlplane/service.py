"""A process of ours with an HTTP API: started by its real command, asked as any client would."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from kvaware_testing.controlplane.process import Process

__all__ = ["Answer", "Service", "json_request"]

_TIMEOUT_S: Final = 10.0


class Answer(NamedTuple):
    """What was answered, refusals included."""

    status: int
    body: Any
    """Parsed JSON; None where there was none."""

    @property
    def code(self) -> str:
        """The code of an error; empty where it is none."""
        return str(self.body["error"]["code"]) if isinstance(self.body, dict) and "error" in self.body else ""


class Service:
    """``kvaware <arguments>`` with probes, metrics and JSON on one address, which stays the same over restarts."""

    def __init__(self, name: str, arguments: Sequence[str | Path], *, api_url: str, folder: Path) -> None:
        self.api_url = api_url
        # Settings of whoever runs the tests must not reach the process under test.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVAWARE_")}
        self.process = Process(
            name,
            [sys.executable, "-m", "kvaware_cli", *arguments],
            log=folder / f"{name}.log",
            ready_url=f"{api_url}/readyz",
            environ=environ,
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it has seen the cluster."""
        self.process.start()
        self.process.wait_ready(timeout_s=30.0)

    def stop(self) -> None:
        """End it as a rolling update does."""
        self.process.stop()

    def kill(self) -> None:
        """End it without any chance to write down what it knows."""
        self.process.kill()

    def restart(self) -> None:
        """End it in order and start it again on the same ports."""
        self.stop()
        self.start()

    def not_ready(self) -> str:
        """Return why ``/readyz`` does not answer 200; empty when it does."""
        return self._trouble("/readyz")

    def _trouble(self, path: str) -> str:
        try:
            self._call(urllib.request.Request(f"{self.api_url}{path}"))  # noqa: S310  own URL
        except (AssertionError, OSError) as error:
            return str(error)
        return ""

    def live(self) -> bool:
        """Whether ``/livez`` answers 200."""
        return not self._trouble("/livez")

    def get(self, path: str) -> Any:
        """Return the JSON of a ``GET``, such as ``/v1/nodes``."""
        return json.loads(self._call(urllib.request.Request(f"{self.api_url}{path}")))  # noqa: S310  own URL

    def post(self, path: str, body: object) -> Any:
        """Return the JSON of a ``POST``, such as ``/v1/pods:explain``."""
        return json.loads(self._call(json_request("POST", f"{self.api_url}{path}", body)))

    def put(self, path: str, body: object, *, token: str | None = None) -> Answer:
        """PUT JSON with a bearer token; a refusal is an answer."""
        request = json_request("PUT", f"{self.api_url}{path}", body)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        return self._answered(request)

    def ask(self, path: str, body: object) -> Answer:
        """POST JSON; a refusal is an answer."""
        return self._answered(json_request("POST", f"{self.api_url}{path}", body))

    def _answered(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310  own URL
                return Answer(reply.status, _parsed(reply.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _parsed(error.read()))

    def metrics(self) -> dict[str, float]:
        """Return every sample of ``/metrics`` by its name with its labels, as Prometheus writes it, sorted."""
        text = self._call(urllib.request.Request(f"{self.api_url}/metrics")).decode("utf-8")  # noqa: S310  own URL
        return {
            sample.name + _labels(sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample; 0 where there is none."""
        return self.metrics().get(name + _labels(labels), 0.0)

    def _call(self, request: urllib.request.Request) -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310  own URL
                body: bytes = reply.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(2000).decode("utf-8", errors="replace")
            raise AssertionError(f"{request.get_method()} {request.full_url}: {error.code} {said}") from error


def json_request(method: str, url: str, body: object) -> urllib.request.Request:
    """A request with a JSON body."""
    return urllib.request.Request(  # noqa: S310  own URL
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method=method
    )


def _parsed(body: bytes) -> Any:
    return json.loads(body) if body else None


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}" if labels else ""
