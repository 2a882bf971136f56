"""When a worker's queue will be computed: from its reports, from what was reserved, from first tokens."""

import pytest

from kvaware_engine.requests.figures import Figure
from kvaware_testing.fleet_builders import FleetAtWork
from kvaware_testing.worker_builders import WORKER, hardware, scrape

OTHER = "ml:llama-1:0"


def free_at_s(fleet: FleetAtWork, worker: str = WORKER) -> float:
    """When what waits is computed."""
    return fleet.figure(Figure.FREE_AT_S, worker)


def test_queued_tokens_are_computed_one_prompt_after_the_other():
    """Not as one prompt as long as all together: attention grows with the square of each."""
    fleet = FleetAtWork(WORKER, profile=hardware(prefill=(10.0, 0.5, 1e-4)))
    fleet.hears(at_s=1, waiting=4, queued_tokens=4000)
    assert free_at_s(fleet) == pytest.approx(1 + 4 * (10 + 500 + 100) / 1000)


def test_where_only_the_number_of_waiting_requests_is_told_they_are_like_those_that_came_lately():
    """1,024 uncached tokens until something came; then a running mean."""
    fleet = FleetAtWork(WORKER, OTHER)
    fleet.hears(at_s=1, waiting=2)
    assert free_at_s(fleet) == pytest.approx(1 + 2 * 0.512)
    for _ in range(8 * 256):
        fleet.reserve(OTHER, at_s=1, input_tokens=4000, uncached_tokens=100)
    fleet.hears(at_s=2, waiting=2)
    assert free_at_s(fleet) == pytest.approx(2 + 2 * 0.05, abs=0.02)
    fleet.hears(at_s=3, waiting=2, queued_tokens=8000)  # of which a fortieth is not cached
    assert free_at_s(fleet) == pytest.approx(3 + 8000 / 40 * 0.0005, abs=0.04)


def test_tokens_that_were_told_earlier_than_the_number_say_nothing_any_more():
    """The queue was empty since."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1, waiting=4, queued_tokens=4000)
    fleet.takes(scrape(at_s=2, waiting=0), now_s=2)
    assert free_at_s(fleet) == pytest.approx(2)


def test_a_report_without_waiting_requests_does_not_hide_a_prompt_that_is_being_computed():
    """Servers count it as running. 10,000 tokens take 5 s: a report after 1 s leaves 4."""
    fleet = FleetAtWork(WORKER)
    long = fleet.reserve(at_s=0, input_tokens=10_000)
    fleet.hears(at_s=1, waiting=0, running=1)
    assert free_at_s(fleet) == pytest.approx(5)
    fleet.fleet.discharge(long, 2)  # cancelled
    assert free_at_s(fleet) == pytest.approx(2)


def test_our_own_requests_that_wait_are_known_by_their_prefill():
    """Of three the report says that two wait: the latest. The first is being computed, the rest are others'."""
    fleet = FleetAtWork(WORKER)
    for tokens in (2000, 4000, 6000):
        fleet.reserve(at_s=0, input_tokens=tokens)
    fleet.hears(at_s=0.5, waiting=2, running=1)
    assert free_at_s(fleet) == pytest.approx(0.5 + 0.5 + 2 + 3)
    fleet.hears(at_s=0.6, waiting=3, running=1, queued_tokens=13_000)
    # all of ours wait, with 12,000 tokens; 1,000 are somebody else's
    assert free_at_s(fleet) == pytest.approx(0.6 + 1 + 2 + 3 + 0.5)
    fleet.hears(at_s=1.7, waiting=0, running=3)
    assert free_at_s(fleet) == pytest.approx(1.7 + 3 + 2 - 0.1)


def test_where_only_tokens_are_told_they_are_those_of_our_latest_requests():
    """6,000 of 7,000 are our last one's; the others are being computed or done."""
    fleet = FleetAtWork(WORKER)
    fleet.reserve(at_s=0, input_tokens=2000)
    fleet.reserve(at_s=0, input_tokens=6000)
    fleet.hears(at_s=2, queued_tokens=7000)
    assert free_at_s(fleet) == pytest.approx(2 + 3 + 0.5)


def test_first_tokens_tell_whether_the_queue_moves_as_expected():
    """Earlier: what waits behind begins now. Later: it waits as much longer."""
    fleet = FleetAtWork(WORKER)
    one, two, three = (fleet.reserve(at_s=0) for _ in range(3))  # half a second each
    fleet.fleet.prefilled(one, 0.2)
    assert free_at_s(fleet) == pytest.approx(1.2)
    fleet.fleet.prefilled(two, 1.3)
    assert free_at_s(fleet) == pytest.approx(1.5)  # three was expected 1.5 at first: no later than that is known
    fleet.fleet.prefilled(three, 1.6)
    assert free_at_s(fleet) == pytest.approx(1.6)
    fleet.fleet.prefilled(three, 9.0)
    assert free_at_s(fleet) == pytest.approx(1.6)


