"""Bind: reserve and bind, once, whatever the API server does."""

import asyncio

import pytest

from kvaware_cluster import ClusterApiError, Kind, parse_reservation
from kvaware_crds.errors import UpstreamError
from kvaware_testing.extender_harness import MemoryCluster, serving, shared_node
from kvaware_testing.fake_api import raw_node, raw_pod, raw_quota
from kvaware_testing.store_harness import FakeClock, eventually

RESERVATION = "kvaware.io/reservation"
HBM = "kvaware.io/hbm-per-gpu"


def wants(gib: int) -> dict[str, str]:
    return {HBM: f"{gib}Gi"}


async def test_a_pod_is_bound_with_its_reservation_in_the_same_write():
    """A restarted extender knows what is taken from the pods alone."""
    cluster = MemoryCluster(raw_node("n1"))
    pod = cluster.add_pod(raw_pod("p", gpus=2, annotations=wants(40)))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        assert await caller.bind(pod, "n1") == ""
        assert await caller.metric("kvaware_bind_total", '{result="bound"}') == 1
    bound = cluster.raw_pod("p")
    reservation = parse_reservation(bound["metadata"]["annotations"][RESERVATION])
    assert bound["spec"]["nodeName"] == "n1"
    assert (reservation.gpus, reservation.hbm_per_gpu_bytes) == (2, 40 * 2**30)
    assert reservation.decision_id.startswith(pod["metadata"]["uid"])


async def test_a_pod_that_is_not_ours_is_bound_without_a_reservation_and_without_another_call():
    """An extender's bind verb gets every pod of its scheduler process; most are none of kvaware's business."""
    cluster = MemoryCluster(raw_node("n1"))
    pod = cluster.add_pod(raw_pod("web", gpus=0))
    async with serving(cluster) as caller:
        await caller.filter(pod, "n1")
        assert await caller.bind(pod, "n1") == ""
        assert await caller.metric("kvaware_not_ours_total", '{verb="bind"}') == 1
    assert cluster.node_of("web") == "n1"
    assert RESERVATION not in (cluster.raw_pod("web")["metadata"].get("annotations") or {})
    assert cluster.calls == ["bind"]


async def test_a_pod_that_nobody_has_seen_is_read_before_it_is_bound():
    """After a restart kube-scheduler may bind what the old process filtered."""
    cluster = MemoryCluster(raw_node("n1"))
    cluster.deliver[Kind.POD].clear()
    async with serving(cluster) as caller:
        pod = cluster.add_pod(raw_pod("p"))
        assert await caller.bind(pod, "n1") == ""
    assert cluster.calls == ["get_pod", "bind"]


async def test_a_changed_uid_is_never_bound():
    """The pod that was filtered is gone; the one of its name asks for something else."""
    cluster = MemoryCluster(raw_node("n1"))
    old = cluster.add_pod(raw_pod("p", gpus=1))
    async with serving(cluster) as caller:
        await caller.until_seen(old)
        cluster.delete_pod("ml", "p")
        new = cluster.add_pod(raw_pod("p", gpus=8))
        await caller.until_seen(new)
        assert "does not exist any more" in await caller.bind(old, "n1")
        assert caller.extender.engine.holder(old["metadata"]["uid"]) == ()
    assert cluster.node_of("p") is None


async def test_a_pod_that_is_bound_here_already_is_a_success_without_a_call():
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"))
    pod = cluster.add_pod(raw_pod("p", node="n1"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        assert await caller.bind(pod, "n1") == ""
        assert await caller.bind(pod, "n2") == "kvaware: the pod is bound to another node"
    assert cluster.calls == []


async def test_of_two_pods_that_race_for_the_last_hbm_of_a_shared_gpu_one_wins():
    """80 GB: 50 and 50 GiB do not fit, although Kubernetes counts four free replicas."""
    cluster = MemoryCluster(shared_node("n1"))
    pods = [cluster.add_pod(raw_pod(f"p{i}", annotations=wants(50))) for i in range(2)]
    async with serving(cluster) as caller:
        for pod in pods:
            await caller.until_seen(pod)
        errors = await asyncio.gather(*(caller.bind(pod, "n1") for pod in pods))
    assert sorted(errors) == ["", "kvaware: not enough free HBM on a GPU that the pod could get"]
    assert sorted(cluster.node_of(f"p{i}") or "" for i in range(2)) == ["", "n1"]


async def test_ten_binds_at_once_do_not_exceed_a_tenants_limit():
    """Project-HAMi/HAMi#2363: limit 2, 1 used; ten filters at once, then ten binds at once."""
    cluster = MemoryCluster(raw_node("n1", gpus=8), raw_node("n2", gpus=8), raw_quota(gpus=2))
    cluster.add_pod(raw_pod("running", node="n1"))
    pods = [cluster.add_pod(raw_pod(f"p{i}")) for i in range(10)]
    async with serving(cluster) as caller:
        await caller.until_seen(pods[-1])
        await asyncio.gather(*(caller.filter(pod, "n1", "n2") for pod in pods))
        errors = await asyncio.gather(*(caller.bind(pod, "n2") for pod in pods))
        _, tenants = await caller.get("/v1/tenants")
    assert errors.count("") == 1
    assert {error for error in errors if error} == {"kvaware: the tenant's GPU limit is reached"}
    assert [tenant["used_gpus"] for tenant in tenants["items"]] == [2]
    assert sum(cluster.node_of(f"p{i}") is not None for i in range(10)) == 1


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        pytest.param({"gpus": 0}, "kvaware: the tenant's GPU limit is reached", id="no GPUs"),
        pytest.param({"hbm": "0"}, "kvaware: the tenant's HBM limit is reached", id="no HBM"),
    ],
)
async def test_a_limit_of_zero_means_nothing(limits, text):
    """Project-HAMi/HAMi#2312: zero was read as "no limit"."""
    cluster = MemoryCluster(raw_node("n1"), raw_quota(**limits))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        verdict = await caller.filter(pod, "n1")
        assert await caller.bind(pod, "n1") == text
    assert verdict["NodeNames"] == []
    assert verdict["FailedAndUnresolvableNodes"] == {"n1": text}
    assert cluster.node_of("p") is None


