"""Replicas follow the load: a whole operator between a fake API server and a fake extender."""

import pytest

from kvaware_cluster import Kind
from kvaware_engine.observations import ObjectKey
from kvaware_testing.fake_api import FakeApi
from kvaware_testing.fake_objects import FakeKind, raw_workload
from kvaware_testing.operator_harness import raw_autoscaler, raw_replica, raw_scaled_model, role_load, staged

BUSY = role_load(waiting=40, running=1)
QUIET = role_load()
COST = "controller.kubernetes.io/pod-deletion-cost"


def three_replicas(**model):
    return [
        ("deployment", raw_workload(replicas=3)),
        ("inferencemodel", raw_scaled_model(**model)),
        *(("pod", raw_replica(f"llama-{i}")) for i in range(3)),
    ]


def one_replica(**model):
    return [
        ("deployment", raw_workload(replicas=1)),
        ("inferencemodel", raw_scaled_model(**model)),
        ("pod", raw_replica("llama-0")),
    ]


async def test_a_queue_brings_replicas_and_the_status_tells():
    """defilantech/LLMKube#482: the queue counts, not only what runs."""
    async with staged(*one_replica()) as stage:
        stage.extender.tell(BUSY)
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until_metric('kvaware_operator_scales_total{direction="up",result="done"}', at_least=1.0)
        await stage.until(lambda: stage.raw()["status"]["roles"][0].get("reason") == "AtMaximum")
        assert stage.raw()["status"]["desiredReplicas"] == 4
        [role] = stage.raw()["status"]["roles"]
        assert role["readyReplicas"] == 1
        assert "40 requests wait" in role["message"]
        assert await stage.metric('kvaware_desired_replicas{model="llama",namespace="ml",role="both"}') == 4.0
        assert await stage.metric('kvaware_operator_scales_total{direction="up",result="done"}') == 1.0


@pytest.mark.parametrize("mode", ["Recommend", "Off", None])
async def test_only_auto_scales(mode):
    async with staged(*one_replica(mode=mode)) as stage:
        stage.extender.tell(BUSY)
        await stage.until_condition("Accepted")
        if mode == "Recommend":
            await stage.until(lambda: stage.raw()["status"].get("desiredReplicas") == 4)
            await stage.rounds()
        else:
            assert "/v1/models/ml/llama/load" not in stage.extender.asked
        assert stage.replicas() == 1
        metric = await stage.metric('kvaware_desired_replicas{model="llama",namespace="ml",role="both"}')
        assert metric == (4.0 if mode == "Recommend" else None)


async def test_what_does_not_fit_is_not_started():
    """A condition instead of pods that stay Pending; what fits later is added, and no more."""
    async with staged(*one_replica()) as stage:
        stage.extender.fits = 0
        stage.extender.tell(BUSY)
        told = await stage.until_condition("HBMConstrained")
        assert "HBM" in told["message"]
        await stage.rounds()
        assert stage.replicas() == 1
        stage.extender.fits = 2
        await stage.until(lambda: stage.replicas() == 3)


async def test_the_least_valuable_cache_goes_first():
    """The cost is on the pod, and seen in the store, before the ReplicaSet is told to shrink; then it is gone again."""
    async with staged(*three_replicas(least=2)) as stage:
        stage.extender.values = {"ml:llama-0:0": 500.0, "ml:llama-1:0": 7.0, "ml:llama-2:0": None}
        stage.extender.tell(QUIET)
        await stage.until(lambda: stage.replicas() == 2)
        assert stage.costs() == {"llama-1": "-1000"}
        order = [each.rsplit("/", 1)[1] for each in stage.writes() if "/pods/" in each or each.endswith("/scale")]
        assert order == ["llama-1", "scale"]
        await stage.rounds()
        assert stage.costs() == {"llama-1": "-1000"}, "it stays until the ReplicaSet has acted"
        # when the ReplicaSet takes another one all the same (it was not Ready, say)
        await stage.api.delete("pod", "ml", "llama-0")
        await stage.until(lambda: stage.costs() == {})


async def test_a_pod_that_another_manager_prices_is_left_to_it():
    objects = three_replicas(least=2)
    objects[2][1]["metadata"]["annotations"] = {COST: "5"}
    async with staged(*objects) as stage:
        stage.extender.values = {"ml:llama-1:0": 1.0, "ml:llama-2:0": 2.0}
        stage.extender.tell(QUIET)
        await stage.until(lambda: stage.replicas() == 2)
        assert stage.costs() == {"llama-0": "5"}


async def test_without_the_right_to_write_costs_it_scales_all_the_same(logs):
    """The ReplicaSet then takes whom it likes; that is said once."""
    async with staged(*three_replicas(least=2)) as stage:
        stage.api.forbidden.add("pod:write")
        stage.extender.tell(QUIET)
        await stage.until(lambda: stage.replicas() == 2)
        await stage.rounds()
        assert stage.costs() == {}
        assert [each.get("what") for each in logs].count("writing deletion costs") == 1


