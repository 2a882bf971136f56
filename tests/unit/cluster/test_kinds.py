"""The three kinds: as the CRDs validate them, and as older or newer CRDs may let them through."""

from dataclasses import fields
from typing import Any

import pytest

from kvaware_cluster import parse_block_group, parse_model, parse_quota
from kvaware_crds.errors import WireError
from kvaware_crds.v1alpha1.tenant_quota import QuotaAmounts
from kvaware_engine.observations import Amounts, CopyState, NodeSelector, ObjectKey, SelectorRequirement, Tier
from kvaware_testing.fake_api import raw_model, raw_quota

GIB = 2**30


def stored(raw: dict[str, Any]) -> dict[str, Any]:
    raw["metadata"]["uid"] = "u1"
    return raw


def test_a_models_footprint_weights_and_kv_cache_are_read():
    # given
    raw = stored(raw_model(hbm_per_gpu="40Gi", gpus=4))
    raw["spec"]["revision"] = "main"
    raw["spec"]["weights"] = {"size": "140Gi"}
    raw["spec"]["kvCache"] = {"architecture": {"layers": 80, "kvHeads": 8, "headDim": 128, "dtypeBytes": 2}}
    # when
    model = parse_model(raw)
    # then
    assert model.key == ObjectKey("ml", "llama")
    assert (model.model_id, model.revision) == ("meta-llama/Llama-3.3-70B-Instruct", "main")
    assert (model.roles[0].gpus_per_pod, model.roles[0].hbm_per_gpu_bytes) == (4, 40 * GIB)
    assert model.weights_bytes == 140 * GIB
    assert model.kv_bytes_per_token == 327_680  # 2 x 80 x 8 x 128 x 2


def test_bytes_per_token_may_be_given_and_whole_gpus_are_unset_hbm():
    raw = stored(raw_model(hbm_per_gpu=None))
    raw["spec"]["kvCache"] = {"bytesPerToken": "70Ki"}
    model = parse_model(raw)
    assert model.kv_bytes_per_token == 71_680  # 70 x 1024
    assert model.roles[0].hbm_per_gpu_bytes is None
    assert (model.revision, model.weights_bytes) == ("", None)


def test_what_requests_need_of_a_model_is_read():
    raw = stored(raw_model())
    raw["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    raw["spec"]["servedNames"] = ["chat", "chat-lora"]
    raw["spec"]["policy"] = {"name": "least_loaded"}
    raw["spec"]["kvCache"] = {"bytesPerToken": "70Ki", "blockSizeTokens": 32, "maxContextTokens": 131_072}
    raw["spec"]["workers"] = {"ports": {"kvEvents": 5557}, "capabilities": ["tiers", "pull_from_peer"]}
    model = parse_model(raw)
    assert (model.created_at, model.served_names) == ("2026-01-02T00:00:00Z", ("chat", "chat-lora"))
    assert (model.policy, model.block_size_tokens, model.max_context_tokens) == ("least_loaded", 32, 131_072)
    assert (model.workers.kv_events_port, model.workers.kv_events_replay_port) == (5557, None)
    assert model.workers.capabilities == {"tiers", "pull_from_peer"}


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        ({"name": "least_loaded", "measure": "hbm"}, (("measure", "hbm"),)),
        ({"name": "power_of_two", "drawnFrom": "holders"}, (("drawn_from", "holders"),)),
        ({"name": "least_loaded"}, ()),
        ({}, ()),
    ],
    ids=str,
)
def test_what_is_chosen_of_a_policy_is_read(policy: dict[str, str], fields: tuple[tuple[str, str], ...]):
    raw = stored(raw_model())
    raw["spec"]["policy"] = policy
    model = parse_model(raw)
    assert (model.policy, model.policy_fields) == (policy.get("name", "cost"), fields)


def test_a_model_that_says_nothing_of_requests_is_served_as_its_id_by_cost():
    model = parse_model(stored(raw_model()))
    assert model.served_names == ("meta-llama/Llama-3.3-70B-Instruct",)
    assert (model.policy, model.block_size_tokens, model.max_context_tokens) == ("cost", 16, None)
    assert (model.workers.kv_events_port, model.workers.capabilities) == (None, frozenset())


def test_names_capabilities_and_a_policy_of_another_version_are_left_out():
    """A capability that this version does not know is no reason to forget the others."""
    raw = stored(raw_model())
    raw["spec"]["servedNames"] = ["chat", "has a blank", 7, "chat"]
    raw["spec"]["policy"] = {"name": "by_the_moon", "measure": "phase"}
    raw["spec"]["workers"] = {"capabilities": ["tiers", "teleport", "tiers", None]}
    told: list[str] = []
    model = parse_model(raw, report=told.append)
    assert (model.served_names, model.policy) == (("chat",), "cost")
    assert model.workers.capabilities == {"tiers"}
    assert len(told) == 1