async def test_a_bind_that_worked_but_answered_too_late_is_a_success_the_second_time():
    """kubernetes#96579: same node succeeds, another node is an error, and the first node's booking stays, once."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.deliver[Kind.POD].clear()  # the store does not learn of it meanwhile
    cluster.answer_bind.clear()
    async with serving(cluster, bind_timeout_s=0.05) as caller:
        engine, uid = caller.extender.engine, pod["metadata"]["uid"]
        began_s = asyncio.get_running_loop().time()
        assert "did not say in time" in await caller.bind(pod, "n1")
        assert asyncio.get_running_loop().time() - began_s < 1.0
        assert engine.holder(uid) == ("n1",)
        assert await caller.bind(pod, "n2") == "kvaware: the pod is bound to another node"
        assert await caller.bind(pod, "n1") == ""
        assert engine.holder(uid) == ("n1",)
        assert len(caller.extender.binder.doubts) == 0
    assert cluster.node_of("p") == "n1"


async def test_a_pod_that_could_not_be_read_in_time_is_not_a_binding_in_doubt():
    """Nothing was asked to be bound, so nothing may be said or counted about a binding."""
    cluster = MemoryCluster(raw_node("n1"))
    cluster.deliver[Kind.POD].clear()
    async with serving(cluster, bind_timeout_s=0.05) as caller:
        pod = cluster.add_pod(raw_pod("p"))
        cluster.answer_reads.clear()
        assert await caller.bind(pod, "n1") == "kvaware: the pod could not be read from the API server"
        assert await caller.metric("kvaware_bind_total", '{result="in_doubt"}') == 0
        assert await caller.metric("kvaware_bind_total", '{result="api_refused"}') == 1
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ()
        cluster.answer_reads.set()
        assert await caller.bind(pod, "n1") == ""


async def test_while_a_binding_is_in_doubt_another_node_is_refused():
    """The first request may still be on its way: binding elsewhere could take two GPUs for one pod."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.carry_out, cluster.bind_error = False, UpstreamError("connection reset")
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        assert "did not say in time" in await caller.bind(pod, "n1")
        assert "another node is not decided" in await caller.bind(pod, "n2")
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
        cluster.carry_out, cluster.bind_error = True, None
        assert await caller.bind(pod, "n1") == ""
        assert len(caller.extender.binder.doubts) == 0
    assert cluster.node_of("p") == "n1"


async def test_filter_offers_again_the_node_whose_binding_is_in_doubt_and_no_other():
    """kubernetes#96579: kube-scheduler filters again after the lost answer; elsewhere bind would refuse the pod."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        cluster.deliver[Kind.POD].clear()  # the store does not learn of it meanwhile
        cluster.bind_error = UpstreamError("connection reset")
        assert "did not say in time" in await caller.bind(pod, "n1")
        cluster.bind_error = None
        reply = await caller.filter(pod, "n1", "n2")
        assert reply["NodeNames"] == ["n1"]
        assert list(reply["FailedAndUnresolvableNodes"]) == ["n2"]
        assert await caller.prioritize(pod, "n1", "n2") == {"n1": 10, "n2": 0}
        other = {**raw_pod("q"), "metadata": {**raw_pod("q")["metadata"], "uid": "q"}}
        assert (await caller.filter(other, "n1", "n2"))["NodeNames"] == ["n2"], "its room is still taken"
        assert await caller.bind(pod, "n1") == ""
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
    assert cluster.node_of("p") == "n1"


REFUSALS_OF_A_RETRY = [
    pytest.param(401, "Unauthorized", id="401"),
    pytest.param(403, "Forbidden", id="403"),
    pytest.param(422, "Invalid", id="422"),
    pytest.param(429, "TooManyRequests", id="429"),
]


@pytest.mark.parametrize(("status", "reason"), REFUSALS_OF_A_RETRY)
async def test_a_retry_that_is_refused_says_nothing_about_the_request_before_it(status, reason):
    """The first request may still be on its way when the second is throttled: its GPU is nobody else's yet."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod, other = (cluster.add_pod(raw_pod(name)) for name in ("p", "q"))
    async with serving(cluster) as caller:
        await caller.until_seen(other)
        cluster.carry_out, cluster.bind_error = False, UpstreamError("connection reset")
        assert "did not say in time" in await caller.bind(pod, "n1")
        cluster.bind_error = ClusterApiError("no", status=status, reason=reason)
        assert str(status) in await caller.bind(pod, "n1")
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
        assert len(caller.extender.binder.doubts) == 1
        cluster.deliver[Kind.POD].clear()
        await cluster.bind_unasked("p", "n1")  # the first request lands
        cluster.carry_out, cluster.bind_error = True, None
        assert await caller.bind(other, "n1") == "kvaware: not enough free GPUs"
        assert await caller.bind(pod, "n1") == ""
        assert len(caller.extender.binder.doubts) == 0
    assert (cluster.node_of("p"), cluster.node_of("q")) == ("n1", None)


