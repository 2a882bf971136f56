import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from kvaware_cluster import KubernetesSource, LeaderLease, LeaseLostError, LeaseTiming, new_identity
from kvaware_crds.errors import ConfigError
from kvaware_testing.fake_api import Failure, FakeApi
from kvaware_testing.store_harness import connected, eventually

TIMING = LeaseTiming(duration_s=15, renew_deadline_s=10, retry_s=2)
AT = datetime(2026, 1, 1, tzinfo=UTC)


class FakeTime:
    """Monotonic seconds that only the test moves; who sleeps by it wakes when its time has come."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            wake = asyncio.Event()
            self._sleepers.append((self.now_s + seconds, wake))
            await wake.wait()

    def asleep(self) -> int:
        return len(self._sleepers)

    def move(self, seconds: float) -> None:
        self.now_s += seconds
        due = [each for each in self._sleepers if each[0] <= self.now_s]
        self._sleepers = [each for each in self._sleepers if each[0] > self.now_s]
        for _, wake in due:
            wake.set()


class Candidate:
    """A process that would lead."""

    def __init__(self, source: KubernetesSource, name: str, *, time: FakeTime, timing: LeaseTiming = TIMING) -> None:
        self.time = time
        self.lease = LeaderLease(
            source.http,
            namespace="kvaware-system",
            name="kvaware-operator",
            identity=name,
            clock=time,
            timing=timing,
            rng=random.Random(1),  # noqa: S311  # jitter
            sleep=time.sleep,
            wall=lambda: AT,
        )
        self.leads = False
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def lead(self) -> None:
        self.leads = True
        try:
            await self.ended.wait()
        finally:
            self.leads = False

    def start(self, work: Callable[[], Awaitable[None]] | None = None) -> None:
        self.task = asyncio.create_task(self.lease.run(work or self.lead))

    async def stop(self) -> BaseException | None:
        """Cancel it. Returns: what came out."""
        assert self.task is not None
        self.task.cancel()
        (outcome,) = await asyncio.gather(self.task, return_exceptions=True)
        return outcome

    async def waits(self) -> bool:
        """Whether it sleeps, or has come to its end; it is at work otherwise."""
        task = self.task
        assert task is not None
        await eventually(lambda: task.done() or self.time.asleep() > 0)
        return not task.done()

    async def outcome(self) -> Any:
        assert self.task is not None
        async with asyncio.timeout(30):
            (outcome,) = await asyncio.gather(self.task, return_exceptions=True)
        return outcome


def spec(api: FakeApi) -> dict[str, Any]:
    found: dict[str, Any] = api.objects["lease"]["kvaware-system", "kvaware-operator"]["spec"]
    return found


async def put(api: FakeApi, **fields: Any) -> None:
    metadata = {"name": "kvaware-operator", "namespace": "kvaware-system"}
    await api.put("lease", {"metadata": metadata, "spec": fields})


def tries(api: FakeApi) -> int:
    return len(api.requests)


@pytest.fixture
async def make(source: KubernetesSource) -> AsyncIterator[Callable[..., Candidate]]:
    made: list[Candidate] = []

    def one(name: str = "a", **more: Any) -> Candidate:
        made.append(Candidate(source, name, time=more.pop("time", FakeTime()), **more))
        return made[-1]

    yield one
    for each in made:
        if each.task is not None and not each.task.done():
            await each.stop()


@asynccontextmanager
async def leading(candidate: Candidate) -> AsyncIterator[None]:
    candidate.start()
    await eventually(lambda: candidate.leads and candidate.time.asleep() == 1)
    yield


async def renewed(candidate: Candidate, api: FakeApi) -> None:
    """One more renewal, well."""
    before = api.version
    candidate.time.move(2.4)
    await eventually(lambda: api.version > before and candidate.time.asleep() == 1)


async def test_a_free_lease_is_taken_and_kept(api, make):
    a = make()
    async with leading(a):
        assert a.lease.held()
        assert spec(api) == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }
        for _ in range(20):  # 48 s: three times its duration
            await renewed(a, api)
        assert a.lease.held()
        assert a.leads
    reads = sum(method == "GET" for method, *_ in api.requests)
    assert reads == 1  # a leader writes without reading


async def test_a_second_one_waits_until_the_first_lets_go(api, make):
    a, b = make("a"), make("b")
    async with leading(a):
        b.start()
        await eventually(lambda: b.time.asleep() == 1)
        assert b.lease.holder == "a"
        # when: a rolling update stops the first
        outcome = await a.stop()
        assert isinstance(outcome, asyncio.CancelledError)
        assert not a.leads
        assert spec(api)["holderIdentity"] == ""
        # then: the second need not wait the lease out
        b.time.move(2.4)
        await eventually(lambda: b.leads)
        assert spec(api)["holderIdentity"] == "b"
        assert spec(api)["leaseTransitions"] == 1


async def test_a_dead_ones_lease_is_taken_only_after_its_full_duration(api, make):
    """The time is counted from when it was first seen, whatever the clock on the Lease says."""
    await put(api, holderIdentity="dead", leaseDurationSeconds=15, renewTime="2001-01-01T00:00:00.000000Z")
    b = make("b")
    b.start()
    await eventually(lambda: b.time.asleep() == 1)
    for _ in range(6):  # 14.4 s
        before = tries(api)
        b.time.move(2.4)
        await eventually(lambda: tries(api) > before and b.time.asleep() == 1)  # noqa: B023  # awaited at once
        assert not b.leads
    b.time.move(2.4)
    await eventually(lambda: b.leads)
    assert spec(api)["holderIdentity"] == "b"


async def test_a_holder_who_renews_is_never_robbed(api, make):
    b = make("b")
    for number in range(12):  # 29 s
        await put(api, holderIdentity="a", leaseDurationSeconds=15, renewTime=f"t{number}")
        if b.task is None:
            b.start()
        else:
            before = tries(api)
            b.time.move(2.4)
            await eventually(lambda: tries(api) > before)  # noqa: B023  # awaited at once
        await eventually(lambda: b.time.asleep() == 1)
    assert not b.leads
    assert spec(api)["holderIdentity"] == "a"


async def test_what_others_wrote_into_the_lease_stays(api, make):
    """Coordinated leader election keeps a strategy and a preferred holder there."""
    await put(api, strategy="OldestEmulationVersion", leaseTransitions=4)
    a = make()
    async with leading(a):
        assert spec(api)["strategy"] == "OldestEmulationVersion"
        assert spec(api)["leaseTransitions"] == 5


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(api, make, logs):
    """At 10 s of 15: the rest is for stopping."""
    a = make()
    async with leading(a):
        api.failures["write"] = Failure(500, times=10**6)
        api.failures["object"] = Failure(500, times=10**6)
        taken_at_s = a.time.now_s
        while await a.waits():
            a.time.move(0.5)
            assert a.time.now_s < taken_at_s + 15
        assert isinstance(await a.outcome(), LeaseLostError)
        assert a.time.now_s >= taken_at_s + 10
        assert not a.leads
        assert not a.lease.held()
    troubled = [each for each in logs if each["event"] == "lease not taken or renewed"]
    assert len(troubled) == 1  # the change, not the repetition
    assert a.lease.problem is not None
    assert "500" in a.lease.problem


async def test_a_short_failure_loses_nothing(api, make):
    a = make()
    async with leading(a):
        api.failures["write"] = Failure(503, times=2)
        for _ in range(4):
            before = tries(api)
            a.time.move(2.4)
            await eventually(lambda: tries(api) > before and a.time.asleep() == 1)  # noqa: B023  # awaited at once
        assert a.leads
        assert a.lease.problem is None
        for _ in range(5):
            await renewed(a, api)


async def test_a_leader_whose_lease_is_anothers_stops_at_once(api, make):
    a = make()
    async with leading(a):
        await put(api, holderIdentity="b", leaseDurationSeconds=15, renewTime="now")
        a.time.move(2.4)
        lost = await a.outcome()
        assert isinstance(lost, LeaseLostError)
        assert "taken by b" in str(lost)
        assert not a.leads
        assert spec(api)["holderIdentity"] == "b"  # and is not released by who lost it


async def test_another_one_that_has_come_and_gone_has_led_meanwhile(api, make):
    """The lease is free again, but what was decided in between is not known here."""
    a = make()
    async with leading(a):
        await put(api, holderIdentity="", leaseDurationSeconds=1)
        a.time.move(2.4)
        assert isinstance(await a.outcome(), LeaseLostError)


async def test_a_process_that_was_stopped_for_long_does_not_lead_on(api, make):
    """A suspended machine: the work must not go on with a lease that another has had since."""
    a = make()
    async with leading(a):
        asked = tries(api)
        a.time.move(60)
        assert not a.lease.held()
        assert isinstance(await a.outcome(), LeaseLostError)
        assert not a.leads
        assert tries(api) == asked  # nothing is written with a lease that has ended


async def test_work_that_ends_gives_the_lease_back(api, make):
    a = make()
    async with leading(a):
        a.ended.set()
        assert await a.outcome() is None
        assert spec(api)["holderIdentity"] == ""


async def test_work_that_fails_gives_the_lease_back_and_its_error_on(api, make):
    async def fail() -> None:
        raise KeyError("fault")

    a = make()
    a.start(fail)
    assert isinstance(await a.outcome(), KeyError)
    assert spec(api)["holderIdentity"] == ""


async def test_the_lease_is_kept_while_cancelled_work_cleans_up(api, make):
    """What the work writes at its end is still a leader's."""
    a = make()
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned.wait()

    a.start(work)
    await eventually(lambda: a.time.asleep() == 1)
    assert a.task is not None
    a.task.cancel()
    for _ in range(10):  # 24 s
        before = api.version
        a.time.move(2.4)
        await eventually(lambda: api.version > before and a.time.asleep() == 2)  # noqa: B023  # awaited at once
        assert a.lease.held()
    assert not a.task.done()
    cleaned.set()
    assert isinstance(await a.outcome(), asyncio.CancelledError)
    assert spec(api)["holderIdentity"] == ""


