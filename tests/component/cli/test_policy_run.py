"""One policy's gateway and workers, over real HTTP against an extender that places in turn."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kvaware_cli.errors import ServerError
from kvaware_cli.replay.gateway import Gateway, open_gateway
from kvaware_cli.replay.live_worker import PROGRESS_S, LiveWorker
from kvaware_cli.replay.policy_run import PolicyRun
from kvaware_cli.replay.scene import KV_BLOCKS, worker_ids
from kvaware_engine import FALLBACK_PROFILE
from kvaware_simulator import ModelledWorker, TraceRequest, WorkerRequest
from kvaware_testing.placing_stub import PlacingStub
from kvaware_testing.store_harness import eventually

TOKEN = "a token of the test"
FAST = replace(
    FALLBACK_PROFILE,
    prefill_base_ms=0,
    prefill_ms_per_token=1e-5,
    prefill_ms_per_token_squared=0,
    decode_steps=((1, 1e-3),),
)
"""10 ns per prompt token: a test has no time for more."""


def requests(count: int, *, tokens: int = 1100, answer: int = 3) -> list[TraceRequest]:
    """Prompts that share their first block."""
    return [
        TraceRequest(at_s=0.0, input_tokens=tokens, output_tokens=answer, block_hashes=(0, number + 1)[: tokens // 512])
        for number in range(count)
    ]


def clock() -> Callable[[], float]:
    begins_s = time.monotonic()
    return lambda: time.monotonic() - begins_s


@asynccontextmanager
async def run(
    stub: PlacingStub, *, workers: int = 2, done: Callable[[], None] = lambda: None
) -> AsyncIterator[PolicyRun]:
    async with stub.serve() as url, open_gateway(url, token=TOKEN) as gateway:
        yield PolicyRun("cost", workers=workers, profile=FAST, gateway=gateway, clock=clock(), progressed=done)


def stub(workers: int = 2) -> PlacingStub:
    return PlacingStub(worker_ids("cost", workers), token=TOKEN)


async def replayed(one: PolicyRun, trace: Sequence[TraceRequest]) -> None:
    await one.greet()
    await one.replay(trace, [0.0] * len(trace))


async def test_every_request_is_placed_and_counted() -> None:
    """Of 6 requests on 2 workers in turn, the first on each finds nothing, the others their shared first block.

    How those end that are not done with the last arrival is counted, and reported to nobody.
    """
    extender, placed = stub(), []
    async with run(extender, done=lambda: placed.append(1)) as one:
        await replayed(one, requests(6))
    assert len(placed) == len(one.placements) == 6
    told = one.tally()
    assert (told.requests, told.refused, told.spread_ratio) == (6, 0, 1.0)
    assert told.hit_ratio == pytest.approx(4 * 512 / (6 * 1100))
    for placement_id in one.placements:
        types = [each["type"] for each in extender.events[placement_id]]
        assert types == ["started", "first_token", "finished"][: len(types)]


async def test_a_worker_reports_each_request_to_its_end() -> None:
    extender, outcomes = stub(1), []
    async with extender.serve() as url, open_gateway(url, token=TOKEN) as gateway, asyncio.TaskGroup() as group:
        modelled = ModelledWorker(FAST, kv_blocks=10, block_tokens=512)
        worker = LiveWorker("w", modelled, model="m/m", gateway=gateway, clock=clock(), answered=outcomes.append)
        tasks = [group.create_task(worker.run()), group.create_task(worker.tell())]
        worker.send(WorkerRequest(id="a", input_tokens=1100, output_tokens=3), placement_id="p")
        await eventually(lambda: len(extender.events["p"]) == 3)
        for task in tasks:
            task.cancel()
    started, first, finished = extender.events["p"]
    assert (started["type"], first["type"], finished["type"]) == ("started", "first_token", "finished")
    assert started["queue_wait_ms"] == 0
    assert first == {"type": "first_token", "ttft_ms": pytest.approx(1100 * 1e-5), "cached_tokens": 0}
    assert finished == {"type": "finished", "output_tokens": 3, "cached_tokens": 0}
    assert [(each.worker, each.input_tokens) for each in outcomes] == [("w", 1100)]


async def test_a_demand_tells_what_a_gateway_knows_and_nothing_more() -> None:
    """Never the true length of the answer; no hashes where the prompt has no whole block."""
    extender = stub()
    async with run(extender) as one:
        await replayed(one, [*requests(1), *requests(1, tokens=100)])
    assert extender.demands == [
        {"request_id": "cost-0", "model": "cost", "input_tokens": 1100, "block_hashes": [0, 1]},
        {"request_id": "cost-1", "model": "cost", "input_tokens": 100},
    ]


async def test_heartbeats_say_how_the_worker_is() -> None:
    extender = stub()
    async with run(extender) as one:
        await one.greet()
    assert set(extender.beats) == set(worker_ids("cost", 2))
    [beat] = extender.beats["replay:cost-0:0"]
    assert beat == {
        "seq": 1,
        "model": "replay/cost",
        "role": "both",
        "block_size": 512,
        "kv_blocks_total": KV_BLOCKS,
        "kv_blocks_free": KV_BLOCKS,
        "waiting": 0,
        "running": 0,
        "queued_tokens": 0,
        "batch_size": 0,
        "gpu_utilization_ratio": 0.0,
    }


async def test_what_a_worker_cannot_hold_goes_to_the_next_and_is_counted_when_nobody_can() -> None:
    """Longer than the whole KV pool of each: refused as often as is tried, and nowhere in the figures."""
    extender = stub()
    async with run(extender) as one:
        await replayed(one, requests(1, tokens=512 * (KV_BLOCKS + 1)))
    assert {each["type"] for each in extender.events["p-cost-0"]} == {"refused"}
    assert one.refusals == {"TooManyRefusals": 1}
    assert one.tally().refused == 1


async def test_a_refusal_of_the_extender_is_counted_by_its_code() -> None:
    extender = stub()
    extender.refusal = (429, "Saturated")
    async with run(extender) as one:
        await replayed(one, requests(3))
    assert one.refusals == {"Saturated": 3}
    assert not extender.events


async def test_an_extender_that_goes_away_ends_the_replay_with_its_name() -> None:
    async with open_gateway("http://127.0.0.1:1", token=TOKEN) as gateway:
        one = PolicyRun("cost", workers=1, profile=FAST, gateway=gateway, clock=clock(), progressed=lambda: None)
        with pytest.raises(ServerError, match=r"127\.0\.0\.1:1/v1/workers/replay:cost-0:0/heartbeat: no answer"):
            await one.greet()
        with pytest.raises(ExceptionGroup) as caught:
            await one.replay(requests(1), [0.0])
        assert caught.value.subgroup(ServerError) is not None


async def test_a_long_wait_reports_progress() -> None:
    """A reservation of which nothing is heard for 30 s ends."""
    now = [0.0]
    extender = stub(1)
    slow = ModelledWorker(FALLBACK_PROFILE, kv_blocks=10, block_tokens=512)
    async with extender.serve() as url, open_gateway(url, token=TOKEN) as gateway:
        worker = LiveWorker(
            "w", slow, model="m/m", gateway=gateway, clock=lambda: now[0], answered=lambda _outcome: None
        )
        telling = asyncio.create_task(worker.tell())
        worker.send(WorkerRequest(id="a", input_tokens=1, output_tokens=1000), placement_id="p")
        now[0] = PROGRESS_S - 0.1
        worker.report_progress()
        now[0] = PROGRESS_S + 0.1
        worker.report_progress()
        worker.report_progress()
        await worker.told()
        telling.cancel()
    assert [each["type"] for each in extender.events["p"]] == ["started", "progress"]


async def test_a_gateway_keeps_to_what_is_promised() -> None:
    """An answer that is none of kvaware's is an error, not a placement."""
    extender = PlacingStub([None], token=TOKEN)  # type: ignore[list-item]  # a worker without an id
    async with extender.serve() as url, open_gateway(f"{url}/elsewhere", token=TOKEN) as gateway:
        with pytest.raises(ServerError, match="expected JSON, got"):
            await Gateway.place(gateway, {"request_id": "r"})
