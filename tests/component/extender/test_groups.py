"""Groups over the scheduler's verbs: one node from filter, all places at the first bind."""

import pytest

from kvaware_crds.errors import UpstreamError
from kvaware_engine import REFUSAL_TEXTS, Reason
from kvaware_testing.extender_harness import MemoryCluster, serving
from kvaware_testing.fake_api import raw_model, raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock, eventually

NODES = ("n1", "n2", "n3")


def member(name, **options):
    """A pod of the group."""
    pod = raw_pod(name, **options)
    return {**pod, "spec": {**pod["spec"], "schedulingGroup": {"podGroupName": "gang"}}}


@pytest.fixture
def cluster():
    return MemoryCluster(*(raw_node(name, gpus=1) for name in NODES))


async def placed(caller, pods):
    """Filter every member, as kube-scheduler does before it binds any. Returns: the node of each."""
    replies = [await caller.filter(pod, *NODES) for pod in pods]
    assert all(len(reply["NodeNames"]) <= 1 for reply in replies)
    return [reply["NodeNames"][0] if reply["NodeNames"] else None for reply in replies]


async def test_all_members_are_bound_though_others_come_between(cluster):
    """The first bind settles it: a pod that the store shows later, and binds of others, come too late."""
    pods = [cluster.add_pod(member(name)) for name in "abc"]
    single = cluster.add_pod(raw_pod("single"))
    async with serving(cluster) as caller:
        await caller.until_seen(single)
        nodes = await placed(caller, pods)
        assert set(nodes) == set(NODES)
        assert await caller.bind(pods[0], nodes[0]) == ""
        assert await caller.bind(single, nodes[1]) == REFUSAL_TEXTS[Reason.GPU_COUNT]
        assert [await caller.bind(pod, node) for pod, node in zip(pods[1:], nodes[1:], strict=True)] == ["", ""]
        for pod in pods:
            await caller.until_bound(pod["metadata"]["name"])
        assert {cluster.node_of(name) for name in "abc"} == set(NODES)


async def test_none_is_bound_where_one_place_was_lost(cluster):
    pods = [cluster.add_pod(member(name)) for name in "abc"]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        nodes = await placed(caller, pods)
        await caller.until_seen(cluster.add_pod(raw_pod("thief", node=nodes[1])))
        answers = [await caller.bind(pod, node) for pod, node in zip(pods, nodes, strict=True)]
        assert answers == [REFUSAL_TEXTS[Reason.GROUP_INCOMPLETE]] * 3
    assert cluster.calls == []
    assert [cluster.node_of(name) for name in "abc"] == [None] * 3


async def test_a_binding_in_doubt_does_not_cut_the_group_in_two(cluster):
    """The API server does not say whether the first member is bound; the others are, and its place stays its own."""
    pods = [cluster.add_pod(member(name)) for name in "abc"]
    single = cluster.add_pod(raw_pod("single"))
    async with serving(cluster) as caller:
        await caller.until_seen(single)
        nodes = await placed(caller, pods)
        cluster.carry_out, cluster.bind_error = False, UpstreamError("connection reset")
        assert await caller.bind(pods[0], nodes[0]) != ""
        cluster.carry_out, cluster.bind_error = True, None
        assert [await caller.bind(pod, node) for pod, node in zip(pods[1:], nodes[1:], strict=True)] == ["", ""]
        assert (await caller.filter(single, *NODES))["NodeNames"] == []
        assert await placed(caller, pods[:1]) == nodes[:1]
        assert await caller.bind(pods[0], nodes[0]) == ""


async def test_a_group_is_woken_once_all_of_it_fits(cluster):
    """A member that would fit alone is no reason to try the whole group again."""
    clock = FakeClock()
    cluster.add_pod(raw_pod("x", node="n1"))
    cluster.add_pod(raw_pod("y", node="n2"))
    pods = [cluster.add_pod(member(name)) for name in "ab"]
    async with serving(cluster, clock=clock, max_view_age_s=1e6) as caller:
        await caller.until_seen(pods[-1])
        assert await placed(caller, pods) == ["n3", None]
        clock.now_s += 11  # the first one's intent is over
        await caller.until_seen(cluster.add_pod(raw_pod("other", gpus=9)))
        await caller.extender.wakeups.look()
        assert cluster.conditions == []
        cluster.delete_pod("ml", "x")
        await eventually(lambda: cluster.conditions == [("b", "True")])
        assert set(await placed(caller, pods)) == {"n1", "n3"}


async def test_pods_of_a_leader_worker_set_without_a_group_go_one_by_one(cluster):
    """Nothing says that they belong together but labels of somebody else's."""
    labels = {"leaderworkerset.sigs.k8s.io/name": "llama", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    leader, worker = (cluster.add_pod(raw_pod(name, labels=labels)) for name in ("leader", "worker"))
    async with serving(cluster) as caller:
        await caller.until_seen(worker)
        assert (await caller.filter(leader, *NODES))["NodeNames"] == list(NODES)
        assert await caller.bind(leader, "n1") == ""
        await eventually(lambda: cluster.node_of("leader") == "n1")
        assert (await caller.filter(worker, *NODES))["NodeNames"] == ["n2", "n3"]


async def test_a_pod_that_is_not_ours_does_not_begin_a_group_that_ours_cannot_finish(cluster):
    """A leader without GPUs is bound like any pod; bound before a lost place is found out, the group would be half."""
    leader = cluster.add_pod(member("leader", gpus=0))
    pods = [cluster.add_pod(member(name)) for name in "ab"]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        assert (await caller.filter(leader, *NODES))["NodeNames"] == list(NODES)
        nodes = await placed(caller, pods)
        thief = cluster.add_pod(raw_pod("thief", node=nodes[1]))
        await caller.until_seen(thief)
        assert await caller.bind(leader, "n1") == REFUSAL_TEXTS[Reason.GROUP_INCOMPLETE]
        assert cluster.node_of("leader") is None
        cluster.delete_pod("ml", "thief")
        await eventually(lambda: not caller.seen(thief))
        nodes = await placed(caller, pods)
        assert await caller.bind(leader, "n1") == ""
        await caller.until_seen(cluster.add_pod(raw_pod("late", node=nodes[0])))
        assert [await caller.bind(pod, node) for pod, node in zip(pods, nodes, strict=True)] == ["", ""]


async def test_members_without_gpus_are_bound_with_the_others():
    """They hold nothing, so no answer about them changes the state; a remembered reply must not hide a new attempt."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1), raw_model("llama"))
    labels = {"kvaware.io/model": "llama"}
    leader = cluster.add_pod(member("leader", gpus=0, labels=labels))
    worker = cluster.add_pod(member("worker"))
    async with serving(cluster) as caller:
        await caller.until_seen(worker)
        for _ in range(2):
            at = [(await caller.filter(pod, "n1", "n2"))["NodeNames"] for pod in (leader, worker)]
            assert [len(names) for names in at] == [1, 1]
        thief = cluster.add_pod(raw_pod("thief", node=at[1][0]))
        await caller.until_seen(thief)
        assert await caller.bind(leader, at[0][0]) == REFUSAL_TEXTS[Reason.GROUP_INCOMPLETE]
        cluster.delete_pod("ml", "thief")
        await eventually(lambda: not caller.seen(thief))
        for _ in range(2):
            at = [(await caller.filter(pod, "n1", "n2"))["NodeNames"] for pod in (leader, worker)]
        assert await caller.bind(leader, at[0][0]) == ""
        assert await caller.bind(worker, at[1][0]) == ""
