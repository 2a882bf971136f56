from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster import parse_pod, render_reservation
from kvaware_crds.errors import WireError
from kvaware_engine.observations import GpuClass, PodObservation, Reservation
from kvaware_engine.reasons import Reason
from kvaware_testing.fake_api import raw_pod

GIB = 2**30


def container(gpus: Any = None, *, resource: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    resources = {} if gpus is None else {"limits": {resource: gpus}}
    return {"name": "c", "resources": resources, **more}


def pod_of(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **spec: Any) -> PodObservation | None:
    raw = raw_pod()
    raw["metadata"]["uid"] = "u1"
    raw["spec"] = {"containers": list(containers), "initContainers": init, **spec}
    return parse_pod(raw)


def parsed(raw: dict[str, Any]) -> PodObservation:
    raw["metadata"].setdefault("uid", "u1")
    pod = parse_pod(raw)
    assert pod is not None
    return pod


def test_a_pod_without_gpus_and_model_is_not_observed():
    assert pod_of(container()) is None
    assert pod_of() is None


def test_a_pod_without_gpus_but_with_a_model_is_observed():
    pod = parsed(raw_pod(gpus=0, labels={"kvaware.io/model": "llama", "kvaware.io/role": "decode"}))
    assert (pod.model, pod.role, pod.gpu_requests) == ("llama", "decode", ())


@pytest.mark.parametrize(
    ("containers", "init", "gpus"),
    [
        pytest.param([1], [container("1"), container("1"), container("1")], 1, id="init containers run one by one"),
        pytest.param(
            [1], [container("1"), container("1", restartPolicy="Always"), container("1")], 2, id="one sidecar"
        ),
        pytest.param([1, 2], [container("4")], 4, id="a large init container"),
        pytest.param([1, 2], [container("2")], 3, id="containers are added"),
        pytest.param(
            [1],
            [container("2", restartPolicy="Always"), container("3")],
            5,  # init 3 beside the sidecar's 2 is more than 1 + 2
            id="init beside an earlier sidecar",
        ),
        pytest.param(
            [1],
            [container("3"), container("2", restartPolicy="Always")],
            3,  # the init container ran before the sidecar: max(3, 1 + 2)
            id="init before a later sidecar",
        ),
    ],
)
def test_the_effective_request_is_that_of_kubernetes(containers: list[int], init: list[dict[str, Any]], gpus: int):
    """Project-HAMi/HAMi#1942: init containers run one after another but were added up."""
    pod = pod_of(*(container(str(each)) for each in containers), init=init)
    assert pod is not None
    assert pod.gpu_requests == (("nvidia.com/gpu", gpus),)
    assert pod.problem is None


def test_two_kinds_of_gpus_are_both_kept():
    """The engine judges them; nothing is dropped here."""
    pod = pod_of(container("1"), container("2", resource="nvidia.com/mig-1g.5gb"))
    assert pod is not None
    assert pod.gpu_requests == (("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.5gb", 2))


def test_the_overhead_of_a_runtime_class_counts():
    pod = pod_of(container("1"), overhead={"cpu": "250m", "nvidia.com/gpu": "1"})
    assert pod is not None
    assert pod.gpu_requests == (("nvidia.com/gpu", 2),)


@pytest.mark.parametrize("amount", ["1", 1, "+1", "1.0", "1.", "1e0", "1000m", "0.001k", "1000000000n", "10e-1", "01"])
def test_every_spelling_of_one_gpu_is_one_gpu(amount: Any):
    pod = pod_of(container(amount))
    assert pod is not None
    assert pod.gpu_requests == (("nvidia.com/gpu", 1),)


@pytest.mark.parametrize(
    "amount",
    [
        "500m",
        "1500m",
        "1001m",
        "0.5",
        "2.5",
        "1.0000001",
        "1e-99999",
        "0.0015k",
        "-1",
        -1,
        "1e9",
        "9" * 30,
        "one",
        "",
        1.5,
        True,
        None,
        {},
        "1Gi",
    ],
)
def test_fractions_and_absurd_amounts_are_an_invalid_request(amount: Any):
    pod = pod_of({"name": "c", "resources": {"requests": {"nvidia.com/gpu": amount}}})
    assert pod is not None
    assert pod.problem is Reason.INVALID_GPU_REQUEST


def test_asking_for_zero_gpus_is_asking_for_none():
    assert pod_of(container("0")) is None


def test_amounts_that_only_together_are_absurd_are_invalid_too():
    pod = pod_of(*[container("1000") for _ in range(2)])
    assert pod is not None
    assert pod.problem is Reason.INVALID_GPU_REQUEST


def test_no_annotation_means_whole_gpus_and_no_problem():
    """Project-HAMi/HAMi#1781: a request without a memory figure is a whole GPU, placed like any other."""
    pod = parsed(raw_pod())
    assert pod.hbm_per_gpu_bytes is None
    assert pod.problem is None


@pytest.mark.parametrize("text", ["", "0", "-1Gi", "40GB", "forty", "1e30", "2048Ti", " 40Gi"])
def test_an_annotation_that_is_no_amount_is_an_invalid_annotation(text: str):
    """Project-HAMi/HAMi#1781: refused by a text that names the annotation, not booked as something else."""
    pod = parsed(raw_pod(annotations={"kvaware.io/hbm-per-gpu": text}))
    assert pod.problem is Reason.INVALID_HBM_ANNOTATION
    assert pod.hbm_per_gpu_bytes is None


@pytest.mark.parametrize(
    ("text", "size"), [("40Gi", 40 * GIB), ("42949672960", 40 * GIB), ("40e9", 40 * 10**9), ("0.5Gi", GIB // 2)]
)
def test_every_legal_spelling_of_hbm_is_read(text: str, size: int):
    assert parsed(raw_pod(annotations={"kvaware.io/hbm-per-gpu": text})).hbm_per_gpu_bytes == size


def test_phase_deletion_readiness_and_priority_are_read():
    raw = raw_pod(node="n1", phase="Succeeded", conditions=[{"type": "Ready", "status": "True"}])
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    raw["spec"]["priority"] = 7
    pod = parsed(raw)
    assert (pod.node, pod.finished, pod.terminating, pod.ready, pod.priority) == ("n1", True, True, True, 7)
    assert pod.scheduler_name == "kvaware-scheduler"


RESERVATION = Reservation(
    model="llama",
    tenant="team-a",
    resource="nvidia.com/gpu",
    gpus=2,
    hbm_per_gpu_bytes=40 * GIB,
    gpu_class=GpuClass.EXCLUSIVE,
    devices=(0, 3),
    decision_id="d-17",
)


def test_a_reservation_comes_back_as_it_was_written():
    text = render_reservation(RESERVATION)
    assert parsed(raw_pod(annotations={"kvaware.io/reservation": text})).reservation == RESERVATION


def test_a_malformed_reservation_is_none_and_reported():
    """The engine then books whole GPUs, which is never too little."""
    told: list[str] = []
    raw = raw_pod(annotations={"kvaware.io/reservation": '{"v":2}'})
    raw["metadata"]["uid"] = "u1"
    pod = parse_pod(raw, report=told.append)
    assert pod is not None
    assert pod.reservation is None
    assert "kvaware.io/reservation" in told[0]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param([], id="a list"),
        pytest.param(None, id="null"),
        pytest.param({}, id="no metadata"),
        pytest.param({"metadata": []}, id="metadata a list"),
        pytest.param({"metadata": {"name": "p"}}, id="no uid"),
        pytest.param({"metadata": {"uid": "u"}}, id="no name"),
        pytest.param({"metadata": {"name": "p", "uid": 7}}, id="uid a number"),
        pytest.param({"metadata": {"name": "p", "uid": "u"}, "spec": "x"}, id="spec a text"),
        pytest.param({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": {}}}, id="containers no list"),
        pytest.param({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [1]}}, id="container a number"),
        pytest.param(
            {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"resources": [1]}]}}, id="resources a list"
        ),
        pytest.param({"metadata": {"name": "p", "uid": "u", "labels": {"kvaware.io/model": 7}}}, id="label a number"),
    ],
)
def test_what_is_no_pod_is_a_wire_error(raw: Any):
    with pytest.raises(WireError, match="expected"):
        parse_pod(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(path=st.lists(st.integers(0, 9), min_size=1, max_size=6), value=JSON)
def test_any_broken_part_is_a_pod_nothing_or_a_wire_error(path: list[int], value: Any):
    """Whatever stands anywhere in a pod, nothing else is raised."""
    raw = raw_pod(
        node="n1",
        labels={"kvaware.io/model": "llama"},
        annotations={"kvaware.io/hbm-per-gpu": "1Gi", "kvaware.io/reservation": "{}"},
        conditions=[{"type": "Ready", "status": "True"}],
    )
    raw["metadata"]["uid"] = "u1"
    part: Any = raw
    for step in path[:-1]:  # walk down to some part of the pod
        inner = list(part) if type(part) is dict else list(range(len(part))) if type(part) is list else []
        if not inner or type(part[inner[step % len(inner)]]) not in {dict, list}:
            break
        part = part[inner[step % len(inner)]]
    inner = list(part) if type(part) is dict else list(range(len(part)))
    if inner:
        part[inner[path[-1] % len(inner)]] = value
    try:
        pod = parse_pod(raw)
    except WireError:
        return
    assert pod is None or isinstance(pod, PodObservation)


def test_where_a_pod_is_nominated_and_whom_it_is_placed_with_is_read():
    """Preemption and groups live from these two; most pods have neither."""
    raw = raw_pod(nominatedNodeName="n7")
    raw["metadata"]["uid"] = "u"
    raw["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    pod = parse_pod(raw)
    assert pod is not None
    assert (pod.nominated_node, pod.group) == ("n7", "gang")
    del raw["spec"]["schedulingGroup"], raw["status"]["nominatedNodeName"]
    pod = parse_pod(raw)
    assert pod is not None
    assert (pod.nominated_node, pod.group) == (None, None)


@pytest.mark.parametrize(
    "group",
    [pytest.param({}, id="empty"), pytest.param({"podGroupName": None}, id="null"), pytest.param(None, id="none")],
)
def test_a_group_without_a_name_is_none(group):
    raw = raw_pod()
    raw["metadata"]["uid"] = "u"
    raw["spec"]["schedulingGroup"] = group
    pod = parse_pod(raw)
    assert pod is not None
    assert pod.group is None