async def test_a_retry_that_is_refused_leaves_the_binding_before_it_booked():
    """kube-scheduler lost our answer and asks again; our store has not seen the pod bound yet."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod, other = (cluster.add_pod(raw_pod(name)) for name in ("p", "q"))
    async with serving(cluster) as caller:
        await caller.until_seen(other)
        cluster.deliver[Kind.POD].clear()
        assert await caller.bind(pod, "n1") == ""
        cluster.carry_out = False
        cluster.bind_error = ClusterApiError("no", status=429, reason="TooManyRequests")
        assert "429" in await caller.bind(pod, "n1")
        cluster.carry_out, cluster.bind_error = True, None
        assert await caller.bind(other, "n1") == "kvaware: not enough free GPUs"
    assert cluster.node_of("q") is None


@pytest.mark.parametrize("fate", ["gone", "elsewhere"])
async def test_a_retry_that_finds_the_pod_gone_or_elsewhere_ends_the_doubt(fate):
    """Then the first request can take effect no more, and its GPU is free."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        cluster.carry_out, cluster.bind_error = False, UpstreamError("connection reset")
        await caller.bind(pod, "n1")
        cluster.deliver[Kind.POD].clear()
        if fate == "gone":
            cluster.delete_pod("ml", "p")
        else:
            await cluster.bind_unasked("p", "n2")
        cluster.carry_out, cluster.bind_error = True, None
        assert await caller.bind(pod, "n1") != ""
        assert len(caller.extender.binder.doubts) == 0
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ()


async def test_a_lost_binding_is_released_once_it_cannot_take_effect_any_more():
    """Nothing is booked for ever: after the API server's own limit an unbound pod was not bound."""
    clock = FakeClock()
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.carry_out, cluster.bind_error = False, UpstreamError("connection reset")
    async with serving(cluster, clock=clock, max_view_age_s=1000) as caller:
        extender = caller.extender
        naps: asyncio.Queue[float] = asyncio.Queue()
        wake: asyncio.Queue[None] = asyncio.Queue()

        async def nap(seconds: float) -> None:
            naps.put_nowait(seconds)
            await wake.get()

        extender.binder.doubts.sleep = nap
        await caller.until_seen(pod)
        await caller.bind(pod, "n1")
        await naps.get()
        wake.put_nowait(None)
        await naps.get()
        assert extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)  # read as unbound, too early to tell
        clock.now_s += 61
        wake.put_nowait(None)
        await eventually(lambda: not extender.binder.doubts)
        assert extender.engine.holder(pod["metadata"]["uid"]) == ()
        assert await caller.metric("kvaware_bindings_in_doubt") == 0


async def test_a_refusal_of_the_api_server_gives_the_reservation_back():
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.carry_out, cluster.bind_error = False, ClusterApiError("not allowed", status=403, reason="Forbidden")
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        error = await caller.bind(pod, "n1")
        assert error == "kvaware: the API server did not take the binding (403 Forbidden)"
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ()


async def test_a_conflict_with_another_node_releases_ours():
    """Another scheduler was faster, and our store has not seen it."""
    cluster = MemoryCluster(raw_node("n1", gpus=1), raw_node("n2", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        cluster.deliver[Kind.POD].clear()
        await cluster.bind_unasked("p", "n2")
        assert await caller.bind(pod, "n1") == "kvaware: the pod is bound to another node"
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ()


async def test_two_binds_of_one_pod_run_one_after_the_other():
    """Serialized per UID: the second finds what the first did."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        errors = await asyncio.gather(caller.bind(pod, "n1"), caller.bind(pod, "n1"))
        assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
    assert errors == ["", ""]


async def test_a_caller_who_hangs_up_leaves_no_half_bind():
    """The attempt is an owned task: it ends as if somebody still waited, and shutdown waits for it."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.answer_bind.clear()
    async with serving(cluster) as caller:
        await caller.until_seen(pod)
        call = asyncio.create_task(caller.bind(pod, "n1"))
        await eventually(lambda: "bind" in cluster.calls)
        call.cancel()
        await asyncio.wait([call])
        cluster.answer_bind.set()
    assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
    assert len(caller.extender.binder.doubts) == 0
