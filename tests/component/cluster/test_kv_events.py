"""Publishers with real sockets, followers at work, and what they tell; only their clock is a fake one."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from kvaware_cluster import (
    Change,
    GapResult,
    Kind,
    KvEventSettings,
    KvFollowers,
    PassedOver,
    ReplayResult,
    WorkerMembership,
    WorkerPod,
)
from kvaware_engine.blocks.events import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored
from kvaware_engine.observations import ModelObservation, ModelWorkers, ObjectKey, RoleFootprint
from kvaware_testing.kv_publisher import KvPublisher, cleared, publishing, publishing_ranks, recorded, removed, stored
from kvaware_testing.store_harness import FakeClock, eventually

WORKER = "ml:p-0:0"


class Following:
    """Followers with their membership; what workers hold by what was told, and the calls in their order."""

    def __init__(self, clock: FakeClock, **settings: Any) -> None:
        self.held: dict[str, set[int]] = {}
        """Worker to the engine's hashes of what it holds."""
        self.calls: list[tuple[str, str]] = []
        self.slices: list[int] = []
        """Blocks of each call."""
        self._news = asyncio.Event()
        self.broken: set[str] = set()
        """Workers whose events raise when they are applied."""
        self.membership = WorkerMembership(placed=lambda worker, place: None)
        self.followers = KvFollowers(
            self,
            membership=self.membership,
            settings=KvEventSettings(**settings),
            clock=clock,
            rng=random.Random(1),  # noqa: S311  # jitter
        )

    @property
    def counts(self) -> Any:
        return self.followers.counts

    def model(self, events: int | None, replay: int | None = None, *, name: str = "llama") -> None:
        """A model whose workers tell on these ports what they hold."""
        model = ModelObservation(
            key=ObjectKey("ml", name),
            uid="u-m",
            model_id="m",
            revision="",
            roles=(RoleFootprint(name="both", gpus_per_pod=1, hbm_per_gpu_bytes=None),),
            workers=ModelWorkers(kv_events_port=events, kv_events_replay_port=replay),
        )
        self.membership.changed(Change(Kind.INFERENCE_MODEL, model.key, None, model))

    def pod(
        self, name: str = "p-0", *, model: str = "llama", started_at: str = "t1", gone: bool = False, **changes: Any
    ) -> None:
        """A Ready pod of a model, on this machine."""
        pod = WorkerPod(
            uid=f"u-{name}",
            key=ObjectKey("ml", name),
            model=model,
            role=None,
            node="n1",
            finished=False,
            terminating=False,
            unschedulable=False,
            labels={"kvaware.io/model": model},
            started_at=started_at,
            **{"ip": "127.0.0.1", "ready": True} | changes,
        )
        self.membership.pod_changed(Change("workerpod", pod.key, pod if gone else None, None if gone else pod))

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def until_held(self, *hashes: int, worker: str = WORKER) -> None:
        await self.until(lambda: self.held.get(worker) == set(hashes))

    def blocks(self, worker: str, events: Sequence[BlockEvent]) -> None:
        self._news.set()
        if worker in self.broken:
            raise RuntimeError("sink")
        self.calls.append(("blocks", worker))
        held = self.held.setdefault(worker, set())
        self.slices.append(0)
        for event in events:
            match event:
                case BlocksStored():
                    held |= set(event.engine_hashes)
                    self.slices[-1] += len(event.engine_hashes)
                case BlocksRemoved():
                    held -= set(event.engine_hashes)
                    self.slices[-1] += len(event.engine_hashes)
                case BlocksCleared():
                    held.clear()

    def lost(self, worker: str) -> None:
        self._news.set()
        self.calls.append(("lost", worker))
        self.held[worker] = set()

    def ended(self, worker: str) -> None:
        self._news.set()
        self.calls.append(("ended", worker))
        self.held.pop(worker, None)


@asynccontextmanager
async def following(clock: FakeClock, **settings: Any) -> AsyncIterator[Following]:
    made = Following(clock, **settings)
    task = asyncio.create_task(made.followers.run())
    try:
        yield made
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def one(
    clock: FakeClock, *, replay: bool = True, **settings: Any
) -> AsyncIterator[tuple[Following, KvPublisher]]:
    """One worker, followed."""
    async with publishing() as [publisher], following(clock, **settings) as seen:
        seen.model(publisher.port, publisher.replay_port if replay else None)
        seen.pod()
        await publisher.subscribed()
        if replay:
            await eventually(lambda: sum(seen.counts.replays.values()) > 0)
        yield seen, publisher


