"""HBM: what is taken, what one more pod is sure to get."""

from dataclasses import replace

import pytest

from kvaware_engine import (
    EngineSettings,
    GpuClass,
    HbmSettings,
    LinkSettings,
    PodCostSettings,
    Reason,
    RoleFootprint,
)
from kvaware_testing.builders import GIB, Cluster, bound, gpu_use, model, node, pod, pool, shared_pool, use


@pytest.mark.parametrize(
    ("hbm_gib", "reason"),
    [
        pytest.param(80, None, id="all of it"),
        pytest.param(80.01, Reason.HBM_SHORT, id="a little more than there is"),
        pytest.param(None, None, id="no figure is a whole GPU"),
        pytest.param(2**30, Reason.HBM_SHORT, id="absurd, and no integer wraps around"),
    ],
)
def test_a_pod_fits_where_its_hbm_fits_on_a_gpu(hbm_gib, reason):
    """The footprint is held against the GPU's HBM."""
    assert Cluster(node()).why_not(pod(hbm_gib=hbm_gib)) is reason


def test_unknown_capacity_refuses_every_pod_that_wants_a_gpu():
    """Nobody can promise HBM of a GPU whose size no label and no exporter tells."""
    cluster = Cluster(node("n1", pool(hbm_gib=None)))
    assert cluster.why_not(pod(hbm_gib=1)) is Reason.HBM_UNKNOWN
    assert cluster.why_not(pod(hbm_gib=None)) is Reason.HBM_UNKNOWN


def test_the_exporter_tells_the_capacity_where_the_label_does_not():
    """Free + used is the better figure, with or without a label."""
    cluster = Cluster(node("n1", pool(devices=1, hbm_gib=None))).see(use("n1", gpu_use(free_gib=79, used_gib=0)))
    assert cluster.why_not(pod(hbm_gib=79)) is None
    assert cluster.why_not(pod(hbm_gib=79.5)) is Reason.HBM_SHORT


def test_usable_hbm_is_free_plus_used_not_the_label():
    """kai-scheduler/KAI-Scheduler#2212: the driver keeps 659 of the label's 81559 MiB; the second pod must not fit."""
    mib = 1 / 1024
    cluster = Cluster(node("n1", shared_pool(hbm_gib=81559 * mib))).see(
        use("n1", gpu_use(used_gib=0, free_gib=80900 * mib))
    )
    assert cluster.bind(pod("first", hbm_gib=40960 * mib)) is None
    # 80900 - 40960 = 39940 < 40550, though 81559 - 40960 = 40599 would hold it
    assert cluster.why_not(pod("second", hbm_gib=40550 * mib)) is Reason.HBM_SHORT


def test_without_an_exporter_a_margin_is_kept_from_the_label():
    """Foreign use is unknown there: 80 GiB less 2 % less 5 % are 74.4."""
    cluster = Cluster(node(), settings=EngineSettings())
    assert cluster.why_not(pod(hbm_gib=74.3)) is None
    assert cluster.why_not(pod(hbm_gib=74.5)) is Reason.HBM_SHORT


def test_the_margin_grows_with_the_age_of_the_scrape_and_ends_at_its_limit():
    """One per cent a minute here: 80 GiB, then 78.4 after two minutes, then as without an exporter after five."""
    settings = EngineSettings(
        hbm=HbmSettings(label_margin_ratio=0, unknown_foreign_use_margin_ratio=0.5, age_margin_ratio_per_minute=0.01),
        use_max_age_s=300,
    )
    cluster = Cluster(node("n1", pool(devices=1)), settings=settings)
    cluster.see(use("n1", gpu_use(free_gib=80), at_s=100))
    assert cluster.why_not(pod(hbm_gib=80)) is None
    cluster.engine.tick(100 + 125)
    cluster.now_s = 225
    assert cluster.why_not(pod(hbm_gib=78.3)) is None
    assert cluster.why_not(pod(hbm_gib=78.5)) is Reason.HBM_SHORT
    cluster.now_s = 401
    cluster.engine.tick(401)
    assert cluster.why_not(pod(hbm_gib=40)) is None
    assert cluster.why_not(pod(hbm_gib=40.5)) is Reason.HBM_SHORT


