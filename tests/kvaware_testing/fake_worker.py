"""A model server that serves nothing but its ``/metrics``: a vLLM's or an SGLang's, with a load that can be set.

In a test: ``async with FakeWorker(clock=clock).serve() as url``. As a program: ``python -m kvaware_testing.fake_worker
--port 8000``, and then ``PUT /load`` with some of the fields of ``Load`` as JSON.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, ClassVar

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["TPOT_BOUNDS_S", "TTFT_BOUNDS_S", "FakeWorker", "Load"]

TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0, float("inf")),
)
"""vLLM 0.32's own."""
TPOT_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    float("inf"),
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each data-parallel rank has to do."""

    waiting: int = 0
    running: int = 0
    kv_usage_ratio: float = 0.0
    requests_per_s: float = 0.0
    """Finished."""
    prompt_tokens_per_s: float = 0.0
    generation_tokens_per_s: float = 0.0
    preemptions_per_s: float = 0.0
    prefix_hit_ratio: float = 0.0
    ttft_s: float = 0.1
    """Of every request that finishes."""
    tpot_s: float = 0.02
    """Of every token."""
    asleep: bool = False


@dataclass
class _Histogram:
    bounds_s: tuple[float, ...]
    counts: list[float] = field(default_factory=list)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0.0] * len(self.bounds_s)

    def observe(self, value_s: float, times: float) -> None:
        self.counts[next(index for index, bound in enumerate(self.bounds_s) if value_s <= bound)] += times
        self.sum_s += value_s * times

    def buckets(self) -> list[tuple[str, float]]:
        """As the exposition has them: cumulative."""
        texts = ("+Inf" if bound == float("inf") else str(bound) for bound in self.bounds_s)
        return list(zip(texts, accumulate(self.counts), strict=True))


@dataclass
class _Totals:
    """Of one rank, since the start."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    preemptions: float = 0.0
    hit_tokens: float = 0.0
    ttft: _Histogram = field(default_factory=lambda: _Histogram(TTFT_BOUNDS_S))
    tpot: _Histogram = field(default_factory=lambda: _Histogram(TPOT_BOUNDS_S))

    def grow(self, load: Load, elapsed_s: float) -> None:
        self.requests += load.requests_per_s * elapsed_s
        self.prompt_tokens += load.prompt_tokens_per_s * elapsed_s
        self.generation_tokens += load.generation_tokens_per_s * elapsed_s
        self.preemptions += load.preemptions_per_s * elapsed_s
        self.hit_tokens += load.prompt_tokens_per_s * load.prefix_hit_ratio * elapsed_s
        self.ttft.observe(load.ttft_s, load.requests_per_s * elapsed_s)
        self.tpot.observe(load.tpot_s, load.generation_tokens_per_s * elapsed_s)


