"""The parts behind the routes of workers: tokens and whose they are, pace, which GPUs a worker uses."""

import asyncio

import pytest

from kvaware_cluster import Change, Kind, TokenIdentity, parse_model, parse_node, parse_pod, parse_worker_pod
from kvaware_engine import ObjectKey, Workers
from kvaware_extender.intervals import Intervals
from kvaware_extender.metrics import Metrics
from kvaware_extender.openapi import describe
from kvaware_extender.pace import Pace
from kvaware_extender.routes.table import Route
from kvaware_extender.routes.workers import HEARTBEAT
from kvaware_extender.token_reviews import TokenReviews
from kvaware_extender.worker_auth import bearer_token
from kvaware_extender.worker_feed import WorkerFeed
from kvaware_testing.fake_api import Raw, raw_model, raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock

SOMEBODY = TokenIdentity(username="system:serviceaccount:ml:default", pod=None, pod_uid=None)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("BEARER abc", "abc"),
        ("Bearer", None),
        ("Bearer  ", None),
        ("Basic abc", None),
        ("abc", None),
        ("", None),
        (None, None),
    ],
)
def test_a_bearer_token_is_read_as_http_spells_it(header, token):
    assert bearer_token(header) == token


def test_who_is_less_urgent_leaves_some_for_others():
    """Writes of findings and of wake-ups come out of one purse."""
    clock = FakeClock()
    pace = Pace(per_s=1, burst=4, clock=clock)
    assert [pace.take(leave=2) for _ in range(3)] == [True, True, False]
    assert [pace.take() for _ in range(3)] == [True, True, False]
    clock.now_s += 2
    assert not pace.take(leave=2)
    assert pace.take()


def test_who_had_a_turn_is_remembered_for_one_interval(monkeypatch):
    """Whoever may name workers cannot fill the memory with them."""
    monkeypatch.setattr("kvaware_extender.intervals.MOST", 3)
    clock = FakeClock()
    intervals = Intervals(0.2, clock=clock)
    for name in "abcd":
        intervals.take(name)
    assert [intervals.wait_s(name) for name in "abcd"] == [None, *[pytest.approx(0.2)] * 3]
    clock.now_s += 0.2
    assert [intervals.wait_s(name) for name in "abcd"] == [None] * 4
    assert len(intervals._last_s) == 0
    free = Intervals(0, clock=clock)
    free.take("a")
    assert free.wait_s("a") is None


