"""From a worker's KV events to a placement that is precise: the whole extender, and publishers with real sockets."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from kvaware_cluster import Kind, KvEventSettings, WorkerScrapeSettings
from kvaware_extender import Extender
from kvaware_testing.extender_harness import Caller, MemoryCluster, serving
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod
from kvaware_testing.kv_publisher import KvPublisher, publishing, recorded, removed, stored
from kvaware_testing.store_harness import eventually

SILENT = WorkerScrapeSettings(enabled=False)
TOKENS = [block for block in range(1, 11) for _ in range(16)]
"""Those of the blocks 1 to 10."""


class Served:
    """A running extender, and workers that publish, one for each model: ports are the model's."""

    def __init__(self, caller: Caller, cluster: MemoryCluster, publishers: list[KvPublisher]) -> None:
        self.caller = caller
        self.extender: Extender = caller.extender
        self.cluster = cluster
        self.publishers = publishers
        self._asked = 0

    async def beat(self, number: int = 0, **told: Any) -> None:
        pod = self.cluster.raw_pod(f"p-{number}")
        figures = {"seq": 1, "kv_blocks_total": 10_000, "kv_blocks_free": 10_000, "waiting": 0, "running": 0, **told}
        status, reply = await self.caller.beat(
            f"ml:p-{number}:0",
            token=self.cluster.token_of(pod),
            model=f"ml/m-{number}",
            address="10.0.0.1:8000",
            **figures,
        )
        assert status == 202, reply

    async def kv(
        self, number: int = 0, tokens: list[int] | None = None, *, cached_tokens: int | None = None, **sent: Any
    ) -> dict[str, Any]:
        """What a placement says of the cache. It is ended at once, so that nothing is expected of it."""
        self._asked += 1
        body = {"request_id": f"r{self._asked}", "model": f"m-{number}", "token_ids": tokens or TOKENS, **sent}
        status, placed = await self.caller.post("/v1/placements", body)
        assert status == 200, placed
        path = f"/v1/placements/{placed['placement_id']}/events"
        found = {} if cached_tokens is None else {"cached_tokens": cached_tokens}
        await self.caller.post(path, {"type": "finished", "output_tokens": 1, **found})
        kv: dict[str, Any] = placed["kv"]
        return kv

    def applied(self, events: int) -> Callable[[], bool]:
        """Whether so many events were applied."""
        kv = self.extender.requests.kv
        assert kv is not None
        return lambda: kv.followers.counts.events >= events


