"""Limits, guarantees and who owns which namespace."""

from dataclasses import replace

import pytest

from kvaware_engine import GpuClass, NodeSelector, Reason, Refusal, Reservation, SelectorRequirement
from kvaware_engine.tenants import selects
from kvaware_testing.builders import GIB, Cluster, bound, node, pod, pool, quota, shared_pool


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param({}, None, id="unset is no limit"),
        pytest.param({"gpus": 0}, Reason.TENANT_GPU_LIMIT, id="zero GPUs mean nothing"),
        pytest.param({"hbm_gib": 0}, Reason.TENANT_HBM_LIMIT, id="zero HBM means nothing"),
        pytest.param({"gpus": 1}, None, id="exactly enough GPUs"),
        pytest.param({"hbm_gib": 80}, None, id="exactly enough HBM for a whole GPU"),
        pytest.param({"hbm_gib": 79}, Reason.TENANT_HBM_LIMIT, id="a whole GPU is charged at full size"),
    ],
)
def test_limits(limits, reason):
    """Project-HAMi/HAMi#2312: a limit of 0, meant to block, was read as no limit there."""
    cluster = Cluster(node()).see(quota(**limits))
    assert cluster.why_not(pod(hbm_gib=1)) is reason
    assert cluster.bind(pod(hbm_gib=1)) is reason


def test_ten_filters_then_ten_binds_at_once_end_in_one_bound_pod():
    """Project-HAMi/HAMi#2363: everybody read the same "used" before any was booked; here bind checks and takes."""
    cluster = Cluster(node()).see(quota(gpus=2), bound("running", gpu_class=GpuClass.EXCLUSIVE))
    pods = [pod(f"p{i}") for i in range(10)]
    for one in pods:
        cluster.engine.filter_nodes(cluster.demand(one), ["n1"], now_s=cluster.now_s)
    answers = [cluster.engine.reserve(cluster.demand(one), "n1", now_s=cluster.now_s) for one in pods]
    assert sum(isinstance(answer, Reservation) for answer in answers) == 1
    assert {answer.reason for answer in answers if isinstance(answer, Refusal)} == {Reason.TENANT_GPU_LIMIT}
    assert cluster.engine.tenants()[0].used_gpus == 2


def test_shared_gpus_are_charged_at_the_reservation():
    """30 of 80 GiB cost 30."""
    cluster = Cluster(node("n1", shared_pool())).see(quota(hbm_gib=50))
    assert cluster.bind(pod("a", hbm_gib=30)) is None
    assert cluster.engine.tenants()[0].used_hbm_bytes == 30 * GIB
    assert cluster.why_not(pod("b", hbm_gib=21)) is Reason.TENANT_HBM_LIMIT
    assert cluster.why_not(pod("b", hbm_gib=20)) is None


def test_the_hbm_limit_leaves_the_smaller_gpus():
    """50 GiB left: a whole 40 GiB GPU is within the limit, an 80 GiB one is not."""
    cluster = Cluster(node("big"), node("small", pool(hbm_gib=40))).see(quota(hbm_gib=50))
    assert cluster.admitted(pod(hbm_gib=10)) == ["small"]


def test_pods_that_somebody_else_bound_count_too():
    """A foreign scheduler does not make a tenant's GPUs free."""
    cluster = Cluster(node()).see(quota(gpus=2), pod("x", on="n1", scheduler_name="default-scheduler", gpus=2))
    assert cluster.why_not(pod("y")) is Reason.TENANT_GPU_LIMIT


def test_terminating_pods_count_until_they_are_gone():
    """They still hold what they hold."""
    leaving = bound("a", gpu_class=GpuClass.EXCLUSIVE, terminating=True)
    cluster = Cluster(node()).see(quota(gpus=1), leaving)
    assert cluster.why_not(pod("b")) is Reason.TENANT_GPU_LIMIT
    assert cluster.gone(leaving).why_not(pod("b")) is None


def test_an_intended_pod_counts_for_filter_but_not_for_bind():
    """An intent is a guess that saves retries, never a promise."""
    cluster = Cluster(node()).see(quota(gpus=1))
    assert cluster.choose(pod("a")) == "n1"
    view = cluster.engine.tenants()[0]
    assert (view.used_gpus, view.intended_gpus, view.intended_hbm_bytes) == (0, 1, 80 * GIB)
    assert cluster.why_not(pod("b")) is Reason.TENANT_GPU_LIMIT
    assert cluster.bind(pod("b")) is None
    assert cluster.engine.nodes(now_s=cluster.now_s)[0].pools[0].intended == 1
    assert cluster.bind(pod("a")) is Reason.TENANT_GPU_LIMIT


def test_a_shrunk_quota_kills_nobody_and_admits_nobody():
    """Use above the limit stays, nothing new comes."""
    cluster = Cluster(node()).see(quota(gpus=4))
    for i in range(3):
        assert cluster.bind(pod(f"p{i}")) is None
    cluster.see(quota(gpus=1))
    assert cluster.engine.tenants()[0].used_gpus == 3
    assert cluster.why_not(pod("next")) is Reason.TENANT_GPU_LIMIT


