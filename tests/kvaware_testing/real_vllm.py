"""Real vLLM engines on CPU cores, an API server that shows them as pods, and a gateway's part: for ``make vllm``.

kvaware's ports are a model's, so two workers are told apart by their addresses: each engine has one of its own on the
loopback, 127.0.0.2 and so on, with the same ports. Linux answers on all of them without being asked to.
"""

import asyncio
import json
import os
import threading
import time
import urllib.request
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPResponse
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import yaml

from kvaware_testing.controlplane.process import Process
from kvaware_testing.controlplane.service import Service, json_request
from kvaware_testing.fake_api import FakeApi, Raw, raw_model, raw_node, raw_pod

__all__ = ["BLOCKS", "BLOCK_TOKENS", "MODEL", "Engine", "EnginePorts", "Gateway", "Sent", "ShownCluster"]

MODEL: Final = "tiny"
NAMESPACE: Final = "ml"
BLOCK_TOKENS: Final = 32
"""The smallest that vLLM has on a CPU."""
BLOCKS: Final = 79
"""Of an engine's cache; one more is vLLM's null block. 2,528 tokens, so a few prompts displace an earlier one."""
MAX_TOKENS: Final = 2048
START_S: Final = 300.0
"""25 s on an idle machine, of which most is imports; a minute without bytecode."""
ANSWER_S: Final = 120.0

T = TypeVar("T")


class EnginePorts(NamedTuple):
    """The same of every engine."""

    http: int
    events: int
    replay: int


class Engine:
    """One vLLM, on one core and one address."""

    def __init__(self, number: int, *, ports: EnginePorts, cpu: int, environment: Path, folder: Path) -> None:
        """Start nothing yet.

        Args:
            number: 0 and up; says the address.
            ports: On which it listens.
            cpu: The core that computes.
            environment: The virtual environment with vLLM, the model beside it.
            folder: For its log.
        """
        self.address = f"127.0.0.{2 + number}"
        self.pod = f"{MODEL}-{number}"
        self.worker = f"{NAMESPACE}:{self.pod}:0"
        self.url = f"http://{self.address}:{ports.http}"
        # "tcp://127.0.0.2:…" would make the publisher connect: it binds what contains "*" or "::", and this is IPv4.
        bound = f"tcp://[::ffff:{self.address}]"
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"{bound}:{ports.events}",
            "replay_endpoint": f"{bound}:{ports.replay}",
        }
        options: Mapping[str, Any] = {
            "model": environment.parent / "model",
            "served-model-name": MODEL,
            "host": self.address,
            "port": ports.http,
            "load-format": "dummy",
            "dtype": "float32",
            "max-model-len": MAX_TOKENS,
            "block-size": BLOCK_TOKENS,
            "num-gpu-blocks-override": BLOCKS + 1,
            "kv-events-config": json.dumps(events),
        }
        command: list[str | Path] = [environment / "bin" / "python", "-m", "vllm.entrypoints.openai.api_server"]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command += ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
        self.process = Process(
            self.pod,
            command,
            log=folder / f"{self.pod}.log",
            ready_url=f"{self.url}/health",
            environ={
                **{name: value for name, value in os.environ.items() if not name.startswith(("KVAWARE_", "VLLM_"))},
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": str(cpu),
                "VLLM_SERVER_DEV_MODE": "1",  # has /reset_prefix_cache
                "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_NO_USAGE_STATS": "1",
                "DO_NOT_TRACK": "1",
                "HF_HUB_OFFLINE": "1",
                "TMPDIR": str(folder),  # it leaves a small file there at each start
            },
        )

    def start(self) -> None:
        """Start it; ``wait_ready`` waits."""
        self.process.start()

    def wait_ready(self) -> None:
        """Until it answers."""
        self.process.wait_ready(START_S)

    def stop(self) -> None:
        """End it as a kubelet does."""
        self.process.stop(timeout_s=60.0)

    def tokens(self, prompt: str) -> list[int]:
        """What vLLM makes of a text."""
        found: list[int] = self.post("/tokenize", {"model": MODEL, "prompt": prompt})["tokens"]
        return found

    def post(self, path: str, body: object) -> Any:
        """The JSON of an answer."""
        with urllib.request.urlopen(json_request("POST", f"{self.url}{path}", body), timeout=ANSWER_S) as reply:  # noqa: S310  own URL
            return json.loads(reply.read())