def test_a_model_of_another_crd_version_is_read_as_far_as_pods_need_it():
    """What pods do not need is passed over; what cannot be read is unknown; one sentence is told."""
    # given
    raw = stored(raw_model())
    raw["spec"]["fromTheFuture"] = {"x": 1}
    raw["spec"]["weights"] = {"size": "lots"}
    raw["spec"]["kvCache"] = {"bytesPerToken": "70Ki", "pageTable": "new"}
    raw["spec"]["roles"][0]["color"] = "red"
    raw["spec"]["roles"][0]["footprint"]["flavour"] = "new"
    raw["spec"]["roles"].append({"name": "decode", "footprint": {"gpusPerPod": "four"}})
    told: list[str] = []
    # when
    model = parse_model(raw, report=told.append)
    # then
    assert [role.name for role in model.roles] == ["both"]
    assert model.roles[0].hbm_per_gpu_bytes == 40 * GIB
    assert model.weights_bytes is None
    assert model.kv_bytes_per_token == 71_680
    assert len(told) == 1


@pytest.mark.parametrize("spec", [None, {}, {"modelId": "m"}, {"modelId": 7, "roles": []}, [], {"roles": {}}])
def test_a_model_without_id_or_roles_is_a_wire_error(spec: Any):
    raw = stored(raw_model())
    raw["spec"] = spec
    with pytest.raises(WireError):
        parse_model(raw)


def test_an_absurd_footprint_stays_refusable_and_small_enough_to_add_up():
    assert parse_model(stored(raw_model(hbm_per_gpu="1Ei"))).roles[0].hbm_per_gpu_bytes == 2**42


NOTHING = Amounts(**{each.name: 0 for each in fields(Amounts)})


def test_every_amount_of_a_quota_is_read():
    """An amount that the CRD knows and the engine does not would be unlimited."""
    raw = stored(
        raw_quota(
            gpus=1,
            hbm="2",
            cpuMemory="3",
            ssd="4",
            blockGroups=5,
            requestsPerSecond=6,
            tokensPerSecond=7,
            concurrentRequests=8,
            remoteReadBytesPerSecond="9",
            migrationBytesPerSecond="1Ki",
            concurrentMigrations=11,
            controlRequestsPerSecond=12,
        )
    )
    assert set(raw["spec"]["limits"]) == {field.alias for field in QuotaAmounts.model_fields.values()}
    raw["spec"] |= {"weight": 5, "priority": {"default": -1, "max": 10}}
    quota = parse_quota(raw)
    assert quota.limits == Amounts(
        gpus=1,
        hbm_bytes=2,
        cpu_memory_bytes=3,
        ssd_bytes=4,
        block_groups=5,
        requests_per_s=6,
        tokens_per_s=7,
        concurrent_requests=8,
        remote_read_bytes_per_s=9,
        migration_bytes_per_s=1024,
        concurrent_migrations=11,
        control_requests_per_s=12,
    )
    assert (quota.weight, quota.priority_default, quota.priority_max) == (5, -1, 10)
    bare = parse_quota(stored(raw_quota()))
    assert (bare.limits, bare.weight, bare.priority_default, bare.priority_max) == (Amounts(), 1, None, None)


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        pytest.param({"default": 3, "max": "high"}, (3, 0), id="one of them"),
        pytest.param({"default": "low", "max": 7}, (0, 7), id="the other"),
        pytest.param("high", (0, 0), id="a text"),
        pytest.param(None, (None, None), id="unset"),
    ],
)
def test_priorities_that_cannot_be_read_raise_nobody(priority: Any, expected: tuple[int | None, int | None]):
    raw = stored(raw_quota(gpus="many"))
    raw["spec"] |= {"priority": priority, "weight": "heavy"}
    quota = parse_quota(raw)
    assert (quota.priority_default, quota.priority_max) == expected
    assert quota.weight == 0


def test_a_quotas_limits_tell_unset_from_zero():
    """Project-HAMi/HAMi#2312: 0 is nothing, unset is no limit."""
    quota = parse_quota(stored(raw_quota(gpus=0)))
    assert quota.limits == Amounts(gpus=0, hbm_bytes=None)
    assert parse_quota(stored(raw_quota(hbm="0"))).limits == Amounts(gpus=None, hbm_bytes=0)
    assert quota.guaranteed == Amounts()


