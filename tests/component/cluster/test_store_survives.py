"""What the cluster can do to a store, and what the store holds afterwards."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kvaware_cluster import OBSERVED_KINDS, Kind, Store, StoreSettings, WatchEvent
from kvaware_engine.observations import ObjectKey
from kvaware_testing.fake_api import Failure, raw_model, raw_node, raw_pod, raw_quota
from kvaware_testing.store_harness import QUICK, eventually, running


async def test_a_store_holds_what_the_cluster_holds(api, source, make_store, recorder):
    # given
    await api.put("node", raw_node("n1"))
    for number in range(7):
        await api.put("pod", raw_pod(f"p{number}"))
    await api.put("pod", raw_pod("web", gpus=0))  # asks for no GPU: not observed
    await api.put("inferencemodel", raw_model())
    await api.put("tenantquota", raw_quota(gpus=4))
    store = make_store(source)
    assert not store.synced()
    assert set(store.ages().values()) == {None}
    # when
    async with running(store):
        await recorder.until(store.synced)
        # then
        assert recorder.names(Kind.POD) == {f"p{number}" for number in range(7)}
        assert recorder.names(Kind.NODE) == {"n1"}
        assert recorder.names(Kind.TENANT_QUOTA) == {"team-a"}
        assert store.objects(Kind.INFERENCE_MODEL).keys() == {ObjectKey("ml", "llama")}
        pod = store.pod("ml", "p3")
        assert pod is not None
        assert pod.name == "p3"
        assert store.pod("ml", "web") is None
        assert {kind for kind, _ in recorder.lists} == set(OBSERVED_KINDS)
        assert store.resource_version(Kind.POD) is not None


async def test_changes_arrive_in_order(api, source, make_store, recorder):
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await api.put("pod", raw_pod("a"))
        await api.put("pod", raw_pod("a", node="n1"))
        await api.delete("pod", "ml", "a")
        await recorder.until(lambda: len(recorder.changes) == 3)
    told = [(c.old and c.old.node, c.new and c.new.node) for c in recorder.changes]
    assert told == [(None, None), (None, "n1"), ("n1", None)]


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_pod_replaced_during_a_gap_leaves_no_ghost(api, source, make_store, recorder, clock, *, as_event: bool):
    """Project-HAMi/HAMi#2923: a deleted pod's memory stayed booked until a restart."""
    # given: a bound pod, then a cut watch
    api.gone_as_event = as_event
    await api.put("pod", raw_pod("p-0", gpus=8, node="n1"))
    await api.put("pod", raw_pod("p-1", gpus=8, node="n1"))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("pod") == 1)
        old = store.pod("ml", "p-0")
        # when: both are deleted, one comes back under its name, and the version is too old to go on
        await api.delete("pod", "ml", "p-1")
        await recorder.until(lambda: store.pod("ml", "p-1") is None)
        api.cut("pod")
        await api.delete("pod", "ml", "p-0")
        new = await api.put("pod", raw_pod("p-0", gpus=8))
        await api.compact()
        await recorder.until(lambda: len(recorder.changes) >= 5)
        # then
        pods = store.objects(Kind.POD)
        assert set(pods) == {ObjectKey("ml", "p-0")}
        assert pods[ObjectKey("ml", "p-0")].uid == new["metadata"]["uid"] != old.uid
        assert pods[ObjectKey("ml", "p-0")].node is None
    fresh = Store(source, settings=QUICK, clock=clock)
    async with running(fresh):
        await eventually(fresh.synced)
        assert dict(fresh.objects(Kind.POD)) == dict(pods)


async def test_a_cut_watch_goes_on_from_its_version_without_a_list(api, source, make_store, recorder):
    await api.put("pod", raw_pod("a"))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        lists = api.count("pod", watch=False)
        for number in range(3):
            await eventually(lambda: api.watching("pod") == 1)
            api.cut("pod")
            await api.put("pod", raw_pod(f"b{number}"))
            await recorder.until(lambda: f"b{number}" in recorder.names(Kind.POD))  # noqa: B023  # awaited at once
        assert api.count("pod", watch=False) == lists


