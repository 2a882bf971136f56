"""TenantQuotas and KVCacheBlockGroups: what is said about them."""

from dataclasses import replace

import pytest

from kvaware_cluster import Kind, parse_quota
from kvaware_cluster.parse.custom_resources import parse_custom_resource
from kvaware_operator.reconcile.block_group import block_group_findings
from kvaware_operator.reconcile.tenant_quota import quota_findings, quota_status
from kvaware_testing.fake_api import raw_quota
from kvaware_testing.operator_harness import NOW, raw_group, tenant

GIB = 2**30


def quota(name: str = "team-a", **changes):
    raw = raw_quota(name, **changes)
    raw["metadata"] |= {"uid": f"uid-{name}", "generation": 1}
    return parse_custom_resource(raw, Kind.TENANT_QUOTA), parse_quota(raw)


def said(resource, observed, *, owners=None, use=None):
    found = quota_findings(resource, quota=observed, owners=owners or {}, use=use)
    return {str(each.type): each for each in found}


def test_a_namespace_that_an_older_quota_owns_is_named():
    resource, observed = quota()
    _, elder = quota("elder", tenant="b")
    told = said(resource, observed, owners={"ml": elder})["NamespaceConflict"]
    assert (told.status, told.reason) == ("True", "OwnedByOlder")
    assert "ml (TenantQuota elder)" in told.message


def test_quotas_of_one_tenant_share_namespaces():
    """Several quotas on one tenant all apply: that is no conflict."""
    resource, observed = quota()
    _, elder = quota("elder", tenant="a")
    assert said(resource, observed, owners={"ml": elder})["NamespaceConflict"].status == "False"


@pytest.mark.parametrize(
    ("limits", "use", "status", "words"),
    [
        pytest.param({"gpus": 4}, tenant(used_gpus=4), "False", [], id="at the limit"),
        pytest.param({"gpus": 4}, tenant(used_gpus=6), "True", ["limits.gpus is 4, 6 are in use"], id="above it"),
        pytest.param({"gpus": 0}, tenant(used_gpus=1), "True", ["limits.gpus is 0"], id="zero is a limit"),
        pytest.param({}, tenant(used_gpus=99), "False", [], id="no limit"),
        pytest.param(
            {"hbm": "10Gi"}, tenant(used_hbm_bytes=11 * GIB), "True", ["limits.hbm is 10Gi, 11Gi is in use"], id="HBM"
        ),
        pytest.param({"gpus": 4}, tenant(used_gpus=4, intended_gpus=2), "False", [], id="promises do not count here"),
    ],
)
def test_use_above_a_lowered_limit_is_said_with_the_figures(limits, use, status, words):
    """Nobody is killed for it; that nothing more is admitted is the extender's work."""
    resource, observed = quota(**limits)
    told = said(resource, observed, use=use)["LimitExceeded"]
    assert told.status == status
    for word in [*words, *(["nothing is stopped"] if status == "True" else [])]:
        assert word in told.message


def test_unknown_use_changes_nothing_that_was_said():
    """The extender restarts: figures and condition stay as they were, they do not vanish or turn."""
    resource, observed = quota(gpus=4)
    known = quota_findings(resource, quota=observed, owners={}, use=tenant(used_gpus=6, intended_gpus=1))
    before = quota_status({}, known, use=tenant(used_gpus=6, intended_gpus=1), generation=1, now=NOW)
    assert before["used"] == {"gpus": 7, "hbm": "0"}
    unknown = quota_findings(resource, quota=observed, owners={}, use=None)
    assert quota_status(before, unknown, use=None, generation=1, now=NOW) == before


def test_use_that_was_never_known_is_not_zero():
    resource, observed = quota(gpus=4)
    unknown = quota_findings(resource, quota=observed, owners={}, use=None)
    status = quota_status({}, unknown, use=None, generation=1, now=NOW)
    assert "used" not in status
    assert {each["type"] for each in status["conditions"]} == {"Accepted"}


def test_a_quota_that_cannot_be_read_says_that_nothing_is_allowed():
    """What limits cannot say is 0: else a typing mistake would be a licence."""
    resource, observed = quota(gpus="many")
    told = said(resource, observed)["Accepted"]
    assert (told.status, told.reason) == ("False", "Invalid")
    assert "what limits cannot say is 0" in told.message


@pytest.mark.parametrize(
    ("known", "exists", "status", "reason"),
    [
        pytest.param(True, True, "True", "Valid", id="there"),
        pytest.param(True, False, "False", "ModelNotFound", id="not there"),
        pytest.param(False, False, "Unknown", "ModelsUnknown", id="nobody knows"),
    ],
)
def test_a_block_group_needs_its_model(known, exists, status, reason):
    raw = raw_group()
    raw["metadata"]["uid"] = "u"
    resource = parse_custom_resource(raw, Kind.KV_CACHE_BLOCK_GROUP)
    told, passive = block_group_findings(resource, models_known=known, model_exists=exists)
    assert (told.status, told.reason) == (status, reason)
    assert passive.status == "True"


def test_a_block_group_that_cannot_be_read_is_not_accepted():
    raw = raw_group(copies={"min": 3, "max": 1})
    raw["metadata"]["uid"] = "u"
    resource = parse_custom_resource(raw, Kind.KV_CACHE_BLOCK_GROUP)
    [told] = block_group_findings(resource, models_known=True, model_exists=True)
    assert told.status == "False"
    assert "copies.min must be at most copies.max" in told.message
    [silent] = block_group_findings(replace(resource, problem=None), models_known=True, model_exists=True)
    assert silent.message == "the spec cannot be read"
