from typing import Any

import pytest

from kvaware_cluster import (
    OBSERVED_KINDS,
    Autoscaler,
    Change,
    CustomResource,
    Kind,
    KubernetesSource,
    ScaleTarget,
    Store,
)
from kvaware_crds import InferenceModel
from kvaware_engine import ObjectKey
from kvaware_testing.fake_api import FakeApi, raw_model, raw_pod, raw_quota
from kvaware_testing.store_harness import QUICK, FakeClock, Recorder, eventually, running

LLAMA = ObjectKey("ml", "llama")
OPERATORS = frozenset({Kind.POD, Kind.INFERENCE_MODEL, Kind.TENANT_QUOTA, Kind.AUTOSCALER})


@pytest.fixture
def store(source: KubernetesSource, clock: FakeClock, recorder: Recorder) -> Store:
    made = Store(source, settings=QUICK, clock=clock, kinds=OPERATORS, details=True)
    made.subscribe(recorder)
    return made


def raw_autoscaler(name: str = "hpa", *, namespace: str = "ml", **target: Any) -> dict[str, Any]:
    wanted = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama", **target}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"scaleTargetRef": wanted, "maxReplicas": 3}}


async def test_only_the_wanted_kinds_are_watched(api: FakeApi, store, recorder):
    """The operator needs no right to nodes, and the extender none to autoscalers."""
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: all(api.watching(kind) == 1 for kind in OPERATORS))
        assert store.ages().keys() == OPERATORS
    asked = {path for _, path, *_ in api.requests}
    assert not any("nodes" in path or "kvcacheblockgroups" in path for path in asked)
    with pytest.raises(KeyError):
        store.objects(Kind.NODE)
    with pytest.raises(KeyError):
        store.resources(Kind.KV_CACHE_BLOCK_GROUP)


async def test_a_store_watches_what_the_engine_is_told_of_unless_told_otherwise(api, source, make_store, recorder):
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        assert store.ages().keys() == OBSERVED_KINDS
    assert not any("autoscalers" in path for _, path, *_ in api.requests)
    with pytest.raises(KeyError):
        store.resources(Kind.INFERENCE_MODEL)  # details were not asked for
    with pytest.raises(KeyError):
        _ = store.autoscalers


async def test_objects_are_kept_whole_from_the_same_watch(api, store, recorder):
    status = {"roles": [{"name": "both", "replicas": 2}], "conditions": []}
    raw = raw_model()
    raw["metadata"] |= {"generation": 4, "creationTimestamp": "2026-01-01T00:00:00Z"}
    await api.put("inferencemodel", {**raw, "status": status})
    await api.put("tenantquota", raw_quota(gpus=4))
    async with running(store):
        await recorder.until(store.synced)
        model = store.resources(Kind.INFERENCE_MODEL)[LLAMA]
        assert isinstance(model.resource, InferenceModel)
        assert model.resource.spec.roles[0].footprint.hbm_per_gpu == 40 * 2**30
        assert (model.generation, model.created_at, model.terminating) == (4, "2026-01-01T00:00:00Z", False)
        assert (model.status, model.problem) == (status, None)
        assert store.resources(Kind.TENANT_QUOTA)[ObjectKey("", "team-a")].kind is Kind.TENANT_QUOTA
        assert store.objects(Kind.INFERENCE_MODEL).keys() == {LLAMA}  # the engine's observation stands beside it
        await eventually(lambda: api.watching("inferencemodel") == 1)
    assert api.count("inferencemodel", watch=False) == 1


