"""The parts behind the routes of workers: tokens and whose they are, pace, which GPUs a worker uses."""

import asyncio
from dataclasses import replace

import pytest

from kvaware_cluster import Change, Kind, TokenIdentity, parse_model, parse_node, parse_pod, parse_worker_pod
from kvaware_engine import ObjectKey, ReportSource, ReportVerdict, WorkerReport, Workers
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
    feed = WorkerFeed(workers, view=view, metrics=Metrics(FakeClock()), report_timeout_s=40)  # type: ignore[arg-type]  # enough of a store
    for key, model in view.objects(Kind.INFERENCE_MODEL).items():
        feed.changed(Change(Kind.INFERENCE_MODEL, key, None, model))
    for raw in view.raw_pods:
        pod = parse_worker_pod(raw)
        assert pod is not None
        feed.membership.pod_changed(Change("workerpod", pod.key, None, pod))
    return feed, workers


def server(gpus: int, **labels: str) -> Raw:
    """Of a pod that is Ready."""
    conditions = [{"type": "Ready", "status": "True"}]
    return raw_pod("w", node="n1", gpus=gpus, labels={"kvaware.io/model": "llama", **labels}, conditions=conditions)


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
    feed.beat(report(1, now_s=0), now_s=0)
    pod = next(iter(feed.membership._workers.values())).pod
    feed.membership.pod_changed(Change("workerpod", pod.key, pod, None))
    assert workers.views(now_s=0) == []
    assert (feed._places, feed._ranks, feed._on_node, feed._of_model, feed._heard_at_s) == ({}, {}, {}, {}, {})


def report(rank: int, *, now_s: float, incarnation: str = "") -> WorkerReport:
    return WorkerReport(
        worker=f"ml:w:{rank}",
        model=ObjectKey("ml", "llama"),
        incarnation=incarnation,
        source=ReportSource.SCRAPE if incarnation else ReportSource.HEARTBEAT,
        observed_at_s=now_s,
        waiting=1,
    )


def told_of(feed: WorkerFeed, workers: Workers, *, now_s: float) -> tuple[int, int]:
    """Workers that report, of how many that are expected; the bookkeeping of the feed follows."""
    [role] = workers.load(ObjectKey("ml", "llama"), ["both"], now_s=now_s).roles
    assert set(feed._places) == {view.worker for view in workers.views(now_s=now_s)}
    return role.reporting, role.workers


def test_ranks_that_were_heard_long_ago_are_expected_no_more():
    """Heartbeats with wrong ranks, once: what they left behind would keep the model's load unknown for ever."""
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    for rank in range(401):
        feed.beat(report(rank, now_s=0), now_s=0)
    for now_s in (40, 80, 120):
        feed.beat(report(0, now_s=now_s), now_s=now_s)
    assert told_of(feed, workers, now_s=120) == (1, 64)
    feed.beat(report(0, now_s=121), now_s=121)
    assert told_of(feed, workers, now_s=121) == (1, 1)
    assert workers._workers["ml:w:0"].place.gpus == 4
    # and there is room again for those that were too many
    assert feed.beat(report(400, now_s=122), now_s=122) is ReportVerdict.TAKEN


def test_what_another_pod_reports_is_enough_to_find_out_that_ranks_are_silent():
    """The whole pod is silent; the lowest of its ranks stays, or nobody would expect it."""
    other = raw_pod("x", node="n1", gpus=4, labels={"kvaware.io/model": "llama"})
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4), other)
    for rank in (5, 6, 7):
        feed.beat(report(rank, now_s=0), now_s=0)
    incarnation = workers._workers["ml:x:0"].place.incarnation
    for now_s in (121, 300):
        feed.scraped(replace(report(0, now_s=now_s, incarnation=incarnation), worker="ml:x:0"), now_s=now_s)
        assert [view.worker for view in workers.views(now_s=now_s)] == ["ml:w:5", "ml:x:0"]


def test_a_rank_that_was_the_lowest_is_forgotten_once_another_is():
    """It came first, and wrong."""
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    feed.beat(report(400, now_s=0), now_s=0)
    for now_s in range(100, 300, 10):
        feed.beat(report(0, now_s=now_s), now_s=now_s)
    assert told_of(feed, workers, now_s=290) == (1, 1)


def test_a_silent_rank_that_a_scrape_still_shows_is_expected():
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    incarnation = workers._workers["ml:w:0"].place.incarnation
    for rank in (0, 1, 2):
        feed.beat(report(rank, now_s=0), now_s=0)
    feed.membership.scraped(ObjectKey("ml", "w"), [0, 1], incarnation=incarnation)
    feed.scraped(report(0, now_s=500, incarnation=incarnation), now_s=500)
    assert told_of(feed, workers, now_s=500) == (1, 2)


def test_a_rank_that_goes_on_is_never_forgotten():
    feed, workers = fed(raw_node("n1"), raw_model("llama"), server(4))
    for now_s in range(0, 1000, 100):
        for rank in (0, 1):
            feed.beat(report(rank, now_s=now_s), now_s=now_s)
    assert told_of(feed, workers, now_s=900) == (2, 2)


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