class ShownCluster:
    """An API server in a thread, which shows the engines as pods of one model."""

    def __init__(self, engines: Sequence[Engine], ports: EnginePorts) -> None:
        self._api = FakeApi()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shown-cluster", daemon=True)
        self._started = count(1)
        self._objects = [("node", raw_node("n1")), ("inferencemodel", _model(ports))]
        self._engines = engines

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._api.start())
        for kind, raw in self._objects:
            self._do(self._api.put(kind, raw))
        for engine in self._engines:
            self.show(engine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._do(self._api.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def show(self, engine: Engine, *, ready: bool = True) -> None:
        """An engine's container started just now."""
        second = next(self._started)
        running = {"running": {"startedAt": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"}}
        pod = raw_pod(
            engine.pod,
            namespace=NAMESPACE,
            node="n1",
            labels={"kvaware.io/model": MODEL},
            podIP=engine.address,
            conditions=[{"type": "Ready", "status": str(ready)}],
            containerStatuses=[{"name": "server", "state": running}],
        )
        self._do(self._api.put("pod", pod))

    def kubeconfig(self, folder: Path) -> Path:
        """Credentials; it asks for none."""
        path = folder / "kubeconfig"
        named = {"name": "shown"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "shown",
            "clusters": [{**named, "cluster": {"server": self._api.url}}],
            "users": [{**named, "user": {"token": "t"}}],
            "contexts": [{**named, "context": {"cluster": "shown", "user": "shown"}}],
        }
        path.write_text(yaml.safe_dump(content), "utf-8")
        return path

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30.0)


def _model(ports: EnginePorts) -> Raw:
    raw = raw_model(MODEL, namespace=NAMESPACE, hbm_per_gpu="1Gi")
    raw["spec"] |= {
        "servedNames": [MODEL],
        # the block size is left out: the servers tell it
        "kvCache": {
            "architecture": {"layers": 2, "kvHeads": 2, "headDim": 32, "dtypeBytes": 4},
            "maxContextTokens": MAX_TOKENS,
        },
        "workers": {"ports": {"http": ports.http, "kvEvents": ports.events, "kvEventsReplay": ports.replay}},
    }
    return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one request."""

    worker: str
    predicted_tokens: int
    """That the placement expected in the worker's cache."""
    found_tokens: int
    """That vLLM did find there."""
    precision: str
    reason: str
    output: tuple[int, ...]
    """Tokens of the answer."""


class Gateway:
    """A gateway's part: place, send, tell what became of it. Several threads may use it."""

    def __init__(self, extender: Service) -> None:
        self._extender = extender
        self._numbers = count(1)

    def send(
        self, tokens: Sequence[int], *, to: Engine | None = None, salt: str | None = None, output_tokens: int = 4
    ) -> Sent:
        """One request of so many output tokens, to where kvaware says; ``to``: the only one that may be chosen."""
        placed = self._place(tokens, to=to, salt=salt)
        events = f"/v1/placements/{placed['placement_id']}/events"
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": list(tokens),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if salt is not None:
            body["cache_salt"] = salt
        began_s = time.monotonic()
        request = json_request("POST", f"http://{placed['worker']['address']}/v1/completions", body)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:  # noqa: S310  own URL
            self._extender.post(events, {"type": "started"})
            output, told = self._read(reply, began_s, events)
        taken = self._extender.post(events, {"type": "finished", **told})
        assert taken["result"] == "taken", taken
        return Sent(
            worker=placed["worker"]["id"],
            predicted_tokens=placed["kv"]["matched_tokens"],
            found_tokens=told["cached_tokens"],
            precision=placed["kv"]["precision"],
            reason=placed["reason"],
            output=output,
        )

    def predicted(self, tokens: Sequence[int], at: Engine, *, salt: str | None = None) -> int:
        """Tokens that kvaware expects in this engine's cache. Nothing is sent, and the placement is ended."""
        placed = self._place(tokens, to=at, salt=salt)
        self._extender.post(f"/v1/placements/{placed['placement_id']}/events", {"type": "finished"})
        matched: int = placed["kv"]["matched_tokens"]
        return matched

    def _place(self, tokens: Sequence[int], *, to: Engine | None, salt: str | None) -> dict[str, Any]:
        demand = {
            "request_id": f"r{next(self._numbers)}",
            "model": MODEL,
            "token_ids": list(tokens),
            "candidates": None if to is None else [to.worker],
            "cache_salt": salt,
        }
        placed: dict[str, Any] = self._extender.post("/v1/placements", demand)
        return placed

    def _read(self, reply: HTTPResponse, began_s: float, events: str) -> tuple[tuple[int, ...], dict[str, Any]]:
        """The answer's tokens, and what the event ``finished`` says."""
        output: list[int] = []
        told: dict[str, Any] = {}
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            if not told:
                told["ttft_ms"] = 1000 * (time.monotonic() - began_s)
                self._extender.post(events, {"type": "first_token", **told})
            chunk = json.loads(line[6:])
            output += [token for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
            if usage := chunk.get("usage"):
                found = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
                return tuple(output), {**told, "output_tokens": usage["completion_tokens"], "cached_tokens": found}
        raise AssertionError("vLLM: expected a stream with its usage, got none")
