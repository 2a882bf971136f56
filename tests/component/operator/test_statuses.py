"""Statuses of the three kinds: written when they differ, and only then; what belongs together is told together."""

from dataclasses import replace

from kvaware_testing.fake_api import FakeApi, Raw, raw_quota
from kvaware_testing.fake_objects import raw_workload
from kvaware_testing.operator_harness import raw_group, raw_replica, raw_scaled_model, role_load, staged, tenant

QUIET = role_load()
SETTLED = [
    ("deployment", raw_workload(replicas=1)),
    ("pod", raw_replica("llama-0")),
    ("inferencemodel", raw_scaled_model(least=1, most=1)),
    ("inferencemodel", raw_scaled_model("refused", target=None, least=3, most=1)),
    ("kvcacheblockgroup", raw_group()),
    ("tenantquota", raw_quota(gpus=4)),
]


async def test_settled_objects_are_not_written_again():
    """strimzi/strimzi-kafka-operator#13079, Hostzero-GmbH/keycloak-operator#122; a refused one neither."""
    async with staged(*SETTLED) as stage:
        stage.extender.tell(QUIET)
        stage.extender.tenants = [tenant(used_gpus=1)]
        await stage.until_condition("Ready")
        await stage.until_condition("Accepted", "False", "refused")
        await stage.until_condition("Accepted", name="system-prompt", kind="kvcacheblockgroup")
        quota = {"name": "team-a", "kind": "tenantquota", "namespace": ""}
        await stage.until(lambda: stage.raw(**quota).get("status", {}).get("used", {}).get("gpus") == 1)
        await stage.rounds(5)
        before, asked = stage.writes(), len(stage.api.requests)
        versions = {
            kind: {key: raw["metadata"]["resourceVersion"] for key, raw in objects.items()}
            for kind, objects in stage.api.objects.items()
        }
        # when the load moves a little from poll to poll, and every object is told of again
        for waiting in range(10):
            stage.extender.tell(replace(QUIET, requests_per_s=0.1 * waiting, age_s=0.5))
            await stage.rounds(1)
        for kind in ("inferencemodel", "kvcacheblockgroup", "tenantquota"):
            await stage.api.end_watches(kind)
        await stage.rounds(5)
        # then
        assert stage.writes() == before
        assert versions == {
            kind: {key: raw["metadata"]["resourceVersion"] for key, raw in objects.items()}
            for kind, objects in stage.api.objects.items()
        }
        reads = [path for _, path, query, _ in stage.api.requests[asked:] if "watch" not in query]
        assert reads == [], "at rest nothing is asked beyond watches"


async def test_an_older_crd_is_said_once_and_not_written_for_ever(logs):
    """slauger/openvox-operator#555: helm upgrade keeps old CRDs, and the API server drops what they do not know."""
    async with FakeApi.serve() as api:
        known = frozenset({"conditions", "roles"})
        api.kinds["inferencemodel"] = replace(api.kinds["inferencemodel"], status_fields=known)
        objects = [
            ("deployment", raw_workload(replicas=1)),
            ("pod", raw_replica("llama-0")),
            ("inferencemodel", raw_scaled_model()),
        ]
        async with staged(*objects, api=api) as stage:
            stage.extender.tell(QUIET)
            await stage.until_condition("Accepted")
            await stage.rounds(20)
            written = [each for each in stage.writes() if each.endswith("/status")]
            assert len(written) == 1
            status, text = await stage.get("/readyz")
            assert status == 200
            assert "inferencemodel: the installed CRD is older than this operator and drops" in text
            assert await stage.metric('kvaware_operator_crd_older{kind="inferencemodel"}') == 1.0
            assert len([each for each in logs if "the installed CRD is older" in each["event"]]) == 1
            # and it works all the same
            stage.extender.tell(replace(QUIET, waiting=40, running=1))
            await stage.until(lambda: stage.replicas() == 4)
            # when the CRD is brought up to date, which nobody tells, and the spec changes
            api.kinds["inferencemodel"] = replace(api.kinds["inferencemodel"], status_fields=None)
            changed = raw_scaled_model(generation=2, most=4)
            await api.put("inferencemodel", {**changed, "status": stage.raw()["status"]})
            await stage.until(lambda: stage.raw()["status"].get("desiredReplicas") == 4)


