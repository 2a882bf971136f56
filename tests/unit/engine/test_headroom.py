"""Would more replicas fit, and where: the operator asks before it makes pods that would stay Pending."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine import REFUSAL_TEXTS, GpuClass, ObjectKey, Reason, RoleFootprint
from kvaware_testing.builders import (
    GIB,
    Cluster,
    bound,
    gpu_use,
    model,
    node,
    pod,
    pool,
    quota,
    shared_pool,
    use,
)

M = ObjectKey("ml", "m")
MIG = "nvidia.com/mig-3g.40gb"


def headroom(cluster: Cluster, replicas: int = 1, *, of: ObjectKey = M, role: str = "both"):
    return cluster.engine.headroom(of, role, replicas=replicas, now_s=cluster.now_s)


def finished(steps):
    """Make the steps that are left."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_replicas_fit_one_after_another_where_real_decisions_would_put_them():
    """The first goes where the weights are, the next away from it: three seconds of crowding against 17 of fetching."""
    cluster = Cluster(node("a"), node("b", pool(devices=2), weights=["acme/m"])).see(model())
    found = headroom(cluster, 4)
    assert (found.asked_replicas, found.fits_replicas, found.reason, found.text) == (4, 4, None, "")
    placed = []
    for i in range(4):
        one = pod(f"r{i}", model="m")
        placed.append(cluster.choose(one))
        cluster.see(pod(f"r{i}", model="m", on=placed[-1]))
    assert list(found.nodes) == placed
    assert placed[:2] == ["b", "b"]


def test_what_does_not_fit_says_why():
    """Two GPUs are free, three replicas are asked for."""
    cluster = Cluster(node("n1", pool(devices=3))).see(model(), pod("x", on="n1"))
    found = headroom(cluster, 3)
    assert (found.fits_replicas, found.nodes) == (2, ("n1", "n1"))
    assert (found.reason, found.text) == (Reason.GPU_COUNT, REFUSAL_TEXTS[Reason.GPU_COUNT])


def test_hbm_that_others_use_leaves_no_room_on_a_shared_gpu():
    """80 GiB, 30 in use by nobody's pod: one replica of 40 GiB fits, a second does not."""
    cluster = Cluster(node("n1", shared_pool())).see(model(), use("n1", gpu_use(used_gib=30, free_gib=50), at_s=100))
    found = headroom(cluster, 2)
    assert (found.fits_replicas, found.reason) == (1, Reason.HBM_SHORT)


def test_a_replica_of_several_pods_fits_whole_or_not_at_all():
    """Three GPUs take one replica of two pods; the third pod alone serves nobody."""
    role = RoleFootprint(name="both", gpus_per_pod=1, hbm_per_gpu_bytes=40 * GIB, pods_per_replica=2)
    cluster = Cluster(node("n1", pool(devices=3))).see(model(roles=[role]))
    found = headroom(cluster, 2)
    assert (found.fits_replicas, found.nodes, found.reason) == (1, ("n1", "n1"), Reason.GPU_COUNT)


def test_cordoned_and_unready_nodes_have_no_room():
    """kube-scheduler does not offer them."""
    cordoned = node("cordoned")
    cluster = Cluster(node("down", ready=False)).see(model())
    cluster.engine.observe_node(
        "cordoned", type(cordoned)(name="cordoned", uid="u", pools=cordoned.pools, unschedulable=True)
    )
    assert headroom(cluster).fits_replicas == 0
    assert headroom(cluster).reason in {Reason.NODE_CORDONED, Reason.NODE_UNHEALTHY}


def test_the_tenants_limit_ends_it():
    """Two of three GPUs are used: one more replica, whatever is free."""
    cluster = Cluster(node("n1")).see(model(), quota(gpus=3), pod("x", on="n1", gpus=2))
    found = headroom(cluster, 2)
    assert (found.fits_replicas, found.reason) == (1, Reason.TENANT_GPU_LIMIT)


def test_what_others_were_promised_is_not_counted_in():
    """Eight GPUs, six of them guaranteed to another tenant that uses none."""
    cluster = Cluster(node("n1")).see(
        model(), quota("mine", namespaces=["ml"]), quota("theirs", namespaces=["other"], guaranteed_gpus=6)
    )
    found = headroom(cluster, 4)
    assert (found.fits_replicas, found.reason) == (2, Reason.GUARANTEED_TO_OTHERS)


def test_pods_on_their_way_count():
    """One GPU, and a pod that was just admitted to it."""
    cluster = Cluster(node("n1", pool(devices=1))).see(model())
    assert headroom(cluster).fits_replicas == 1
    cluster.choose(pod("on-its-way"))
    assert headroom(cluster).fits_replicas == 0


def test_new_pods_ask_for_what_the_roles_pods_ask_for():
    """Its pods run on MIG slices, and none is free; whole GPUs beside them are no room for it."""
    mig = pool(resource=MIG, gpu_class=GpuClass.PARTITION, devices=1, hbm_gib=40)
    cluster = Cluster(node("n1", pool(), mig)).see(
        model(), bound("r0", resource=MIG, gpu_class=GpuClass.PARTITION, hbm_gib=40, model="m")
    )
    assert headroom(cluster).reason is Reason.GPU_COUNT
    cluster.gone(bound("r0", resource=MIG))
    assert headroom(cluster).fits_replicas == 1