def test_foreign_use_on_any_gpu_that_the_pod_could_get_counts():
    """The kubelet picks the GPU: the worst free one decides."""
    gpus = [gpu_use(i) for i in range(7)] + [gpu_use(7, used_gib=70, free_gib=10)]
    cluster = Cluster(node()).see(use("n1", *gpus))
    assert cluster.why_not(pod(hbm_gib=40)) is Reason.HBM_SHORT
    assert cluster.why_not(pod(hbm_gib=10)) is None


def test_what_a_ready_pod_uses_within_its_reservation_is_not_foreign():
    """Only use that no Ready pod explains is added to what is reserved."""
    # given: one GPU busy, held by a pod that the exporter names
    gpus = [gpu_use(0, used_gib=70, free_gib=10, pod_key=("ml", "running"))] + [gpu_use(i) for i in range(1, 8)]
    cluster = Cluster(node()).see(bound("running", gpu_class=GpuClass.EXCLUSIVE, hbm_gib=80), use("n1", *gpus))
    # then: the other seven are free and whole
    assert cluster.why_not(pod(gpus=7, hbm_gib=80)) is None
    assert cluster.why_not(pod(gpus=8, hbm_gib=1)) is Reason.GPU_COUNT


def test_a_pod_that_is_not_ready_explains_no_use():
    """It may still be pulling its image: the 70 GiB in use there are somebody else's."""
    gpus = [gpu_use(0, used_gib=70, free_gib=10)] + [gpu_use(i) for i in range(1, 8)]
    cluster = Cluster(node()).see(bound("starting", gpu_class=GpuClass.EXCLUSIVE, ready=False), use("n1", *gpus))
    assert cluster.why_not(pod("next", hbm_gib=40)) is Reason.HBM_SHORT


def test_without_pod_names_a_ready_pod_explains_the_busiest_gpu():
    """An exporter that does not know pods: a Ready pod is taken for the cause of the greatest use."""
    gpus = [gpu_use(i) for i in range(7)] + [gpu_use(7, used_gib=70, free_gib=10)]
    cluster = Cluster(node()).see(bound("running", gpu_class=GpuClass.EXCLUSIVE), use("n1", *gpus))
    assert cluster.why_not(pod("next", hbm_gib=80)) is None


def test_a_shared_gpu_is_filled_by_reservations_up_to_its_hbm():
    """30 + 30 of 80 GiB are taken, 20 are left."""
    cluster = Cluster(node("n1", shared_pool()))
    assert cluster.bind(pod("a", hbm_gib=30)) is None
    assert cluster.bind(pod("b", hbm_gib=30)) is None
    assert cluster.bind(pod("c", hbm_gib=21)) is Reason.HBM_SHORT
    assert cluster.bind(pod("d", hbm_gib=20)) is None


def test_a_shared_pod_must_fit_on_every_gpu_that_it_could_get():
    """Two GPUs; one of them holds 50 GiB already, and nobody can tell the device plugin to avoid it."""
    cluster = Cluster(node("n1", shared_pool(devices=2)))
    assert cluster.bind(pod("a", hbm_gib=50)) is None
    assert cluster.bind(pod("b", hbm_gib=40)) is Reason.HBM_SHORT
    assert cluster.bind(pod("c", hbm_gib=30)) is None


def test_a_gpu_without_a_free_replica_cannot_be_given():
    """Its HBM does not matter: two replicas each, both of the first GPU taken."""
    cluster = Cluster(node("n1", shared_pool(devices=2, replicas=2))).see(
        bound("a", hbm_gib=30, devices=(0,)), bound("b", hbm_gib=30, devices=(0,))
    )
    assert cluster.why_not(pod(hbm_gib=80)) is None


def test_the_exporter_corrects_an_assumed_device():
    """Assumed on GPU 0, seen on GPU 1: the reservation moves to where the pod is."""
    cluster = Cluster(node("n1", shared_pool(devices=2, replicas=2)))
    cluster.see(bound("a", hbm_gib=60, devices=(0,)), bound("b", hbm_gib=10, devices=(0,)))
    assert cluster.why_not(pod("x", hbm_gib=75)) is None  # GPU 0 has no replica left, GPU 1 is empty
    cluster.see(
        use(
            "n1",
            gpu_use(0, used_gib=10, free_gib=70, pod_key=("ml", "b")),
            gpu_use(1, used_gib=60, free_gib=20, pod_key=("ml", "a")),
        )
    )
    assert cluster.why_not(pod("x", hbm_gib=75)) is Reason.HBM_SHORT
    assert cluster.why_not(pod("x", hbm_gib=20)) is None


