"""The process: probes while it is busy, kinds and API server that go and come, one bad object, a standby, kopf."""

import asyncio
import time
from typing import Any

import kopf
import pytest
from kubernetes.aio.client.configuration import Configuration

from kvaware_cluster import Kind, KubernetesHttp, LeaderLease, LeaseTiming, new_identity
from kvaware_operator import TaskEndedError, running_operator
from kvaware_testing.fake_api import Failure, FakeApi, raw_quota
from kvaware_testing.fake_objects import FakeKind, raw_workload
from kvaware_testing.operator_harness import raw_group, raw_replica, raw_scaled_model, role_load, staged

BUSY = role_load(waiting=40, running=1)
OBJECTS = [
    ("deployment", raw_workload(replicas=1)),
    ("inferencemodel", raw_scaled_model()),
    ("pod", raw_replica("llama-0")),
]


async def test_probes_answer_while_every_look_waits():
    """A liveness probe that waits behind a slow extender would kill a process that is only patient."""
    async with staged(*OBJECTS) as stage:
        stage.extender.held = "/headroom"
        stage.extender.hold.clear()
        stage.extender.tell(BUSY)
        await stage.until(lambda: any(path.endswith("/headroom") for path in stage.extender.asked))
        assert (await stage.get("/livez"))[0] == 200
        assert (await stage.get("/readyz"))[0] == 200
        assert await stage.metric('kvaware_operator_queue_length{kind="inferencemodel"}') == 1.0
        assert await stage.metric("kvaware_operator_leading") == 1.0


async def test_a_look_that_waits_does_not_hold_up_the_others():
    others = [("inferencemodel", raw_scaled_model(f"m-{i}", target=None)) for i in range(5)]
    async with staged(*OBJECTS, *others) as stage:
        stage.extender.held = "/headroom"
        stage.extender.hold.clear()
        stage.extender.tell(BUSY)
        await stage.until(lambda: any(path.endswith("/headroom") for path in stage.extender.asked))
        await stage.api.put("inferencemodel", raw_scaled_model("late", target=None))
        await stage.until_condition("Accepted", name="late")


async def test_one_object_that_cannot_be_written_does_not_hold_up_the_others(logs):
    async with staged() as stage:
        stage.api.failures["write"] = Failure(status=500, times=3)
        await stage.api.put("inferencemodel", raw_scaled_model("poisoned", target=None))
        await stage.until(lambda: "write" not in stage.api.failures)
        await stage.until_condition("Accepted", name="poisoned")
        told = [each for each in logs if each["event"] == "look failed"]
        assert len(told) == 1, "in a loop the change is logged, not the repetition"
        failed = await stage.metric('kvaware_operator_look_seconds_count{kind="inferencemodel",result="failed"}')
        assert failed == 3.0


async def test_a_kind_that_is_missing_is_said_and_does_not_stop_the_others():
    """nolar/kopf#1094: the CRD comes later. Unknown is not empty, and the other kinds go on."""
    async with FakeApi.serve() as api:
        api.hidden.add("tenantquota")
        await api.put("tenantquota", raw_quota(gpus=1))
        async with staged(*OBJECTS, api=api) as stage:
            stage.extender.tell(BUSY)
            await stage.until(lambda: stage.replicas() == 4)
            text = await stage.until_ready(503, "tenantquota: not listed yet, or its CRD or the right")
            assert "inferencemodel:" not in text
            api.hidden.clear()
            await stage.until_condition("Accepted", name="team-a", kind="tenantquota", namespace="")
            await stage.until_ready()


async def test_models_go_with_their_kind_and_come_back_with_it():
    """Whoever deletes a CRD deletes its objects, not the pods; nothing is scaled without them."""
    async with staged(*OBJECTS) as stage:
        stage.extender.tell(role_load())
        await stage.until_condition("Ready")
        await stage.api.delete("inferencemodel", "ml", "llama")
        stage.api.hidden.add("inferencemodel")
        await stage.api.end_watches("inferencemodel")
        await stage.until_ready(503, "inferencemodel: not listed yet")
        stage.extender.tell(BUSY)
        assert stage.replicas() == 1
        stage.api.hidden.clear()
        await stage.api.put("inferencemodel", raw_scaled_model())
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until_ready()


async def test_without_the_right_to_see_autoscalers_nothing_is_scaled():
    """One may scale the same workload."""
    async with FakeApi.serve() as api:
        api.forbidden.add("horizontalpodautoscaler")
        async with staged(*OBJECTS, api=api) as stage:
            stage.extender.tell(BUSY)
            await stage.until_condition("ScalingConflict", "Unknown")
            await stage.rounds()
            assert stage.replicas() == 1
            await stage.until_ready(503, "horizontalpodautoscaler: not listed yet")
            api.forbidden.clear()
            await stage.until(lambda: stage.replicas() == 4)


