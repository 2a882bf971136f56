"""TenantQuotas and KVCacheBlockGroups: what is said about them."""

from dataclasses import replace

import pytest

from kvaware_cluster import Kind, parse_quota
from kvaware_cluster.parse.custom_resources import parse_custom_resource
from kvaware_operator.group_limits import GroupLimit
from kvaware_operator.reconcile.block_group import block_group_findings
from kvaware_operator.reconcile.tenant_quota import quota_findings, quota_status
from kvaware_testing.fake_api import raw_quota
from kvaware_testing.operator_harness import NOW, raw_group, tenant

GIB = 2**30


def quota(name: str = "team-a", **changes):
    raw = raw_quota(name, **changes)
    raw["metadata"] |= {"uid": f"uid-{name}", "generation": 1}
    return parse_custom_resource(raw, Kind.TENANT_QUOTA), parse_quota(raw)


def said(resource, observed, *, owners=None, use=None, block_groups=0):
    found = quota_findings(resource, quota=observed, owners=owners or {}, use=use, block_groups=block_groups)
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
    use = tenant(used_gpus=6, intended_gpus=1)
    known = quota_findings(resource, quota=observed, owners={}, use=use, block_groups=3)
    before = quota_status({}, known, use=use, block_groups=3, generation=1, now=NOW)
    assert before["used"] == {"gpus": 7, "hbm": "0", "blockGroups": 3}
    unknown = quota_findings(resource, quota=observed, owners={}, use=None, block_groups=None)
    assert quota_status(before, unknown, use=None, block_groups=None, generation=1, now=NOW) == before
    # and what is known goes on
    in_part = quota_findings(resource, quota=observed, owners={}, use=None, block_groups=2)
    after = quota_status(before, in_part, use=None, block_groups=2, generation=1, now=NOW)
    assert after["used"] == {"gpus": 7, "hbm": "0", "blockGroups": 2}
    assert after["conditions"] == before["conditions"]


def test_use_that_was_never_known_is_not_zero():
    resource, observed = quota(gpus=4)
    unknown = quota_findings(resource, quota=observed, owners={}, use=None, block_groups=None)
    status = quota_status({}, unknown, use=None, block_groups=None, generation=1, now=NOW)
    assert "used" not in status
    assert {each["type"] for each in status["conditions"]} == {"Accepted"}


@pytest.mark.parametrize(
    ("limit", "there", "use", "status"),
    [
        pytest.param(2, 2, tenant(), "False", id="at the limit"),
        pytest.param(2, 3, tenant(), "True", id="above it"),
        pytest.param(0, 1, tenant(), "True", id="zero is a limit"),
        pytest.param(2, 3, None, "True", id="above it, whatever else is used"),
    ],
)
def test_more_block_groups_than_the_limit_are_said(limit, there, use, status):
    resource, observed = quota(blockGroups=limit)
    told = said(resource, observed, use=use, block_groups=there)["LimitExceeded"]
    assert told.status == status
    assert (f"limits.blockGroups is {limit}, there are {there}" in told.message) is (status == "True")


def test_whether_limits_are_exceeded_is_not_said_while_use_is_unknown():
    resource, observed = quota(gpus=4, blockGroups=2)
    assert "LimitExceeded" not in said(resource, observed, use=None, block_groups=1)
    assert "LimitExceeded" not in said(resource, observed, use=tenant(), block_groups=None)


def test_every_limit_that_is_exceeded_is_named():
    resource, observed = quota(gpus=1, blockGroups=2)
    told = said(resource, observed, use=tenant(used_gpus=2), block_groups=3)["LimitExceeded"]
    assert told.message == (
        "limits.gpus is 1, 2 are in use: nothing is stopped, and nothing more is admitted until it fits; "
        "limits.blockGroups is 2, there are 3: the youngest are not accepted"
    )


def test_a_quota_that_cannot_be_read_says_that_nothing_is_allowed():
    """What limits cannot say is 0: else a typing mistake would be a licence."""
    resource, observed = quota(gpus="many")
    told = said(resource, observed)["Accepted"]
    assert (told.status, told.reason) == ("False", "Invalid")
    assert "what limits cannot say is 0" in told.message


WITHIN = {"models_known": True, "model_exists": True, "quotas_known": True, "beyond": None}
TWO = GroupLimit(2, "team-a")


def group(**spec):
    raw = raw_group(**spec)
    raw["metadata"]["uid"] = "u"
    return parse_custom_resource(raw, Kind.KV_CACHE_BLOCK_GROUP)


@pytest.mark.parametrize(
    ("facts", "status", "reason"),
    [
        pytest.param({}, "True", "Valid", id="there"),
        pytest.param({"model_exists": False}, "False", "ModelNotFound", id="not there"),
        pytest.param({"models_known": False, "model_exists": False}, "Unknown", "ModelsUnknown", id="nobody knows"),
        pytest.param({"beyond": TWO}, "False", "LimitExceeded", id="beyond its tenant's limit"),
        pytest.param({"beyond": TWO, "quotas_known": False}, "False", "LimitExceeded", id="beyond the last known one"),
        pytest.param({"quotas_known": False}, "Unknown", "QuotasUnknown", id="unknown is not unlimited"),
        pytest.param({"beyond": TWO, "model_exists": False}, "False", "LimitExceeded", id="both"),
    ],
)
def test_a_block_group_needs_its_model_and_room_in_its_tenants_limit(facts, status, reason):
    told, passive = block_group_findings(group(), **{**WITHIN, **facts})
    assert (told.status, told.reason) == (status, reason)
    assert passive.status == "True"


def test_the_limit_that_a_block_group_is_beyond_is_named():
    told, _ = block_group_findings(group(), **{**WITHIN, "beyond": TWO})
    assert told.message == (
        "limits.blockGroups of TenantQuota team-a is 2, and older KVCacheBlockGroups of the tenant take it up"
    )
    told, _ = block_group_findings(group(), **{**WITHIN, "beyond": GroupLimit(0, "team-a")})
    assert told.message == "limits.blockGroups of TenantQuota team-a is 0"


def test_a_block_group_that_cannot_be_read_is_not_accepted():
    resource = group(copies={"min": 3, "max": 1})
    [told] = block_group_findings(resource, **WITHIN)
    assert told.status == "False"
    assert "copies.min must be at most copies.max" in told.message
    [silent] = block_group_findings(replace(resource, problem=None), **WITHIN)
    assert silent.message == "the spec cannot be read"