def test_several_replicas_for_one_pod_may_land_on_one_gpu():
    """Two replicas of 30 GiB need 60 on whichever GPU gives both."""
    cluster = Cluster(node("n1", shared_pool(devices=2, replicas=4, hbm_gib=50)))
    assert cluster.why_not(pod(gpus=2, hbm_gib=30)) is Reason.HBM_SHORT
    assert cluster.why_not(pod(gpus=2, hbm_gib=25)) is None


def test_a_partition_must_hold_the_footprint():
    """The profile's memory decides; a slice cannot be made larger."""
    mig = pool(resource="nvidia.com/mig-1g.10gb", gpu_class=GpuClass.PARTITION, devices=7, hbm_gib=9.75)
    cluster = Cluster(node("n1", mig))
    wanted = {"resource": "nvidia.com/mig-1g.10gb"}
    assert cluster.why_not(pod(hbm_gib=9, **wanted)) is None
    assert cluster.why_not(pod(hbm_gib=12, **wanted)) is Reason.PARTITION_TOO_SMALL
    assert cluster.why_not(pod(hbm_gib=9)) is Reason.NO_SUCH_GPU


def test_a_pod_of_another_scheduler_holds_whole_gpus():
    """Nobody told us how much of the shared GPU it will use."""
    foreign = pod("foreign", on="n1", scheduler_name="default-scheduler", ready=True)
    cluster = Cluster(node("n1", shared_pool())).see(foreign)
    assert cluster.why_not(pod(hbm_gib=1)) is Reason.HBM_SHORT
    assert cluster.gone(foreign).why_not(pod(hbm_gib=80)) is None


def test_a_reservation_that_was_made_for_another_uid_does_not_count():
    """An annotation copied into a template would make the pod look smaller than it is."""
    original = bound("a", hbm_gib=1)
    copied = pod("b", on="n1", reservation=original.reservation, ready=True)
    cluster = Cluster(node("n1", shared_pool())).see(copied)
    assert cluster.why_not(pod("x", hbm_gib=1)) is Reason.HBM_SHORT


def test_a_gpu_request_without_a_figure_is_charged_a_whole_gpu():
    """Project-HAMi/HAMi#1781: it fitted nowhere there; here it is placed, and fills the shared GPU."""
    cluster = Cluster(node("n1", shared_pool()))
    assert cluster.bind(pod("plain")) is None
    assert cluster.why_not(pod("next", hbm_gib=1)) is Reason.HBM_SHORT


def test_an_unusable_hbm_annotation_is_refused_by_a_text_that_names_it():
    """Project-HAMi/HAMi#1781, second half: "" and "0" are neither a figure nor its absence."""
    cluster = Cluster(node())
    demand = cluster.demand(pod(problem=Reason.INVALID_HBM_ANNOTATION))
    verdict = cluster.engine.filter_nodes(demand, ["n1"], now_s=1)
    assert "kvaware.io/hbm-per-gpu" in verdict.refused["n1"]


def test_allocatable_below_the_label_counts():
    """An unhealthy GPU is no longer offered by the kubelet."""
    cluster = Cluster(node("n1", pool(devices=8, allocatable=6)))
    assert cluster.why_not(pod(gpus=6)) is None
    assert cluster.why_not(pod(gpus=7)) is Reason.GPU_COUNT


@pytest.mark.parametrize("state", ["terminating", "running"])
def test_a_pod_holds_its_gpu_until_it_is_gone(state):
    """kubernetes-sigs/kueue#10076: a terminating pod still holds its memory."""
    one = bound("a", gpu_class=GpuClass.EXCLUSIVE, terminating=state == "terminating")
    cluster = Cluster(node("n1", pool(devices=1))).see(one)
    assert cluster.why_not(pod("b")) is Reason.GPU_COUNT
    assert cluster.gone(one).why_not(pod("b")) is None