async def test_every_change_of_a_whole_object_is_told(api, store, recorder):
    """Its status too: that somebody else has changed it is seen, and mended."""
    told: list[Change[CustomResource]] = []
    store.on_resource(told.append)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("inferencemodel") == 1)
        raw = await api.put("inferencemodel", raw_model())
        await api.put("inferencemodel", {**raw, "status": {"conditions": []}})
        metadata = {**raw["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}
        await api.put("inferencemodel", {**raw, "metadata": metadata})
        await api.delete("inferencemodel", "ml", "llama")
        await eventually(lambda: len(told) == 4)
    assert [change.new and (change.new.status, change.new.terminating) for change in told] == [
        ({}, False),
        ({"conditions": []}, False),
        ({}, True),
        None,
    ]
    assert {change.kind for change in told} == {Kind.INFERENCE_MODEL}
    assert {change.key for change in told} == {LLAMA}


async def test_a_write_that_changes_nothing_that_is_kept_is_not_told(api, store, recorder):
    """strimzi/strimzi-kafka-operator#13079: managed fields and versions move with every write."""
    told: list[Change[CustomResource]] = []
    store.on_resource(told.append)
    raw = await api.put("inferencemodel", raw_model())
    async with running(store):
        await eventually(lambda: len(told) == 1 and api.watching("inferencemodel") == 1)
        await api.put("inferencemodel", {**raw, "metadata": {**raw["metadata"], "managedFields": [{"manager": "x"}]}})
        await api.delete("inferencemodel", "ml", "llama")
        await eventually(lambda: told[-1].new is None)
    assert len(told) == 2


async def test_a_spec_that_cannot_be_used_says_why_and_is_mended(api, store, recorder):
    raw = raw_model()
    raw["spec"]["modleId"] = raw["spec"].pop("modelId")
    await api.put("inferencemodel", raw)
    async with running(store):
        await recorder.until(store.synced)
        broken = store.resources(Kind.INFERENCE_MODEL)[LLAMA]
        assert broken.resource is None
        assert broken.problem is not None
        assert "InferenceModel ml/llama" in broken.problem
        assert "spec.modleId: unknown field" in broken.problem
        assert "spec.modelId: required, and missing" in broken.problem
        await eventually(lambda: api.watching("inferencemodel") == 1)
        await api.put("inferencemodel", raw_model())
        await eventually(lambda: store.resources(Kind.INFERENCE_MODEL)[LLAMA].problem is None)
        assert store.resources(Kind.INFERENCE_MODEL)[LLAMA].resource is not None


async def test_an_object_of_the_same_name_is_a_removal_and_an_addition(api, store, recorder):
    told: list[Change[CustomResource]] = []
    store.on_resource(told.append)
    await api.put("inferencemodel", raw_model())
    async with running(store):
        await eventually(lambda: api.watching("inferencemodel") == 1)
        api.cut("inferencemodel")
        await api.delete("inferencemodel", "ml", "llama")
        await api.put("inferencemodel", raw_model())
        await api.compact()
        await eventually(lambda: len(told) == 3)
    assert [(change.old is None, change.new is None) for change in told] == [
        (True, False),
        (False, True),
        (True, False),
    ]


async def test_autoscalers_say_who_else_scales(api, store, recorder):
    """An HPA on the same workload: it is detected and left alone."""
    told: list[Change[Autoscaler]] = []
    store.on_autoscaler(told.append)
    await api.put("horizontalpodautoscaler", raw_autoscaler())
    async with running(store):
        await recorder.until(store.synced)
        (one,) = store.autoscalers.values()
        assert one.target == ScaleTarget("apps/v1", "Deployment", "ml", "llama")
        assert one.key == ObjectKey("ml", "hpa")
        await eventually(lambda: api.watching("horizontalpodautoscaler") == 1)
        await api.put("horizontalpodautoscaler", raw_autoscaler(name="llama-2") | {"status": {"currentReplicas": 3}})
        await eventually(lambda: len(told) == 2)
        await api.delete("horizontalpodautoscaler", "ml", "hpa")
        await eventually(lambda: len(told) == 3)
        assert store.autoscalers.keys() == {ObjectKey("ml", "llama-2")}
    assert not any(change.kind == Kind.AUTOSCALER for change in recorder.changes)


async def test_without_the_right_to_autoscalers_they_are_unknown(api, store, recorder):
    """Not none: the operator cannot know that nobody else scales."""
    api.forbidden.add("horizontalpodautoscaler")
    await api.put("pod", raw_pod())
    async with running(store):
        await recorder.until(lambda: "p1" in recorder.names(Kind.POD))
        await eventually(lambda: api.count("horizontalpodautoscaler", watch=False) >= 2)
        assert store.ages()[Kind.AUTOSCALER] is None
        assert not store.synced()
        api.forbidden.clear()
        await eventually(store.synced)


async def test_a_callback_that_fails_is_told_again(api, store, recorder, logs):
    failures: list[CustomResource | None] = []
    told: list[Change[CustomResource]] = []

    def fail_once(change: Change[CustomResource]) -> None:
        if not failures:
            failures.append(change.new)
            raise KeyError("fault")
        told.append(change)

    store.on_resource(fail_once)
    await api.put("inferencemodel", raw_model())
    async with running(store):
        await eventually(lambda: len(told) == 1)
        assert store.resources(Kind.INFERENCE_MODEL).keys() == {LLAMA}
    assert len(failures) == 1
