"""Whatever callers and workers do, in any order: no 5xx but the promised one, and at the end nothing is reserved."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import numpy as np
from aiohttp.test_utils import TestServer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvaware_engine import Workers
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.placer import Placer
from kvaware_engine.requests.settings import RequestLedgerSettings, RequestSettings
from kvaware_engine.requests.words import RequestDemand
from kvaware_extender.demand_wire import Demand, Event
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_testing.builders import model, quota
from kvaware_testing.placement_harness import LLAMA, CountedPlacer, FakeView, placement_app
from kvaware_testing.store_harness import FakeClock
from kvaware_testing.worker_builders import heartbeat, place

WORKERS = tuple(f"ml:w{number}:0" for number in range(3))
POOL_BLOCKS = 100
"""Of 16 tokens: prompts of 1,600 tokens and more fit no worker."""
TTL_S = 30.0
PROMISED = {503: {"NoWorker", "TooManyRefusals"}}

WORDS = st.sampled_from(
    ["", "a", "\x00", "\x1b[0m", "ml:w0:0", "ml:w9:0", "10.0.0.1:8000", "ü", "x" * 600, "{}", "\ud800"]
)
NUMBERS = st.sampled_from([0, 1, -1, 15, 16, 17, 700, 2**31, 2**32, 2**63, 2**64, 0.5, -0.0, 1e-9, 1e308])
ODD = WORDS | NUMBERS | st.sampled_from([None, True, [], {}, [[]], [1, "1"], {"role": "user"}])
FIELDS = (*Demand.__struct_fields__, "nonsense")
EVENT_FIELDS = (*Event.__struct_fields__, "nonsense")
PROMPTS = st.one_of(
    st.builds(lambda seed, length: {"token_ids": [seed] * length}, st.integers(0, 3), st.integers(1, 200)),
    st.builds(lambda text: {"prompt": text * 300}, st.sampled_from("abc")),
    st.builds(lambda text: {"messages": [{"role": "user", "content": text * 300}]}, st.sampled_from("abc")),
    st.builds(lambda first: {"block_hashes": list(range(first, first + 5))}, st.integers(0, 3)),
    st.builds(lambda tokens: {"input_tokens": tokens}, st.sampled_from([1, 500, 1599, 1600, 1601, 10_000_000])),
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "expected_output_tokens": st.sampled_from([0, 1, 10, 10_000_000]),
        "priority": st.sampled_from([-1_000_000_000, -1, 0, 5, 1_000_000_000]),
        "phase": st.sampled_from(["prefill", "decode"]),
        "deadline_ms": st.sampled_from([0.001, 50, 86_400_000]),
        "candidates": st.lists(st.sampled_from([*WORKERS, "10.0.0.1:8000", "nobody"]), min_size=1, max_size=3),
        "current_worker": st.sampled_from([*WORKERS, "nobody"]),
        "adapter": st.just("lora"),
        "cache_salt": st.just("mine"),
        "session": st.just("s"),
    },
)
IDS = st.sampled_from([f"r{number}" for number in range(6)])
GOOD = st.builds(lambda key, prompt, more: {"request_id": key, "model": "llama", **prompt, **more}, IDS, PROMPTS, MORE)
BAD = st.builds(lambda good, field, value: {**good, field: value}, GOOD, st.sampled_from(FIELDS), ODD)
DEMANDS = GOOD | BAD
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["started", "first_token", "progress", "finished", "finished", "refused", "refused"])},
    optional={
        "worker": st.sampled_from([*WORKERS, "nobody"]),
        "output_tokens": st.sampled_from([0, 1, 50, 10_000_000]),
        "cached_tokens": st.sampled_from([0, 16, 10_000_000]),
        "queue_wait_ms": st.sampled_from([0, 3.5, 86_400_000]),
        "ttft_ms": st.sampled_from([0, 0.01, 250, 86_400_000]),
    },
)
BAD_EVENTS = st.builds(lambda good, field, value: {**good, field: value}, EVENTS, st.sampled_from(EVENT_FIELDS), ODD)


class AnyOrder(RuleBasedStateMachine):
    """Demands, batches, events of every kind; workers that report, leave, and start again; a model that goes away."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.workers = Workers()
        self.placer = Placer(self.workers, RequestSettings(ledger=RequestLedgerSettings(ttl_s=TTL_S)), seed="test")
        self.placer.observe_quota("q", quota("q", tenant="default", concurrent_requests=5))
        self.seq = 0
        self.known: list[str] = ["unheard-of"]
        self.model_comes()
        self.stack = AsyncExitStack()
        self.runner.run(self._open())

    async def _open(self) -> None:
        app, _ = placement_app(
            CountedPlacer(self.placer),
            view=FakeView(),
            auth=GatewayAuth(None, default_tenant="default"),
            clock=self.clock,
            control=lambda tenant: self.placer.limits.control(tenant, self.clock()),
            most_bytes=2**20,
            streams_max=8,
        )
        server = await self.stack.enter_async_context(TestServer(app, access_log=None))
        session = await self.stack.enter_async_context(aiohttp.ClientSession())
        self.url, self.session = str(server.make_url("")).rstrip("/"), session
        self.stream = await session.ws_connect(f"{self.url}/v1/placements/stream")
        self.stack.push_async_callback(self.stream.close)

    def call(self, path: str, body: Any) -> Any:
        """Post, and look at what is promised of every answer."""

        async def post() -> tuple[int, Any]:
            data = json.dumps(body).encode("utf-8", "surrogatepass")
            async with self.session.post(self.url + path, data=data) as answer:
                return answer.status, await answer.json()

        status, reply = self.runner.run(post())
        assert status < 500 or reply["error"]["code"] in PROMISED[status], reply
        self.look(reply)
        return reply

    def look(self, reply: Any) -> None:
        """Errors have the one shape; ids are kept for events."""
        error = reply.get("error")
        if error is not None:
            assert {"code", "message", "retryable"} <= error.keys()
            assert error["code"] != "InternalError"
        placement = reply.get("placement", reply)
        if "placement_id" in placement and "worker" in placement:
            terms = dict(placement["cost_ms"])
            total = terms.pop("total")
            assert abs(sum(terms.values()) - 2 * terms["locality_gain"] - total) < 1e-6 * max(1.0, abs(total))
            assert placement["worker"]["id"] in WORKERS
            if placement["placement_id"] not in self.known:
                self.known.append(placement["placement_id"])

    @initialize(number=st.sampled_from([0, 1, 3, 3]))
    def begin(self, number: int) -> None:
        for worker in WORKERS[:number]:
            self.worker_comes(worker)

    # -- callers -----------------------------------------------------------------------------------------------------

    @rule(sent=DEMANDS)
    def place(self, sent: Any) -> None:
        self.call("/v1/placements", sent)

    @rule(sent=st.lists(DEMANDS | ODD, min_size=1, max_size=5))
    def place_many(self, sent: Any) -> None:
        reply = self.call("/v1/placements:batch", {"demands": sent})
        if "answers" in reply:
            assert len(reply["answers"]) == len(sent)
            for answered in reply["answers"]:
                self.look(answered)

    @rule(demands=st.lists(DEMANDS, max_size=3), events=st.lists(EVENTS | BAD_EVENTS, max_size=3), data=st.data())
    def stream_frame(self, demands: Any, events: Any, data: Any) -> None:
        told = [{"placement_id": data.draw(st.sampled_from(self.known)), **event} for event in events]

        async def ask() -> Any:
            frame = json.dumps({"demands": demands, "events": told}).encode("utf-8", "surrogatepass")
            await self.stream.send_bytes(frame)
            return json.loads((await self.stream.receive(timeout=10)).data)

        reply = self.runner.run(ask())
        self.look({key: value for key, value in reply.items() if key == "error"})
        for answered in (*reply.get("answers", ()), *reply.get("events", ())):
            self.look(answered)

    @rule(event=EVENTS | BAD_EVENTS, data=st.data())
    def event(self, event: Any, data: Any) -> None:
        placement_id = data.draw(st.sampled_from(self.known))
        self.call(f"/v1/placements/{placement_id}/events", event)

    @rule(data=st.data())
    def explain(self, data: Any) -> None:
        placement_id = data.draw(st.sampled_from(self.known))

        async def get() -> int:
            async with self.session.get(f"{self.url}/v1/placements/{placement_id}/explanation") as answer:
                await answer.read()
                return answer.status

        assert self.runner.run(get()) in {200, 404}

    # -- the cluster -------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 1.0, 5.0, TTL_S, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.workers.tick(self.clock())
        self.placer.tick(self.clock())

    @rule(worker=st.sampled_from(WORKERS), waiting=st.integers(0, 3), free=st.integers(0, POOL_BLOCKS))
    def worker_reports(self, worker: str, waiting: int, free: int) -> None:
        self.seq += 1
        told = heartbeat(
            worker,
            seq=self.seq,
            at_s=self.clock(),
            waiting=waiting,
            running=0,
            kv_blocks_total=POOL_BLOCKS,
            kv_blocks_free=free,
        )
        self.workers.observe(told, now_s=self.clock())

    @rule(worker=st.sampled_from(WORKERS), started=st.sampled_from(["uid-1/start-1", "uid-1/start-2"]))
    def worker_comes(self, worker: str, started: str = "uid-1/start-1") -> None:
        address = f"10.0.0.{WORKERS.index(worker) + 1}:8000"
        self.workers.expect(worker, place(worker, incarnation=started, address=address))
        self.worker_reports_well(worker, started)

    def worker_reports_well(self, worker: str, started: str) -> None:
        self.seq += 1
        figures = {"waiting": 0, "running": 0, "kv_blocks_total": POOL_BLOCKS, "kv_blocks_free": POOL_BLOCKS}
        told = heartbeat(worker, seq=self.seq, at_s=self.clock(), incarnation=started, **figures)
        self.workers.observe(told, now_s=self.clock())

    @rule(worker=st.sampled_from(WORKERS))
    def worker_goes(self, worker: str) -> None:
        self.workers.expect(worker, None)

    @rule()
    def model_goes(self) -> None:
        self.placer.observe_model(LLAMA, None)

    @rule()
    def model_comes(self) -> None:
        self.placer.observe_model(LLAMA, model("llama", served_names=("llama",)))

    def teardown(self) -> None:
        try:
            self._nothing_is_left()
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()

    def _nothing_is_left(self) -> None:
        self.model_comes()
        for seconds in (TTL_S, 1.0):
            self.time_passes(seconds)
        assert len(self.placer.ledger) == 0
        (use,) = self.placer.limits.views(self.clock())
        assert (use.concurrent_requests, use.concurrent_migrations) == (0, 0)
        for worker in WORKERS:
            self.worker_goes(worker)
            self.worker_comes(worker)
        self.clock.now_s += 1
        anything = RequestDemand(request_id="x", model=LLAMA, tenant="other", input_tokens=1)
        seen = self.placer.candidates(anything, now_s=self.clock())
        assert seen is not None
        used = [slot for slot, facts in enumerate(seen.facts) if facts is not None]
        assert len(used) == len(WORKERS)
        for figure in (Figure.REQUESTS, Figure.BATCH, Figure.REMAINING_TOKENS, Figure.LINK_BYTES_IN_FLIGHT):
            assert np.allclose(seen.figures[figure][used], 0), figure
        assert np.all(seen.figures[Figure.FREE_AT_S][used] <= self.clock())
        assert np.allclose(seen.figures[Figure.KV_FREE_TOKENS][used], POOL_BLOCKS * 16)


AnyOrder.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