async def test_what_is_stored_and_removed_is_told(clock):
    async with one(clock) as (seen, server):
        await server.publish(stored([1, 2, 3]))
        await server.publish(removed(3), stored([4], parent=2))
        await seen.until_held(1, 2, 4)
        await server.publish(cleared(), stored([9]))
        await seen.until_held(9)
        assert seen.counts.events == 5
        assert not any(seen.counts.gaps.values())


async def test_a_late_joiner_learns_what_is_there(clock):
    """From what the server remembers of its events; with those that are sent meanwhile, each once."""
    async with publishing() as [server], following(clock) as seen:
        for block in range(1, 50):
            await server.publish(stored([block]), lost=True)
        seen.model(server.port, server.replay_port)
        seen.pod()
        await server.subscribed()
        await server.publish(stored([50]))
        await seen.until_held(*range(1, 51))
        assert not any(seen.counts.gaps.values())
        assert seen.counts.events == 50


async def test_a_late_joiner_of_a_server_that_forgot_the_beginning(clock):
    async with publishing() as [server], following(clock) as seen:
        await server.publish(stored([1]), lost=True, kept=False)
        await server.publish(stored([2], parent=1), lost=True)
        seen.model(server.port, server.replay_port)
        seen.pod()
        await seen.until_held(2)
        assert not any(seen.counts.gaps.values())


async def test_a_server_with_nothing_to_tell_is_followed(clock):
    """An empty replay says that it holds nothing: that is known, not estimated."""
    async with one(clock) as (seen, _):
        await seen.until_held()
        assert (len(seen.followers), seen.followers.connected()) == (1, 1)


async def test_a_gap_is_filled_by_a_replay(clock):
    async with one(clock) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        await server.publish(stored([2], parent=1), lost=True)
        await server.publish(removed(1), lost=True)
        await server.publish(stored([4]))
        await seen.until_held(2, 4)
        assert server.asked == [0, 1]
        await eventually(lambda: seen.counts.gaps[GapResult.FILLED] == 1)
        assert ("lost", WORKER) not in seen.calls


async def test_a_gap_without_a_replay_forgets_the_worker(clock):
    """What was removed in it is not known."""
    async with one(clock, replay=False) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        await server.publish(removed(1), lost=True)
        await server.publish(stored([3]))
        await seen.until_held(3)
        assert seen.calls.count(("lost", WORKER)) == 1
        assert seen.counts.gaps[GapResult.LOST] == 1


async def test_a_gap_that_the_server_did_not_keep_forgets_the_worker(clock):
    async with one(clock) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        await server.publish(removed(1), lost=True, kept=False)
        await server.publish(stored([3]), lost=True)
        await server.publish(stored([4]))
        await seen.until_held(3, 4)
        assert seen.counts.gaps[GapResult.LOST] == 1
        assert seen.counts.gaps[GapResult.FILLED] == 0


@pytest.mark.parametrize("replay", [True, False])
async def test_a_restart_forgets_what_was_told_before(clock, replay):
    """Of a real vLLM: 905, then 0; nothing else shows it."""
    async with one(clock, replay=replay) as (seen, server):
        messages = recorded("events-restart")
        await server.play(messages[:3])
        await seen.until(lambda: seen.counts.events >= 7)
        before = set(seen.held[WORKER])
        await server.play(messages[3:])
        await seen.until(lambda: seen.counts.gaps[GapResult.RESTARTED] == 1 and seen.counts.events >= 11)
    assert len(before) > 0
    assert seen.calls.count(("lost", WORKER)) == 1


async def test_what_a_server_told_since_it_restarted_is_brought_by_its_replay(clock):
    async with one(clock) as (seen, server):
        for block in range(1, 10):
            await server.publish(stored([block]))
        await seen.until_held(*range(1, 10))
        server.restart()
        await server.publish(stored([21]), lost=True)
        await server.publish(stored([22], parent=21))
        await seen.until_held(21, 22)
        assert seen.counts.gaps[GapResult.RESTARTED] == 1


