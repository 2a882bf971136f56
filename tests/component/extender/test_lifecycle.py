"""Start, orderly end, and the end that nobody asked for."""

import asyncio
import os
import signal

import aiohttp
import orjson
import pytest

from kvaware_cluster import parse_reservation
from kvaware_extender import TaskEndedError, run_extender
from kvaware_testing.extender_harness import MemoryCluster, quiet_settings, serving
from kvaware_testing.fake_api import raw_node, raw_pod
from kvaware_testing.log_fields import PROMISED
from kvaware_testing.store_harness import eventually


async def test_a_background_task_that_ends_by_itself_turns_readiness_off(logs, monkeypatch):
    """nolar/kopf#1276: the process stayed up with green probes and handled nothing."""
    cluster = MemoryCluster(raw_node("n1"))
    async with serving(cluster) as caller:

        async def fails():
            raise ZeroDivisionError

        caller.extender.tasks.loop("watch-of-something", fails())
        await eventually(lambda: caller.extender.tasks.ended is not None)
        status, error = await caller.get("/readyz")
        assert status == 503
        assert "watch-of-something" in error["error"]["message"]
        assert (await caller.get("/livez"))[0] == 200
    assert [event["task"] for event in logs if event["event"] == "background task ended by itself"] == [
        "watch-of-something"
    ]


async def test_the_process_ends_with_an_error_when_a_task_ends_by_itself(monkeypatch):
    """Staying up would serve a view that nobody keeps up to date."""

    async def ends(_store):
        return

    monkeypatch.setattr("kvaware_cluster.Store.run", ends)
    with pytest.raises(TaskEndedError, match="store"):
        await run_extender(quiet_settings(), MemoryCluster())


async def test_sigterm_lets_a_running_bind_finish(logs):
    """kube-scheduler gets its answer, and the pod is not left in doubt."""
    cluster = MemoryCluster(raw_node("n1", gpus=1))
    pod = cluster.add_pod(raw_pod("p"))
    cluster.answer_bind.clear()
    closed: list[bool] = []

    async def close():
        closed.append(True)

    cluster.close = close  # type: ignore[method-assign] # to see it called
    running = asyncio.create_task(run_extender(quiet_settings(), cluster))
    await eventually(lambda: any(event["event"] == "listening" for event in logs))
    ports = next(event for event in logs if event["event"] == "listening")
    async with aiohttp.ClientSession() as session:
        while (await session.get(f"http://127.0.0.1:{ports['api_port']}/readyz")).status != 200:
            pass  # each call gives the loop to the store
    body = {"PodName": "p", "PodNamespace": "ml", "PodUID": pod["metadata"]["uid"], "Node": "n1"}
    sent = orjson.dumps(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", ports["scheduler_port"])
    head = f"POST /scheduler/bind HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n"
    writer.write(head.encode() + sent)
    await eventually(lambda: "bind" in cluster.calls)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: any(event["event"] == "stopping" for event in logs))
    cluster.answer_bind.set()
    answer = await reader.readuntil(b"}")
    writer.close()
    await running
    assert answer.endswith(b'{"Error":""}')
    assert cluster.node_of("p") == "n1"
    assert closed == [True]


async def test_a_port_that_is_taken_is_an_error_at_the_start_and_leaves_nothing_behind():
    async with serving(MemoryCluster()) as caller:
        with pytest.raises(OSError, match="address already in use"):
            await run_extender(quiet_settings(scheduler_port=caller.extender.scheduler_port), MemoryCluster())
    assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}


async def test_decisions_are_logged_under_the_promised_names(tmp_path):
    """One record per decision, the names of the design first and in its order; a repeat is no decision."""
    path = tmp_path / "decisions.jsonl"
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"))
    pod = cluster.add_pod(raw_pod("p", gpus=2))
    big = cluster.add_pod(raw_pod("big", gpus=16))
    async with serving(cluster, decision_log=str(path)) as caller:
        await caller.until_seen(big)
        await caller.filter(big, "n1", "n2")
        await caller.filter(big, "n1", "n2")
        await caller.prioritize(pod, "n1", "n2")
        await caller.filter(pod, "n1", "n2")
        assert await caller.bind(pod, "n1") == ""
    records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    refused, chosen, bound = records
    for record in records:
        assert list(record)[: len(PROMISED)] == PROMISED
    assert (refused["event"], refused["schedule_reason"], refused["selected_worker"]) == (
        "filter_refused",
        "NotEnoughGPUs",
        None,
    )
    assert (chosen["event"], chosen["selected_worker"], chosen["candidates"]) == ("node_chosen", "n1", 2)
    assert chosen["terms_ms"]["total"] == pytest.approx(
        sum(value for name, value in chosen["terms_ms"].items() if name not in {"total", "locality_gain"})
        - chosen["terms_ms"]["locality_gain"]
    )
    assert (bound["event"], bound["result"], bound["decision_id"]) == ("bind", "bound", chosen["decision_id"])


async def test_a_bind_of_a_pod_that_another_process_filtered_is_logged_too(tmp_path):
    """After a restart of the extender kube-scheduler binds what the old process chose."""
    path = tmp_path / "decisions.jsonl"
    cluster = MemoryCluster(raw_node("n1"))
    pod = cluster.add_pod(raw_pod("p", gpus=2))
    web = cluster.add_pod(raw_pod("web", gpus=0))
    async with serving(cluster, decision_log=str(path)) as caller:
        assert await caller.bind(pod, "n1") == ""
        assert await caller.bind(web, "n1") == ""
    [record] = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert (record["event"], record["request_id"], record["gpus"]) == ("bind", pod["metadata"]["uid"], 2)
    assert (record["selected_worker"], record["result"]) == ("n1", "bound")


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_the_log_and_the_reservation_of_a_pod_name_the_same_decision(tmp_path, node):
    """Who finds a pod in the wrong place starts from its annotation and looks for the decision behind it."""
    path = tmp_path / "decisions.jsonl"
    cluster = MemoryCluster(raw_node("n1"), raw_node("n2"))
    pod, other = (cluster.add_pod(raw_pod(name)) for name in ("p", "q"))
    async with serving(cluster, decision_log=str(path)) as caller:
        await caller.until_seen(other)
        await caller.prioritize(pod, "n1", "n2")
        await caller.prioritize(other, "n1", "n2")  # the state moves on between choice and bind
        assert await caller.bind(pod, node) == ""
    records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    [chosen, bound] = [record for record in records if record["request_id"] == pod["metadata"]["uid"]]
    reservation = parse_reservation(cluster.raw_pod("p")["metadata"]["annotations"]["kvaware.io/reservation"])
    assert bound["decision_id"] == reservation.decision_id
    assert (reservation.decision_id == chosen["decision_id"]) is (node == chosen["selected_worker"])
