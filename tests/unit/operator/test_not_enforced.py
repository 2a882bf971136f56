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
        pytest.param({"policy": {"name": "locality"}}, [], id="a policy is acted upon"),
        pytest.param({"replication": {"maxCopies": 3}}, ["spec.replication"], id="replication"),
        pytest.param({"workers": {"server": "SGLang"}}, [], id="the server is acted upon"),
        pytest.param({"workers": {"capabilities": ["pin"]}}, [], id="capabilities are acted upon"),
        pytest.param({"workers": {"ports": {"kvEvents": 5557}}}, [], id="events are acted upon"),
        pytest.param({"kvCache": {"bytesPerToken": 1, "maxContextTokens": 8192}}, [], id="the context is acted upon"),
    ],
)
def test_fields_of_a_model(spec, fields):
    assert passive_fields(facts(model_of(**spec)).spec) == fields


def test_fields_of_a_quota():
    raw = raw_quota(gpus=4, requestsPerSecond=3, concurrentMigrations=1, ssd="1Ti")
    raw["spec"] |= {"weight": 5, "priority": {"max": 10}, "guaranteed": {"hbm": "1Gi", "requestsPerSecond": 2}}
    assert passive_fields(read(TenantQuota, raw).spec) == [
        "spec.limits.ssd",
        "spec.guaranteed.requestsPerSecond",
        "spec.weight",
    ]


def test_a_default_that_the_api_server_filled_in_is_not_set():
    raw = raw_quota(gpus=0)
    raw["spec"]["weight"] = 1
    assert passive_fields(read(TenantQuota, raw).spec) == []


def test_a_limit_of_zero_is_set():
    """0 is nothing, not unset."""
    raw = raw_quota(ssd=0)
    assert passive_fields(read(TenantQuota, raw).spec) == ["spec.limits.ssd"]


def test_fields_of_a_block_group():
    raw = raw_group(pinned=True, copies={"min": 2, "max": 3}, tier="hbm", ttl="24h")
    assert passive_fields(read(KVCacheBlockGroup, raw).spec) == [
        "spec.prefix",
        "spec.pinned",
        "spec.copies",
        "spec.ttl",
    ]


def test_the_condition_names_them_all():
    told = not_enforced(facts(model_of(replication={})).spec)
    assert told.status is ConditionStatus.TRUE
    assert told.message == "this version does not act on spec.replication"
    raw = raw_group(pinned=True)
    told = not_enforced(read(KVCacheBlockGroup, raw).spec)
    assert told.message == "this version does not act on spec.prefix and spec.pinned"
    assert not_enforced(facts(model_of()).spec).status is ConditionStatus.FALSE


@pytest.mark.parametrize("spec", [InferenceModelSpec, KVCacheBlockGroupSpec, TenantQuotaSpec])
def test_every_path_leads_to_a_field(spec):
    """A field that is renamed must not drop out of the list silently."""
    for path in PASSIVE[spec]:
        first, *_ = path.split(".")
        assert first in spec.model_fields


ACTED_UPON = {
    "limits": {
        "gpus",
        "hbm",
        "requests_per_second",
        "tokens_per_second",
        "concurrent_requests",
        "block_groups",
        "remote_read_bytes_per_second",
        "migration_bytes_per_second",
        "concurrent_migrations",
        "control_requests_per_second",
    },
    "guaranteed": {"gpus", "hbm"},
}


@pytest.mark.parametrize("part", ["limits", "guaranteed"])
def test_every_amount_is_acted_upon_or_named(part: str):
    named = {path.split(".")[1] for path in PASSIVE[TenantQuotaSpec] if path.startswith(f"{part}.")}
    assert named | ACTED_UPON[part] == set(QuotaAmounts.model_fields)
    assert not named & ACTED_UPON[part]
