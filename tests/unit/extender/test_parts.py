"""Small parts: locks, pace, repeats, freshness, the decision log's queue."""

import asyncio
import io
import sys
from types import MappingProxyType

import orjson
import pytest

from kvaware_cluster import Kind
from kvaware_engine import PodDemand, Reason
from kvaware_extender import StaleView
from kvaware_extender.decision_log import AT_A_TIME, COLLECT_S, DecisionLog
from kvaware_extender.freshness import Freshness
from kvaware_extender.locks import KeyedLocks
from kvaware_extender.pace import Pace
from kvaware_extender.repeats import Repeats
from kvaware_extender.tasks import Tasks


def demand(uid="u", gpus=1):
    return PodDemand(
        uid=uid,
        namespace="ml",
        name="p",
        tenant="ml",
        model=None,
        model_id="",
        role=None,
        resource="nvidia.com/gpu",
        gpus=gpus,
        hbm_per_gpu_bytes=None,
        priority=0,
    )


async def test_a_key_is_locked_in_turn_and_forgotten_afterwards():
    """A table of locks that only grows would be a leak: one entry per pod ever bound."""
    locks = KeyedLocks()
    order = []

    async def work(name, key):
        async with locks.hold(key):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(work("a", "k"), work("b", "k"), work("c", "other"))
    assert order.index("a out") < order.index("b in")
    assert order.index("c in") < order.index("a out")
    assert len(locks) == 0


async def test_who_gives_up_waiting_leaves_no_lock_behind():
    locks = KeyedLocks()
    async with locks.hold("k"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), locks.hold("k"):
                pytest.fail("it is held")
    assert len(locks) == 0


def test_pace_allows_a_burst_and_then_the_rate():
    now_s = [0.0]
    pace = Pace(per_s=2, burst=3, clock=lambda: now_s[0])
    assert [pace.take() for _ in range(4)] == [True, True, True, False]
    now_s[0] = 0.5  # 0.5 s * 2 per s = 1
    assert [pace.take(), pace.take()] == [True, False]
    now_s[0] = 100.0
    assert [pace.take() for _ in range(4)] == [True, True, True, False]


def body(*names):
    return orjson.dumps({"Pod": {}, "NodeNames": names})


def test_a_reply_is_given_again_for_the_same_pod_nodes_and_state_only():
    repeats = Repeats(100_000)
    repeats.put(demand(), version=1, body=body("a", "b"), reply=b"reply", reason=Reason.GPU_COUNT)

    def ask(asked=None, *, version=1, names=("a", "b")):
        return repeats.get(asked or demand(), version=version, body=body(*names), names=list(names))

    assert (ask().reply, ask().reason) == (b"reply", Reason.GPU_COUNT)
    assert ask(names=("b", "a")).reply == b"reply", "kube-scheduler collects nodes in parallel: any order"
    assert ask(version=2) is None
    assert ask(demand(gpus=2)) is None
    assert ask(demand("other")) is None
    assert ask(names=("a",)) is None
    assert ask(names=("a", "c")) is None
    assert ask(names=("a", "b", "c")) is None
    assert ask(names=("a", "a")) is None, "a name that was not offered must not come back"


def test_kept_replies_are_bounded_in_bytes():
    repeats = Repeats(10_000)
    repeats.put(demand("huge"), version=1, body=body(), reply=b"x" * 20_000, reason=None)
    assert repeats.get(demand("huge"), version=1, body=body(), names=[]) is None
    for i in range(20):
        repeats.put(demand(f"u{i}"), version=1, body=body(), reply=b"x" * 1000, reason=None)
    kept = [i for i in range(20) if repeats.get(demand(f"u{i}"), version=1, body=body(), names=[])]
    assert kept == list(range(14, 20))  # 10,000 / (1,000 + 500 + a body of some 25) = 6


class View:
    def __init__(self, *, synced=True, **ages):
        self._synced = synced
        self._ages = {kind: ages.get(kind.name.lower(), 1.0) for kind in Kind}

    def synced(self):
        return self._synced

    def ages(self):
        return self._ages

    def pod(self, namespace, name):
        return None

    def objects(self, kind):
        return MappingProxyType({})


@pytest.mark.parametrize(
    ("view", "rule", "problem"),
    [
        pytest.param(View(), StaleView.REFUSE, None, id="fresh"),
        pytest.param(View(pod=61.0), StaleView.REFUSE, "older than 60 s: pod", id="old"),
        pytest.param(View(pod=61.0), StaleView.ADMIT, None, id="old, and that is allowed"),
        pytest.param(View(tenant_quota=None), StaleView.REFUSE, "cannot be listed: tenantquota", id="unknown"),
        pytest.param(View(tenant_quota=None), StaleView.ADMIT, "cannot be listed: tenantquota", id="unknown, allowed"),
        pytest.param(View(synced=False, pod=None), StaleView.ADMIT, "not been read completely", id="not read yet"),
        pytest.param(View(synced=False), StaleView.REFUSE, "not been read completely", id="exporters not asked yet"),
        pytest.param(View(synced=False), StaleView.ADMIT, "not been read completely", id="not asked yet, old allowed"),
    ],
)
def test_the_rule_of_stale_views(view, rule, problem):
    freshness = Freshness(view, stale_view=rule, max_view_age_s=60)
    assert freshness.stale() is (problem is not None)
    if problem is None:
        assert freshness.problem() is None
    else:
        assert problem in freshness.problem()