async def test_workloads_that_cannot_be_watched_are_read_every_so_often():
    async with FakeApi.serve() as api:
        api.forbidden.add("deployment")
        async with staged(*OBJECTS, api=api, unwatched_scale_max_age_s=0.05) as stage:
            stage.extender.tell(BUSY)
            await stage.until(lambda: stage.replicas() == 4)
            await stage.until_ready(200, "apps/v1 Deployment: not watched, so its scales are read")
            # when somebody else scales it, which nobody tells
            await api.put("deployment", raw_workload(replicas=9))
            await stage.until(lambda: stage.replicas() == 4)


async def test_models_that_name_kinds_which_nobody_serves_say_so_and_cost_nothing():
    """Any user may write them; a GET for each, again and again, would be theirs to make the API server busy."""
    bogus = [
        ("inferencemodel", raw_scaled_model(f"bogus-{i}", target_kind=(f"bogus{i}.example/v1", "Thing")))
        for i in range(40)
    ]
    async with staged(*OBJECTS, *bogus) as stage:
        for i in range(40):
            told = await stage.until_condition("Scalable", "False", name=f"bogus-{i}")
            assert told["reason"] == "TargetNotScalable"
            assert f"it has no bogus{i}.example/v1 Thing" in told["message"]
        await stage.rounds()
        asked = [path for _, path, *_ in stage.api.requests]
        assert asked.count("/apis") == 1
        assert [path for path in asked if "bogus" in path and "/apis/bogus" in path] == []
        text = await stage.until_ready(200, "bogus0.example/v1 Thing: not watched")
        assert text.count("Thing: not watched") == 5
        assert "kinds of workloads that are not watched either: 35" in text


async def test_an_outage_of_the_api_server_is_survived_without_a_hot_loop():
    async with staged(*OBJECTS, max_view_age_s=0.5) as stage:
        stage.api.watch_limit_s = 0.1  # each new watch proves its kind fresh
        for kind in ("pod", "inferencemodel", "kvcacheblockgroup", "tenantquota", "horizontalpodautoscaler"):
            await stage.api.end_watches(kind)
        stage.extender.tell(role_load())
        await stage.until_condition("Ready")
        await stage.api.stop()
        await stage.until_ready(503, "the view is")
        stage.extender.tell(BUSY)
        await stage.rounds()
        asked = len(stage.api.requests)
        await stage.api.start()
        await stage.until(lambda: stage.replicas() == 4)
        await stage.until_ready()
        reads = [path for _, path, query, _ in stage.api.requests[asked:] if "watch" not in query]
        assert len(reads) < 20, "nobody rushes back"


async def test_a_part_that_dies_ends_the_process_and_its_readiness():
    """nolar/kopf#1276: a task ended by itself, and the process stayed up with green probes."""
    async with staged(*OBJECTS) as stage:
        await stage.until_condition("Accepted")
        [watch] = [task for task in asyncio.all_tasks() if task.get_name() == f"watch-{Kind.POD}"]
        watch.cancel()
        await asyncio.wait([stage.work], timeout=10)
        status, text = await stage.get("/readyz")
        assert (status, text) == (503, "the background task store has ended\n")
        with pytest.raises(TaskEndedError, match="store"):
            stage.work.result()


async def test_a_standby_is_ready_and_does_nothing_until_it_leads():
    """Else a roll-out would wait for the new pod to be ready, which waits for the old one's lease."""
    timing = LeaseTiming(duration_s=1.0, renew_deadline_s=0.6, retry_s=0.05)
    async with staged(*OBJECTS) as stage:
        stage.extender.tell(role_load())
        await stage.until_condition("Ready")
        http = KubernetesHttp(Configuration(host=stage.api.url))

        def lease(name: str) -> LeaderLease:
            return LeaderLease(
                http,
                namespace="kvaware-system",
                name="kvaware-operator",
                identity=name + new_identity(),
                clock=time.monotonic,
                timing=timing,
            )

        holding = asyncio.Event()

        async def hold() -> None:
            holding.set()
            await asyncio.Event().wait()

        first = asyncio.create_task(lease("first").run(hold))
        await holding.wait()
        async with staged(api=stage.api) as other:
            other.work.cancel()
            await asyncio.wait([other.work])
            async with running_operator(other.operator, lease=lease("second")) as (_, port):
                other.url = f"http://127.0.0.1:{port}"
                assert await other.until_ready() == "ok: waits for the lease, another operator leads\n"
                assert await other.metric("kvaware_operator_leading") == 0.0
                first.cancel()
                await asyncio.wait([first])
                await other.until_metric("kvaware_operator_leading", at_least=1)
        await http.close()


async def test_a_standby_that_cannot_reach_the_api_server_is_not_ready():
    """It could not take over; once it is answered it is ready again."""
    timing = LeaseTiming(duration_s=1.0, renew_deadline_s=0.6, retry_s=0.05)
    async with staged(*OBJECTS) as stage:
        stage.work.cancel()
        await asyncio.wait([stage.work])
        http = KubernetesHttp(Configuration(host=stage.api.url))
        lease = LeaderLease(
            http,
            namespace="kvaware-system",
            name="kvaware-operator",
            identity=new_identity(),
            clock=time.monotonic,
            timing=timing,
        )
        await stage.api.stop()
        async with running_operator(stage.operator, lease=lease) as (stage.work, port):
            stage.url = f"http://127.0.0.1:{port}"
            told = await stage.until_ready(503, "the lease cannot be read or written: ")
            assert "ok" not in told.splitlines()
            await stage.api.start()
            await stage.until_ready()
        await http.close()