def test_a_role_without_pods_is_tried_on_every_resource_and_stays_on_one():
    """One workload has one pod template: two slices and one GPU are not room for three."""
    mig = pool(resource=MIG, gpu_class=GpuClass.PARTITION, devices=2, hbm_gib=40)
    cluster = Cluster(node("n1", pool(devices=1), mig)).see(model())
    found = headroom(cluster, 3)
    assert (found.fits_replicas, found.reason) == (2, Reason.GPU_COUNT)


def test_a_slice_that_is_too_small_does_not_hide_the_gpus():
    mig = pool(resource=MIG, gpu_class=GpuClass.PARTITION, devices=2, hbm_gib=20)
    cluster = Cluster(node("n1", pool(devices=1), mig)).see(model())
    assert headroom(cluster).fits_replicas == 1
    assert headroom(Cluster(node("n1", mig)).see(model())).reason is Reason.PARTITION_TOO_SMALL


def test_the_role_decides_what_a_pod_needs():
    """Prefill takes two GPUs, decode one; each is asked about alone."""
    roles = [
        RoleFootprint(name="prefill", gpus_per_pod=2, hbm_per_gpu_bytes=None),
        RoleFootprint(name="decode", gpus_per_pod=1, hbm_per_gpu_bytes=None),
    ]
    cluster = Cluster(node("n1", pool(devices=3))).see(model(roles=roles))
    assert headroom(cluster, 3, role="prefill").fits_replicas == 1
    assert headroom(cluster, 3, role="decode").fits_replicas == 3


def test_what_does_not_exist_has_no_room_and_says_so():
    cluster = Cluster(node("n1")).see(model())
    assert headroom(cluster, of=ObjectKey("ml", "none")).reason is Reason.MODEL_NOT_FOUND
    assert headroom(cluster, role="decode").reason is Reason.ROLE_NOT_FOUND
    assert headroom(Cluster().see(model())).reason is Reason.NO_SUCH_GPU


@pytest.mark.parametrize("replicas", [0, -1, 65])
def test_the_work_is_bounded(replicas):
    with pytest.raises(ValueError, match="expected 1 to 64"):
        headroom(Cluster(node("n1")).see(model()), replicas)


def test_replicas_of_very_many_pods_are_tried_few_at_a_time():
    """512 pods are placed for one question: five replicas of 100."""
    role = RoleFootprint(name="both", gpus_per_pod=8, hbm_per_gpu_bytes=None, pods_per_replica=100)
    found = headroom(Cluster(node("n1")).see(model(roles=[role])), 64)
    assert (found.asked_replicas, found.fits_replicas) == (5, 0)


def test_changes_may_come_between_two_steps():
    """The route lets kube-scheduler's calls through: what they take is gone for the pods that follow."""
    cluster = Cluster(node("n1", pool(devices=4))).see(model())
    steps = cluster.engine.headroom_steps(M, "both", replicas=4, now_s=cluster.now_s)
    next(steps)
    next(steps)
    cluster.now_s += 1
    assert cluster.bind(pod("x")) is None
    assert finished(steps).fits_replicas == 3
    assert cluster.bind(pod("y", gpus=3)) is None, "nothing that was imagined is left"


@given(
    fill=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from([None, 20, 60])), max_size=6),
    replicas=st.integers(1, 6),
    limit=st.sampled_from([None, 0, 3, 100]),
    intended=st.booleans(),
)
def test_asking_leaves_no_trace_and_agrees_with_binding(fill, replicas, limit, intended):
    """The same version, nodes, tenants and costs afterwards; and so many pods can then really be bound, no more."""
    cluster = Cluster(node("a"), node("b", shared_pool(devices=2)), node("c", pool(devices=2), weights=["acme/m"]))
    cluster.see(model(), quota(gpus=limit))
    for i, (where, gpus, hbm_gib) in enumerate(fill):
        cluster.see(bound(f"x{i}", on=where, gpus=gpus, hbm_gib=hbm_gib, model="m" if i % 2 else None))
    if intended:
        cluster.choose(pod("on-its-way"))
    engine, now_s = cluster.engine, cluster.now_s
    wanted = cluster.demand(pod("probe", model="m"))

    def state():
        return engine.version, engine.nodes(now_s=now_s), engine.tenants(), engine.explain(wanted, now_s=now_s)

    before = state()
    found = headroom(cluster, replicas)
    assert state() == before
    for i, where in enumerate(found.nodes):
        assert cluster.choose(pod(f"r{i}", model="m")) == where
        assert cluster.bind(pod(f"r{i}", model="m"), where) is None
        cluster.see(bound(f"r{i}", on=where, hbm_gib=40, model="m"))
    if found.fits_replicas < replicas:
        assert engine.would_admit(cluster.demand(pod("last", model="m")), now_s=now_s) is found.reason