async def test_a_bookmark_moves_the_version_on(api, source, make_store, recorder):
    """Without bookmarks a quiet kind's version would be compacted away under it, and each watch would cost a list."""
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("tenantquota") == 1)
        await api.put("pod", raw_pod())
        await api.bookmark("tenantquota")
        await eventually(lambda: store.resource_version(Kind.TENANT_QUOTA) == "1")
        lists = api.count("tenantquota", watch=False)
        await api.compact()
        api.cut("tenantquota")
        await eventually(lambda: api.watching("tenantquota") == 1)
        assert api.count("tenantquota", watch=False) == lists


async def test_an_api_server_restart_is_survived(api, source, make_store, recorder):
    await api.put("pod", raw_pod("a"))
    store = make_store(source)
    async with running(store) as task:
        await recorder.until(store.synced)
        await api.stop()
        await api.delete("pod", "ml", "a")
        await api.put("pod", raw_pod("b"))
        await api.start()
        await recorder.until(lambda: recorder.names(Kind.POD) == {"b"})
        assert not task.done()


async def test_age_grows_while_the_server_is_away_and_ends_when_it_is_back(api, source, make_store, recorder, clock):
    """A stale view must be known as stale: the extender refuses by it."""
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: all(api.watching(kind) == 1 for kind in OBSERVED_KINDS))
        await eventually(lambda: set(store.ages().values()) == {0.0})
        await api.stop()
        clock.now_s += 60
        assert set(store.ages().values()) == {60.0}
        assert store.synced()
        await api.start()
        await eventually(lambda: set(store.ages().values()) == {0.0})


async def test_the_age_of_a_list_is_that_of_its_beginning(api, source, make_store, recorder, clock):
    """What happened while the pages came in is not in them."""
    api.read_gate.clear()
    store = make_store(source)
    began_at_s = clock.now_s
    async with running(store):
        await eventually(lambda: len(api.requests) == len(OBSERVED_KINDS))
        clock.now_s += 30
        api.read_gate.set()
        await recorder.until(store.synced)
        assert {at_s for _, at_s in recorder.lists} == {began_at_s}


@pytest.mark.parametrize("missing", ["hidden", "forbidden"])
async def test_a_late_kind_is_in_force_within_a_back_off(api, source, make_store, recorder, missing: str):
    """nolar/kopf#1094: a CRD that arrives after the start; a kind that cannot be listed is unknown, not empty."""
    # given: no CRDs (or no right to read them)
    switch: set[str] = getattr(api, missing)
    switch.add("tenantquota")
    await api.put("node", raw_node())
    store = make_store(source)
    async with running(store):
        await recorder.until(lambda: "n1" in recorder.names(Kind.NODE))
        await eventually(lambda: api.count("tenantquota", watch=False) >= 3)
        assert store.ages()[Kind.TENANT_QUOTA] is None
        assert not store.synced()
        # when: the kind arrives
        await api.put("tenantquota", raw_quota(gpus=0))
        switch.clear()
        await recorder.until(lambda: "team-a" in recorder.names(Kind.TENANT_QUOTA))
        # then
        await eventually(lambda: store.ages()[Kind.TENANT_QUOTA] is not None)
        assert store.synced()


async def test_a_kind_that_disappears_is_unknown_and_keeps_what_was_seen(api, source, make_store, recorder):
    """nolar/kopf#1094: tenants do not become unlimited because the CRD is gone."""
    await api.put("tenantquota", raw_quota(gpus=0))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("tenantquota") == 1)
        # when
        api.hidden.add("tenantquota")
        await api.end_watches("tenantquota")
        await eventually(lambda: store.ages()[Kind.TENANT_QUOTA] is None)
        # then
        assert "team-a" in recorder.names(Kind.TENANT_QUOTA)
        # when it is back, with another content
        await api.delete("tenantquota", "", "team-a")
        await api.put("tenantquota", raw_quota("team-b", gpus=2))
        api.hidden.clear()
        await recorder.until(lambda: recorder.names(Kind.TENANT_QUOTA) == {"team-b"})
        await eventually(lambda: store.ages()[Kind.TENANT_QUOTA] is not None)