async def test_one_replay_that_never_answers_holds_up_nobody(clock):
    """ai-dynamo/dynamo#4904: after a restart among many live workers only one or two were found again."""
    async with publishing(30) as servers, following(clock, replay_wait_s=0.3) as seen:
        silent, others = servers[7], [number for number in range(30) if number != 7]
        silent.answers = False
        for number, server in enumerate(servers):
            await server.publish(stored([100 + number]), lost=True)
            # one model for each: ports are the model's, and all pods are on this machine
            seen.model(server.port, server.replay_port, name=f"m-{number}")
            seen.pod(f"p-{number}", model=f"m-{number}")
        await silent.subscribed()
        for number in others:
            await seen.until_held(100 + number, worker=f"ml:p-{number}:0")
        assert "ml:p-7:0" not in seen.held, "nothing is known of it, and that is known"
        await silent.publish(stored([999]))
        await seen.until_held(999, worker="ml:p-7:0")
        assert seen.counts.replays[ReplayResult.COMPLETE] == 29
        assert seen.counts.replays[ReplayResult.SILENT] == 1


async def test_a_replay_that_did_not_answer_is_not_asked_again_at_once(clock):
    """After each gap the worker's live events would wait for it; later it may answer."""
    async with one(clock, replay_wait_s=0.05, replay_pause_s=60) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        server.answers = False
        await server.publish(stored([2]), lost=True)
        await server.publish(stored([3]))
        await seen.until_held(3)
        await server.publish(stored([4]), lost=True)
        await server.publish(stored([5]))
        await seen.until_held(5)
        assert server.asked == [0, 1]
        server.answers = True
        clock.now_s += 61
        await server.publish(stored([6]), lost=True)
        await server.publish(stored([7]))
        await seen.until_held(5, 6, 7)
        assert server.asked == [0, 1, 5]


async def test_a_replay_that_breaks_off_leaves_nothing_behind(clock):
    """What was removed after its last batch is not known."""
    async with publishing() as [server], following(clock, replay_wait_s=0.05) as seen:
        server.ends = False
        await server.publish(stored([1]), lost=True)
        seen.model(server.port, server.replay_port)
        seen.pod()
        await server.subscribed()
        await eventually(lambda: seen.counts.replays[ReplayResult.BROKEN_OFF] == 1)
        await seen.until_held()
        await server.publish(stored([2]))
        await seen.until_held(2)


async def test_a_worker_that_is_not_ready_for_a_moment_is_followed_on(clock):
    """ai-dynamo/dynamo#13513: it is what it was, and so is what it holds."""
    async with one(clock, replay=False) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        seen.pod(ready=False)
        await server.publish(stored([2]))
        await seen.until_held(1, 2)
        seen.pod()
        await server.publish(stored([3]))
        await seen.until_held(1, 2, 3)


async def test_another_incarnation_begins_with_nothing(clock):
    async with one(clock, replay=False) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        seen.pod(started_at="t2")
        assert WORKER not in seen.held
        await server.subscribed()
        await server.publish(stored([5]))
        await seen.until_held(5)


@pytest.mark.parametrize("how", ["the pod", "the model", "its port"])
async def test_a_worker_that_goes_away_is_followed_no_more(clock, how):
    async with one(clock) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        match how:
            case "the pod":
                seen.pod(gone=True)
            case "the model":
                key = ObjectKey("ml", "llama")
                seen.membership.changed(Change(Kind.INFERENCE_MODEL, key, None, None))
            case _:
                seen.model(None)
        assert seen.calls[-1] == ("ended", WORKER)
        assert len(seen.followers) == 0
        calls = len(seen.calls)
        await server.publish(stored([2]))
        await asyncio.sleep(0.05)  # nothing is to come, which nobody announces
        assert len(seen.calls) == calls


async def test_ranks_are_followed_each_on_its_port(clock):
    async with publishing_ranks() as servers, following(clock) as seen:
        seen.model(servers[0].port, servers[0].replay_port)
        seen.pod()
        seen.membership.heard(WORKER)
        seen.membership.heard("ml:p-0:1")
        for number, server in enumerate(servers):
            await server.subscribed()
            await server.publish(stored([number]))
        await seen.until_held(0)
        await seen.until_held(1, worker="ml:p-0:1")
        assert servers[0].asked == servers[1].asked == [0]


