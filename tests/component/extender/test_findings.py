"""Pods are told that they use more HBM than they reserved, or that nobody sees what others use: once, and not again."""

from typing import Any

import pytest

from kvaware_cluster import ClusterApiError, render_reservation
from kvaware_crds.errors import UpstreamError
from kvaware_crds.names import CONDITION_FOREIGN_USE_UNKNOWN, CONDITION_HBM_OVERRUN
from kvaware_engine import EngineSettings, FindingSettings, GpuClass, Reservation
from kvaware_extender import WakeUpSettings, findings
from kvaware_extender.findings import TEXTS
from kvaware_extender.metrics import FINDINGS
from kvaware_testing.extender_harness import SCRAPED, Caller, MemoryCluster, serving, shared_node
from kvaware_testing.fake_api import Raw, raw_pod
from kvaware_testing.store_harness import QUICK, FakeClock, eventually

GIB = 2**30
SETTINGS = EngineSettings(findings=FindingSettings(overrun_tolerance_bytes=GIB, hold_scrapes=3, hold_s=60))
OVERRUN, UNKNOWN = CONDITION_HBM_OVERRUN, CONDITION_FOREIGN_USE_UNKNOWN


def bound_pod(name: str = "p", *, uid: str = "u-p", hbm_gib: int = 40, conditions: list[Raw] | None = None) -> Raw:
    """A pod that kvaware bound to a shared GPU."""
    reservation = Reservation(
        model=None,
        tenant="default",
        resource="nvidia.com/gpu",
        gpus=1,
        hbm_per_gpu_bytes=hbm_gib * GIB,
        gpu_class=GpuClass.SHARED,
        decision_id=f"{uid}-1",
    )
    raw = raw_pod(
        name,
        node="n1",
        annotations={"kvaware.io/reservation": render_reservation(reservation)},
        conditions=conditions or [],
    )
    raw["metadata"]["uid"] = uid
    return raw


def told(cluster: MemoryCluster, kind: str, name: str = "p") -> Raw | None:
    """The condition that the pod has."""
    conditions = cluster.raw_pod(name)["status"].get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), None)


def using(mib: int, *, pod: str = "p") -> str:
    """What the exporter says of the node's GPU, which is one pod's."""
    gpu = f'{{gpu="0",UUID="GPU-0",modelName="A100",namespace="ml",pod="{pod}"}}'
    return f"DCGM_FI_DEV_FB_USED{gpu} {mib}\nDCGM_FI_DEV_FB_FREE{gpu} {81_920 - mib}\n"


async def pass_s(caller: Caller, clock: FakeClock, seconds: float) -> None:
    """Let time go on, and have a look."""
    clock.now_s += seconds
    caller.extender.engine.tick(clock())
    await caller.extender.findings.look()


async def scraped(cluster: MemoryCluster, clock: FakeClock, times: int) -> None:
    """Wait for so many scrapes, each at another time."""
    for _ in range(times):
        clock.now_s += 1
        asked = cluster.scrapes
        await eventually(lambda: cluster.scrapes >= asked + 2)  # noqa: B023 - awaited in this turn


def settings(**changes: Any) -> dict[str, Any]:
    """An extender whose view never grows old."""
    return {"engine": SETTINGS, "max_view_age_s": 1e6, **changes}


async def test_a_pod_without_an_exporter_on_its_node_is_told_once():
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    async with serving(cluster, clock=clock, **settings()) as caller:
        await pass_s(caller, clock, 59)
        assert cluster.conditions == [], "the exporter may be heard yet"
        for _ in range(5):
            await pass_s(caller, clock, 60)
        assert cluster.conditions == [("p", "True")]
        said = told(cluster, UNKNOWN)
        assert said is not None
        assert (said["reason"], said["message"]) == (
            "NoExporter",
            "kvaware: no DCGM exporter shows what other programs use on the node; a margin is kept instead",
        )
        assert await caller.metric("kvaware_findings_total", '{reason="NoExporter"}') == 1
        assert await caller.metric("kvaware_findings_waiting") == 0


