"""Whole objects of ours and autoscalers, read from raw JSON."""

from typing import Any

import pytest

from kvaware_cluster import CUSTOM_KINDS, Kind, ScaleTarget
from kvaware_cluster.parse.autoscalers import parse_autoscaler
from kvaware_cluster.parse.custom_resources import MODELS, parse_custom_resource
from kvaware_crds import KVCacheBlockGroup, WireError
from kvaware_testing.fake_api import raw_model, raw_quota


def stored(raw: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return raw | {"metadata": {"uid": "u", **raw["metadata"], **metadata}}


def autoscaler(target: Any) -> dict[str, Any]:
    return {"metadata": {"name": "hpa", "namespace": "ml", "uid": "u"}, "spec": {"scaleTargetRef": target}}


def test_every_kind_of_ours_can_be_read_whole():
    assert MODELS.keys() == CUSTOM_KINDS
    group = {
        "metadata": {"name": "g", "namespace": "ml"},
        "spec": {"modelRef": {"name": "llama"}, "prefix": {"text": "You are"}},
    }
    read = parse_custom_resource(stored(group), Kind.KV_CACHE_BLOCK_GROUP)
    assert read.problem is None
    assert isinstance(read.resource, KVCacheBlockGroup)
    assert parse_custom_resource(stored(raw_quota()), Kind.TENANT_QUOTA).key == ("", "team-a")


def test_a_status_of_another_version_does_not_make_the_spec_unusable():
    """The operator overwrites it; it must be able to."""
    raw = stored(raw_model()) | {"status": {"roles": "none", "conditions": [{"type": 1}], "since": "v2"}}
    read = parse_custom_resource(raw, Kind.INFERENCE_MODEL)
    assert read.problem is None
    assert read.resource is not None
    assert read.status == {"roles": "none", "conditions": [{"type": 1}], "since": "v2"}


@pytest.mark.parametrize("status", [None, [], "x"])
def test_a_status_that_is_none_is_empty(status: Any):
    assert parse_custom_resource(stored(raw_model()) | {"status": status}, Kind.INFERENCE_MODEL).status == {}


def test_what_moves_with_every_write_is_not_kept():
    first = parse_custom_resource(stored(raw_model(), resourceVersion="1"), Kind.INFERENCE_MODEL)
    second = parse_custom_resource(stored(raw_model(), resourceVersion="2"), Kind.INFERENCE_MODEL)
    assert first == second


@pytest.mark.parametrize(
    ("metadata", "terminating"),
    [({}, False), ({"deletionTimestamp": None}, False), ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, True)],
)
def test_an_object_that_is_being_deleted_is_terminating(metadata: dict[str, Any], *, terminating: bool):
    assert parse_custom_resource(stored(raw_model(), **metadata), Kind.INFERENCE_MODEL).terminating is terminating


@pytest.mark.parametrize("spec", [None, [], {}, {"modelId": "x"}, {"modelId": "x", "roles": []}])
def test_a_spec_that_cannot_be_used_is_a_problem_not_an_error(spec: Any):
    read = parse_custom_resource(stored(raw_model()) | {"spec": spec}, Kind.INFERENCE_MODEL)
    assert read.resource is None
    assert read.problem is not None
    assert read.problem.startswith("InferenceModel ml/llama: spec")


@pytest.mark.parametrize("metadata", [{"uid": None}, {"name": ""}, {"creationTimestamp": 5}])
def test_what_is_no_object_is_an_error(metadata: dict[str, Any]):
    with pytest.raises(WireError, match=r"inferencemodel\.metadata"):
        parse_custom_resource(stored(raw_model(), **metadata), Kind.INFERENCE_MODEL)


def test_an_autoscaler_names_its_workload_in_its_own_namespace():
    read = parse_autoscaler(autoscaler({"apiVersion": "lws.x/v1", "kind": "LeaderWorkerSet", "name": "big"}))
    assert read.target == ScaleTarget("lws.x/v1", "LeaderWorkerSet", "ml", "big")
    assert parse_autoscaler(autoscaler({"kind": "Deployment", "name": "a"})).target.api_version == ""


@pytest.mark.parametrize("target", [None, {}, {"kind": "Deployment"}, {"name": "a"}, [], {"kind": 1, "name": "a"}])
def test_an_autoscaler_without_a_workload_is_an_error_that_names_it(target: Any):
    with pytest.raises(WireError, match="scaleTargetRef"):
        parse_autoscaler(autoscaler(target))