class Reviewer:
    """An API server that knows one token and answers when told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer = asyncio.Event()

    async def review_token(self, token: str, *, audiences: tuple[str, ...]) -> TokenIdentity | None:
        self.asked.append(token)
        await self.answer.wait()
        return SOMEBODY if token == "good" else None


def reviews(source: Reviewer, *, most: int = 100, clock: FakeClock | None = None) -> TokenReviews:
    """With the shipped times."""
    return TokenReviews(
        source,  # type: ignore[arg-type]  # of a Source only this is asked
        audiences=(),
        good_s=120,
        bad_s=5,
        most=most,
        per_s=50,
        burst=200,
        clock=clock or FakeClock(),
    )


async def test_made_up_tokens_are_asked_about_a_few_at_a_time():
    """Whoever sends them must not turn the extender against the API server."""
    source = Reviewer()
    known = reviews(source)
    calls = [asyncio.create_task(known.identity(f"made-up-{i}")) for i in range(100)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(source.asked) == 16
    source.answer.set()
    assert await asyncio.gather(*calls) == [None] * 100


async def test_those_that_wait_for_their_turn_find_the_answer():
    """A burst of heartbeats with one new token is no burst of reviews."""
    source = Reviewer()
    known = reviews(source)
    calls = [asyncio.create_task(known.identity("good")) for _ in range(100)]
    await asyncio.sleep(0)
    source.answer.set()
    assert await asyncio.gather(*calls) == [SOMEBODY] * 100
    assert len(source.asked) <= 16
    assert await known.identity("good") is SOMEBODY
    assert len(source.asked) <= 16


async def test_what_is_remembered_is_bounded_and_holds_no_token():
    """Memory that strangers can fill has an end."""
    source = Reviewer()
    source.answer.set()
    known = reviews(source, most=10)
    for i in range(50):
        await known.identity(f"made-up-{i}")
    assert len(known._bad) == 10
    assert not any(b"made-up" in key for key in known._bad)


class Observed:
    """A store with what a test puts in."""

    def __init__(self, *objects: Raw) -> None:
        self.kinds: dict[Kind, dict[ObjectKey, object]] = {kind: {} for kind in Kind}
        self.raw_pods: list[Raw] = []
        for raw in objects:
            raw["metadata"]["uid"] = f"u-{raw['metadata']['name']}"
            match raw["kind"]:
                case "Node":
                    node = parse_node(raw)
                    self.kinds[Kind.NODE][ObjectKey("", node.name)] = node
                case "InferenceModel":
                    model = parse_model(raw)
                    assert model is not None
                    self.kinds[Kind.INFERENCE_MODEL][model.key] = model
                case _:
                    pod = parse_pod(raw)
                    assert pod is not None
                    self.kinds[Kind.POD][ObjectKey(pod.namespace, pod.name)] = pod
                    self.raw_pods.append(raw)

    def objects(self, kind: Kind) -> dict[ObjectKey, object]:
        return self.kinds[kind]

    def pod(self, namespace: str, name: str) -> object:
        return self.kinds[Kind.POD].get(ObjectKey(namespace, name))


def fed(*objects: Raw) -> tuple[WorkerFeed, Workers]:
    """A feed that saw everything."""
    view, workers = Observed(*objects), Workers()
    feed = WorkerFeed(workers, view=view, metrics=Metrics(FakeClock()))  # type: ignore[arg-type]  # enough of a store
    for key, model in view.objects(Kind.INFERENCE_MODEL).items():
        feed.changed(Change(Kind.INFERENCE_MODEL, key, None, model))
    for raw in view.raw_pods:
        pod = parse_worker_pod(raw)
        assert pod is not None
        feed.membership.pod_changed(Change("workerpod", pod.key, None, pod))
    return feed, workers


def server(gpus: int, **labels: str) -> Raw:
    return raw_pod("w", node="n1", gpus=gpus, labels={"kvaware.io/model": "llama", **labels})


def test_a_workers_speed_is_that_of_its_gpus():
    """Product of its node, size of its model, all GPUs of its pod."""
    _, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    place = workers._workers["ml:w:0"].place
    assert (place.product, place.model_id, place.gpus) == (
        "NVIDIA-H100-80GB-HBM3",
        "meta-llama/Llama-3.3-70B-Instruct",
        4,
    )


def test_data_parallel_ranks_share_the_gpus_of_their_pod():
    """Four GPUs and two ranks: each rank is a worker on two, the first one too."""
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    feed.membership.heard("ml:w:0")
    feed.membership.heard("ml:w:1")
    assert [state.place.gpus for state in workers._workers.values()] == [2, 2]


def test_the_leader_of_a_replica_of_several_pods_speaks_for_all_their_gpus():
    """Eight GPUs in each of two pods."""
    model = raw_model("llama", gpus=8)
    model["spec"]["roles"][0]["footprint"]["podsPerReplica"] = 2
    _, workers = fed(raw_node("n1"), model, server(8))
    assert workers._workers["ml:w:0"].place.gpus == 16


def test_workers_of_a_pod_that_is_gone_are_gone():
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    feed.membership.heard("ml:w:1")
    pod = next(iter(feed.membership._workers.values())).pod
    feed.membership.pod_changed(Change("workerpod", pod.key, pod, None))
    assert workers.views(now_s=0) == []
    assert (feed._places, feed._ranks, feed._on_node, feed._of_model) == ({}, {}, {}, {})


async def test_the_description_of_a_heartbeat_stands_alone():
    """Parts of its schema are found where they are looked for; it says that a token is needed."""

    async def nothing(_request: object) -> None:
        """Not called."""

    route = Route(
        method="PUT",
        path="/v1/workers/{id}/heartbeat",
        handler=nothing,  # type: ignore[arg-type]
        summary="",
        listener="api",
        request=HEARTBEAT,
        bearer=True,
        query={"dry": {"type": "boolean"}},
    )
    text = describe([route], version="0").decode()
    assert '"#/components/schemas/Capability"' in text
    assert '"Capability":{' in text
    assert "$defs" not in text
    assert '"security":[{"bearer":[]}]' in text
    assert '{"name":"dry","in":"query","schema":{"type":"boolean"}}' in text