class FakeWorker(Collector):
    """One pod's server. Counters grow at the load's rates as its clock goes."""

    SERVERS: ClassVar = ("vLLM", "SGLang")

    def __init__(
        self,
        *,
        server: str = "vLLM",
        ranks: int = 1,
        model_name: str = "tiny",
        blocks: int = 80,
        block_size: int = 16,
        clock: Callable[[], float] = time.monotonic,
        load: Load | None = None,
    ) -> None:
        if server not in self.SERVERS:
            raise ValueError(f"server: expected one of {', '.join(self.SERVERS)}, got {server!r}")
        self.server = server
        self.ranks = ranks
        self.model_name = model_name
        self.blocks = blocks
        self.block_size = block_size
        self.failure_status: int | None = None
        """Answers to scrapes, instead of 200."""
        self.scrapes = 0
        """How often it was asked."""
        self._clock = clock
        self._load = load or Load()
        self._totals = _Totals()
        self._settled_at_s = clock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    @property
    def load(self) -> Load:
        """What it has to do now."""
        return self._load

    def set_load(self, **changes: Any) -> None:
        """From now on; what is not named stays."""
        self._settle()
        self._load = replace(self._load, **changes)

    def restart(self) -> None:
        """Counters begin anew, as in a new process."""
        self._totals = _Totals()
        self._settled_at_s = self._clock()

    def text(self) -> str:
        """What ``/metrics`` says now."""
        self._settle()
        return generate_latest(self._registry).decode()

    def app(self) -> web.Application:
        """``/metrics``, ``/health``, and ``/load`` to look at and to set."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/load", self._get_load)
        app.router.add_put("/load", self._put_load)
        return app

    @asynccontextmanager
    async def serve(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Listen until the block ends; gives ``http://<host>:<port>``."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield f"http://{host}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def collect(self) -> Iterator[Metric]:
        """Families for the registry."""
        yield from self._vllm() if self.server == "vLLM" else self._sglang()

    def _settle(self) -> None:
        now_s = self._clock()
        self._totals.grow(self._load, now_s - self._settled_at_s)
        self._settled_at_s = now_s

    def _vllm(self) -> Iterator[Metric]:
        load, totals = self._load, self._totals
        ranks = [(str(rank), self.model_name) for rank in range(self.ranks)]
        labels = ("engine", "model_name")
        yield _gauge("vllm:num_requests_running", labels, ranks, load.running)
        yield _gauge("vllm:num_requests_waiting", labels, ranks, load.waiting)
        yield _gauge("vllm:kv_cache_usage_perc", labels, ranks, load.kv_usage_ratio)
        yield _counter("vllm:prompt_tokens", labels, ranks, totals.prompt_tokens)
        yield _counter("vllm:generation_tokens", labels, ranks, totals.generation_tokens)
        yield _counter("vllm:num_preemptions", labels, ranks, totals.preemptions)
        yield _counter("vllm:prefix_cache_queries", labels, ranks, totals.prompt_tokens)
        yield _counter("vllm:prefix_cache_hits", labels, ranks, totals.hit_tokens)
        success = CounterMetricFamily("vllm:request_success", "Finished requests.", labels=(*labels, "finished_reason"))
        for rank in ranks:
            for reason, share in (("stop", 1.0), ("length", 0.0), ("abort", 0.0)):
                success.add_metric((*rank, reason), totals.requests * share)
        yield success
        states = GaugeMetricFamily("vllm:engine_sleep_state", "Sleep state.", labels=(*labels, "sleep_state"))
        for rank in ranks:
            for state, value in (
                ("awake", not load.asleep),
                ("weights_offloaded", load.asleep),
                ("discard_all", False),
            ):
                states.add_metric((*rank, state), float(value))
        yield states
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Settings.", labels=("block_size", "engine", "num_gpu_blocks")
        )
        for engine, _ in ranks:
            info.add_metric((str(self.block_size), engine, str(self.blocks)), 1.0)
        yield info
        yield _histogram("vllm:time_to_first_token_seconds", labels, ranks, totals.ttft)
        yield _histogram("vllm:inter_token_latency_seconds", labels, ranks, totals.tpot)

    def _sglang(self) -> Iterator[Metric]:
        """Its schedulers tell one by one, its tokenizer tells for all of them."""
        load, totals = self._load, self._totals
        labels: tuple[str, ...] = ("model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank")
        rank: tuple[str, ...] = (self.model_name, "unified", "0", "0", "0")
        ranks = [rank]
        if self.ranks > 1:
            labels, ranks = (*labels, "dp_rank"), [(*rank, str(number)) for number in range(self.ranks)]
        yield _gauge("sglang:num_running_reqs", labels, ranks, load.running)
        yield _gauge("sglang:num_queue_reqs", labels, ranks, load.waiting)
        yield _gauge("sglang:token_usage", labels, ranks, load.kv_usage_ratio)
        yield _gauge("sglang:page_size", labels, ranks, self.block_size)
        yield _gauge("sglang:num_pages", labels, ranks, self.blocks)
        yield _counter("sglang:num_retracted_requests", labels, ranks, totals.preemptions)
        all_of_it = [(self.model_name, "false")]
        streaming = ("model_name", "is_streaming")
        yield _counter("sglang:prompt_tokens", streaming, all_of_it, totals.prompt_tokens * self.ranks)
        yield _counter("sglang:generation_tokens", streaming, all_of_it, totals.generation_tokens * self.ranks)
        yield _counter("sglang:num_requests", streaming, all_of_it, totals.requests * self.ranks)
        source = [(self.model_name, "device")]
        yield _counter("sglang:cached_tokens", ("model_name", "cache_source"), source, totals.hit_tokens * self.ranks)
        yield _histogram("sglang:time_to_first_token_seconds", streaming, all_of_it, totals.ttft, times=self.ranks)
        name = [(self.model_name,)]
        yield _histogram("sglang:inter_token_latency_seconds", ("model_name",), name, totals.tpot, times=self.ranks)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.scrapes += 1
        if self.failure_status is not None:
            return web.Response(status=self.failure_status, text="failed")
        return web.Response(text=self.text(), headers={"Content-Type": "text/plain; version=1.0.0; charset=utf-8"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _get_load(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._load))

    async def _put_load(self, request: web.Request) -> web.Response:
        changes = await request.json()
        unknown = changes.keys() - {each.name for each in fields(Load)}
        if unknown:
            return web.json_response({"error": f"unknown fields: {', '.join(sorted(unknown))}"}, status=400)
        if not all(isinstance(value, int | float) and value >= 0 for value in changes.values()):
            return web.json_response({"error": "expected numbers that are not negative, and booleans"}, status=400)
        self.set_load(**changes)
        return web.json_response(asdict(self._load))


def _gauge(name: str, labels: Sequence[str], rows: Sequence[Sequence[str]], value: float) -> Metric:
    family = GaugeMetricFamily(name, name, labels=labels)
    for row in rows:
        family.add_metric(row, value)
    return family


def _counter(name: str, labels: Sequence[str], rows: Sequence[Sequence[str]], value: float) -> Metric:
    family = CounterMetricFamily(name, name, labels=labels)
    for row in rows:
        family.add_metric(row, value)
    return family


def _histogram(
    name: str, labels: Sequence[str], rows: Sequence[Sequence[str]], histogram: _Histogram, *, times: int = 1
) -> Metric:
    family = HistogramMetricFamily(name, name, labels=labels)
    buckets = [(bound, count * times) for bound, count in histogram.buckets()]
    for row in rows:
        family.add_metric(row, buckets, histogram.sum_s * times)
    return family


async def _run(worker: FakeWorker, host: str, port: int) -> None:
    async with worker.serve(host=host, port=port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--server", choices=FakeWorker.SERVERS, default="vLLM")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--model", default="tiny")
    asked = parser.parse_args()
    worker = FakeWorker(server=asked.server, ranks=asked.ranks, model_name=asked.model)
    asyncio.run(_run(worker, asked.host, asked.port))


if __name__ == "__main__":
    main()