async def test_an_operator_that_died_between_costs_and_scale_is_succeeded():
    """The next one finds the cost, does not write it again, and lets the same pod go, whatever that is worth now."""
    async with FakeApi.serve() as api:
        async with staged(*three_replicas(least=2), api=api) as first:
            first.extender.values = {"ml:llama-1:0": 1.0}
            api.kinds["deployment"] = FakeKind(api_version="apps/v1", kind="Deployment", plural="deployments")
            first.extender.tell(QUIET)
            await first.until_condition("Scalable", "False")
        # given: costs were written, the scale was not
        await api.delete("pod", "ml", "llama-1")
        priced = raw_replica("llama-1", annotations={COST: "-1000"})
        fields = {"f:metadata": {"f:annotations": {f"f:{COST}": {}}}}
        priced["metadata"]["managedFields"] = [{"manager": "kvaware-operator", "fieldsV1": fields}]
        await api.put("pod", priced)
        api.kinds["deployment"] = FakeKind(
            api_version="apps/v1", kind="Deployment", plural="deployments", scalable=True
        )
        api.requests.clear()
        # when
        async with staged(api=api) as second:
            second.extender.values = {"ml:llama-0:0": 0.0, "ml:llama-1:0": 999.0}
            second.extender.tell(QUIET)
            await second.until(lambda: second.replicas() == 2)
            assert second.costs() == {"llama-1": "-1000"}
            assert [each for each in second.writes() if "/pods/" in each] == []


async def test_a_stateful_set_is_scaled_without_costs():
    workload = {**raw_workload(replicas=3), "kind": "StatefulSet"}
    async with FakeApi.serve() as api:
        api.kinds["statefulset"] = FakeKind(
            api_version="apps/v1", kind="StatefulSet", plural="statefulsets", scalable=True
        )
        objects = [
            ("statefulset", workload),
            ("inferencemodel", raw_scaled_model(least=2, target_kind=("apps/v1", "StatefulSet"))),
            *(("pod", raw_replica(f"llama-{i}", owner="StatefulSet")) for i in range(3)),
        ]
        async with staged(*objects, api=api) as stage:
            stage.extender.tell(QUIET)
            await stage.until(lambda: stage.raw(kind="statefulset")["spec"]["replicas"] == 2)
            assert [each for each in stage.writes() if "/pods/" in each] == []


async def test_an_autoscaler_is_left_alone_and_its_end_is_noticed():
    async with staged(*one_replica(), ("horizontalpodautoscaler", raw_autoscaler())) as stage:
        stage.extender.tell(BUSY)
        told = await stage.until_condition("ScalingConflict")
        assert "theirs" in told["message"]
        await stage.until(lambda: stage.raw()["status"].get("desiredReplicas") == 4)
        await stage.rounds()
        assert stage.replicas() == 1
        await stage.api.delete("horizontalpodautoscaler", "ml", "theirs")
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until_condition("ScalingConflict", "False")


async def test_of_two_models_on_one_workload_the_older_scales_it():
    younger = raw_scaled_model("younger", created_at="2026-02-01T00:00:00Z", least=3)
    async with staged(*one_replica(), ("inferencemodel", younger)) as stage:
        stage.extender.tell(QUIET)
        stage.extender.tell(BUSY, model="younger")
        told = await stage.until_condition("ScalingConflict", name="younger")
        assert "llama" in told["message"]
        await stage.rounds()
        assert stage.replicas() == 1, "the younger one does not raise it to its minimum"
        await stage.api.delete("inferencemodel", "ml", "llama")
        await stage.until(lambda: stage.replicas() >= 3)


