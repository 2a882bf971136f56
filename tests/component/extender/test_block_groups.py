"""``/v1/block-groups`` over the real index: what people see, and that the loop is others' in between."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvaware_engine import ObjectKey
from kvaware_engine.blocks.events import BlocksRemoved, BlocksStored
from kvaware_engine.requests.words import BlockGroup
from kvaware_extender import turns as turns_module
from kvaware_extender.freshness import Freshness
from kvaware_extender.gateway_auth import GatewayAuth
from kvaware_extender.replies import errors_as_json
from kvaware_extender.routes.block_groups import Groups, block_group_routes
from kvaware_extender.routes.table import add_routes
from kvaware_extender.settings import StaleView
from kvaware_testing.placement_harness import FakeView, unlimited
from kvaware_testing.placer_builders import PlacerAtWork

WORKERS = 64
PROMPTS = 3
BLOCKS = 100
BLOCK_TOKENS = 16
PATH = "/v1/block-groups?model=ml/llama"


@pytest.fixture
def world() -> PlacerAtWork:
    """64 workers that were told of the same prompts, of which each has evicted another part since."""
    work = PlacerAtWork(WORKERS)
    for number, worker in enumerate(work.names):
        for prompt in range(PROMPTS):
            names = range(prompt * BLOCKS, (prompt + 1) * BLOCKS)
            tokens = range(10_000 * prompt, 10_000 * prompt + BLOCKS * BLOCK_TOKENS)
            stored = BlocksStored(engine_hashes=list(names), token_ids=list(tokens), block_tokens=BLOCK_TOKENS)
            evicted = BlocksRemoved(engine_hashes=list(names[BLOCKS - number :])[::-1])
            work.placer.observe_blocks(worker, [stored, evicted], now_s=work.now_s)
    return work


@asynccontextmanager
async def serving(groups: Groups) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    view = FakeView()
    app = web.Application(middlewares=[errors_as_json])
    routes = block_group_routes(
        groups=groups,
        view=view,
        freshness=Freshness(view, stale_view=StaleView.REFUSE, max_view_age_s=60),
        auth=GatewayAuth(None, default_tenant="default"),
        control=unlimited,
    )
    add_routes(app, routes)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_workers_of_different_depth_are_seen_as_they_are(world):
    async with serving(world.placer.block_groups) as client:
        answer = await client.get(f"{PATH}&limit=1000")
        items = (await answer.json())["items"]
    assert answer.status == 200
    assert len(items) == PROMPTS * WORKERS
    for place, item in enumerate(items):
        left = place % WORKERS
        start, blocks = (0, BLOCKS - WORKERS + 1) if left == 0 else (BLOCKS - WORKERS + left, 1)
        assert (item["start_tokens"], item["tokens"]) == (start * BLOCK_TOKENS, blocks * BLOCK_TOKENS)
        assert item["copies"] == [[worker, "hbm"] for worker in world.names[: WORKERS - left]]


async def test_others_have_their_turn_while_groups_are_listed(world, monkeypatch):
    """It stopped kube-scheduler's calls for up to 40 s."""
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    turns = 0
    turns_before: list[int] = []
    done = asyncio.Event()

    async def others() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    def watched(model: ObjectKey, most: int) -> Iterator[BlockGroup]:
        for group in world.placer.block_groups(model, most):
            turns_before.append(turns)
            yield group

    async with serving(watched) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(others())
        answer = await client.get(f"{PATH}&limit=150")
        done.set()
        assert len((await answer.json())["items"]) == len(turns_before) == 150
    assert all(before < after for before, after in pairwise(turns_before))


async def test_what_workers_lose_while_groups_are_listed_is_left_out(world, monkeypatch):
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)

    def watched(model: ObjectKey, most: int) -> Iterator[BlockGroup]:
        for number, group in enumerate(world.placer.block_groups(model, most)):
            if number == 0:
                for worker in world.names:
                    asyncio.get_running_loop().call_soon(lost, worker)
            yield group

    def lost(worker: str) -> None:
        world.placer.blocks_lost(worker, now_s=world.now_s)

    async with serving(watched) as client:
        answer = await client.get(f"{PATH}&limit=1000")
        items = (await answer.json())["items"]
        again = await (await client.get(PATH)).json()
    assert len(items) == WORKERS, "the row that was begun"
    assert again == {"items": []}
