"""What is read of worker pods and of their tokens, from the real API server and real pods under kwok."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml

from kvaware_cluster import (
    DcgmSettings,
    KubernetesSource,
    Store,
    StoreSettings,
    TokenIdentity,
    WorkerMembership,
    WorkerPod,
    WorkerScraper,
    WorkerScrapeSettings,
)
from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import WorkerReport
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.fake_api import raw_model
from kvaware_testing.fake_worker import FakeWorker, Load
from kvaware_testing.repository import REPOSITORY

COST = "controller.kubernetes.io/pod-deletion-cost"


@pytest.fixture
async def source(sandbox: Sandbox) -> AsyncIterator[KubernetesSource]:
    made = await KubernetesSource.connect(kubeconfig=str(sandbox.control_plane.admin_kubeconfig))
    yield made
    await made.close()


async def until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # a store announces changes, not states
            await asyncio.sleep(0.05)
    assert holds(), what


async def kubectl(sandbox: Sandbox, *arguments: str) -> str:
    """In a thread: the store and the fake server here must go on meanwhile."""
    done = await asyncio.to_thread(sandbox.control_plane.kubectl, *arguments, "-n", sandbox.namespace)
    return str(done.stdout)


async def started(sandbox: Sandbox, name: str) -> dict[str, Any]:
    """A pod of the model llama on this machine's address, with an account of its own."""
    (node,) = sandbox.add_nodes("n1")
    sandbox.control_plane.kubectl("create", "serviceaccount", "worker", "-n", sandbox.namespace)
    options: dict[str, Any] = {"model": "llama", "node_name": node, "host_network": True, "service_account": "worker"}
    sandbox.control_plane.apply(sandbox.pod(name, **options))
    sandbox.control_plane.kubectl(
        "wait", "--for=condition=Ready", "pod", name, "-n", sandbox.namespace, "--timeout=30s"
    )
    return sandbox.get_pod(name)


async def test_a_real_pod_is_a_worker_that_is_scraped_and_its_deletion_cost_has_an_author(
    sandbox: Sandbox, source: KubernetesSource
) -> None:
    await started(sandbox, "llama-0")
    key = ObjectKey(sandbox.namespace, "llama-0")
    reports: list[WorkerReport] = []
    membership = WorkerMembership(placed=lambda _worker, _place: None)
    scraper = WorkerScraper(
        source.read_metrics,
        membership=membership,
        settings=WorkerScrapeSettings(interval_s=0.1),
        clock=time.monotonic,
        reported=reports.append,
    )
    store = Store(source, settings=StoreSettings(dcgm=DcgmSettings(enabled=False)), clock=time.monotonic)
    store.subscribe(membership)
    store.on_worker_pod(membership.pod_changed)

    def pod() -> WorkerPod:
        return store.worker_pods[key]

    async with FakeWorker(load=Load(waiting=4)).serve() as url, asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.run()), group.create_task(scraper.run())]
        raw = raw_model(namespace=sandbox.namespace)
        raw["spec"]["workers"] = {"ports": {"metrics": int(url.rpartition(":")[2])}}
        await asyncio.to_thread(sandbox.control_plane.apply, raw)
        await until(lambda: bool(reports), "the worker reports")
        assert (reports[0].worker, reports[0].waiting) == (f"{sandbox.namespace}:llama-0:0", 4)
        assert (pod().ready, pod().ip, pod().model) == (True, "127.0.0.1", "llama")
        assert pod().started_at.endswith("Z")
        assert pod().deletion_cost is None
        # when
        patch = json.dumps({"metadata": {"annotations": {COST: "-7"}}})
        await kubectl(sandbox, "patch", "pod", "llama-0", "-p", patch, "--field-manager=kvaware-operator")
        await until(lambda: pod().deletion_cost == -7, "the cost is seen")
        assert pod().deletion_cost_by == "kvaware-operator"
        # when: somebody else writes it
        await kubectl(sandbox, "annotate", "pod", "llama-0", f"{COST}=9", "--overwrite", "--field-manager=keda")
        await until(lambda: pod().deletion_cost == 9, "the other cost is seen")
        assert pod().deletion_cost_by == "keda"
        for task in tasks:
            task.cancel()


async def test_a_pods_token_names_it_for_its_audience_and_while_it_lives(
    sandbox: Sandbox, source: KubernetesSource
) -> None:
    pod = await started(sandbox, "llama-0")
    bound = ["--bound-object-kind=Pod", "--bound-object-name=llama-0", f"--bound-object-uid={pod['metadata']['uid']}"]
    ours = (await kubectl(sandbox, "create", "token", "worker", "--audience=kvaware", *bound)).strip()
    others = (await kubectl(sandbox, "create", "token", "worker", *bound)).strip()
    accounts = (await kubectl(sandbox, "create", "token", "worker", "--audience=kvaware")).strip()
    username = f"system:serviceaccount:{sandbox.namespace}:worker"
    # then
    whole = TokenIdentity(
        username=username, pod=ObjectKey(sandbox.namespace, "llama-0"), pod_uid=pod["metadata"]["uid"]
    )
    assert await source.review_token(ours, audiences=["kvaware"]) == whole
    assert await source.review_token(others, audiences=["kvaware"]) is None
    assert await source.review_token(others, audiences=[]) == whole
    assert await source.review_token(ours, audiences=[]) is None
    assert await source.review_token(ours[:-4] + "AAAA", audiences=["kvaware"]) is None
    without_pod = TokenIdentity(username=username, pod=None, pod_uid=None)
    assert await source.review_token(accounts, audiences=["kvaware"]) == without_pod
    # when
    await kubectl(sandbox, "delete", "pod", "llama-0", "--grace-period=0", "--force")
    # then
    async with asyncio.timeout(30):  # the API server remembers an answer for some 10 s
        while await source.review_token(ours, audiences=["kvaware"]) is not None:  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.5)


def test_the_pod_of_the_heartbeat_example_is_a_pod(sandbox: Sandbox) -> None:
    """Every field of it is one that the API server knows."""
    manifest = yaml.safe_load((REPOSITORY / "examples" / "heartbeat" / "pod.yaml").read_text("utf-8"))
    manifest["metadata"]["namespace"] = sandbox.namespace
    manifest["spec"]["serviceAccountName"] = "default"  # as the admission of accounts says, which does not run here
    sandbox.control_plane.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", input=json.dumps(manifest)
    )