def test_clients_that_tell_of_no_first_token_do_not_lengthen_the_queue():
    """Nine requests that are long computed are not taken for waiting when the tenth is."""
    fleet = FleetAtWork(WORKER)
    silent = [fleet.reserve(at_s=0) for _ in range(9)]
    last = fleet.reserve(at_s=0)
    fleet.fleet.prefilled(last, 5.0)
    assert free_at_s(fleet) == pytest.approx(5.0)
    for each in silent:
        fleet.fleet.discharge(each, 6.0)
    assert free_at_s(fleet) <= 6.0


def test_a_prefill_part_does_not_decode_and_a_decode_part_keeps_no_prefill():
    """A pair of split roles: each side holds what it does."""
    fleet = FleetAtWork(WORKER, OTHER)
    fleet.reserve(at_s=0, expected_output_tokens=0)
    fleet.reserve(OTHER, at_s=0, prefill_ms=0)
    figures = (Figure.REQUESTS, Figure.BATCH)
    assert [fleet.figure(figure) for figure in figures] == [1, 0]
    assert [fleet.figure(figure, OTHER) for figure in figures] == [1, 1]
    assert (free_at_s(fleet), free_at_s(fleet, OTHER) <= 0) == (0.5, True)


def test_what_waits_at_a_worker_that_only_decodes_is_no_prefill():
    """It waits for its KV, or for room in the pool: three requests of 1,024 tokens would be 1.5 s."""
    fleet = FleetAtWork()
    fleet.expect(role="decode")
    fleet.hears(at_s=0, waiting=3, running=2)
    assert fleet.figure(Figure.FREE_AT_S) == 0
    assert fleet.figure(Figure.REQUESTS) == 5


def test_a_higher_priority_does_not_wait_for_a_lower_one():
    """Where all have one priority nothing is computed at all."""
    fleet = FleetAtWork(WORKER, OTHER)
    low = [fleet.reserve(at_s=0, priority=-1) for _ in range(2)]
    assert fleet.fleet.waits_ahead_ms(-1, 0) is None
    high = fleet.reserve(at_s=0, priority=5)
    assert fleet.fleet.waits_ahead_ms(-5, 0) is None

    def ahead(priority: int) -> list[float]:
        waits = fleet.fleet.waits_ahead_ms(priority, 0)
        assert waits is not None
        return waits.tolist()[:2]

    assert ahead(5) == pytest.approx([500, 0])
    assert ahead(0) == pytest.approx([500, 0])
    assert ahead(9) == pytest.approx([0, 0])
    fleet.reserve(OTHER, at_s=0, priority=4)
    fleet.reserve(OTHER, at_s=0, priority=9)
    assert (ahead(5), ahead(9)) == (pytest.approx([500, 500]), pytest.approx([0, 500]))
    fleet.fleet.prefilled(high, 0)
    fleet.fleet.discharge(low[0], 0)
    assert ahead(9) == pytest.approx([0, 500])


def test_a_lower_priority_that_is_computed_by_now_takes_nothing_off_the_queue():
    """Not every gateway tells of first tokens: its long answers must not hide what waits at the same priority."""
    fleet = FleetAtWork(WORKER)
    for _ in range(4):
        fleet.reserve(at_s=0, priority=0)  # two seconds, of which nothing is told until they are finished

    def ahead_ms(now_s: float) -> float:
        waits = fleet.fleet.waits_ahead_ms(5, now_s)
        assert waits is not None
        return float(waits[0])

    assert ahead_ms(0) == 0
    fleet.reserve(at_s=1.75, priority=5)  # behind a quarter of a second of them
    assert ahead_ms(1.75) == pytest.approx(500)
    assert ahead_ms(2.25) == pytest.approx(250)


def test_many_priorities_are_asked_for_without_end():
    """Columns are kept for eight; another is added up when it asks, with the same result."""
    fleet = FleetAtWork(WORKER)
    for priority in range(20):
        fleet.reserve(at_s=0, priority=priority)
    for priority in [*range(1, 20), *range(1, 20)]:
        waits = fleet.fleet.waits_ahead_ms(priority, 0)
        assert waits is not None
        assert waits[0] == pytest.approx(500 * (20 - priority))