async def test_work_that_does_not_stop_is_not_waited_for_beyond_the_lease(api, make, logs):
    """The owner of the process learns of it in time and ends it."""
    a = make()
    go_on = asyncio.Event()

    async def stubborn() -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    a.start(stubborn)
    await eventually(lambda: a.time.asleep() == 1)
    await put(api, holderIdentity="b", leaseDurationSeconds=15, renewTime="now")
    while await a.waits():
        a.time.move(1)
    assert isinstance(await a.outcome(), LeaseLostError)
    assert any(each["event"] == "work goes on after its lease has ended" for each in logs)
    go_on.set()


async def test_of_two_who_see_no_lease_one_creates_it(api, make):
    a, b = make("a"), make("b")
    a.start()
    b.start()
    await eventually(lambda: a.leads or b.leads)
    await eventually(lambda: a.time.asleep() == 1 and b.time.asleep() == 1)
    assert a.leads != b.leads


async def test_a_write_in_doubt_is_looked_up(api):
    """It was carried out and not answered: the lease is ours, as the next read shows."""
    time = FakeTime()
    async with connected(api, write_timeout_s=0.2) as source:
        a = Candidate(source, "a", time=time)
        api.write_delay_s = 5.0
        a.start()
        await eventually(lambda: time.asleep() == 1)
        assert not a.leads
        api.write_delay_s = 0.0
        time.move(2.4)
        await eventually(lambda: a.leads)
        assert spec(api)["leaseTransitions"] == 0
        await a.stop()