@asynccontextmanager
async def served(
    number: int = 1, *, replay: bool = True, silent: int | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """So many workers at work; ``silent``: whose replay never answers."""
    async with publishing(number) as publishers:
        if silent is not None:
            publishers[silent].answers = False
        cluster = MemoryCluster(raw_node("n1"))
        for each, publisher in enumerate(publishers):
            model = raw_model(f"m-{each}")
            ports = {"kvEvents": publisher.port, **({"kvEventsReplay": publisher.replay_port} if replay else {})}
            model["spec"] |= {
                "servedNames": [f"m-{each}"],
                "kvCache": {"bytesPerToken": "320Ki"},
                "workers": {"ports": ports},
            }
            cluster.put(model)
            ready = [{"type": "Ready", "status": "True"}]
            labels = {"kvaware.io/model": f"m-{each}"}
            cluster.add_pod(raw_pod(f"p-{each}", node="n1", labels=labels, conditions=ready, podIP="127.0.0.1"))
        kv_events = KvEventSettings(**settings)
        async with serving(cluster, worker_scrape=SILENT, kv_events=kv_events) as caller:
            made = Served(caller, cluster, publishers)
            for each in range(number):
                await made.beat(each)
            yield made


async def test_what_a_worker_says_that_it_holds_is_matched_precisely():
    async with served() as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        await server.publish(stored(range(1, 9)))
        await eventually(gateway.applied(1))
        kv = await gateway.kv()
        assert (kv["matched_tokens"], kv["precision"], kv["tier"]) == (128, "precise", "hbm")
        await server.publish(removed(8), removed(7))
        await eventually(gateway.applied(3))
        assert (await gateway.kv())["matched_tokens"] == 96


async def test_of_a_prompt_that_is_held_as_a_whole_the_last_block_is_computed_again():
    """As vLLM does: it reuses whole blocks, and computes one token at least."""
    async with served() as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        await server.publish(stored(range(1, 11)))
        await eventually(gateway.applied(1))
        assert (await gateway.kv())["matched_tokens"] == 144


@pytest.mark.parametrize("replay", [True, False])
async def test_who_emptied_its_cache_without_a_word_is_asked_anew(replay):
    """vllm-project/aibrix#2287: it is found out by what requests find; who cannot be asked is only believed less."""
    async with served(replay=replay) as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        await server.publish(stored(range(1, 9)), kept=False)
        await eventually(gateway.applied(1))
        await server.publish(stored(range(1, 5)), lost=True)  # what it would tell if it were asked
        for _ in range(12):
            assert (await gateway.kv(cached_tokens=0))["precision"] == "precise"
        if replay:
            await server.subscribed()
            await eventually(gateway.applied(2))
            assert (await gateway.kv())["matched_tokens"] == 64
        asked = await gateway.caller.metric("kvaware_kv_events_asked_anew_total")
        kv = gateway.extender.requests.kv
        assert kv is not None
        assert (asked, kv.followers.connected(), len(kv.followers)) == (float(replay), 1, 1)
        if not replay:
            assert 0 < (await gateway.kv())["matched_tokens"] < 64, "128 tokens, believed by less than half"


async def test_a_real_servers_events_are_matched_by_the_tokens_that_it_had():
    """Salts and adapters apart, as that server keeps them apart."""
    async with served(3) as gateway:
        messages, lora = recorded("events"), recorded("events-lora")
        for server, told in zip(gateway.publishers, (messages[:4], lora, messages[4:5]), strict=True):
            await server.subscribed()
            await server.play(told)
        await eventually(gateway.applied(4 + 3 + 1))
        plain, salted, prompt = (tokens_of(message) for message in (messages[0], messages[4], lora[0]))
        assert (await gateway.kv(tokens=[*plain, 1]))["matched_tokens"] == 192
        assert (await gateway.kv(2, tokens=[*salted, 1], cache_salt="tenant-a"))["matched_tokens"] == 192
        for sent in ({}, {"cache_salt": "tenant-b"}, {"adapter": "tenant-a"}):
            assert (await gateway.kv(2, tokens=[*salted, 1], **sent))["matched_tokens"] == 0
        for sent in ({}, {"adapter": "lora-a"}, {"adapter": "lora-a", "cache_salt": "tenant-a"}):
            kv = await gateway.kv(1, tokens=[*prompt, 1], **sent)
            assert (kv["matched_tokens"], kv["precision"]) == (192, "precise"), sent
        assert (await gateway.kv(1, tokens=[*prompt, 1], cache_salt="lora-a"))["matched_tokens"] == 0


async def test_one_worker_whose_replay_never_answers_is_placed_by_load_alone():
    """ai-dynamo/dynamo#4904: the others serve at once, and all are listed and placed."""
    async with served(30, silent=7, replay_wait_s=0.3) as gateway:
        silent, others = gateway.publishers[7], [number for number in range(30) if number != 7]
        await silent.subscribed()
        for number in others:
            await gateway.publishers[number].publish(stored(range(1, 9)))
        await eventually(gateway.applied(29))
        for number in others:
            kv = await gateway.kv(number)
            assert (kv["matched_tokens"], kv["precision"]) == (128, "precise")
        kv = await gateway.kv(7)
        assert (kv["matched_tokens"], kv["precision"]) == (0, "approximate")
        _, listed = await gateway.caller.get("/v1/workers")
        assert len(listed["items"]) == 30


async def test_after_a_gap_that_nobody_fills_nothing_is_matched():
    async with served(replay=False) as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        await server.publish(stored(range(1, 9)))
        await eventually(gateway.applied(1))
        await server.publish(removed(1), lost=True)
        await server.publish(stored([99]))
        await eventually(gateway.applied(2))
        kv = await gateway.kv()
        assert (kv["matched_tokens"], kv["precision"]) == (0, "precise")
        assert await gateway.caller.metric("kvaware_kv_event_gaps_total", '{result="lost"}') == 1


async def test_a_worker_that_is_followed_no_more_is_estimated_again():
    async with served() as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        await server.publish(stored(range(1, 9)))
        await eventually(gateway.applied(1))
        model = raw_model("m-0")
        model["spec"] |= {"servedNames": ["m-0"], "kvCache": {"bytesPerToken": "320Ki"}}
        gateway.cluster.put(model)
        followers = gateway.extender.requests.kv.followers  # type: ignore[union-attr]  # it is enabled
        await eventually(lambda: len(followers) == 0)
        kv = await gateway.kv()
        assert (kv["matched_tokens"], kv["precision"]) == (0, "approximate")
        assert (await gateway.kv())["matched_tokens"] == 144, "what was sent there, but for one block"


async def test_a_server_that_starts_again_holds_nothing():
    async with served() as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        for block in range(1, 5):
            await server.publish(stored([block], parent=block - 1 or None))
        await eventually(gateway.applied(4))
        assert (await gateway.kv())["matched_tokens"] == 64
        server.restart()
        await server.publish(stored([50]))
        await eventually(gateway.applied(5))
        assert (await gateway.kv())["matched_tokens"] == 0


async def test_metrics_tell_what_is_followed_and_what_came_of_it():
    async with served() as gateway:
        [server] = gateway.publishers
        await server.subscribed()
        await server.publish(stored([1, 2]), stored([9], parent=8), removed(7), {"type": "BlockMigrated"})
        await eventually(gateway.applied(3))
        metric = gateway.caller.metric
        assert await metric("kvaware_kv_event_streams", '{state="connected"}') == 1
        assert await metric("kvaware_kv_event_streams", '{state="unconnected"}') == 0
        assert await metric("kvaware_kv_events_total") == 3
        assert await metric("kvaware_kv_blocks_total", '{result="stored"}') == 2
        assert await metric("kvaware_kv_blocks_total", '{result="orphaned"}') == 1
        assert await metric("kvaware_kv_blocks_total", '{result="unknown_removed"}') == 1
        assert await metric("kvaware_kv_event_replays_total", '{result="complete"}') == 1
        assert await metric("kvaware_kv_events_passed_over_total", '{reason="unknown_type"}') == 1
        gateway.cluster.delete(Kind.INFERENCE_MODEL, "m-0", "ml")
        followers = gateway.extender.requests.kv.followers  # type: ignore[union-attr]  # it is enabled
        await eventually(lambda: len(followers) == 0)
        assert await metric("kvaware_kv_event_streams", '{state="connected"}') == 0
        assert await metric("kvaware_kv_events_total") == 3, "no counter goes down"


async def test_nobody_is_followed_where_that_is_switched_off():
    async with served(enabled=False) as gateway:
        assert gateway.extender.requests.kv is None
        assert (await gateway.kv())["precision"] == "approximate"


def tokens_of(message: list[bytes]) -> list[int]:
    """The tokens of the first event of a recorded message."""
    _, [event, *_], _ = msgspec.msgpack.decode(message[2])
    tokens: list[int] = event["token_ids"]
    return tokens