@pytest.mark.parametrize(
    ("target", "kind", "reason", "word"),
    [
        pytest.param("nowhere", ("apps/v1", "Deployment"), "TargetNotFound", "nowhere", id="nothing there"),
        pytest.param("n1", ("v1", "Node"), "TargetNotScalable", "cluster-scoped", id="cluster-scoped"),
        pytest.param("llama-0", ("v1", "Pod"), "TargetNotScalable", "subresource scale", id="without scale"),
        pytest.param("x", ("nobody.example/v1", "Thing"), "TargetNotScalable", "Thing", id="unknown kind"),
        pytest.param("x", ("not/a/version", "Thing"), "TargetNotScalable", "not/a/version", id="unreadable version"),
        pytest.param("../../pods/llama-0", ("apps/v1", "Deployment"), "TargetNotFound", "..", id="a path for a name"),
    ],
)
async def test_a_target_that_cannot_be_scaled_is_said(target, kind, reason, word):
    async with staged(*one_replica(target=target, target_kind=kind)) as stage:
        stage.extender.tell(BUSY)
        told = await stage.until_condition("Scalable", "False")
        assert told["reason"] == reason
        assert word in told["message"]
        asked = len(stage.api.requests)
        await stage.rounds(5)
        watches = sum("watch" in query for _, _, query, _ in stage.api.requests[asked:])
        assert len(stage.api.requests) - asked - watches <= 3, "it is not retried in a hurry"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_replicas_of_several_pods_need_a_workload_whose_replicas_are_groups(kind):
    """``spec.replicas`` of these counts pods: what was meant as replicas would be half of one."""
    role = raw_scaled_model(target_kind=("apps/v1", kind))["spec"]["roles"][0]
    role["footprint"]["podsPerReplica"] = 2
    workload = {**raw_workload(replicas=2), "kind": kind}
    pods = [("pod", raw_replica(f"llama-{i}", owner=kind)) for i in range(2)]
    async with FakeApi.serve() as api:
        api.kinds["statefulset"] = FakeKind(
            api_version="apps/v1", kind="StatefulSet", plural="statefulsets", scalable=True
        )
        objects = [(kind.lower(), workload), ("inferencemodel", raw_scaled_model(roles=[role])), *pods]
        # beside a model of one pod each that reads the same workload's scale
        younger = raw_scaled_model("younger", created_at="2026-02-01T00:00:00Z", target_kind=("apps/v1", kind))
        async with staged(*objects, ("inferencemodel", younger), api=api) as stage:
            stage.extender.tell(BUSY)
            stage.extender.tell(BUSY, model="younger")
            told = await stage.until_condition("Scalable", "False")
            assert told["reason"] == "ReplicasCountPods"
            assert f"{kind} llama (apps/v1)" in told["message"]
            assert "LeaderWorkerSet" in told["message"]
            await stage.until_condition("Scalable", "True", name="younger")
            await stage.rounds()
            assert stage.condition("Scalable")["reason"] == "ReplicasCountPods"
            assert stage.raw(kind=kind.lower())["spec"]["replicas"] == 2
            [told] = stage.raw()["status"]["roles"]
            assert (told["replicas"], told["readyReplicas"]) == (1, 1)
            assert "desiredReplicas" not in told
            # when
            await stage.api.put("inferencemodel", raw_scaled_model(generation=2, target_kind=("apps/v1", kind)))
            await stage.until_condition("Scalable")
            await stage.until(lambda: stage.raw(kind=kind.lower())["spec"]["replicas"] == 4)


async def test_replicas_of_several_pods_are_scaled_where_replicas_are_groups():
    lws = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    role = raw_scaled_model(target_kind=lws)["spec"]["roles"][0]
    role["footprint"]["podsPerReplica"] = 2
    async with FakeApi.serve() as api:
        api.kinds["lws"] = FakeKind(api_version=lws[0], kind=lws[1], plural="leaderworkersets", scalable=True)
        pods = [("pod", raw_replica(f"llama-{i}", owner=lws[1])) for i in range(2)]
        objects = [("lws", raw_workload(replicas=1)), ("inferencemodel", raw_scaled_model(roles=[role])), *pods]
        async with staged(*objects, api=api) as stage:
            stage.extender.tell(BUSY)
            await stage.until(lambda: stage.raw(kind="lws")["spec"]["replicas"] == 4)
            await stage.until_condition("Scalable")


async def test_a_workload_that_appears_is_scaled_without_touching_the_model():
    async with staged(("inferencemodel", raw_scaled_model()), ("pod", raw_replica("llama-0"))) as stage:
        stage.extender.tell(BUSY)
        await stage.until_condition("Scalable", "False")
        await stage.api.put("deployment", raw_workload())
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until_condition("Scalable")


async def test_a_minimum_above_the_maximum_scales_nothing():
    """An object that is older than the rule against it."""
    async with staged(*one_replica(least=3, most=1)) as stage:
        stage.extender.tell(BUSY)
        told = await stage.until_condition("Accepted", "False")
        assert "replicas.min must be at most replicas.max" in told["message"]
        assert "/v1/models/ml/llama/load" not in stage.extender.asked
        assert stage.replicas() == 1
        await stage.api.put("inferencemodel", raw_scaled_model(generation=2))
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until_condition("Accepted")


async def test_zero_is_one_for_now():
    async with staged(*three_replicas(least=0)) as stage:
        stage.extender.tell(QUIET)
        await stage.until_condition("ScaleToZeroNotYet")
        await stage.until(lambda: stage.replicas() == 1 or stage.costs() != {})
        for name in sorted(stage.costs()):
            await stage.api.delete("pod", "ml", name)
        await stage.until(lambda: stage.replicas() >= 1)
        assert stage.replicas() > 0


