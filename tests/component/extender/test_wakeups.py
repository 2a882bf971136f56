"""A refused pod is brought back when our own view has changed so that it could be placed."""

from kvaware_cluster import Kind
from kvaware_crds.errors import UpstreamError
from kvaware_extender import WakeUpSettings
from kvaware_testing.extender_harness import MemoryCluster, serving
from kvaware_testing.fake_api import raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually


def condition(cluster, name):
    conditions = cluster.raw_pod(name)["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == "kvaware.io/Placeable"), None)


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


async def test_pods_that_are_gone_are_forgotten():
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pods = [cluster.add_pod(raw_pod(f"p{i}", gpus=2)) for i in range(5)]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        for pod in pods:
            await caller.filter(pod, "n1")
        assert await caller.metric("scheduler_queue_length") == 5
        for pod in pods:
            cluster.delete_pod("ml", pod["metadata"]["name"])
        await eventually(lambda: len(caller.extender.wakeups) == 0)
