"""A fleet's profiles follow what is observed; links know what is on its way."""

import pytest

from kvaware_engine import ObjectKey
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.fleet import WorkerFleet
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.settings import RequestSettings
from kvaware_testing.fleet_builders import FleetAtWork
from kvaware_testing.worker_builders import WORKER

OTHER = "ml:llama-1:0"


def test_columns_are_priced_by_the_corrected_profile():
    """Prefill twice as slow, decode twice as fast, for every worker of the class."""
    fleet = FleetAtWork(WORKER, OTHER)
    fleet.hears(at_s=0, running=10)
    fleet.reserve(OTHER, at_s=0)
    for _ in range(200):
        fleet.fleet.learn_prefill(
            WORKER, ttft_ms=1040, queue_wait_ms=40, expected_wait_ms=0, uncached_tokens=1000
        )  # 500 by the profile
        fleet.fleet.learn_decode(WORKER, tpot_ms=10)  # 20 at a batch of 10
    profile = fleet.fleet.classes[0]
    assert (profile.prefill_ms(1000), profile.decode_step_ms(10)) == pytest.approx((1000, 10), rel=0.03)
    assert [
        fleet.figure(Figure.HALF_STEP_MS),
        fleet.figure(Figure.DECODE_MS_PER_TOKEN),
        fleet.figure(Figure.HALF_STEP_MS, OTHER),
        fleet.figure(Figure.PRESSURE_MS_PER_TOKEN),
    ] == pytest.approx([5, 15.5, 5, 0.3], rel=0.03)
    charged = fleet.reserve(at_s=0)
    assert fleet.figure(Figure.HALF_STEP_MS) == profile.decode_step_ms(11) / 2
    fleet.fleet.discharge(charged, 0)
    fleet.hears(at_s=1, waiting=1, running=0)
    assert fleet.figure(Figure.FREE_AT_S) == pytest.approx(1 + 1.024, rel=0.03)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"uncached_tokens": None}, id="the cached part is unknown"),
        pytest.param({"queue_wait_ms": None, "expected_wait_ms": 500}, id="the wait is unknown, and some was expected"),
        pytest.param({"queue_wait_ms": 2000}, id="waited longer than it took"),
        pytest.param({"brought_ms": 500}, id="half of it was for blocks from elsewhere, as expected"),
        pytest.param({"ttft_ms": float("nan")}, id="not a number"),
        pytest.param({"uncached_tokens": 10}, id="tells of the network"),
        pytest.param({"worker": "ml:nobody:0"}, id="nobody's"),
    ],
)
def test_what_says_nothing_of_the_prefill_corrects_nothing(told: dict[str, object]):
    """Contributions come only from requests whose uncached part and wait are known."""
    fleet = FleetAtWork(WORKER)
    usual = {
        "worker": WORKER,
        "ttft_ms": 1000.0,
        "queue_wait_ms": 0.0,
        "expected_wait_ms": 0.0,
        "uncached_tokens": 1000,
    }
    before = fleet.fleet.classes[0]
    for _ in range(50):
        fleet.fleet.learn_prefill(**(usual | told))
    assert fleet.fleet.classes[0] == before
    fleet.fleet.learn_prefill(**(usual | {"queue_wait_ms": None, "expected_wait_ms": 50}))
    assert fleet.fleet.classes[0].prefill_ms(1000) == pytest.approx(950, rel=0.01)


def test_the_time_that_blocks_took_to_come_is_not_taken_for_prefill():
    """Else a fleet that reads from its neighbours would seem slower the more it does so."""
    fleet = FleetAtWork(WORKER)
    for _ in range(50):
        fleet.fleet.learn_prefill(
            WORKER, ttft_ms=1040, queue_wait_ms=0, expected_wait_ms=0, brought_ms=40, uncached_tokens=1000
        )
    assert fleet.fleet.classes[0].prefill_ms(1000) == pytest.approx(1000, rel=0.01)


def test_who_waits_for_a_first_token_slows_down_no_batch_yet():
    """BATCH counts them, for whoever comes now; of a request that is over they say nothing."""
    fleet = FleetAtWork(WORKER)
    before = fleet.fleet.classes[0]
    done = fleet.reserve(at_s=0)
    fleet.fleet.prefilled(done, 1)
    for number in range(60):
        fleet.reserve(at_s=2 + number)
    for _ in range(20):
        fleet.fleet.learn_decode(WORKER, tpot_ms=before.decode_step_ms(1))
    assert before.decode_step_ms(61) > 1.05 * before.decode_step_ms(1), "else it would not show"
    assert fleet.fleet.classes[0] == before


def test_transfers_are_counted_on_the_link_of_the_node_until_the_first_token():
    """Workers of several models share it."""
    links = NodeLinks()
    fleet = FleetAtWork(WORKER, OTHER, links=links)
    fleet.expect("ml:llama-2:0", node="n2")
    other_model = WorkerFleet(ObjectKey("ml", "other"), RequestSettings(), ProfileBook({}), links=links)
    one, two = fleet.reserve(at_s=1, transfer_bytes=1000), fleet.reserve(OTHER, at_s=1, transfer_bytes=500)
    links.add("n2", 70)

    def on_its_way(worker: str) -> float:
        return fleet.figure(Figure.LINK_BYTES_IN_FLIGHT, worker)

    assert [on_its_way(worker) for worker in (WORKER, OTHER, "ml:llama-2:0")] == [1500, 1500, 70]
    fleet.fleet.prefilled(one, 2)
    fleet.fleet.discharge(one, 3)
    assert on_its_way(OTHER) == 500
    fleet.expect(OTHER, incarnation="uid-2/start-1", now_s=4)
    assert (on_its_way(WORKER), links.in_flight_bytes("n1"), links.in_flight_bytes(None)) == (0, 0, 0)
    fleet.fleet.discharge(two, 5)
    fleet.reserve(at_s=6, transfer_bytes=10, prefill_ms=0)
    assert links.in_flight_bytes("n1") == 10
    fleet.fleet.close()
    other_model.close()
    assert links.in_flight_bytes("n1") == 0
