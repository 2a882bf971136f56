"""A refused pod is brought back when our own view has changed so that it could be placed."""

import pytest

from kvaware_cluster import ClusterApiError, Kind
from kvaware_crds.errors import UpstreamError
from kvaware_extender import WakeUpSettings
from kvaware_extender.wakeups import MOST_OFFERS
from kvaware_testing.extender_harness import MemoryCluster, serving
from kvaware_testing.fake_api import raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually


def condition(cluster, name):
    conditions = cluster.raw_pod(name)["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == "kvaware.io/Placeable"), None)


class FullTable(dict[frozenset[str], frozenset[str]]):
    """Offers of other pods, as many as are kept."""

    def __len__(self) -> int:
        return MOST_OFFERS


@pytest.fixture
def only_our_looks(monkeypatch):
    """Settings with which the loop never looks by itself."""
    monkeypatch.setattr("kvaware_extender.wakeups.LOOK_AT_LEAST_EVERY_S", 1e6)
    return WakeUpSettings(debounce_s=1e6)


def changes_something(number):
    """A pod without GPUs that is bound: a change of the engine's state that frees nothing."""
    return raw_pod(f"change{number}", node="n1", gpus=0, labels={"kvaware.io/model": f"m{number}"})


async def test_the_last_pending_pod_is_woken_once_our_store_has_the_deletion():
    """gpushare-scheduler-extender#187, kubernetes#122019: kube-scheduler's own retry came before we had seen it."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    first = cluster.add_pod(raw_pod("a", node="n1"))
    waiting = cluster.add_pod(raw_pod("b"))
    async with serving(cluster) as caller:
        await caller.until_seen(first)
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == []
        cluster.deliver[Kind.POD].clear()
        cluster.delete_pod("ml", "a")
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == [], "kube-scheduler's retry, too early"
        assert cluster.conditions == []
        cluster.deliver[Kind.POD].set()
        await eventually(lambda: bool(cluster.conditions))
        written = condition(cluster, "b")
        assert (written["status"], written["reason"]) == ("True", "RoomFound")
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == ["n1"]
        assert await caller.bind(waiting, "n1") == ""
        await eventually(lambda: waiting["metadata"]["uid"] not in caller.extender.wakeups)
        assert await caller.metric("kvaware_wakeups_total", '{status="True"}') == 1
    assert cluster.conditions == [("b", "True")], "one wake-up per change"


async def test_a_pod_that_is_refused_again_says_so_once_and_is_not_woken_by_it():
    """The condition is written when the verdict changes; a write per look would be a hot loop."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    cluster.add_pod(raw_pod("a", node="n1"))
    waiting = cluster.add_pod(raw_pod("b"))
    async with serving(cluster) as caller:
        await caller.until_seen(waiting)
        await caller.filter(waiting, "n1")
        cluster.delete_pod("ml", "a")
        await eventually(lambda: bool(cluster.conditions))
        thief = cluster.add_pod(raw_pod("c", node="n1"))
        await caller.until_seen(thief)
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == []
        caller.extender.wakeups.poke()
        await eventually(lambda: len(cluster.conditions) == 2)
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == []
        for i in range(3):
            other = cluster.add_pod(raw_pod(f"other{i}"))
            await caller.until_seen(other)
            await caller.extender.wakeups.look()
        assert cluster.conditions == [("b", "True"), ("b", "False")]
        assert condition(cluster, "b")["reason"] == "NotEnoughGPUs"


async def test_only_the_nodes_that_kube_scheduler_offered_count():
    """Room on a node that the pod may not use would wake it for nothing, again and again."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("tainted", gpus=1))
    cluster.add_pod(raw_pod("a", node="n1"))
    waiting = cluster.add_pod(raw_pod("b"))
    async with serving(cluster) as caller:
        await caller.until_seen(waiting)
        await caller.filter(waiting, "n1")
        other = cluster.add_pod(raw_pod("c", gpus=2))
        await caller.until_seen(other)
        await caller.extender.wakeups.look()
        assert cluster.conditions == []
        cluster.delete_pod("ml", "a")
        await eventually(lambda: cluster.conditions == [("b", "True")])


async def test_a_pod_whose_offer_is_not_remembered_is_woken_by_every_change_that_could_matter():
    """With more node selectors than offers are kept, the wake-up is a guess; a wrong one must not be the last."""
    clock = FakeClock()
    cluster = MemoryCluster(*(raw_node(f"n{i}", gpus=1) for i in range(3)))
    cluster.add_pod(raw_pod("a", node="n0"))
    other, waiting = cluster.add_pod(raw_pod("other", gpus=2)), cluster.add_pod(raw_pod("b"))
    async with serving(cluster, clock=clock, max_view_age_s=1e6) as caller:
        wakeups = caller.extender.wakeups
        await caller.until_seen(waiting)
        for i in range(MOST_OFFERS):
            await caller.filter(other, *(["n1", "n2", *(f"x{j}" for j in range(i))]))
            other = cluster.add_pod(raw_pod(f"other{i}", gpus=2))
        await caller.until_seen(other)
        await wakeups.look()
        assert (await caller.filter(waiting, "n0"))["NodeNames"] == []
        await wakeups.look()
        assert cluster.conditions == [], "filter has refused this very state"
        for seconds in (0.0, 1.0, 2.0, 4.0):  # the time after which the next guess may be made
            clock.now_s += seconds
            before = len(cluster.conditions)
            cluster.add_pod(changes_something(before))
            await eventually(lambda: len(cluster.conditions) == before + 1)  # noqa: B023 - awaited in this turn
            assert (await caller.filter(waiting, "n0"))["NodeNames"] == []
            await wakeups.look()
            assert len(cluster.conditions) == before + 1, "one wake-up per change"
        clock.now_s += 8.0
        cluster.delete_pod("ml", "a")
        await eventually(lambda: len(cluster.conditions) == 5)
        assert (await caller.filter(waiting, "n0"))["NodeNames"] == ["n0"]


async def test_guesses_become_rarer(only_our_looks):
    """In a busy cluster a guess per change would take the writes of pods that can be placed."""
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n0", gpus=1), raw_node("n1", gpus=1))
    cluster.add_pod(raw_pod("a", node="n0"))
    waiting = cluster.add_pod(raw_pod("b"))
    async with serving(cluster, clock=clock, max_view_age_s=1e6, wake_up=only_our_looks) as caller:
        wakeups = caller.extender.wakeups
        wakeups._offers = FullTable()
        await caller.until_seen(waiting)
        for i in range(100):
            await caller.filter(waiting, "n0")
            await caller.until_seen(cluster.add_pod(changes_something(i)))
            await wakeups.look()
            clock.now_s += 0.1
        # within 10 s at 0, 1, 1 + 2 and 1 + 2 + 4 s
        assert len(cluster.conditions) == 4


async def test_a_pod_refused_for_a_stale_view_is_woken_when_the_view_is_fresh_again():
    """Nothing has changed in the cluster then: no event will bring the pod back."""
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    big, waiting = cluster.add_pod(raw_pod("big", gpus=2)), cluster.add_pod(raw_pod("b"))
    async with serving(cluster, clock=clock) as caller:
        wakeups = caller.extender.wakeups
        await caller.until_seen(waiting)
        await caller.filter(big, "n1")
        await wakeups.look()
        clock.now_s += 61
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == []
        await wakeups.look()
        assert cluster.conditions == []
        cluster.prove_fresh()
        await eventually(lambda: not caller.extender.freshness.stale())
        await wakeups.look()
        await eventually(lambda: cluster.conditions == [("b", "True")])


async def test_room_that_goes_and_comes_between_two_looks_wakes_the_pod_again(only_our_looks):
    """It was woken, found the room taken, and waits again: that our condition still says True must not matter."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    cluster.add_pod(raw_pod("a", node="n1"))
    waiting = cluster.add_pod(raw_pod("b"))
    async with serving(cluster, wake_up=only_our_looks) as caller:
        wakeups = caller.extender.wakeups
        await caller.until_seen(waiting)
        await caller.filter(waiting, "n1")
        cluster.delete_pod("ml", "a")
        await eventually(lambda: caller.extender.store.pod("ml", "a") is None)
        await wakeups.look()
        first = condition(cluster, "b")["lastTransitionTime"]
        thief = cluster.add_pod(raw_pod("c", node="n1"))
        await caller.until_seen(thief)
        assert (await caller.filter(waiting, "n1"))["NodeNames"] == []
        cluster.delete_pod("ml", "c")
        await eventually(lambda: not caller.seen(thief))
        await wakeups.look()
        assert cluster.conditions == [("b", "True"), ("b", "True")]
        assert condition(cluster, "b")["lastTransitionTime"] > first, "an API server tells nobody of equal objects"


async def test_of_many_that_wait_for_one_gpu_no_more_are_woken_than_writes_are_allowed():
    """One freed GPU must not become 1,000 writes: the rate is bounded, and room that is taken stops it."""
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    cluster.add_pod(raw_pod("a", node="n1"))
    pods = [cluster.add_pod(raw_pod(f"p{i}")) for i in range(20)]
    settings = WakeUpSettings(debounce_s=0.005, per_s=1, burst=3)
    async with serving(cluster, clock=clock, wake_up=settings, max_view_age_s=1e6) as caller:
        await caller.until_seen(pods[-1])
        for pod in pods:
            await caller.filter(pod, "n1")
        cluster.delete_pod("ml", "a")
        await eventually(lambda: len(cluster.conditions) == 3)
        await caller.extender.wakeups.look()
        assert cluster.conditions == [("p0", "True"), ("p1", "True"), ("p2", "True")]
        clock.now_s += 1.5
        await caller.extender.wakeups.look()
        assert len(cluster.conditions) == 4
        assert (await caller.filter(pods[0], "n1"))["NodeNames"] == ["n1"]  # the intent takes the room
        clock.now_s += 5
        await caller.extender.wakeups.look()
        assert len(cluster.conditions) == 4


async def test_a_write_that_failed_is_tried_again():
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    cluster.add_pod(raw_pod("a", node="n1"))
    waiting = cluster.add_pod(raw_pod("b"))
    cluster.patch_error = UpstreamError("connection reset")
    async with serving(cluster) as caller:
        await caller.until_seen(waiting)
        await caller.filter(waiting, "n1")
        cluster.delete_pod("ml", "a")
        await eventually(lambda: "patch_pod_condition" in cluster.calls)
        cluster.patch_error = None
        await caller.extender.wakeups.look()
        await eventually(lambda: cluster.conditions == [("b", "True")])


async def test_a_pod_whose_condition_is_refused_does_not_hold_up_the_others():
    """Its namespace may have a policy of its own, or a webhook that does not answer; others are woken all the same."""
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1", gpus=2))
    cluster.add_pod(raw_pod("a", node="n1", gpus=2))
    pods = [cluster.add_pod(raw_pod(name)) for name in ("bad", "good")]
    cluster.patch_errors["bad"] = ClusterApiError("not in this namespace", status=403, reason="Forbidden")
    async with serving(cluster, clock=clock, max_view_age_s=1e6) as caller:
        for pod in pods:
            await caller.until_seen(pod)
            await caller.filter(pod, "n1")
            clock.now_s += 0.1
        cluster.delete_pod("ml", "a")
        await eventually(lambda: cluster.conditions == [("good", "True")])
        tries = cluster.calls.count("patch_pod_condition")
        for _ in range(5):
            caller.extender.wakeups._looked_at = None
            await caller.extender.wakeups.look()
        assert cluster.calls.count("patch_pod_condition") == tries, "it is not asked for again and again"
        cluster.patch_errors.clear()
        clock.now_s += 31
        caller.extender.wakeups._looked_at = None
        await caller.extender.wakeups.look()
        await eventually(lambda: cluster.conditions == [("good", "True"), ("bad", "True")])


async def test_pods_that_are_gone_are_forgotten():
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pods = [cluster.add_pod(raw_pod(f"p{i}", gpus=2)) for i in range(5)]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        for pod in pods:
            await caller.filter(pod, "n1")
        assert await caller.metric("scheduler_queue_length") == 5
        big_enough = cluster.add_pod(raw_pod("q"))
        await caller.filter(big_enough, "n1")
        assert await caller.metric("scheduler_queue_length") == 5, "it was admitted"
        for pod in pods:
            cluster.delete_pod("ml", pod["metadata"]["name"])
        await eventually(lambda: len(caller.extender.wakeups) == 0)


async def test_a_pod_that_is_admitted_waits_no_more_until_it_is_refused_again():
    """``scheduler_queue_length`` is read as "how many wait"."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    first = cluster.add_pod(raw_pod("a", node="n1"))
    pod = cluster.add_pod(raw_pod("b"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        await caller.filter(pod, "n1")
        assert await caller.metric("scheduler_queue_length") == 1
        cluster.delete_pod("ml", "a")
        await eventually(lambda: not caller.seen(first))
        await caller.filter(pod, "n1")
        assert await caller.metric("scheduler_queue_length") == 0
        await caller.until_seen(cluster.add_pod(raw_pod("c", node="n1")))
        await caller.filter(pod, "n1")
        assert await caller.metric("scheduler_queue_length") == 1
