import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvaware_cluster import (
    Discovery,
    DiscoverySettings,
    KubernetesSource,
    ScaleTarget,
    WorkloadKind,
    WorkloadWatches,
    WorkloadWatchSettings,
)
from kvaware_cluster.reflector import Reflector
from kvaware_testing.fake_objects import FakeKind, raw_workload
from kvaware_testing.store_harness import FakeClock, eventually, running

LLAMA = ScaleTarget("apps/v1", "Deployment", "ml", "llama")
DEPLOYMENTS = LLAMA.workload_kind
LWS = WorkloadKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
QUICK = WorkloadWatchSettings(
    absent_again_s=0.005, backoff_first_s=0.005, backoff_max_s=0.02, retry_after_max_s=0.05, watch_min_s=0.02
)
AT_ONCE = DiscoverySettings(ttl_s=300, absent_ttl_s=0.000001)


class Told:
    """What was told, and a way to wait for it."""

    def __init__(self) -> None:
        self.targets: list[ScaleTarget] = []
        self._news = asyncio.Event()

    def __call__(self, target: ScaleTarget) -> None:
        self.targets.append(target)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def watches(source: KubernetesSource, told: Told, clock: FakeClock) -> WorkloadWatches:
    # the clock stands still: what is absent is asked for again only where a test moves it
    discovery = Discovery(source.http, settings=AT_ONCE, clock=clock)
    rng = random.Random(1)  # noqa: S311  # jitter
    return WorkloadWatches(source.http, discovery, changed=told, clock=clock, settings=QUICK, rng=rng)


async def test_every_change_of_a_wanted_workload_is_told(api, watches, told):
    """Somebody scales it, its replicas get Ready, it goes and comes back: each time its model is looked at."""
    await api.put("deployment", raw_workload(replicas=1))
    watches.want([LLAMA])
    async with running(watches):
        await told.until(lambda: told.targets == [LLAMA])  # it is there
        await eventually(lambda: api.watching("deployment") == 1)
        await api.put("deployment", raw_workload(replicas=2, running=1))
        await told.until(lambda: len(told.targets) == 2)
        await api.put("deployment", raw_workload(replicas=2, running=2))  # status alone
        await told.until(lambda: len(told.targets) == 3)
        await api.delete("deployment", "ml", "llama")
        await told.until(lambda: len(told.targets) == 4)
        await api.put("deployment", raw_workload())
        await told.until(lambda: len(told.targets) == 5)
    assert set(told.targets) == {LLAMA}


async def test_workloads_that_nobody_names_are_not_told(api, watches, told):
    watches.want([LLAMA])
    async with running(watches):
        await eventually(lambda: api.watching("deployment") == 1)
        await api.put("deployment", raw_workload("web"))
        await api.put("deployment", raw_workload(namespace="other"))
        await api.put("deployment", raw_workload())
        await told.until(lambda: bool(told.targets))
    assert told.targets == [LLAMA]


async def test_a_target_that_comes_later_is_told_of_its_deletion_too(api, watches, told):
    """It was seen before anybody wanted it."""
    await api.put("deployment", raw_workload("late"))
    late = LLAMA._replace(name="late")
    watches.want([LLAMA])
    async with running(watches):
        await eventually(lambda: api.watching("deployment") == 1)
        watches.want([LLAMA, late])
        await api.delete("deployment", "ml", "late")
        await told.until(lambda: bool(told.targets))
    assert told.targets == [late]


async def test_only_metadata_is_asked_for_and_nothing_while_nothing_happens(api, watches, told):
    """A thousand deployments are read without their pod templates, once, and then watched."""
    for number in range(7):
        await api.put("deployment", raw_workload(f"d{number}"))
    watches.want([LLAMA, LLAMA._replace(name="d3")])
    async with running(watches):
        await eventually(lambda: api.watching("deployment") == 1)
        asked = len(api.requests)
        await api.bookmark("deployment")
        await api.put("deployment", raw_workload("d3", replicas=2))
        await told.until(lambda: len(told.targets) == 2)
        assert len(api.requests) == asked
    accepted = [headers["accept"] for _, path, _, headers in api.requests if path == "/apis/apps/v1/deployments"]
    assert len(accepted) == 4  # 7 objects in pages of 3, one watch
    assert all("as=PartialObjectMetadata" in each for each in accepted)
    assert all(each.endswith(",application/json") for each in accepted)


