"""The three kinds as Python reads them: what the API server accepts is read, what it refuses is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from kvaware_crds import InferenceModel, KVCacheBlockGroup, TenantQuota, WireError, read
from kvaware_crds.v1alpha1.inference_model import PolicyName, ScalingMode
from kvaware_crds.v1alpha1.tenant_quota import QuotaAmounts
from kvaware_testing.crd_cases import Case, cases, kind_of

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "crds").glob("*.yaml"))
GI = 2**30


def inference_model(**spec: Any) -> dict[str, Any]:
    """The smallest InferenceModel, with these fields of its spec."""
    roles = [{"name": "both", "footprint": {"gpusPerPod": 1}}]
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": "llama", "namespace": "ml"},
        "spec": {"modelId": "acme/llama", "roles": roles, **spec},
    }


@pytest.mark.parametrize("case", [*cases("good"), *cases("status_good")], ids=lambda case: case.path.stem)
def test_good_object_is_read_and_written_back_the_same(case: Case) -> None:
    # when
    kind = kind_of(case.manifest)
    first = read(kind, case.manifest)
    # then
    assert read(kind, first.to_raw()) == first
    assert read(kind, yaml.safe_load(yaml.safe_dump(first.to_raw()))) == first


@pytest.mark.parametrize("case", [*cases("bad"), *cases("status_bad")], ids=lambda case: case.path.stem)
def test_what_the_api_server_refuses_python_refuses(case: Case) -> None:
    """A folder of YAML, read without an API server, is held to the same bounds."""
    # when
    with pytest.raises(WireError) as refused:
        read(kind_of(case.manifest), case.manifest)
    # then
    message = str(refused.value)
    assert message.startswith(f"{case.manifest['kind']} ")
    assert case.manifest["metadata"]["name"] in message
    if case.expected is not None and case.expected.startswith(("must be", "must not")):
        assert case.expected in message or "expected a Kubernetes quantity" in message


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_read(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert read(kind_of(manifest), manifest).metadata.name == manifest["metadata"]["name"]


def test_there_is_one_example_per_kind() -> None:
    kinds = {yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] for path in EXAMPLES}
    assert kinds == {"InferenceModel", "KVCacheBlockGroup", "TenantQuota"}


def test_quantities_and_durations_become_bytes_and_timedeltas() -> None:
    # when
    model = read(
        InferenceModel,
        inference_model(
            roles=[{"name": "both", "footprint": {"gpusPerPod": 8, "hbmPerGPU": "72Gi"}}],
            weights={"size": "1.5e9"},
            objectives={"ttft": "800ms"},
        ),
    )
    # then
    assert model.spec.roles[0].footprint.hbm_per_gpu == 72 * GI
    assert model.spec.weights is not None
    assert model.spec.weights.size == 1_500_000_000
    assert model.spec.objectives is not None
    assert model.spec.objectives.ttft == timedelta(milliseconds=800)
    assert model.to_raw()["spec"]["roles"][0]["footprint"]["hbmPerGPU"] == "72Gi"
    assert model.to_raw()["spec"]["objectives"] == {"ttft": "800ms"}


def test_promised_defaults() -> None:
    """What users get who say nothing; changing one is a change for all of them."""
    # when
    model = read(InferenceModel, inference_model(scaling={"windows": {}, "stepLimit": {}}, policy={}, workers={}))
    group = read(
        KVCacheBlockGroup,
        {"metadata": {"name": "g"}, "spec": {"modelRef": {"name": "m"}, "prefix": {"text": "x"}, "copies": {}}},
    )
    quota = read(TenantQuota, {"metadata": {"name": "q"}, "spec": {"tenant": "t", "priority": {}}})
    # then
    spec = model.spec
    assert spec.roles[0].footprint.pods_per_replica == 1
    assert spec.roles[0].footprint.hbm_per_gpu is None, "None: whole GPUs"
    assert spec.scaling is not None
    assert spec.scaling.mode is ScalingMode.RECOMMEND, "nothing is scaled before somebody asks for it"
    assert spec.scaling.windows is not None
    assert (spec.scaling.windows.scale_up, spec.scaling.windows.scale_down) == (timedelta(), timedelta(minutes=5))
    assert spec.scaling.step_limit is not None
    assert (spec.scaling.step_limit.scale_up, spec.scaling.step_limit.scale_down) == (4, 1)
    assert spec.policy is not None
    assert spec.policy.name is PolicyName.COST
    assert spec.workers is not None
    assert (spec.workers.server, spec.workers.capabilities) == ("vLLM", ())
    assert (group.spec.pinned, group.spec.tier) == (False, "hbm")
    assert group.spec.copies is not None
    assert (group.spec.copies.min, group.spec.copies.max) == (1, 1)
    assert quota.spec.weight == 1
    assert quota.spec.priority is not None
    assert (quota.spec.priority.default, quota.spec.priority.max) == (0, None)


def test_unset_limit_and_zero_limit_differ() -> None:
    """Project-HAMi/HAMi#2312: a limit of 0, meant to block a namespace, was read as "no limit"."""
    # when
    quota = read(
        TenantQuota,
        {"metadata": {"name": "q"}, "spec": {"tenant": "t", "limits": {"gpus": 0, "hbm": "0", "requestsPerSecond": 0}}},
    )
    # then
    limits = quota.spec.limits
    assert limits is not None
    assert (limits.gpus, limits.hbm, limits.requests_per_second) == (0, 0, 0)
    assert (limits.ssd, limits.tokens_per_second) == (None, None)
    assert quota.to_raw()["spec"]["limits"] == {"gpus": 0, "hbm": "0", "requestsPerSecond": 0}