async def test_a_pod_above_its_reservation_is_told_and_told_again_when_it_is_not():
    """40 GiB reserved, 50 in use; other pods on the GPU may run out."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    cluster.add_exporter("n1", using(50 * 1024))
    async with serving(cluster, clock=clock, **settings(store=SCRAPED)) as caller:
        await scraped(cluster, clock, 4)
        await caller.extender.findings.look()
        said = told(cluster, OVERRUN)
        assert said is not None
        assert (said["status"], said["reason"]) == ("True", "MoreThanReserved")
        cluster.add_exporter("n1", using(30 * 1024))
        await scraped(cluster, clock, 5)
        await caller.extender.findings.look()
        assert cluster.conditions == [("p", "True"), ("p", "False")]


async def test_a_pod_that_is_as_it_should_be_is_never_told():
    """A first False says nothing that its absence does not say."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    cluster.add_exporter("n1", using(30 * 1024))
    async with serving(cluster, clock=clock, **settings(store=SCRAPED)) as caller:
        await scraped(cluster, clock, 4)
        await pass_s(caller, clock, 61)
        assert len(caller.extender.findings) == 0
        assert "patch_pod_condition" not in cluster.calls


@pytest.mark.parametrize("shown", ["True", "False"])
async def test_after_a_restart_what_the_pod_shows_is_not_written_again(shown):
    """It is the state that is compared, not what a process remembers."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod(conditions=[{"type": UNKNOWN, "status": shown}, {"type": OVERRUN, "status": shown}]))
    async with serving(cluster, clock=clock, **settings()) as caller:
        for _ in range(3):
            await pass_s(caller, clock, 60)
        assert cluster.conditions == ([] if shown == "True" else [("p", "True")])


async def test_after_a_restart_what_is_not_true_any_more_is_taken_back():
    """The exporter came while nobody looked."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod(conditions=[{"type": UNKNOWN, "status": "True"}, {"type": OVERRUN, "status": "True"}]))
    cluster.add_exporter("n1", using(30 * 1024))
    async with serving(cluster, clock=clock, **settings(store=SCRAPED)) as caller:
        await scraped(cluster, clock, 4)
        await pass_s(caller, clock, 61)
        await caller.extender.findings.look()
        assert sorted(cluster.conditions) == [("p", "False"), ("p", "False")]


async def test_somebody_who_takes_the_condition_away_is_not_fought():
    """At most one write per verdict and pod: two writers must not keep each other busy."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    async with serving(cluster, clock=clock, **settings()) as caller:
        await pass_s(caller, clock, 61)
        assert cluster.conditions == [("p", "True")]
        pod = cluster.raw_pod("p")
        cluster._change({**pod, "status": {**pod["status"], "conditions": []}})
        store = caller.extender.store
        await eventually(lambda: not any(each.foreign_use_unknown for each in store.worker_pods.values()))
        for _ in range(3):
            await pass_s(caller, clock, 61)
        assert cluster.conditions == [("p", "True")]


async def test_the_condition_is_the_pods_of_that_uid():
    """A pod of the same name that came in between is not told what was found about the one before."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    async with serving(cluster, clock=clock, **settings()) as caller:
        for gate in cluster.deliver.values():
            gate.clear()
        cluster.delete_pod("ml", "p")
        cluster.add_pod(bound_pod(uid="u-other"))
        await pass_s(caller, clock, 61)
        assert cluster.calls.count("patch_pod_condition") == 1, "the API server refused it"
        assert cluster.conditions == []
        for gate in cluster.deliver.values():
            gate.set()
        await eventually(lambda: any(each.uid == "u-other" for each in caller.extender.store.worker_pods.values()))
        for _ in range(3):
            await pass_s(caller, clock, 61)
        assert cluster.conditions == [("p", "True")]


