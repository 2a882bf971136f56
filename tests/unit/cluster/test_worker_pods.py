from typing import Any

import pytest

from kvaware_cluster import Owner, parse_pod, parse_worker_pod
from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey
from kvaware_testing.fake_api import raw_pod

COST = "controller.kubernetes.io/pod-deletion-cost"


def raw(**arguments: Any) -> dict[str, Any]:
    pod = raw_pod(**arguments)
    pod["metadata"]["uid"] = "u-1"
    return pod


def running(*started: str) -> list[dict[str, Any]]:
    return [{"name": f"c{n}", "state": {"running": {"startedAt": at}}} for n, at in enumerate(started)]


def test_a_worker_pod_is_read_with_what_membership_and_the_operator_need():
    pod = raw(
        name="llama-0",
        node="n1",
        labels={"kvaware.io/model": "llama", "kvaware.io/role": "decode", "app": "llama"},
        podIP="10.0.0.7",
        conditions=[{"type": "Ready", "status": "True"}, {"type": "kvaware.io/HBMOverrun", "status": "True"}],
        containerStatuses=running("2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z"),
    )
    pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u-n"},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llama-5d", "uid": "u-rs", "controller": True},
    ]
    read = parse_worker_pod(pod)
    assert read is not None
    assert (read.uid, read.key, read.node, read.ip) == ("u-1", ObjectKey("ml", "llama-0"), "n1", "10.0.0.7")
    assert (read.model, read.role) == ("llama", "decode")
    assert read.labels == {"kvaware.io/model": "llama", "kvaware.io/role": "decode", "app": "llama"}
    assert (read.ready, read.finished, read.terminating, read.unschedulable) == (True, False, False, False)
    assert read.owner == Owner("apps/v1", "ReplicaSet", "llama-5d", "u-rs")
    assert (read.created_at, read.started_at) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z")
    assert (read.hbm_overrun, read.foreign_use_unknown) == (True, False)
    assert (read.deletion_cost, read.deletion_cost_by) == (None, None)


@pytest.mark.parametrize(
    ("pod", "observed"),
    [
        pytest.param(raw(gpus=0), False, id="neither GPUs nor a model"),
        pytest.param(raw(gpus=0, labels={"kvaware.io/model": "m"}), True, id="a model"),
        pytest.param(raw(gpus=1), True, id="a GPU"),
    ],
)
def test_the_same_pods_are_kept_as_the_engine_observes(pod: dict[str, Any], observed):
    assert (parse_worker_pod(pod) is not None) == (parse_pod(pod) is not None) == observed


def test_a_pod_with_a_gpu_request_that_cannot_be_used_is_kept_as_the_engine_keeps_it():
    pod = raw(gpus=1)
    pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "0.5"
    assert parse_worker_pod(pod) is not None
    assert parse_pod(pod) is not None


@pytest.mark.parametrize(
    ("condition", "unschedulable"),
    [
        ({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}, True),
        ({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}, False),
        ({"type": "PodScheduled", "status": "True", "reason": "Unschedulable"}, False),
        ({"type": "Ready", "status": "False", "reason": "Unschedulable"}, False),
    ],
)
def test_unschedulable_is_what_kube_scheduler_says_so(condition: dict[str, str], unschedulable):
    read = parse_worker_pod(raw(conditions=[condition]))
    assert read is not None
    assert read.unschedulable is unschedulable


@pytest.mark.parametrize(
    ("statuses", "started_at"),
    [
        pytest.param([], "", id="none yet"),
        pytest.param([{"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}], "", id="waiting"),
        pytest.param([{"name": "c", "state": {"terminated": {"startedAt": "2026-01-01T00:00:00Z"}}}], "", id="ended"),
        pytest.param([{"name": "c"}], "", id="nothing said"),
        pytest.param(running("2026-01-01T00:00:00Z"), "2026-01-01T00:00:00Z", id="running"),
    ],
)
def test_a_worker_has_started_when_its_youngest_container_runs(statuses: list[dict[str, Any]], started_at: str):
    """With the UID it tells incarnations apart: a restarted server has another KV pool."""
    read = parse_worker_pod(raw(containerStatuses=statuses))
    assert read is not None
    assert read.started_at == started_at


def managed(*managers: str, key: str = f"f:{COST}") -> list[dict[str, Any]]:
    return [{"manager": name, "fieldsV1": {"f:metadata": {"f:annotations": {key: {}}}}} for name in managers]


@pytest.mark.parametrize(
    ("managers", "by"),
    [
        pytest.param(managed("kvaware-operator"), "kvaware-operator", id="us"),
        pytest.param(managed("kvaware-operator", "keda"), "keda", id="another one with us: it is theirs"),
        pytest.param(managed("kvaware-operator", key="f:other"), None, id="somebody wrote another annotation"),
        pytest.param([{"manager": "kubelet", "fieldsV1": {"f:status": {}}}, {"manager": "x"}], None, id="nobody"),
    ],
)
def test_who_wrote_the_deletion_cost_is_known(managers: list[dict[str, Any]], by: str | None):
    """It is never written where another manager writes it."""
    pod = raw(annotations={COST: "-5"})
    pod["metadata"]["managedFields"] = managers
    read = parse_worker_pod(pod)
    assert read is not None
    assert (read.deletion_cost, read.deletion_cost_by) == (-5, by)


@pytest.mark.parametrize("text", ["", "low", "1.5", "9" * 40])
def test_a_deletion_cost_that_is_no_number_is_none(text: str):
    pod = raw(annotations={COST: text})
    pod["metadata"]["managedFields"] = managed("keda")
    read = parse_worker_pod(pod)
    assert read is not None
    assert (read.deletion_cost, read.deletion_cost_by) == (None, None)


def test_pods_of_one_workload_share_their_labels_in_memory():
    """40,000 pods: a dictionary for each would be 15 MB."""
    labels = {"app": "llama", "kvaware.io/model": "llama"}
    first, second = (
        parse_worker_pod(raw(name=f"llama-{n}", labels=labels | {"statefulset.kubernetes.io/pod-name": f"llama-{n}"}))
        for n in range(2)
    )
    assert first is not None
    assert second is not None
    assert first.labels is second.labels
    assert first.labels == labels


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_says_so(phase: str):
    read = parse_worker_pod(raw() | {"status": {"phase": phase}})
    assert read is not None
    assert read.finished


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("metadata", "labels"), {"kvaware.io/model": 7}),
        (("metadata", "labels"), {"kvaware.io/model": "m", "x": None}),
        (("metadata", "labels"), {"kvaware.io/model": "m", "x": ["y"]}),
        (("metadata", "uid"), ""),
        (("metadata", "annotations"), []),
        (("status", "conditions"), [1]),
        (("status", "containerStatuses"), {"c": 1}),
        (("metadata", "ownerReferences"), [{"controller": True, "kind": 5}]),
    ],
)
def test_what_is_no_pod_is_a_wire_error(where: tuple[str, str], value: Any):
    pod = raw(labels={"kvaware.io/model": "m"})
    pod[where[0]][where[1]] = value
    with pytest.raises(WireError):
        parse_worker_pod(pod)