async def test_kinds_come_and_go_at_runtime(api, watches):
    api.kinds["lws"] = FakeKind(api_version=LWS.api_version, kind=LWS.kind, plural="leaderworkersets", scalable=True)
    async with running(watches):
        assert watches.ages() == {}
        watches.want([LLAMA])
        await eventually(lambda: api.watching("deployment") == 1)
        watches.want([LLAMA, ScaleTarget(*LWS, "ml", "big")])
        assert watches.ages()[LWS] is None
        await eventually(lambda: api.watching("lws") == 1)
        await eventually(lambda: watches.ages() == {DEPLOYMENTS: 0.0, LWS: 0.0})
        watches.want([ScaleTarget(*LWS, "ml", "big")])
        await eventually(lambda: api.watching("deployment") == 0)
        assert watches.ages() == {LWS: 0.0}
        watches.want([])
        await eventually(lambda: api.watching("lws") == 0)
        watches.want([LLAMA])
        await eventually(lambda: api.watching("deployment") == 1)


async def test_a_forbidden_kind_is_unknown_until_it_may_be_read(api, watches, told, logs):
    """The operator's role may lack a kind that a user names: its scales are polled meanwhile."""
    await api.put("deployment", raw_workload())
    api.forbidden.add("deployment")
    watches.want([LLAMA])
    async with running(watches):
        await eventually(lambda: api.count("deployment", watch=False) >= 3)
        assert watches.ages() == {DEPLOYMENTS: None}
        assert watches.unwatched() == {DEPLOYMENTS: "it cannot be listed"}
        assert told.targets == []
        api.forbidden.clear()
        await told.until(lambda: told.targets == [LLAMA])
        await eventually(lambda: watches.ages() == {DEPLOYMENTS: 0.0})
    interrupted = [each for each in logs if each["event"] == "watch interrupted"]
    assert [(each["kind"], each["trouble"]) for each in interrupted] == [("apps/v1 Deployment", "ClusterApiError")]


async def test_a_kind_whose_crd_arrives_late_is_watched_then(api, watches, told, clock, logs):
    target = ScaleTarget(*LWS, "ml", "big")
    watches.want([target])
    async with running(watches):
        await eventually(lambda: "it has no leaderworkerset.x-k8s.io/v1 Leader" in watches.unwatched()[LWS])
        assert watches.ages() == {LWS: None}
        api.kinds["lws"] = FakeKind(api_version=LWS.api_version, kind=LWS.kind, plural="lwsets", scalable=True)
        await api.put("lws", raw_workload("big"))
        clock.now_s += 10  # discovery is that old now
        await told.until(lambda: told.targets == [target])
    assert all(each["log_level"] != "error" for each in logs)


async def test_kinds_that_nobody_serves_cost_next_to_nothing(api, watches, told):
    """Any user may name a thousand of them; a GET per minute and kind would be 17 a second."""
    await api.put("deployment", raw_workload())
    bogus = [ScaleTarget(f"bogus{number}.example/v1", "Thing", "ml", "x") for number in range(1000)]
    misspelt = [LLAMA._replace(kind=f"Deploymint{number}") for number in range(1000)]
    watches.want([*bogus, *misspelt, LLAMA])
    async with running(watches):
        await told.until(lambda: told.targets == [LLAMA])  # they take no place from it either
        await eventually(lambda: "not looked up yet" not in watches.unwatched().values())
        assert len(watches.unwatched()) == 2000
        asked = [path for _, path, query, _ in api.requests if "watch" not in query and "limit" not in query]
    assert sorted(asked) == ["/apis", "/apis/apps/v1"]