async def test_a_message_that_cannot_be_read_forgets_the_worker(clock, logs):
    """It may have told of removals. One that is told once is enough for the log."""
    async with one(clock) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        await server.send(b"\xc1")
        await server.publish(stored([2]))
        await seen.until_held(2)
        await server.play([[b"", b"short", b""], [b"", b"x" * 8]])
        await server.publish(stored([3]))
        await seen.until_held(3)
        assert seen.counts.gaps[GapResult.UNREADABLE] == 3
    assert [each["event"] for each in logs] == ["KV events are not applied"]


async def test_an_event_of_a_later_version_is_passed_over(clock):
    async with one(clock) as (seen, server):
        await server.publish(stored([1]), {"type": "BlockMigrated", "to": "mars"}, stored([2]))
        await seen.until_held(1, 2)
        assert seen.counts.passed_over[PassedOver.UNKNOWN_TYPE] == 1


async def test_a_removal_that_cannot_be_read_forgets_the_worker(clock):
    async with one(clock) as (seen, server):
        await server.publish(stored([1]), {"type": "BlockRemoved", "block_hashes": "all"}, stored([2]))
        await seen.until_held(2)
        assert seen.counts.gaps[GapResult.UNREADABLE] == 1


async def test_a_message_that_is_too_long_is_not_taken(clock):
    """Its sender is disconnected, and connected anew, which ZeroMQ does not do by itself; its events show the gap."""
    async with one(clock, replay=False, frame_bytes=4096) as (seen, server):
        await server.publish(stored([1]))
        await seen.until_held(1)
        await server.send(b"\0" * 10_000)
        await eventually(lambda: seen.followers.connected() == 0)
        await server.subscribed()
        await server.publish(stored([2]))
        await seen.until_held(2)
        assert seen.followers.connected() == 1
        assert seen.counts.gaps[GapResult.LOST] == 1


@pytest.mark.parametrize("how", ["live", "replayed"])
async def test_many_events_come_in_slices_and_others_run_in_between(clock, how):
    """Decisions wait for one slice, however many workers tell how much."""
    async with publishing(4) as servers, following(clock, slice_blocks=32) as seen:
        for number, server in enumerate(servers):
            seen.model(server.port, server.replay_port if how == "replayed" else None, name=f"m-{number}")
            if how == "live":
                seen.pod(f"p-{number}", model=f"m-{number}")
                await server.subscribed()
            for block in range(100):
                await server.publish(*(stored([block * 10 + one]) for one in range(10)), lost=how == "replayed")
        turns: list[int] = []
        ended = False

        async def others() -> None:
            while not ended:
                turns.append(sum(seen.slices))
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        if how == "replayed":
            for number in range(4):
                seen.pod(f"p-{number}", model=f"m-{number}")
        for number in range(4):
            await seen.until_held(*range(1000), worker=f"ml:p-{number}:0")
        ended = True
        await other
        assert max(after - before for before, after in pairwise(turns)) <= 32


async def test_the_smallest_slice_gets_on_too(clock):
    async with one(clock, slice_blocks=1) as (seen, server):
        await server.publish(stored(range(200)), *(removed(block) for block in range(10)))
        await server.publish(stored([500]), stored([501]))
        await seen.until_held(*range(10, 200), 500, 501)


async def test_a_fault_in_one_stream_ends_no_other(clock, logs):
    async with publishing(2) as servers, following(clock) as seen:
        seen.broken.add("ml:p-0:0")
        for number, server in enumerate(servers):
            seen.model(server.port, name=f"m-{number}")
            seen.pod(f"p-{number}", model=f"m-{number}")
            await server.subscribed()
            await server.publish(stored([1]))
        await seen.until_held(1, worker="ml:p-1:0")
        await eventually(lambda: len(logs) > 0)
        await servers[1].publish(stored([2]))
        await seen.until_held(1, 2, worker="ml:p-1:0")
    assert [each["event"] for each in logs] == ["KV events cannot be followed"]


async def test_workers_that_were_there_before_are_followed(clock):
    async with publishing() as [server]:
        seen = Following(clock)
        seen.model(server.port)
        seen.pod()
        task = asyncio.create_task(seen.followers.run())
        await server.subscribed()
        await server.publish(stored([1]))
        await seen.until_held(1)
        task.cancel()
        await asyncio.wait([task])