async def test_served_names_belong_to_the_older_model_until_it_lets_them_go():
    elder = raw_scaled_model("elder", mode=None, servedNames=["chat", "only-mine"])
    younger = raw_scaled_model("younger", mode=None, created_at="2026-02-01T00:00:00Z", servedNames=["chat"])
    elsewhere = raw_scaled_model("elsewhere", namespace="other", mode=None, servedNames=["chat"])
    async with staged(*(("inferencemodel", raw) for raw in (younger, elder, elsewhere))) as stage:
        told = await stage.until_condition("NameConflict", name="younger")
        assert "chat (InferenceModel elder)" in told["message"]
        await stage.until_condition("Accepted", name="elder")
        await stage.until_condition("Accepted", name="elsewhere", namespace="other")
        assert stage.condition("NameConflict", "elder") == {}
        assert stage.condition("NameConflict", "elsewhere", namespace="other") == {}
        await stage.api.put(
            "inferencemodel", raw_scaled_model("elder", mode=None, generation=2, servedNames=["only-mine"])
        )
        freed = await stage.until_condition("NameConflict", "False", "younger")
        assert freed["reason"] == "NamesAreItsOwn"


async def test_pods_that_differ_from_the_footprint_are_named_and_forgotten():
    async with staged(("inferencemodel", raw_scaled_model(mode=None)), ("pod", raw_replica("big", gpus=2))) as stage:
        told = await stage.until_condition("FootprintMismatch")
        assert "big asks for 2 GPUs instead of 1" in told["message"]
        # when only the annotation changes, which is no part of what is kept of worker pods
        await stage.api.put("pod", raw_replica("big", annotations={"kvaware.io/hbm-per-gpu": "80Gi"}))
        await stage.until(lambda: "80Gi per GPU" in stage.condition("FootprintMismatch")["message"])
        await stage.api.delete("pod", "ml", "big")
        await stage.until_condition("FootprintMismatch", "False")


async def test_what_the_extender_writes_on_pods_shows_on_the_model():
    pod = raw_replica("llama-0")
    async with staged(("inferencemodel", raw_scaled_model(mode=None)), ("pod", pod)) as stage:
        await stage.until_condition("Ready")
        assert stage.condition("HBMOverrun") == {}
        pod["status"]["conditions"] += [
            {"type": "kvaware.io/HBMOverrun", "status": "True"},
            {"type": "kvaware.io/ForeignUseUnknown", "status": "True"},
        ]
        await stage.api.put("pod", pod)
        told = await stage.until_condition("HBMOverrun")
        assert "llama-0" in told["message"]
        await stage.until_condition("ForeignUseUnknown")


async def test_a_quota_shows_use_and_that_a_lowered_limit_is_exceeded():
    where = {"name": "team-a", "kind": "tenantquota", "namespace": ""}
    async with staged(("tenantquota", raw_quota(gpus=8, ssd="1Ti"))) as stage:
        stage.extender.tenants = [tenant(used_gpus=6, used_hbm_bytes=6 * 80 * 2**30)]
        used = {"gpus": 6, "hbm": "480Gi", "blockGroups": 0}
        await stage.until(lambda: stage.raw(**where).get("status", {}).get("used") == used)
        told = await stage.until_condition("NotEnforced", **where)
        assert "spec.limits.ssd" in told["message"]
        assert stage.condition("LimitExceeded", **where) == {}
        lowered = raw_quota(gpus=4, ssd="1Ti")
        lowered["metadata"]["generation"] = 2
        await stage.api.put("tenantquota", {**lowered, "status": stage.raw(**where)["status"]})
        told = await stage.until_condition("LimitExceeded", **where)
        assert "limits.gpus is 4, 6 are in use" in told["message"]
        assert told["observedGeneration"] == 2
        # when the extender goes, what was said stays
        stage.extender.down = True
        await stage.until(lambda: stage.operator.tenants.of("a") is None)
        assert stage.raw(**where)["status"]["used"]["gpus"] == 6
        assert stage.condition("LimitExceeded", **where)["status"] == "True"
        stage.extender.down = False
        stage.extender.tenants = [tenant(used_gpus=3)]
        await stage.until_condition("LimitExceeded", "False", **where)