def test_what_is_guaranteed_to_another_tenant_is_kept_free():
    """8 GPUs, 6 guaranteed to b and none used: a gets 2, b all 8."""
    cluster = Cluster(node()).see(quota("a", namespaces=["a"]), quota("b", namespaces=["b"], guaranteed_gpus=6))
    assert cluster.why_not(pod("x", namespace="a", gpus=2)) is None
    assert cluster.why_not(pod("x", namespace="a", gpus=3)) is Reason.GUARANTEED_TO_OTHERS
    assert cluster.why_not(pod("y", namespace="nobody", gpus=3)) is Reason.GUARANTEED_TO_OTHERS
    assert cluster.why_not(pod("z", namespace="b", gpus=8)) is None


def test_a_tenant_within_its_own_guarantee_gets_it_whatever_others_were_promised():
    """Promises may exceed what exists; each tenant's own still comes first for itself."""
    cluster = Cluster(node("n1", pool(devices=4))).see(
        quota("a", namespaces=["a"], guaranteed_gpus=3), quota("b", namespaces=["b"], guaranteed_gpus=3)
    )
    assert cluster.bind(pod("x", namespace="a", gpus=3)) is None
    assert cluster.bind(pod("y", namespace="a")) is Reason.GUARANTEED_TO_OTHERS
    assert cluster.bind(pod("z", namespace="b")) is None


def test_guaranteed_hbm_is_kept_free_as_well():
    """8 x 80 = 640 GiB, 500 promised to b: a whole GPU more than 140 free is refused."""
    cluster = Cluster(node()).see(quota("b", namespaces=["b"], guaranteed_hbm_gib=500))
    assert cluster.bind(pod("x", namespace="a")) is None  # 640 - 80 = 560 >= 500
    assert cluster.bind(pod("y", namespace="a")) is Reason.GUARANTEED_TO_OTHERS  # 560 - 80 = 480


def test_a_reserved_pool_covers_its_tenants_guarantee():
    """B's guarantee of 8 is free in its own pool, so others may fill the open node."""
    cluster = Cluster(node("open"), node("kept", labels={"pool": "b"})).see(
        quota("b", namespaces=["b"], guaranteed_gpus=8, pool_labels={"pool": "b"})
    )
    assert cluster.why_not(pod("x", namespace="a", gpus=8), "open") is None


def test_a_namespace_in_two_quotas_belongs_to_the_older():
    """The other one gets to know it."""
    cluster = Cluster(node()).see(
        quota("young", gpus=8, created_at="2026-02-01T00:00:00Z"),
        quota("old", gpus=0, created_at="2026-01-01T00:00:00Z"),
    )
    assert cluster.why_not(pod()) is Reason.TENANT_GPU_LIMIT
    views = {view.tenant: view for view in cluster.engine.tenants()}
    assert views["young"].conflicts == ("ml: old",)
    assert views["young"].namespaces == ()
    assert views["old"].conflicts == ()


def test_of_two_equally_old_quotas_the_first_name_owns_the_namespace():
    """Ties are settled, and not by the order of arrival."""
    for order in ((0, 1), (1, 0)):
        quotas = [quota("a", gpus=0), quota("b", gpus=8)]
        assert Cluster(node()).see(*(quotas[i] for i in order)).why_not(pod()) is Reason.TENANT_GPU_LIMIT


def test_several_quotas_of_one_tenant_all_apply():
    """The smallest limit holds for the tenant's pods of all namespaces together."""
    cluster = Cluster(node()).see(
        quota("one", tenant="t", namespaces=["a"], gpus=5), quota("two", tenant="t", namespaces=["b"], gpus=2)
    )
    assert cluster.bind(pod("x", namespace="a", gpus=2)) is None
    assert cluster.why_not(pod("y", namespace="b")) is Reason.TENANT_GPU_LIMIT


def test_a_quota_that_goes_takes_its_limits_with_it():
    """And one that gains a namespace counts what already runs there."""
    cluster = Cluster(node()).see(pod("x", on="n1", namespace="ml"), quota(namespaces=["other"], gpus=1))
    assert cluster.why_not(pod("y")) is None
    cluster.see(quota(namespaces=["other", "ml"], gpus=1))
    assert cluster.why_not(pod("y")) is Reason.TENANT_GPU_LIMIT
    cluster.engine.observe_quota("q", None)
    assert cluster.why_not(pod("y")) is None
    assert cluster.engine.tenants() == []


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        pytest.param(SelectorRequirement(key="a", operator="In", values=("1", "2")), True, id="in"),
        pytest.param(SelectorRequirement(key="a", operator="In", values=("2",)), False, id="not in the list"),
        pytest.param(SelectorRequirement(key="b", operator="In", values=("2",)), False, id="absent is in nothing"),
        pytest.param(SelectorRequirement(key="a", operator="NotIn", values=("2",)), True, id="notin"),
        pytest.param(SelectorRequirement(key="b", operator="NotIn", values=("2",)), True, id="absent is notin"),
        pytest.param(SelectorRequirement(key="a", operator="Exists"), True, id="exists"),
        pytest.param(SelectorRequirement(key="b", operator="DoesNotExist"), True, id="does not exist"),
    ],
)
def test_selectors_hold_as_kubernetes_defines_them(requirement, holds):
    """Node selectors of reserved pools."""
    assert selects(NodeSelector(match_expressions=(requirement,)), {"a": "1"}) is holds