@pytest.mark.parametrize("seen_by", ["watch", "list after 410", "list after a restart"])
async def test_quotas_outlive_their_crds_deletion(api, source, make_store, recorder, seen_by: str):
    """nolar/kopf#1094: deleting a CRD deletes its quotas first; the kind is gone a second later."""
    settings = replace(QUICK, quota_removal_hold_s=0.2)
    await api.put("tenantquota", raw_quota(gpus=0))
    store = make_store(source, settings)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("tenantquota") == 1)
        # when: the quotas go, then the kind
        lists = api.count("tenantquota", watch=False)
        if seen_by == "list after a restart":
            await api.stop()
        await api.delete("tenantquota", "", "team-a")
        if seen_by != "watch":
            await api.compact()
            api.cut("tenantquota")
        if seen_by == "list after a restart":
            await api.start()
        version = str(api.version)
        await eventually(lambda: store.resource_version(Kind.TENANT_QUOTA) == version)
        assert api.count("tenantquota", watch=False) == lists + (seen_by != "watch")
        api.hidden.add("tenantquota")
        await api.end_watches("tenantquota")
        await eventually(lambda: store.ages()[Kind.TENANT_QUOTA] is None)
        # then: unknown, and not unlimited; it ends when a list has confirmed it
        assert recorder.names(Kind.TENANT_QUOTA) == {"team-a"}
        api.hidden.clear()
        await recorder.until(lambda: recorder.names(Kind.TENANT_QUOTA) == set())
        assert store.ages()[Kind.TENANT_QUOTA] is not None


async def test_a_quota_missing_in_one_list_and_back_in_the_next_was_never_gone(api, source, make_store, recorder):
    await api.put("tenantquota", raw_quota(gpus=0))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("tenantquota") == 1)
        lists = api.count("tenantquota", watch=False)
        quota = api.objects["tenantquota"]["", "team-a"]
        await api.delete("tenantquota", "", "team-a")
        await api.compact()
        api.cut("tenantquota")
        await eventually(lambda: api.count("tenantquota", watch=False) == lists + 1)
        api.objects["tenantquota"]["", "team-a"] = quota
        await eventually(lambda: api.count("tenantquota", watch=False) == lists + 2)
        await eventually(lambda: api.watching("tenantquota") == 1)
    assert [change.kind for change in recorder.changes] == [Kind.TENANT_QUOTA]


async def test_a_deletion_of_what_was_never_known_costs_one_list(api, source, make_store, recorder):
    """A quota that could not be read has no entry to remove; looking for it must come to an end."""
    nameless = raw_quota(gpus=0)
    nameless["spec"] = {}
    await api.put("tenantquota", nameless)
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("tenantquota") == 1)
        lists = api.count("tenantquota", watch=False)
        await api.delete("tenantquota", "", "team-a")
        await eventually(lambda: api.count("tenantquota", watch=False) == lists + 1)
        await api.put("tenantquota", raw_quota("team-b", gpus=3))
        await recorder.until(lambda: recorder.names(Kind.TENANT_QUOTA) == {"team-b"})
        assert api.count("tenantquota", watch=False) == lists + 1


@pytest.mark.parametrize("broken", [False, True])
async def test_a_deleted_quota_ends_after_its_hold_whatever_the_watch_does(
    api, source, make_store, recorder, *, broken: bool
):
    for name in ("team-a", "team-b"):
        await api.put("tenantquota", raw_quota(name, gpus=0))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("tenantquota") == 1)
        await api.delete("tenantquota", "", "team-a")
        await api.put("tenantquota", raw_quota("team-b", gpus=3))
        await recorder.until(lambda: store.objects(Kind.TENANT_QUOTA)[ObjectKey("", "team-b")].limits.gpus == 3)
        assert "team-a" in recorder.names(Kind.TENANT_QUOTA)
        if broken:
            api.cut("tenantquota")
        await recorder.until(lambda: recorder.names(Kind.TENANT_QUOTA) == {"team-b"})