def test_every_amount_is_compared_with_its_guarantee() -> None:
    """A new amount cannot be forgotten among the rules."""
    compared = {stated.message for stated in type(read(TenantQuota, _quota()).spec).rules}
    names = [field.alias for field in QuotaAmounts.model_fields.values()]
    assert compared == {f"limits.{name} must be at least guaranteed.{name}" for name in names}


def _quota() -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"tenant": "t"}}


def test_kv_bytes_per_token_follow_from_the_architecture() -> None:
    """80 layers x 8 KV heads x 128 numbers x 2 bytes, for keys and for values: 327,680."""
    # given
    numbers = {"layers": 80, "kvHeads": 8, "headDim": 128, "dtypeBytes": 2}
    # when
    computed = read(InferenceModel, inference_model(kvCache={"architecture": numbers})).spec.kv_cache
    said = read(InferenceModel, inference_model(kvCache={"bytesPerToken": "320Ki"})).spec.kv_cache
    # then
    assert computed is not None
    assert said is not None
    assert computed.token_bytes() == said.token_bytes() == 327_680


def test_null_is_left_out_as_the_api_server_does() -> None:
    """People leave `labels:` or `weight:` behind with nothing after it."""
    # given
    raw = {"metadata": {"name": "q", "labels": None}, "spec": {"tenant": "t", "weight": None, "limits": {"gpus": None}}}
    # when
    quota = read(TenantQuota, raw)
    # then
    assert quota.metadata.labels == {}
    assert quota.spec.weight == 1
    assert quota.spec.limits is not None
    assert quota.spec.limits.gpus is None


def test_spec_takes_yaml_names_only() -> None:
    """The API server would prune a snake_case field, so a folder of YAML must not give it a meaning."""
    # given
    raw = inference_model(served_names=["llama"])
    # then
    with pytest.raises(WireError, match=r"InferenceModel ml/llama: spec\.served_names: unknown field"):
        read(InferenceModel, raw)


def test_status_and_metadata_of_a_newer_version_are_read() -> None:
    """slauger/openvox-operator#555: versions of CRD and program differ during an upgrade."""
    # given
    raw = inference_model()
    raw["metadata"] |= {"managedFields": [{"manager": "kubectl"}], "uid": "u-1", "generation": 3}
    raw["status"] = {"conditions": [], "newerField": {"deep": 1}}
    # when
    model = read(InferenceModel, raw)
    # then
    assert (model.metadata.uid, model.metadata.generation) == ("u-1", 3)
    assert model.status is not None


def test_conditions_carry_the_observed_generation() -> None:
    # given
    condition = {
        "type": "Accepted",
        "status": "True",
        "observedGeneration": 7,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Valid",
        "message": "",
    }
    # when
    model = read(InferenceModel, {**inference_model(), "status": {"conditions": [condition]}})
    # then
    assert model.status is not None
    (seen,) = model.status.conditions
    assert seen.observed_generation == 7
    assert seen.last_transition_time == datetime(2026, 1, 1, tzinfo=UTC)
    assert model.to_raw()["status"]["conditions"] == [condition]


def test_types_are_frozen() -> None:
    quota = read(TenantQuota, _quota())
    with pytest.raises(ValidationError, match="frozen"):
        quota.spec.weight = 2


def test_refusal_names_object_field_expectation_and_what_came() -> None:
    # given
    raw = inference_model(
        roles=[{"name": "both", "footprint": {"gpusPerPod": 0, "hbmPerGPU": "40GB"}}], servedNames=["n"] * 65
    )
    # when
    with pytest.raises(WireError) as refused:
        read(InferenceModel, raw)
    # then
    assert str(refused.value) == (
        "InferenceModel ml/llama: spec.servedNames: expected at most 64 items, got 65; "
        "spec.roles[0].footprint.gpusPerPod: Input should be greater than or equal to 1, got 0; "
        "spec.roles[0].footprint.hbmPerGPU: "
        "expected a Kubernetes quantity such as 40Gi, 500M, 1e9 or 1024, got '40GB'"
    )


def test_refusal_never_quotes_a_prompt() -> None:
    """Messages are logged; prompts are not."""
    # given
    secret = "the patient's name is " + "x" * 70_000
    raw = {"metadata": {"name": "g"}, "spec": {"modelRef": {"name": "m"}, "prefix": {"text": secret}}}
    # when
    with pytest.raises(WireError) as refused:
        read(KVCacheBlockGroup, raw)
    # then
    assert "70022 characters" in str(refused.value)
    assert "patient" not in str(refused.value)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        7,
        "text",
        [],
        {},
        {"metadata": None},
        {"metadata": {"name": 7}},
        {"spec": []},
        {"metadata": {}, "spec": None},
    ],
    ids=repr,
)
def test_any_other_shape_is_our_own_error(raw: object) -> None:
    with pytest.raises(WireError, match="TenantQuota"):
        read(TenantQuota, raw)


def test_many_faults_are_told_briefly() -> None:
    """A message is for people: the first five, and how many more there are."""
    # given
    raw = inference_model(**{f"unknown{number}": 1 for number in range(9)})
    # when
    with pytest.raises(WireError) as refused:
        read(InferenceModel, raw)
    # then
    assert str(refused.value).count("unknown field") == 5
    assert str(refused.value).endswith("; and 4 more")