async def test_block_groups_beyond_their_tenants_limit_are_not_accepted_and_move_up():
    """The youngest first, over all namespaces of the tenant; each change is told to those whom it concerns."""
    quota = {"name": "team-a", "kind": "tenantquota", "namespace": ""}
    group = {"kind": "kvcacheblockgroup"}

    def made(name: str, month: int) -> Raw:
        raw = raw_group(name)
        raw["metadata"]["creationTimestamp"] = f"2026-0{month}-01T00:00:00Z"
        return raw

    objects = [("tenantquota", raw_quota(blockGroups=1)), ("inferencemodel", raw_scaled_model(mode=None))]
    async with staged(*objects, ("kvcacheblockgroup", made("middle", 2))) as stage:
        stage.extender.tenants = [tenant()]
        await stage.until_condition("Accepted", name="middle", **group)
        # when a younger one comes
        await stage.api.put("kvcacheblockgroup", made("young", 3))
        told = await stage.until_condition("Accepted", "False", "young", **group)
        assert told["reason"] == "LimitExceeded"
        assert "limits.blockGroups of TenantQuota team-a is 1" in told["message"]
        assert stage.condition("Accepted", "middle", **group)["status"] == "True"
        exceeded = await stage.until_condition("LimitExceeded", **quota)
        assert "limits.blockGroups is 1, there are 2" in exceeded["message"]
        assert stage.raw(**quota)["status"]["used"]["blockGroups"] == 2
        # when the older one goes
        await stage.api.delete("kvcacheblockgroup", "ml", "middle")
        await stage.until_condition("Accepted", name="young", **group)
        await stage.until_condition("LimitExceeded", "False", **quota)
        # when nothing is allowed, and when nobody limits it
        await stage.api.put("tenantquota", {**raw_quota(blockGroups=0), "status": stage.raw(**quota)["status"]})
        await stage.until_condition("Accepted", "False", "young", **group)
        await stage.api.delete("tenantquota", "", "team-a")
        await stage.until_condition("Accepted", name="young", **group)


async def test_one_question_for_all_quotas():
    quotas = [("tenantquota", raw_quota(f"team-{i}", tenant=f"t{i}", namespaces=(f"ns-{i}",))) for i in range(20)]
    async with staged(*quotas) as stage:
        stage.extender.tenants = [tenant(f"t{i}", used_gpus=i) for i in range(20)]
        await stage.until(
            lambda: all(
                stage.raw(f"team-{i}", kind="tenantquota", namespace="").get("status", {}).get("used", {}).get("gpus")
                == i
                for i in range(20)
            )
        )
        assert set(stage.extender.asked) == {"/v1/tenants"}


async def test_a_namespace_belongs_to_the_older_quota():
    elder = raw_quota("elder", tenant="b")
    younger = raw_quota("younger", tenant="a")
    younger["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    async with staged(("tenantquota", younger), ("tenantquota", elder)) as stage:
        where = {"kind": "tenantquota", "namespace": ""}
        told = await stage.until_condition("NamespaceConflict", name="younger", **where)
        assert "ml (TenantQuota elder)" in told["message"]
        assert stage.condition("NamespaceConflict", name="elder", **where) == {}
        await stage.api.delete("tenantquota", "", "elder")
        await stage.until_condition("NamespaceConflict", "False", "younger", **where)


async def test_a_block_group_is_accepted_when_its_model_appears():
    where = {"name": "system-prompt", "kind": "kvcacheblockgroup"}
    async with staged(("kvcacheblockgroup", raw_group(pinned=True))) as stage:
        told = await stage.until_condition("Accepted", "False", **where)
        assert told["reason"] == "ModelNotFound"
        passive = await stage.until_condition("NotEnforced", **where)
        assert "spec.pinned" in passive["message"]
        await stage.api.put("inferencemodel", raw_scaled_model(mode=None))
        await stage.until_condition("Accepted", **where)
        await stage.api.delete("inferencemodel", "ml", "llama")
        await stage.until_condition("Accepted", "False", **where)
