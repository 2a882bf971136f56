"""Label sets are those that NVIDIA's GPU feature discovery and AMD's node labeller write on such machines."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster import parse_node
from kvaware_crds.errors import WireError
from kvaware_engine.observations import GpuClass, GpuPool, NodeObservation

MIB = 2**20
H100 = {
    "nvidia.com/cuda.driver.major": "550",
    "nvidia.com/gfd.timestamp": "1753880000",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.machine": "DGXH100",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/mig.strategy": "single",
    "nvidia.com/mps.capable": "false",
}


def observed(
    labels: dict[str, str],
    allocatable: dict[str, Any] | None = None,
    capacity: dict[str, Any] | None = None,
    **metadata: Any,
) -> NodeObservation:
    allocatable = allocatable or {}
    return parse_node(
        {
            "metadata": {"name": "n", "uid": "u", "labels": labels, **metadata},
            "status": {
                "allocatable": allocatable,
                "capacity": allocatable if capacity is None else capacity,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def only_pool(node: NodeObservation) -> GpuPool:
    assert len(node.pools) == 1
    return node.pools[0]


def test_whole_gpus_are_exclusive_with_the_labels_memory():
    """gpu.memory is MiB per GPU; mig.strategy alone does not make partitions of them."""
    # when
    node = observed(H100, {"nvidia.com/gpu": "8"})
    # then
    assert only_pool(node) == GpuPool(
        resource="nvidia.com/gpu",
        gpu_class=GpuClass.EXCLUSIVE,
        devices=8,
        allocatable=8,
        hbm_bytes=81559 * MIB,
        product="NVIDIA-H100-80GB-HBM3",
    )
    assert node.problems == ()


def test_an_unhealthy_gpu_lowers_what_can_be_allocated():
    pool = only_pool(observed(H100, {"nvidia.com/gpu": "7"}, {"nvidia.com/gpu": "8"}))
    assert (pool.devices, pool.allocatable) == (8, 7)


def test_listed_zero_stays_zero_but_unlisted_means_a_dra_driver_hands_them_out():
    """DRA-backed extended resources need not be in allocatable (Kubernetes 1.36)."""
    assert only_pool(observed(H100, {"nvidia.com/gpu": "0"})).allocatable == 0
    assert only_pool(observed(H100, {"cpu": "192"})).allocatable == 8


@pytest.mark.parametrize("strategy", ["time-slicing", "mps"])
def test_shared_gpus_count_devices_and_replicas_apart(strategy: str):
    # given: 8 GPUs shared by 4 pods each; sharing marked in the product
    labels = H100 | {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": strategy,
    }
    # when
    pool = only_pool(observed(labels, {"nvidia.com/gpu": "32"}))
    # then
    assert (pool.resource, pool.gpu_class) == ("nvidia.com/gpu", GpuClass.SHARED)
    assert (pool.devices, pool.replicas, pool.allocatable) == (8, 4, 32)
    assert pool.product == "NVIDIA-H100-80GB-HBM3"


def test_shared_gpus_may_have_another_resource_name():
    """With renameByDefault the product has no suffix, and the old name stays in allocatable as 0."""
    labels = H100 | {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    pool = only_pool(observed(labels, {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "32"}))
    assert (pool.resource, pool.devices, pool.replicas, pool.allocatable) == ("nvidia.com/gpu.shared", 8, 4, 32)


def test_sharing_without_a_replicas_label_is_worked_out_from_what_is_offered():
    labels = {name: value for name, value in H100.items() if name != "nvidia.com/gpu.replicas"}
    labels["nvidia.com/gpu.product"] += "-SHARED"
    pool = only_pool(observed(labels, {"nvidia.com/gpu": "16"}))
    assert (pool.gpu_class, pool.devices, pool.replicas) == (GpuClass.SHARED, 8, 2)  # 16 / 8


def test_mig_single_is_a_partition_under_the_name_of_whole_gpus():
    # given: 8 GPUs of 7 slices each; product, count and memory are those of the slices
    labels = H100 | {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "nvidia.com/gpu.count": "56",
        "nvidia.com/gpu.memory": "4864",
        "nvidia.com/gpu.slices.gi": "1",
        "nvidia.com/mig.strategy": "single",
    }
    # when
    pool = only_pool(observed(labels, {"nvidia.com/gpu": "56"}))
    # then
    assert (pool.gpu_class, pool.devices, pool.hbm_bytes) == (GpuClass.PARTITION, 56, 4864 * MIB)
    assert pool.mig_profile == "1g.5gb"


SLICES = H100 | {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
    "nvidia.com/gpu.count": "7",
    "nvidia.com/gpu.memory": "9856",
    "nvidia.com/gpu.slices.gi": "1",
}


@pytest.mark.parametrize(
    ("labels", "offered", "resource"),
    [
        pytest.param(
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED"},
            {"nvidia.com/gpu": "28"},
            "nvidia.com/gpu",
            id="marked in the product",
        ),
        pytest.param({}, {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "28"}, "nvidia.com/gpu.shared", id="renamed"),
    ],
)
def test_time_sliced_slices_of_mig_single_are_shared_slices(labels: dict[str, str], offered: Any, resource: str):
    """Their use is that of the exporter's slices, not of its whole GPUs."""
    node = observed(SLICES | {"nvidia.com/gpu.replicas": "4"} | labels, offered)
    pool = only_pool(node)
    assert (pool.resource, pool.gpu_class, pool.devices, pool.replicas) == (resource, GpuClass.SHARED, 7, 4)
    assert (pool.mig_profile, pool.product) == ("1g.10gb", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb")


def test_slices_under_a_product_name_that_somebody_chose_are_slices_of_an_unknown_profile():
    pool = only_pool(observed(SLICES | {"nvidia.com/gpu.product": "h100-small"}, {"nvidia.com/gpu": "7"}))
    assert (pool.gpu_class, pool.mig_profile) == (GpuClass.PARTITION, "")


@pytest.mark.parametrize(
    ("name", "suffix", "profile", "gpu_class"),
    [
        ("mig-1g.10gb", "", "1g.10gb", GpuClass.PARTITION),
        ("mig-1g.10gb", ".shared", "1g.10gb", GpuClass.SHARED),
        ("mig-1g.10gb.me", "", "1g.10gb.me", GpuClass.PARTITION),
        ("mig-1g.10gb.me", ".shared", "1g.10gb.me", GpuClass.SHARED),
        ("mig-1c.2g.20gb", "", "1c.2g.20gb", GpuClass.PARTITION),
        ("mig-special", "", "", GpuClass.PARTITION),
    ],
)
def test_a_mixed_pool_knows_its_profile(name: str, suffix: str, profile: str, gpu_class: GpuClass):
    labels = {f"nvidia.com/{name}.count": "7", f"nvidia.com/{name}.memory": "9856"}
    pool = only_pool(observed(labels, {f"nvidia.com/{name}{suffix}": "7"}))
    assert (pool.resource, pool.mig_profile) == (f"nvidia.com/{name}{suffix}", profile)
    assert (pool.gpu_class, pool.devices, pool.replicas) == (gpu_class, 7, 1)


def test_renamed_slices_without_a_replicas_label_are_worked_out_from_what_is_offered():
    labels = {"nvidia.com/mig-1g.10gb.count": "7", "nvidia.com/mig-1g.10gb.memory": "9856"}
    pool = only_pool(observed(labels, {"nvidia.com/mig-1g.10gb.shared": "28"}))
    assert (pool.gpu_class, pool.devices, pool.replicas, pool.allocatable) == (GpuClass.SHARED, 7, 4, 28)


@pytest.mark.parametrize(
    ("labels", "offered", "pools"),
    [
        pytest.param(H100 | {"nvidia.com/gpu.count": "1025"}, {"nvidia.com/gpu": "8"}, [(8, 1)], id="count label"),
        pytest.param(H100 | {"nvidia.com/gpu.count": "65536"}, {}, [], id="count label alone"),
        pytest.param({"nvidia.com/gpu.memory": "81559"}, {"nvidia.com/gpu": "1025"}, [], id="no label, many listed"),
        pytest.param(
            H100 | {"nvidia.com/gpu.replicas": "1025", "nvidia.com/gpu.sharing-strategy": "mps"},
            {"nvidia.com/gpu": "16"},
            [(8, 2)],
            id="replicas label",
        ),
        pytest.param(
            H100 | {"nvidia.com/gpu.replicas": "nine", "nvidia.com/gpu.sharing-strategy": "mps"},
            {"nvidia.com/gpu": str(8 * 1025)},
            [],
            id="replicas worked out",
        ),
        pytest.param({"nvidia.com/mig-1g.5gb.memory": "4864"}, {"nvidia.com/mig-1g.5gb": "1025"}, [], id="slices"),
        pytest.param({"amd.com/gpu.vram": "64G"}, {"amd.com/gpu": "1025"}, [], id="amd"),
        pytest.param(
            {"beta.amd.com/gpu.vram.64G": "1000", "beta.amd.com/gpu.vram.32G": "1000"}, {}, [], id="amd counted"
        ),
    ],
)
def test_more_devices_than_any_machine_has_are_told_and_not_counted(labels: Any, offered: Any, pools: list[Any]):
    """A node's labels are written by its kubelet: one broken node must not overflow the sums of all."""
    node = observed(labels, offered)
    assert [(pool.devices, pool.replicas) for pool in node.pools] == pools
    assert any("1024" in problem for problem in node.problems)


@pytest.mark.parametrize(
    "labels", [{"nvidia.com/gpu.memory": str(2**21 + 1)}, {"amd.com/gpu.vram": "3T"}, {"amd.com/gpu.vram": "2049G"}]
)
def test_more_memory_than_any_device_has_is_unknown(labels: dict[str, str]):
    node = observed(labels, {"nvidia.com/gpu" if "nvidia" in next(iter(labels)) else "amd.com/gpu": "8"})
    assert only_pool(node).hbm_bytes is None
    assert "expected" in node.problems[0]


def test_the_bounds_themselves_are_taken():
    labels = {"nvidia.com/gpu.count": "1024", "nvidia.com/gpu.memory": str(2**21), "nvidia.com/gpu.replicas": "1024"}
    node = observed(labels, {"nvidia.com/gpu": str(2**20)})
    pool = only_pool(node)
    assert (pool.devices, pool.replicas, pool.allocatable, pool.hbm_bytes) == (1024, 1024, 2**20, 2**41)
    assert node.problems == ()


def test_an_invalid_mig_layout_offers_nothing_and_says_so():
    labels = H100 | {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-INVALID",
        "nvidia.com/gpu.count": "0",
        "nvidia.com/gpu.memory": "0",
        "nvidia.com/gpu.replicas": "0",
    }
    node = observed(labels, {"nvidia.com/gpu": "0"})
    assert node.pools == ()
    assert "MIG-INVALID" in node.problems[0]


def test_mig_mixed_is_one_pool_per_profile_and_the_whole_gpus_that_are_left():
    """gpu.count counts the cut GPUs as well (8 here); the kubelet says that 6 whole ones are left."""
    # given
    labels = H100 | {
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.5gb.count": "7",
        "nvidia.com/mig-1g.5gb.memory": "4864",
        "nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        "nvidia.com/mig-1g.5gb.replicas": "1",
        "nvidia.com/mig-1g.5gb.slices.gi": "1",
        "nvidia.com/mig-3g.20gb.count": "2",
        "nvidia.com/mig-3g.20gb.memory": "19968",
        "nvidia.com/mig-3g.20gb.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb",
        "nvidia.com/mig-3g.20gb.replicas": "1",
    }
    offered = {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-3g.20gb": "2"}
    # when
    node = observed(labels, offered)
    # then
    assert [(p.resource, p.gpu_class, p.devices, p.allocatable, p.hbm_bytes) for p in node.pools] == [
        ("nvidia.com/gpu", GpuClass.EXCLUSIVE, 6, 6, 40960 * MIB),
        ("nvidia.com/mig-1g.5gb", GpuClass.PARTITION, 7, 7, 4864 * MIB),
        ("nvidia.com/mig-3g.20gb", GpuClass.PARTITION, 2, 2, 19968 * MIB),
    ]
    assert node.problems == ()


def test_when_all_gpus_are_cut_no_whole_one_is_left():
    labels = H100 | {
        "nvidia.com/gpu.replicas": "0",  # feature discovery: no sharing on GPUs that are cut
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-7g.80gb.count": "8",
        "nvidia.com/mig-7g.80gb.memory": "80896",
    }
    node = observed(labels, {"nvidia.com/gpu": "0", "nvidia.com/mig-7g.80gb": "8"})
    assert [pool.resource for pool in node.pools] == ["nvidia.com/mig-7g.80gb"]


@pytest.mark.parametrize(
    ("labels", "gib"),
    [
        pytest.param({"amd.com/gpu.vram": "64G", "amd.com/gpu.product-name": "MI250X"}, 64, id="value"),
        pytest.param({"beta.amd.com/gpu.vram": "16G"}, 16, id="beta value"),
        pytest.param({"beta.amd.com/gpu.vram.16G": "8", "beta.amd.com/gpu.cu-count.64": "8"}, 16, id="beta key"),
        pytest.param({"beta.amd.com/gpu.vram.64G": "4", "beta.amd.com/gpu.vram.32G": "4"}, 32, id="worst of two"),
    ],
)
def test_amd_memory_is_in_gib_whatever_the_letter(labels: dict[str, str], gib: int):
    """The labeller divides bytes by 1024 three times and writes G."""
    node = observed(labels, {"amd.com/gpu": "8"})
    pool = only_pool(node)
    assert (pool.resource, pool.devices, pool.hbm_bytes) == ("amd.com/gpu", 8, gib * 2**30)
    assert node.problems == ()


@pytest.mark.parametrize(
    ("label", "value", "told"),
    [
        pytest.param("nvidia.com/gpu.memory", "80GB", "MiB", id="unit in memory"),
        pytest.param("nvidia.com/gpu.memory", "-1", "MiB", id="negative memory"),
        pytest.param("nvidia.com/gpu.memory", "0", "above 0", id="no memory"),
        pytest.param("nvidia.com/gpu.memory", "9" * 400, "MiB", id="absurd memory"),
        pytest.param("nvidia.com/gpu.memory", "٨١", "MiB", id="other digits"),
    ],
)
def test_malformed_memory_is_a_sentence_and_unknown(label: str, value: str, told: str):
    """The sentence names the label, what was expected and what came."""
    node = observed(H100 | {label: value}, {"nvidia.com/gpu": "8"})
    assert only_pool(node).hbm_bytes is None
    assert only_pool(node).devices == 8
    assert label in node.problems[0]
    assert told in node.problems[0]
    assert value[:10] in node.problems[0]


def test_a_missing_memory_label_is_told_since_pods_with_hbm_are_refused_there():
    node = observed({}, {"nvidia.com/gpu": "4"})
    assert only_pool(node).hbm_bytes is None
    assert node.problems == ("label nvidia.com/gpu.memory: expected MiB of memory per device, the label is missing",)


def test_a_malformed_count_falls_back_to_the_kubelets():
    node = observed(H100 | {"nvidia.com/gpu.count": "eight"}, {"nvidia.com/gpu": "8"})
    assert only_pool(node).devices == 8
    assert "nvidia.com/gpu.count" in node.problems[0]


def test_more_than_the_labels_count_is_capped_and_told():
    node = observed(H100, {"nvidia.com/gpu": "16"})
    assert only_pool(node).allocatable == 8
    assert "got 16" in node.problems[0]


def test_unreadable_allocatable_hands_out_nothing():
    node = observed(H100, {"nvidia.com/gpu": "many"})
    assert only_pool(node).allocatable == 0
    assert "many" in node.problems[0]


def test_a_node_without_gpus_has_no_pools_and_no_problems():
    node = observed({"kubernetes.io/os": "linux"}, {"cpu": "4"})
    assert node.pools == ()
    assert node.problems == ()


def test_topology_weights_and_health_are_read():
    labels = {
        "nvidia.com/gpu.clique": "7a1b.32766",
        "topology.kubernetes.io/zone": "eu-1a",
        "topology.kubernetes.io/rack": "r7",
    }
    raw: dict[str, Any] = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "labels": labels,
            "annotations": {"kvaware.io/weights": "meta-llama/Llama-3.3-70B-Instruct@main, Qwen/Qwen3-32B"},
        },
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "Unknown"}]
        },
    }
    node = parse_node(raw)
    assert (node.clique, node.zone, node.rack) == ("7a1b.32766", "eu-1a", "r7")
    assert node.weights == ("meta-llama/Llama-3.3-70B-Instruct@main", "Qwen/Qwen3-32B")
    assert node.unschedulable
    assert not node.ready
    assert parse_node(raw, rack_label="example.com/rack").rack is None