async def test_so_many_kinds_are_watched_and_no_more(api, source, told, clock):
    """Those that most models name come first; the others say why not, and get a place that becomes free."""
    kinds = [WorkloadKind(f"g{number}.example/v1", "Thing") for number in range(4)]
    for number, kind in enumerate(kinds):
        api.kinds[f"k{number}"] = FakeKind(api_version=kind.api_version, kind=kind.kind, plural="things", scalable=True)
    discovery = Discovery(source.http, settings=AT_ONCE, clock=clock)
    watches = WorkloadWatches(source.http, discovery, changed=told, clock=clock, settings=replace(QUICK, kinds_max=2))
    used_most = [ScaleTarget(*kinds[3], "ml", f"x{number}") for number in range(3)]
    watches.want([*used_most, *(ScaleTarget(*kind, "ml", "x") for kind in kinds)])
    async with running(watches):
        await eventually(lambda: list(watches.unwatched().values()) == ["only 2 kinds are watched at a time"] * 2)
        left = sorted(watches.unwatched())
        assert kinds[3] not in left
        watches.want([ScaleTarget(*kind, "ml", "x") for kind in left])
        await eventually(lambda: watches.ages() == dict.fromkeys(left, 0.0))
        assert watches.unwatched() == {}


async def test_an_api_that_does_not_answer_holds_up_no_other(api, watches, told, clock):
    """An aggregated API whose server is down; its kinds are asked for once per try, not once each."""
    await api.put("deployment", raw_workload())
    api.kinds["broken"] = FakeKind(api_version="broken.example/v1", kind="Thing", plural="things", scalable=True)
    api.broken.add("/apis/broken.example/v1")
    broken = [ScaleTarget("broken.example/v1", f"Thing{number}", "ml", "x") for number in range(50)]
    watches.want([LLAMA, *broken])
    async with running(watches):
        await told.until(lambda: told.targets == [LLAMA])
        await eventually(lambda: len({*watches.unwatched().values()}) == 1)
        assert all("cannot be looked up" in problem for problem in watches.unwatched().values())
        assert LLAMA.workload_kind not in watches.unwatched()
        api.broken.clear()
        clock.now_s += 10
        await eventually(lambda: all("serves, it has no" in problem for problem in watches.unwatched().values()))


async def test_a_kind_that_disappears_is_unknown_again(api, watches, clock):
    watches.want([LLAMA])
    async with running(watches):
        await eventually(lambda: watches.ages() == {DEPLOYMENTS: 0.0})
        clock.now_s += 20
        assert watches.ages() == {DEPLOYMENTS: 20.0}
        api.hidden.add("deployment")
        await api.end_watches("deployment")
        await eventually(lambda: watches.ages() == {DEPLOYMENTS: None})


async def test_a_cut_watch_misses_nothing(api, watches, told):
    await api.put("deployment", raw_workload())
    watches.want([LLAMA])
    async with running(watches):
        await eventually(lambda: api.watching("deployment") == 1)
        api.cut("deployment")
        await api.put("deployment", raw_workload(replicas=5))
        await told.until(lambda: len(told.targets) == 2)
        lists = api.count("deployment", watch=False)
        await eventually(lambda: api.watching("deployment") == 1)
        await api.compact()
        api.cut("deployment")
        await api.put("deployment", raw_workload(replicas=6))
        await told.until(lambda: len(told.targets) == 3)
        assert api.count("deployment", watch=False) <= lists + 1  # a list only where the version is too old


async def test_a_callback_that_fails_is_told_again(api, watches, told, logs):
    """As with a store's listener: a fault of the receiver must not lose the change."""
    failed: list[ScaleTarget] = []
    take = told.__call__

    def fail_once(target: ScaleTarget) -> None:
        if not failed:
            failed.append(target)
            raise KeyError("fault")
        take(target)

    watches._changed = fail_once
    await api.put("deployment", raw_workload())
    watches.want([LLAMA])
    async with running(watches):
        await told.until(lambda: told.targets == [LLAMA])
    assert failed == [LLAMA]


async def test_a_watch_that_ends_by_itself_ends_all(watches, monkeypatch):
    """nolar/kopf#1276: a watch task that ended silently left a process that looked well."""

    async def end(self: Reflector[str]) -> None:
        return None

    monkeypatch.setattr(Reflector, "run", end)
    watches.want([LLAMA])
    with pytest.raises(RuntimeError, match="watch-apps/v1 Deployment ended by itself"):
        async with asyncio.timeout(30):
            await watches.run()