def test_a_finished_pod_holds_nothing():
    """kubernetes-sigs/kueue#10076: Succeeded and Failed pods still exist, their memory is free."""
    cluster = Cluster(node("n1", pool(devices=1))).see(pod("a", on="n1", finished=True))
    assert cluster.why_not(pod("b")) is None


def test_shared_slices_are_judged_by_the_slice_and_not_by_the_whole_gpu_beside_them():
    """Time-sliced MIG: the exporter's row of the whole GPU says nothing about a 10 GiB slice."""
    slices = replace(
        shared_pool(resource="nvidia.com/mig-1g.10gb.shared", devices=2, replicas=2, hbm_gib=10), mig_profile="1g.10gb"
    )
    cluster = Cluster(node("n1", pool(devices=1), slices)).see(
        use(
            "n1",
            gpu_use(0),
            gpu_use(1, used_gib=0, free_gib=10, mig_profile="1g.10gb"),
            gpu_use(2, used_gib=9, free_gib=1, mig_profile="1g.10gb"),
        )
    )
    wanted = {"resource": "nvidia.com/mig-1g.10gb.shared"}
    assert cluster.why_not(pod(hbm_gib=60, **wanted)) is Reason.HBM_SHORT
    assert cluster.why_not(pod(hbm_gib=8, **wanted)) is Reason.HBM_SHORT  # one slice is full of somebody else's use
    assert cluster.why_not(pod(hbm_gib=1, **wanted)) is None


def test_a_ready_pod_that_the_exporter_does_not_name_explains_the_busiest_of_the_rest():
    """Of two Ready pods one is named; the other's use must not make the free GPU look foreign."""
    gpus = [
        gpu_use(0, used_gib=70, free_gib=10, pod_key=("ml", "named")),
        gpu_use(1, used_gib=60, free_gib=20),
        gpu_use(2),
    ]
    cluster = Cluster(node("n1", pool(devices=3))).see(
        bound("named", gpu_class=GpuClass.EXCLUSIVE), bound("unnamed", gpu_class=GpuClass.EXCLUSIVE), use("n1", *gpus)
    )
    assert cluster.why_not(pod("x", hbm_gib=80)) is None


def test_a_pod_of_a_model_with_several_roles_must_say_which():
    """Else it would get whole GPUs of any size, whatever its role needs."""
    roles = [
        RoleFootprint(name="prefill", gpus_per_pod=1, hbm_per_gpu_bytes=70 * GIB),
        RoleFootprint(name="decode", gpus_per_pod=1, hbm_per_gpu_bytes=40 * GIB),
    ]
    cluster = Cluster(node("n1", pool(hbm_gib=24))).see(model(roles=roles))
    assert cluster.why_not(pod(model="m")) is Reason.ROLE_NOT_FOUND
    assert cluster.why_not(pod(model="m", role="decode")) is Reason.HBM_SHORT
    assert cluster.why_not(pod(model="m", hbm_gib=20)) is None


@pytest.mark.parametrize(
    ("group", "values", "named"),
    [
        pytest.param(HbmSettings, {"label_margin_ratio": -5}, "label_margin_ratio", id="a negative margin"),
        pytest.param(HbmSettings, {"whole_gpu_free_ratio": float("nan")}, "whole_gpu_free_ratio", id="not a number"),
        pytest.param(LinkSettings, {"disk_bytes_per_s": 0}, "disk_bytes_per_s", id="a link that never ends"),
        pytest.param(PodCostSettings, {"score_scale_ms": 0}, "score_scale_ms", id="no scale"),
        pytest.param(PodCostSettings, {"crowding_ms": float("inf")}, "crowding_ms", id="an infinite price"),
        pytest.param(EngineSettings, {"intent_ttl_s": -1}, "intent_ttl_s", id="a negative time"),
        pytest.param(EngineSettings, {"scheduler_name": ""}, "scheduler_name", id="no scheduler"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(group, values, named):
    """A margin of -5 would let a 400 GiB pod onto an 80 GiB GPU."""
    with pytest.raises(ValueError, match=named):
        group(**values)