def test_unreadable_weights_keep_what_can_be_read():
    node = observed({}, annotations={"kvaware.io/weights": "good, not good,,"})
    assert node.weights == ("good",)
    assert "kvaware.io/weights" in node.problems[0]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param([], id="a list"),
        pytest.param({}, id="no metadata"),
        pytest.param({"metadata": {"name": "n"}}, id="no uid"),
        pytest.param({"metadata": {"name": "n", "uid": "u", "labels": {"a": 1}}}, id="a number as label"),
        pytest.param({"metadata": {"name": "n", "uid": "u"}, "status": []}, id="status a list"),
    ],
)
def test_what_is_no_node_is_a_wire_error(raw: Any):
    with pytest.raises(WireError):
        parse_node(raw)


LABELS = st.sampled_from(
    [
        *H100,
        "nvidia.com/mig-1g.5gb.count",
        "nvidia.com/mig-1g.5gb.memory",
        "nvidia.com/mig-1g.5gb.replicas",
        "nvidia.com/gpu.slices.gi",
        "nvidia.com/mig-.count",
        "amd.com/gpu.vram",
        "beta.amd.com/gpu.vram.16G",
        "beta.amd.com/gpu.vram.",
        "nvidia.com/gpu.clique",
    ]
)
VALUES = st.one_of(st.text(max_size=20), st.integers(-5, 10**12).map(str), st.sampled_from(list(H100.values())))
RESOURCES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "amd.com/gpu", "cpu"])


@given(
    labels=st.dictionaries(LABELS, VALUES),
    allocatable=st.dictionaries(RESOURCES, st.one_of(VALUES, st.integers(-5, 10**20), st.none(), st.booleans())),
)
def test_no_labels_crash_and_pools_keep_their_bounds(labels: dict[str, str], allocatable: dict[str, Any]):
    """Malformed labels appear in the node's explanation, never crash."""
    node = observed(labels, allocatable)
    for pool in node.pools:
        assert 0 <= pool.allocatable <= pool.devices * pool.replicas
        assert pool.replicas >= 1
        assert pool.devices * (pool.hbm_bytes or 1) <= 2**51
        assert pool.replicas <= 1024
        assert pool.hbm_bytes is None or pool.hbm_bytes > 0
    assert len({pool.resource for pool in node.pools}) == len(node.pools)