async def test_without_the_extender_the_number_stays():
    """ai-dynamo/dynamo#6985, the other half: no answer is not zero."""
    async with staged(*three_replicas()) as stage:
        stage.extender.down = True
        await stage.until_condition("Ready", "Unknown")
        await stage.rounds()
        assert stage.replicas() == 3
        assert "desiredReplicas" not in stage.raw()["status"]
        stage.extender.down = False
        stage.extender.tell(BUSY)
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until(lambda: stage.condition("Ready")["status"] != "Unknown")


async def test_somebody_elses_scaling_in_between_is_seen_first():
    """The write says what was seen; a 409 means look again, not write again."""
    async with staged(*one_replica()) as stage:
        stage.extender.held = "/headroom"
        stage.extender.hold.clear()
        stage.extender.tell(BUSY)
        await stage.until(lambda: any(path.endswith("/headroom") for path in stage.extender.asked))
        # when somebody adds a replica, and it is Ready, while the operator waits for an answer
        await stage.api.put("pod", raw_replica("llama-1"))
        await stage.api.put("deployment", raw_workload(replicas=2))
        stage.extender.hold.set()
        # then the operator's own number, made for one replica, is refused, and it counts again
        await stage.until(lambda: stage.replicas() == 4)
        assert await stage.metric('kvaware_operator_scales_total{direction="up",result="conflict"}') == 1.0


async def test_a_model_that_stays_constrained_is_not_written_at_every_poll():
    """Its load moves all the time: figures in the condition would be a write per object and poll, for ever."""
    async with staged(*one_replica()) as stage:
        stage.extender.fits = 0
        stage.extender.tell(BUSY)
        await stage.until_condition("HBMConstrained")
        await stage.rounds()
        before = stage.writes()
        for waiting in range(41, 49):
            stage.extender.tell(role_load(waiting=waiting, running=1))
            await stage.rounds()
        assert stage.writes() == before


@pytest.mark.parametrize(
    "kind_and_object",
    [
        pytest.param(("horizontalpodautoscaler", raw_autoscaler()), id="an autoscaler appears"),
        pytest.param(("inferencemodel", raw_scaled_model(mode="Recommend", generation=2)), id="scaling is turned off"),
    ],
)
async def test_what_forbids_a_step_forbids_it_also_while_the_extender_is_asked(kind_and_object):
    """The answer may take seconds; what was read before it is old then."""
    async with staged(*one_replica()) as stage:
        stage.extender.held = "/headroom"
        stage.extender.hold.clear()
        stage.extender.tell(BUSY)
        await stage.until(lambda: any(path.endswith("/headroom") for path in stage.extender.asked))
        await stage.api.put(*kind_and_object)
        await stage.until(
            lambda: (
                bool(stage.operator.store.autoscalers)
                or stage.operator.store.resources(Kind.INFERENCE_MODEL)[ObjectKey("ml", "llama")].generation == 2
            )
        )
        stage.extender.hold.set()
        await stage.rounds()
        assert stage.replicas() == 1


async def test_a_deleted_model_takes_its_costs_and_series_with_it():
    objects = three_replicas(least=2)
    async with staged(*objects) as stage:
        stage.extender.tell(QUIET)
        await stage.until(lambda: stage.replicas() == 2)
        assert stage.costs() != {}
        await stage.api.delete("inferencemodel", "ml", "llama")
        await stage.until(lambda: stage.costs() == {})
        assert await stage.metric('kvaware_desired_replicas{model="llama",namespace="ml",role="both"}') is None
        assert stage.replicas() == 2, "the workload is the user's"


async def test_costs_of_a_model_that_was_deleted_while_nobody_looked_are_taken_off():
    priced = raw_replica("llama-1", annotations={COST: "-1000"})
    fields = {"f:metadata": {"f:annotations": {f"f:{COST}": {}}}}
    priced["metadata"]["managedFields"] = [{"manager": "kvaware-operator", "fieldsV1": fields}]
    async with staged(("pod", priced)) as stage:
        await stage.until(lambda: stage.costs() == {})


async def test_nothing_is_scaled_by_pods_that_cannot_be_listed():
    """A right was taken away: who is Ready, and who was chosen to go, is not known."""
    async with staged(*one_replica()) as stage:
        stage.extender.tell(QUIET)
        await stage.until_condition("Ready")
        stage.api.forbidden.add("pod")
        await stage.api.end_watches("pod")
        await stage.until(lambda: stage.operator.store.ages()[Kind.POD] is None)
        stage.extender.tell(BUSY)
        await stage.rounds()
        assert stage.replicas() == 1
        status, text = await stage.get("/readyz")
        assert (status, "pod: not listed yet" in text) == (503, True)
        stage.api.forbidden.clear()
        await stage.until(lambda: stage.replicas() == 4)