async def test_a_watch_that_raises_something_unforeseen_comes_back(
    source, make_store, recorder, api, monkeypatch, logs
):
    """nolar/kopf#1276: a watch task ended by itself and the process stayed up, green and blind."""
    await api.put("pod", raw_pod("a"))
    real = type(source).watch
    broken = 2

    async def watch(self: Any, kind: Kind, version: str):
        nonlocal broken
        if kind is Kind.POD and broken:
            broken -= 1
            raise ZeroDivisionError("unforeseen")
        async for event in real(self, kind, version):
            yield event

    monkeypatch.setattr(type(source), "watch", watch)
    store = make_store(source)
    async with running(store) as task:
        await recorder.until(store.synced)
        await api.put("pod", raw_pod("b"))
        await recorder.until(lambda: recorder.names(Kind.POD) == {"a", "b"})
        assert not task.done()
    assert [each["log_level"] for each in logs if each["event"] == "watch failed unforeseen"] == ["error", "error"]


async def test_a_cancelled_watch_task_ends_the_store(source, make_store, recorder):
    """nolar/kopf#1276: never a silent death. What ends one watch from outside ends all, and the process exits."""
    store = make_store(source)
    async with running(store) as task:
        await recorder.until(store.synced)
        (watch,) = (each for each in asyncio.all_tasks() if each.get_name() == "watch-pod")
        watch.cancel()
        await asyncio.wait([task, watch], timeout=0.1)
        assert watch.done()
        with pytest.raises(RuntimeError, match="watch-pod"):
            task.result()


async def test_a_listener_that_raises_gets_the_change_again(api, source, make_store, recorder):
    """Its view must not stay behind for ever; the kind does not count as synced before."""
    failures = 2

    def fail(change: Any) -> None:
        nonlocal failures
        if change.kind is Kind.POD and failures:
            failures -= 1
            raise RuntimeError("listener")

    recorder.before = fail
    for name in ("a", "b", "c"):
        await api.put("pod", raw_pod(name))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        assert recorder.names(Kind.POD) == {"a", "b", "c"}
        failures = 1
        await api.delete("pod", "ml", "b")
        await recorder.until(lambda: recorder.names(Kind.POD) == {"a", "c"})


async def test_a_page_token_that_expires_starts_the_list_again(api, source, make_store, recorder):
    for number in range(7):
        await api.put("pod", raw_pod(f"p{number}"))
    api.failures["pod"] = Failure(410, body={"reason": "Expired"}, times=2)
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        assert len(recorder.names(Kind.POD)) == 7


async def test_throttling_is_followed(api, source, make_store, recorder):
    api.failures["pod"] = Failure(429, {"Retry-After": "1"}, times=2)  # QUICK follows at most 0.05 s of it
    store = make_store(source)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with running(store):
        await recorder.until(store.synced)
    assert loop.time() - began_s >= 0.1  # twice the 0.05 s


async def test_watches_that_end_at_once_do_not_spin(api, source, make_store, recorder, logs):
    """nolar/kopf#1094: a watch that begins and stops at once, without a message."""
    api.watch_limit_s = 0.0
    settings = StoreSettings(backoff_first_s=0.05, backoff_max_s=0.05, watch_min_s=60.0, dcgm=QUICK.dcgm)
    store = make_store(source, settings)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.count("pod", watch=True) >= 2)
        began, began_s = api.count("pod", watch=True), asyncio.get_running_loop().time()
        await eventually(lambda: api.count("pod", watch=True) >= began + 5)
        # five more, so four whole waits between them, each at least half of the back-off
        assert asyncio.get_running_loop().time() - began_s >= 4 * 0.025
    assert sum(each.get("trouble") == "watch ended at once" for each in logs) == len(OBSERVED_KINDS)  # the change, once