async def test_a_missing_right_is_said(api, make):
    api.failures["object"] = Failure(403, body={"reason": "Forbidden", "message": "cannot get leases"}, times=10**6)
    a = make()
    a.start()
    await eventually(lambda: a.lease.problem is not None)
    assert a.lease.problem is not None
    assert "cannot get leases" in a.lease.problem
    assert not a.lease.held()
    assert a.lease.holder == ""


@pytest.mark.parametrize("body", [{"spec": []}, {"spec": "x"}, []])
async def test_a_lease_that_cannot_be_read_is_not_taken(api, make, body: Any):
    api.failures["object"] = Failure(200, body=body)
    a = make()
    a.start()
    await eventually(lambda: a.time.asleep() == 1)
    assert not a.leads
    a.time.move(2.4)
    await eventually(lambda: a.leads)


@pytest.mark.parametrize(
    "timing",
    [
        LeaseTiming(duration_s=10, renew_deadline_s=10, retry_s=2),
        LeaseTiming(duration_s=15, renew_deadline_s=2, retry_s=2),
        LeaseTiming(duration_s=15, renew_deadline_s=2.3, retry_s=2),  # a fifth of jitter would reach it
    ],
)
async def test_times_that_could_let_two_lead_are_refused(source, timing: LeaseTiming):
    with pytest.raises(ConfigError, match="renew_deadline_s"):
        Candidate(source, "a", time=FakeTime(), timing=timing)


async def test_a_lease_without_a_name_is_refused(source):
    with pytest.raises(ConfigError, match="namespace and name"):
        LeaderLease(source.http, namespace="", name="x", identity="a", clock=FakeTime())


def test_two_processes_never_have_one_identity():
    """A container that restarts keeps its host name, and its process id is 1 each time."""
    assert new_identity() != new_identity()


async def test_a_renewal_that_meets_another_writer_goes_on_if_the_lease_is_still_ours(api, make):
    """Somebody labels the Lease: a conflict, and no reason to stop."""
    a = make()
    async with leading(a):
        lease = api.objects["lease"]["kvaware-system", "kvaware-operator"]
        await api.put("lease", {**lease, "metadata": {**lease["metadata"], "labels": {"seen": "yes"}}})
        before = tries(api)
        a.time.move(2.4)
        await eventually(lambda: tries(api) > before and a.time.asleep() == 1)
        await renewed(a, api)
        assert a.leads
        assert api.objects["lease"]["kvaware-system", "kvaware-operator"]["metadata"]["labels"] == {"seen": "yes"}


async def test_a_call_that_hangs_does_not_use_up_the_whole_deadline(api):
    """The API server accepts and never answers; the next try may reach another one."""
    timing = LeaseTiming(duration_s=1.5, renew_deadline_s=0.4, retry_s=0.05)
    time = FakeTime()
    async with connected(api) as source:
        await source.get_pod("ml", "nobody")  # the first call also opens the session
        a = Candidate(source, "a", time=time, timing=timing)
        api.write_delay_s = 60.0
        a.start()
        await eventually(lambda: time.asleep() == 1)  # given up after half of 0.4 s
        assert a.lease.problem is not None
        assert "TimeoutError" in a.lease.problem
        api.write_delay_s = 0.0
        while not a.leads:  # a slow machine may need more than one try of 0.2 s
            time.move(0.1)
            await eventually(lambda: a.leads or time.asleep() > 0)
        await a.stop()