def test_a_quotas_pool_namespaces_and_age_are_read():
    raw = stored(raw_quota(gpus=8, namespaces=("ml", "batch")))
    raw["spec"]["guaranteed"] = {"gpus": 4, "hbm": "320Gi"}
    raw["spec"]["reservedPool"] = {
        "matchLabels": {"pool": "a"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}],
    }
    quota = parse_quota(raw)
    assert (quota.tenant, quota.namespaces, quota.created_at) == ("a", ("ml", "batch"), "2026-01-01T00:00:00Z")
    assert quota.guaranteed == Amounts(gpus=4, hbm_bytes=320 * GIB)
    assert quota.reserved_pool == NodeSelector(
        match_labels=(("pool", "a"),),
        match_expressions=(SelectorRequirement(key="tier", operator="In", values=("gold",)),),
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"gpus": "many"}, Amounts(gpus=0), id="one amount"),
        pytest.param({"gpus": 8, "hbm": "lots"}, Amounts(gpus=8, hbm_bytes=0), id="the other amount stays"),
        pytest.param({"gpus": -1, "hbm": "-1Gi"}, Amounts(gpus=0, hbm_bytes=0), id="negative"),
        pytest.param({"gpus": 8, "pods": 3}, Amounts(gpus=8), id="an unknown amount changes nothing"),
        pytest.param(
            {"tokensPerSecond": 1.5, "requestsPerSecond": 3},
            Amounts(tokens_per_s=0, requests_per_s=3),
            id="a rate that is no integer",
        ),
        pytest.param([], NOTHING, id="all of them"),
        pytest.param("8", NOTHING, id="a text"),
    ],
)
def test_limits_that_cannot_be_read_are_zero_never_unlimited(limits: Any, expected: Amounts):
    """A quota that cannot be read must not make its tenant unlimited."""
    told: list[str] = []
    raw = stored(raw_quota())
    raw["spec"]["limits"] = limits
    quota = parse_quota(raw, report=told.append)
    assert quota.limits == expected
    assert quota.namespaces == ("ml",)
    assert len(told) == 1


def test_a_quota_without_a_tenant_still_binds_its_namespaces():
    raw = stored(raw_quota(gpus=2))
    del raw["spec"]["tenant"]
    quota = parse_quota(raw)
    assert (quota.tenant, quota.namespaces, quota.limits.gpus) == ("team-a", ("ml",), 2)


def test_guarantees_and_pools_that_cannot_be_read_keep_nothing_from_others():
    raw = stored(raw_quota(gpus=2))
    raw["spec"]["guaranteed"] = {"gpus": "all"}
    raw["spec"]["reservedPool"] = {"matchLabels": []}
    quota = parse_quota(raw)
    assert (quota.guaranteed, quota.reserved_pool) == (Amounts(), None)
    assert quota.limits.gpus == 2


def test_a_quota_that_names_nobody_is_a_wire_error():
    raw = stored(raw_quota())
    raw["spec"] = {"limits": {"gpus": 1}}
    with pytest.raises(WireError, match="team-a"):
        parse_quota(raw)


def raw_group(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "KVCacheBlockGroup",
        "metadata": {"name": "system-prompt", "namespace": "ml", "uid": "u1"},
        "spec": {"modelRef": {"name": "llama"}, "prefix": {"text": "You are"}, "pinned": True},
        "status": status,
    }


COPY = {"worker": "ml:llama-0:0", "tier": "hbm", "bytes": "2Gi", "state": "Resident"}


def test_a_block_groups_copies_are_read():
    group = parse_block_group(raw_group(copies=[COPY]))
    assert (group.model, group.pinned) == (ObjectKey("ml", "llama"), True)
    copy = group.copies[0]
    assert (copy.worker, copy.tier, copy.size_bytes, copy.state) == (
        "ml:llama-0:0",
        Tier.HBM,
        2 * GIB,
        CopyState.RESIDENT,
    )


def test_copies_that_cannot_be_read_are_left_out():
    """Without them the group is recomputed, which is always possible."""
    told: list[str] = []
    group = parse_block_group(raw_group(copies=[COPY, COPY | {"tier": "tape"}, {}]), report=told.append)
    assert len(group.copies) == 1
    assert len(told) == 1


def test_a_group_without_a_model_is_a_wire_error():
    raw = raw_group()
    raw["spec"]["modelRef"] = {}
    with pytest.raises(WireError, match="system-prompt"):
        parse_block_group(raw)