async def test_who_was_stopped_for_a_while_writes_nothing_when_it_goes_on():
    """A suspended node, a loop that hung: another may lead by now, and the renewal has not found out yet."""
    slept_s = 0.0
    timing = LeaseTiming(duration_s=60.0, renew_deadline_s=50.0, retry_s=40.0)  # no renewal while this test runs
    async with staged(*OBJECTS) as stage:
        stage.work.cancel()
        await asyncio.wait([stage.work])
        http = KubernetesHttp(Configuration(host=stage.api.url))
        lease = LeaderLease(
            http,
            namespace="kvaware-system",
            name="kvaware-operator",
            identity=new_identity(),
            clock=lambda: time.monotonic() + slept_s,
            timing=timing,
        )
        async with running_operator(stage.operator, lease=lease) as (stage.work, port):
            stage.url = f"http://127.0.0.1:{port}"
            stage.extender.tell(role_load())
            await stage.until_condition("Ready")
            await stage.rounds()
            before = stage.writes()
            # when
            slept_s = 61.0
            stage.extender.tell(BUSY)
            await stage.until_metric(
                'kvaware_operator_look_seconds_count{kind="inferencemodel",result="failed"}', at_least=1
            )
            # then
            assert stage.writes() == before
            assert stage.replicas() == 1
        await http.close()


def with_discovery(api: FakeApi) -> None:
    """What kopf looks for before it watches anything."""
    api.kinds["namespace"] = FakeKind(api_version="v1", kind="Namespace", plural="namespaces", namespaced=False)
    api.kinds["crd"] = FakeKind(
        api_version="apiextensions.k8s.io/v1",
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        namespaced=False,
    )


def login_to(api: FakeApi) -> Any:
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=api.url)

    return login


async def test_kopf_tells_of_objects_from_its_own_thread():
    async with FakeApi.serve() as api:
        with_discovery(api)
        objects = [*OBJECTS, ("kvcacheblockgroup", raw_group()), ("tenantquota", raw_quota())]
        async with staged(*objects, api=api, kopf=True, kopf_login=login_to(api)) as stage:
            for kind in ("inferencemodel", "kvcacheblockgroup", "tenantquota"):
                await stage.until_metric(f'kvaware_operator_kopf_events_total{{kind="{kind}"}}', at_least=1)
            # and writes nothing: no finalizer, no annotation, no event
            await stage.until_condition("Accepted")
            assert "finalizers" not in stage.raw()["metadata"]
            assert "annotations" not in stage.raw()["metadata"]
            assert [each for each in stage.writes() if "/events" in each] == []
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5, "its end does not hold up the process's"


async def test_a_kopf_that_gives_up_is_started_again():
    """An API server that refuses it for good is no reason to end: the store tells of the same objects."""
    async with FakeApi.serve() as api:

        def nobody(**_: Any) -> None:
            """No credentials."""

        async with staged(*OBJECTS, api=api, kopf=True, kopf_login=nobody) as stage:
            stage.extender.tell(BUSY)
            await stage.until(lambda: stage.replicas() == 4)
            await stage.until_metric("kvaware_operator_kopf_restarts_total", at_least=1)
            assert (await stage.get("/readyz"))[0] == 200


async def test_a_dead_kopf_thread_ends_the_process():
    async with FakeApi.serve() as api:
        with_discovery(api)

        def deadly(**_: Any) -> kopf.ConnectionInfo:
            raise SystemExit("the thread goes down with it")

        async with staged(*OBJECTS, api=api, kopf=True, kopf_login=deadly) as stage:
            await asyncio.wait([stage.work], timeout=10)
            status, text = await stage.get("/readyz")
            assert (status, text) == (503, "the background task kopf has ended\n")
            with pytest.raises(TaskEndedError, match="kopf"):
                stage.work.result()


async def test_a_crd_that_was_brought_up_to_date_is_noticed_through_kopf():
    """slauger/openvox-operator#555, the end of it."""
    async with FakeApi.serve() as api:
        with_discovery(api)
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "inferencemodels.kvaware.io", "generation": 1},
            "spec": {"group": "kvaware.io"},
        }
        await api.put("crd", crd)
        full = api.kinds["inferencemodel"]
        api.kinds["inferencemodel"] = FakeKind(
            api_version=full.api_version, kind=full.kind, plural=full.plural, status_fields=frozenset({"conditions"})
        )
        async with staged(*OBJECTS, api=api, kopf=True, kopf_login=login_to(api)) as stage:
            stage.extender.tell(role_load())
            await stage.until_condition("Ready")
            await stage.until(lambda: Kind.INFERENCE_MODEL in stage.operator._crds)
            assert "replicas" not in stage.raw()["status"]
            api.kinds["inferencemodel"] = full
            await api.put("crd", {**crd, "metadata": {**crd["metadata"], "generation": 2}})
            await stage.until(lambda: stage.raw()["status"].get("replicas") == 1)