class Line:
    def __init__(self, value):
        self._value = value

    def fields(self):
        if self._value == "broken":
            raise ValueError(self._value)
        return {"value": self._value}


def test_records_that_find_the_queue_full_are_dropped_and_counted():
    """A decision never waits for its log."""
    log = DecisionLog(target="-", capacity=2)
    log._thread = object()  # type: ignore[assignment] # a thread that takes nothing
    for i in range(5):
        log.put(Line(i))
    assert log.dropped == 3


def test_a_record_that_cannot_be_rendered_is_counted_and_the_others_are_written(tmp_path):
    path = tmp_path / "log"
    log = DecisionLog(target=str(path), capacity=10)
    log.open()
    for value in (1, "broken", 2):
        log.put(Line(value))
    log.close()
    assert path.read_bytes() == b'{"value":1}\n{"value":2}\n'
    assert (log.failed, log.dropped) == (1, 0)


def test_the_thread_rests_between_writes_but_not_while_the_log_is_closed(tmp_path, monkeypatch):
    """At 30,000 records a second it would take the interpreter from the loop; what it cannot write is dropped."""
    rests: list[float] = []
    log = DecisionLog(target=str(tmp_path / "log"), capacity=1000)
    spent = iter(range(1000))
    monkeypatch.setattr("kvaware_extender.decision_log.thread_time", lambda: float(next(spent)))

    def wait(rest_s):
        rests.append(rest_s)
        return len(rests) >= 3

    monkeypatch.setattr(log._closing, "wait", wait)
    for value in range(4 * AT_A_TIME):
        log._queue.append(Line(value))
    with (tmp_path / "log").open("ab") as out:
        log._write_all(out)
    # 1 s of work at a share of 0.1: 9 s of rest; then it is closed, and the last two writes follow at once
    assert rests == [COLLECT_S, pytest.approx(9.0), pytest.approx(9.0)]
    assert len((tmp_path / "log").read_bytes().splitlines()) == 4 * AT_A_TIME


def test_the_thread_collects_what_comes_while_it_writes(tmp_path, monkeypatch):
    """Else it would wake up for each record: that takes longer than to write one, and the loop stands still for it."""
    waits: list[float] = []
    log = DecisionLog(target=str(tmp_path / "log"), capacity=1000)
    spent = iter(range(1000))
    monkeypatch.setattr("kvaware_extender.decision_log.thread_time", lambda: float(next(spent)))

    def wait(for_s):
        waits.append(for_s)
        log._queue.append(Line(len(waits)))
        return len(waits) >= 5

    monkeypatch.setattr(log._closing, "wait", wait)
    with (tmp_path / "log").open("ab") as out:
        log._write_all(out)
    assert waits == [COLLECT_S, pytest.approx(9.0), COLLECT_S, pytest.approx(9.0), COLLECT_S]
    values = [orjson.loads(line)["value"] for line in (tmp_path / "log").read_bytes().splitlines()]
    assert values == [1, 2, 3, 4, 5]


def test_records_of_many_writes_stay_in_order(tmp_path):
    """Several at a time, so that the loop gets its turn between them; the last ones when the log is closed."""
    path = tmp_path / "log"
    log = DecisionLog(target=str(path), capacity=1000)
    log.open()
    for value in range(100):
        log.put(Line(value))
    log.close()
    assert [orjson.loads(line)["value"] for line in path.read_bytes().splitlines()] == list(range(100))


def test_a_dash_means_standard_output(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    log = DecisionLog(target="-", capacity=10)
    log.open()
    log.put(Line(1))
    log.close()
    assert out.buffer.getvalue() == b'{"value":1}\n'


async def test_close_waits_for_jobs_and_cancels_errands():
    tasks = Tasks()
    done = []
    go = asyncio.Event()

    async def job():
        await go.wait()
        done.append("job")

    async def errand():
        await asyncio.Event().wait()
        done.append("errand")

    async def forever():
        await asyncio.Event().wait()

    tasks.loop("loop", forever())
    tasks.job("job", job())
    tasks.errand("errand", errand())
    closing = asyncio.create_task(tasks.close(grace_s=5))
    await asyncio.sleep(0)
    go.set()
    await closing
    tasks.errand("late", errand())
    assert done == ["job"]
    assert tasks.ended is None
    assert len(asyncio.all_tasks()) == 1