async def test_a_clean_end_of_a_watch_proves_freshness_and_the_next_follows_at_once(
    api, source, make_store, recorder, clock
):
    store = make_store(source, replace(QUICK, watch_min_s=0.0))
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("pod") == 1)
        await api.put("node", raw_node("n"))  # seen through the watch: its opening is no news after this
        await recorder.until(lambda: recorder.names(Kind.NODE) == {"n"})
        clock.now_s += 30
        await api.end_watches("pod")
        await eventually(lambda: store.ages()[Kind.POD] == 0.0)
        assert store.ages()[Kind.NODE] == 30.0
        await eventually(lambda: api.watching("pod") == 1)


async def test_an_object_that_cannot_be_read_is_told_once_and_blinds_to_nothing_else(
    api, source, make_store, recorder, logs
):
    bad = raw_pod("bad")
    bad["spec"]["containers"] = {"not": "a list"}
    await api.put("pod", bad)
    await api.put("pod", raw_pod("good"))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await api.put("pod", bad)
        await api.put("pod", raw_pod("later"))
        await recorder.until(lambda: recorder.names(Kind.POD) == {"good", "later"})
        assert store.unreadable()[Kind.POD] == 2
    told = [each for each in logs if each["event"] == "object cannot be read"]
    assert [each["name"] for each in told] == ["bad"]


async def test_a_fault_of_ours_in_one_object_keeps_what_was_known(api, source, make_store, recorder, monkeypatch):
    await api.put("pod", raw_pod("a", node="n1"))
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)

        def broken(raw: Any) -> Any:
            raise KeyError("ours")

        monkeypatch.setattr(store._tables[Kind.POD], "_parse", broken)
        await api.put("pod", raw_pod("a"))
        await eventually(lambda: store.unreadable()[Kind.POD] == 1)
        assert store.pod("ml", "a").node == "n1"


async def test_a_malformed_reservation_and_an_old_quota_are_told_once(api, source, make_store, recorder, logs):
    await api.put("pod", raw_pod("a", annotations={"kvaware.io/reservation": "{"}))
    quota = raw_quota()
    quota["spec"]["limits"] = {"gpus": "many"}
    await api.put("tenantquota", quota)
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await api.put("pod", raw_pod("a", node="n1", annotations={"kvaware.io/reservation": "{"}))
        await recorder.until(lambda: store.pod("ml", "a").node == "n1")
        assert store.objects(Kind.TENANT_QUOTA)[ObjectKey("", "team-a")].limits.gpus == 0
    told = [(each["kind"], each["name"]) for each in logs if each["event"] == "object read in part"]
    assert sorted(told) == [(Kind.POD, "a"), (Kind.TENANT_QUOTA, "team-a")]


async def test_a_burst_of_events_lets_others_run(api, source, make_store, recorder):
    """A rolled deployment changes thousands of pods at once; filter must be answered in between."""
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await eventually(lambda: api.watching("pod") == 1)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(others())
        for number in range(1000):
            await api.put("pod", raw_pod(f"p{number}"))
        await recorder.until(lambda: len(recorder.names(Kind.POD)) == 1000)
        task.cancel()
        assert turns > 10


async def test_objects_without_a_name_are_passed_over(make_store, recorder, api, source, monkeypatch):
    """Never seen from an API server; a proxy in between may do anything."""
    real = type(source).watch

    async def watch(self: Any, kind: Kind, version: str):
        async for event in real(self, kind, version):
            yield event
            if kind is Kind.POD and event.type == "ADDED":
                yield WatchEvent(event.type, {"metadata": {}})
                yield WatchEvent(event.type, {})

    monkeypatch.setattr(type(source), "watch", watch)
    store = make_store(source)
    async with running(store):
        await recorder.until(store.synced)
        await api.put("pod", raw_pod("a"))
        await api.put("pod", raw_pod("b"))
        await recorder.until(lambda: recorder.names(Kind.POD) == {"a", "b"})