async def test_many_pods_are_told_at_the_pace_of_the_wake_ups_and_leave_them_room():
    """An exporter's DaemonSet that is deleted concerns every pod of the cluster."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node(replicas=40))
    for i in range(20):
        cluster.add_pod(bound_pod(f"p{i}", uid=f"u-{i}", hbm_gib=1))
    pace = WakeUpSettings(debounce_s=1e6, per_s=1, burst=6)
    async with serving(cluster, clock=clock, **settings(wake_up=pace)) as caller:
        await pass_s(caller, clock, 61)
        assert len(cluster.conditions) == 3, "half of the burst is left for pods that wait"
        assert await caller.metric("kvaware_findings_waiting") == 17
        await pass_s(caller, clock, 2)
        assert len(cluster.conditions) == 5
        for _ in range(30):
            await pass_s(caller, clock, 1)
        assert len(cluster.conditions) == 20
        assert len({name for name, _ in cluster.conditions}) == 20


async def test_a_write_that_failed_is_tried_again_after_a_while(logs):
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    cluster.patch_error = UpstreamError("connection reset")
    async with serving(cluster, clock=clock, **settings()) as caller:
        await pass_s(caller, clock, 61)
        for _ in range(5):
            await pass_s(caller, clock, 1)
        assert cluster.calls.count("patch_pod_condition") == 1, "nothing else would come through either"
        cluster.patch_error = None
        await pass_s(caller, clock, 10)
        assert cluster.conditions == [("p", "True")]
        assert await caller.metric("kvaware_findings_total", '{reason="failed"}') == 1


async def test_a_pod_whose_condition_is_refused_does_not_hold_up_the_others():
    """Its namespace may have a policy of its own; whoever comes after it is told all the same."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    for name in ("bad", "good"):
        cluster.add_pod(bound_pod(name, uid=f"u-{name}", hbm_gib=1))
    cluster.patch_errors["bad"] = ClusterApiError("not in this namespace", status=403, reason="Forbidden")
    async with serving(cluster, clock=clock, **settings()) as caller:
        await pass_s(caller, clock, 61)
        assert cluster.conditions == [("good", "True")]
        assert cluster.calls.count("patch_pod_condition") == 2
        for _ in range(5):
            await pass_s(caller, clock, 1)
        assert cluster.calls.count("patch_pod_condition") == 2, "it is not asked for again and again"
        cluster.patch_errors.clear()
        await pass_s(caller, clock, 10)
        assert cluster.conditions == [("good", "True"), ("bad", "True")]


async def test_while_the_view_is_stale_nobody_is_told():
    """What the pod shows is not known then."""
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    async with serving(cluster, clock=clock, **settings(max_view_age_s=30.0)) as caller:
        await pass_s(caller, clock, 61)
        assert cluster.conditions == []
        cluster.prove_fresh()
        await eventually(lambda: not caller.extender.freshness.stale())
        await caller.extender.findings.look()
        assert cluster.conditions == [("p", "True")]


async def test_the_loop_looks_by_itself(monkeypatch):
    """Nobody calls it in production."""
    monkeypatch.setattr(findings, "LOOK_EVERY_S", 0.01)
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    quick = EngineSettings(findings=FindingSettings(hold_s=0))
    async with serving(cluster, engine=quick, store=QUICK):
        await eventually(lambda: cluster.conditions == [("p", "True")])


async def test_a_pod_that_is_gone_is_forgotten():
    clock = FakeClock()
    cluster = MemoryCluster(shared_node())
    cluster.add_pod(bound_pod())
    async with serving(cluster, clock=clock, **settings()) as caller:
        await pass_s(caller, clock, 61)
        writer = caller.extender.findings
        assert writer._written
        cluster.delete_pod("ml", "p")
        await eventually(lambda: not writer._written)


def test_every_reason_is_counted():
    assert {text.reason for text in TEXTS.values()} | {"failed"} == set(FINDINGS)