def test_a_tenants_own_pool_does_not_pay_for_what_it_takes_in_the_open():
    """2 GPUs in the open are b's guarantee; a's 4 in its pool are no reason to give them to a."""
    cluster = Cluster(node("o", pool(devices=2)), node("r", pool(devices=4), labels={"pool": "a"})).see(
        quota("a", namespaces=["a"], pool_labels={"pool": "a"}), quota("b", namespaces=["b"], guaranteed_gpus=2)
    )
    assert cluster.bind(pod("x", namespace="a", gpus=2), "o") is Reason.GUARANTEED_TO_OTHERS
    assert cluster.bind(pod("y", namespace="b", gpus=2), "o") is None


def test_a_tenants_own_pool_is_its_own_whatever_others_were_promised():
    """Nobody else may use it, so nothing is kept free there."""
    cluster = Cluster(node("o", pool(devices=1)), node("r", pool(devices=4), labels={"pool": "a"})).see(
        quota("a", namespaces=["a"], pool_labels={"pool": "a"}), quota("b", namespaces=["b"], guaranteed_gpus=5)
    )
    assert cluster.admitted(pod("x", namespace="a")) == ["r"]
    assert cluster.bind(pod("x", namespace="a"), "r") is None


def test_a_tenants_guarantee_is_first_served_by_its_own_pool():
    """A's 4 are free in its pool: its guarantee gives it no right to what is promised to b in the open."""
    cluster = Cluster(node("o", pool(devices=2)), node("r", pool(devices=4), labels={"pool": "a"})).see(
        quota("a", namespaces=["a"], guaranteed_gpus=4, pool_labels={"pool": "a"}),
        quota("b", namespaces=["b"], guaranteed_gpus=2),
    )
    assert cluster.admitted(pod("x", namespace="a")) == ["r"]


def test_a_share_of_a_gpu_counts_as_one_in_guarantees_too():
    """Four replicas, one used, one promised: two more are free for others."""
    cluster = Cluster(node("n1", shared_pool())).see(quota("b", namespaces=["b"], guaranteed_gpus=1))
    assert [cluster.bind(pod(f"x{i}", hbm_gib=10)) for i in range(4)] == [None, None, None, Reason.GUARANTEED_TO_OTHERS]


def test_slices_and_cordoned_nodes_are_no_supply_for_a_guarantee():
    """Seven slices do not make up for the last whole GPU, nor do eight GPUs where nothing can go."""
    mig = pool(resource="nvidia.com/mig-1g.10gb", gpu_class=GpuClass.PARTITION, devices=7, hbm_gib=10)
    cluster = Cluster(node("whole", pool(devices=1)), node("slices", mig)).see(
        quota("b", namespaces=["b"], guaranteed_gpus=1), replace(node("cordoned"), unschedulable=True)
    )
    assert cluster.why_not(pod("x"), "whole") is Reason.GUARANTEED_TO_OTHERS
    assert cluster.why_not(pod("y", resource="nvidia.com/mig-1g.10gb"), "slices") is None


def test_a_tenant_called_default_owns_only_the_namespaces_of_its_quota():
    """What people are shown for namespaces without a quota is the same word, and gives no rights."""
    cluster = Cluster(node("kept", labels={"pool": "d"})).see(
        quota("q", tenant="default", namespaces=["prod"], pool_labels={"pool": "d"})
    )
    assert cluster.why_not(pod("x", namespace="dev"), "kept") is Reason.NODE_RESERVED
    assert cluster.why_not(pod("y", namespace="prod"), "kept") is None


def test_overlapping_pools_belong_to_the_older_quota():
    """The same rule as for namespaces."""
    cluster = Cluster(node("kept", labels={"pool": "p"})).see(
        quota("a-young", namespaces=["a"], pool_labels={"pool": "p"}, created_at="2026-02-01T00:00:00Z"),
        quota("b-old", namespaces=["b"], pool_labels={"pool": "p"}, created_at="2026-01-01T00:00:00Z"),
    )
    assert cluster.why_not(pod("x", namespace="a"), "kept") is Reason.NODE_RESERVED
    assert cluster.why_not(pod("y", namespace="b"), "kept") is None


def test_an_absurd_node_does_not_stop_others_from_being_charged():
    """A sum beyond int64 once ended the adding-up half-way, and the quota with it."""
    absurd = node("absurd", pool(devices=8192, hbm_gib=2**30))
    cluster = Cluster(*(node(f"n{i:03}", pool(devices=1)) for i in range(50)), absurd)
    cluster.see(quota(gpus=50), *(bound(f"p{i}", on=f"n{i:03}", gpu_class=GpuClass.EXCLUSIVE) for i in range(50)))
    assert cluster.why_not(pod("next"), "absurd") is Reason.TENANT_GPU_LIMIT
    assert cluster.engine.tenants()[0].used_gpus == 50
