"""Fields that this version does not act on: each that is set is named, and defaults are not."""

import pytest

from kvaware_crds import ConditionStatus, KVCacheBlockGroup, TenantQuota, read
from kvaware_crds.v1alpha1.inference_model import InferenceModelSpec
from kvaware_crds.v1alpha1.kv_cache_block_group import KVCacheBlockGroupSpec
from kvaware_crds.v1alpha1.tenant_quota import QuotaAmounts, TenantQuotaSpec
from kvaware_operator.not_enforced import PASSIVE, not_enforced, passive_fields
from kvaware_testing.fake_api import raw_quota
from kvaware_testing.operator_harness import facts, model_of, raw_group


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"policy": {}}, ["spec.policy"], id="a policy"),
        pytest.param({"replication": {"maxCopies": 3}}, ["spec.replication"], id="replication"),
        pytest.param({"workers": {"server": "SGLang"}}, [], id="the server is acted upon"),
        pytest.param({"workers": {"capabilities": ["pin"]}}, ["spec.workers.capabilities"], id="capabilities"),
        pytest.param({"workers": {"capabilities": []}}, [], id="a default that the API server filled in"),
        pytest.param({"workers": {"ports": {"kvEvents": 5557}}}, ["spec.workers.ports.kvEvents"], id="events"),
        pytest.param(
            {"kvCache": {"bytesPerToken": 1, "maxContextTokens": 8192}}, ["spec.kvCache.maxContextTokens"], id="context"
        ),
    ],
)
def test_fields_of_a_model(spec, fields):
    assert passive_fields(facts(model_of(**spec)).spec) == fields


def test_fields_of_a_quota():
    raw = raw_quota(gpus=4, requestsPerSecond=3)
    raw["spec"] |= {"weight": 5, "priority": {"max": 10}, "guaranteed": {"hbm": "1Gi", "ssd": "1Ti"}}
    assert passive_fields(read(TenantQuota, raw).spec) == [
        "spec.limits.requestsPerSecond",
        "spec.guaranteed.ssd",
        "spec.weight",
        "spec.priority",
    ]
    raw["spec"] = {"tenant": "a", "weight": 1, "limits": {"gpus": 0}}
    assert passive_fields(read(TenantQuota, raw).spec) == []


def test_a_limit_of_zero_is_set():
    """0 is nothing, not unset."""
    raw = raw_quota(tokensPerSecond=0)
    assert passive_fields(read(TenantQuota, raw).spec) == ["spec.limits.tokensPerSecond"]


def test_fields_of_a_block_group():
    raw = raw_group(pinned=True, copies={"min": 2, "max": 3}, tier="hbm", ttl="24h")
    assert passive_fields(read(KVCacheBlockGroup, raw).spec) == [
        "spec.prefix",
        "spec.pinned",
        "spec.copies",
        "spec.ttl",
    ]


def test_the_condition_names_them_all():
    told = not_enforced(facts(model_of(policy={}, replication={})).spec)
    assert told.status is ConditionStatus.TRUE
    assert told.message == "this version does not act on spec.replication and spec.policy"
    assert not_enforced(facts(model_of()).spec).status is ConditionStatus.FALSE


@pytest.mark.parametrize("spec", [InferenceModelSpec, KVCacheBlockGroupSpec, TenantQuotaSpec])
def test_every_path_leads_to_a_field(spec):
    """A field that is renamed must not drop out of the list silently."""
    for path in PASSIVE[spec]:
        first, *_ = path.split(".")
        assert first in spec.model_fields


def test_every_amount_is_acted_upon_or_named():
    named = {path.split(".")[1] for path in PASSIVE[TenantQuotaSpec] if path.startswith("limits.")}
    assert named | {"gpus", "hbm"} == set(QuotaAmounts.model_fields)
