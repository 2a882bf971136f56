"""Who may be chosen, and how far a worker's report and index are believed."""

import pytest

from kvaware_engine.requests.figures import Figure
from kvaware_testing.fleet_builders import FleetAtWork
from kvaware_testing.worker_builders import WORKER


def test_a_stale_report_is_believed_less_and_is_not_taken_for_a_full_worker():
    """llm-d/llm-d-router#2408, #2547: a healthy pool of one worker stopped serving. Reports are due every 10 s."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=0, waiting=0, running=1)
    believed = {at_s: fleet.figure(Figure.CONFIDENCE_RATIO, now_s=at_s) for at_s in (0.0, 10.0, 25.0, 40.0)}
    assert believed == {0.0: 1.0, 10.0: 1.0, 25.0: 0.5, 40.0: 0.0}  # evenly from one interval to four
    assert fleet.may_be_chosen(now_s=20)
    assert (fleet.may_be_chosen(now_s=40), fleet.figure(Figure.REQUESTS)) == (True, 1)
    assert not fleet.may_be_chosen(now_s=40.001)
    assert fleet.fleet.serving == 0
    fleet.hears(at_s=41)
    assert (fleet.may_be_chosen(now_s=41), fleet.figure(Figure.CONFIDENCE_RATIO, now_s=41)) == (True, 1.0)
    assert fleet.fleet.serving == 1


def test_a_ready_worker_that_was_never_heard_is_a_candidate_for_one_time_out():
    """Pods alone must neither shut it out nor vouch for it for ever; one report settles it."""
    fleet = FleetAtWork()
    fleet.expect(ready=False, now_s=0)
    assert not fleet.may_be_chosen(now_s=0)
    fleet.expect(now_s=5)
    assert (fleet.may_be_chosen(now_s=5), fleet.figure(Figure.CONFIDENCE_RATIO)) == (True, 0.25)
    fleet.expect(node="n2", now_s=30)  # looked at again, and not heard all the same
    fleet.expect(ready=False, now_s=31)
    fleet.expect(now_s=32)
    assert fleet.may_be_chosen(now_s=45)
    assert not fleet.may_be_chosen(now_s=45.1)
    fleet.hears(at_s=50, waiting=0)
    assert (fleet.may_be_chosen(now_s=50), fleet.figure(Figure.CONFIDENCE_RATIO)) == (True, 1.0)


@pytest.mark.parametrize("told", ["draining", "asleep"])
def test_a_worker_that_drains_or_sleeps_gets_nothing_new(told: str):
    """vllm-project/aibrix#2287: a sleeping server has emptied its cache and is no candidate. Awake again it is one."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1, **{told: True})
    assert not fleet.may_be_chosen(now_s=1)
    fleet.hears(at_s=2, **{told: False})
    assert fleet.may_be_chosen(now_s=2)


def test_the_mark_of_a_refusal_ends_by_time():
    """ai-dynamo/dynamo#12138: a worker that once refused stayed excluded for good, idle. The mark holds 5 s."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1, waiting=3)
    fleet.fleet.refused(WORKER, 2)
    assert not fleet.may_be_chosen(now_s=2)
    fleet.hears(at_s=3, waiting=3)  # not well
    assert not fleet.may_be_chosen(now_s=6.999)
    assert fleet.may_be_chosen(now_s=7)


def test_the_mark_of_a_refusal_ends_by_the_next_healthy_report():
    """ai-dynamo/dynamo#12138, the other half; a report from before the refusal says nothing of it."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=0.5, waiting=3)
    fleet.fleet.refused(WORKER, 2)
    fleet.hears(at_s=1.5, now_s=2.5, waiting=0)
    assert not fleet.may_be_chosen(now_s=2.5)
    fleet.hears(at_s=3, waiting=0)
    assert fleet.may_be_chosen(now_s=3)


def test_refusals_make_a_worker_a_risk_and_requests_that_are_served_make_it_none():
    """One in ten of an assignment's 50 ms at first; forgotten after a while of serving."""
    fleet = FleetAtWork(WORKER)
    fleet.fleet.refused(WORKER, 1)
    assert fleet.figure(Figure.RISK_MS) == pytest.approx(5.0)
    fleet.fleet.refused(WORKER, 1)
    assert fleet.figure(Figure.RISK_MS) == pytest.approx(9.5)  # 0.1 + 0.1 * (1 - 0.1)
    for _ in range(30):
        fleet.fleet.prefilled(fleet.reserve(at_s=2), 3)
    assert fleet.figure(Figure.RISK_MS) == 0
    fleet.fleet.refused("ml:nobody:0", 1)


def test_the_risk_of_a_worker_that_nobody_chooses_for_it_ends_with_its_reports():
    """ai-dynamo/dynamo#12138, its cousin: where others are idle, 5 ms more keep it out, and so from ever serving."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=0)
    fleet.fleet.refused(WORKER, 1)
    for number in range(30):
        fleet.hears(at_s=2 + number, waiting=0)
        fleet.follow(2 + number)  # looked at again without a report
        if number == 0:
            assert fleet.figure(Figure.RISK_MS) == pytest.approx(4.5)
    assert fleet.figure(Figure.RISK_MS) == 0


def test_hits_that_fall_short_of_what_was_matched_lower_the_confidence():
    """Self-verifying: predicted against actual cached tokens. Some blocks less are nothing, so are more."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=0)
    assert not fleet.fleet.verify_hits(WORKER, predicted_tokens=8192, cached_tokens=8160)
    assert not fleet.fleet.verify_hits(WORKER, predicted_tokens=0, cached_tokens=500)
    assert fleet.figure(Figure.CONFIDENCE_RATIO, now_s=0) == 1
    rebuild = [fleet.fleet.verify_hits(WORKER, predicted_tokens=8192, cached_tokens=0) for _ in range(16)]
    assert rebuild.index(True) == 10  # (15/16)^11 = 0.49: below one half
    assert rebuild.count(True) == 1, "once: the index is built anew, not each time"
    assert fleet.figure(Figure.CONFIDENCE_RATIO, now_s=0) == pytest.approx((15 / 16) ** 16)  # 0.36
    for _ in range(1000):
        fleet.fleet.verify_hits(WORKER, predicted_tokens=64, cached_tokens=0)
    assert fleet.figure(Figure.CONFIDENCE_RATIO, now_s=0) == 0.05
    for _ in range(64):
        fleet.fleet.verify_hits(WORKER, predicted_tokens=8192, cached_tokens=8192)
    assert fleet.figure(Figure.CONFIDENCE_RATIO, now_s=0) > 0.95
    assert not fleet.fleet.verify_hits("ml:nobody:0", predicted_tokens=1, cached_tokens=0)


def test_an_index_that_begins_anew_is_not_to_blame_for_what_was_known_before():
    """After a gap in its events; so is another incarnation."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=0)

    def believed() -> float:
        return fleet.figure(Figure.CONFIDENCE_RATIO, now_s=0)

    fleet.fleet.verify_hits(WORKER, predicted_tokens=1000, cached_tokens=0)
    assert believed() == 15 / 16
    fleet.fleet.restore_confidence(WORKER)
    assert believed() == 1.0
    fleet.fleet.restore_confidence("ml:nobody:0")
    fleet.fleet.verify_hits(WORKER, predicted_tokens=1000, cached_tokens=0)
    fleet.expect(incarnation="uid-2/start-1", now_s=0)
    fleet.hears(at_s=0, incarnation="uid-2/start-1")
    assert believed() == 1.0


def test_a_decode_worker_is_no_help_against_a_congested_prefill():
    """The congestion price counts those that prompts may go to."""

    def price(*roles: str) -> float:
        fleet = FleetAtWork()
        for number, role in enumerate(roles):
            fleet.expect(f"ml:w-{number}:0", role=role)
        for _ in range(10):
            fleet.reserve("ml:w-0:0", at_s=1)
        fleet.fleet.refresh(1)
        return fleet.fleet.congestion(1)

    # 10 prefills of half a second in a window of 10 s: half of one worker, a quarter of two
    assert price("both") == pytest.approx(1.0)
    assert price("both", "decode") == pytest.approx(1.0)
    assert price("both", "prefill") == pytest.approx(4 / 3 * 0.25 ** (6**0.5 - 1))


def test_what_is_not_done_after_all_is_no_congestion():
    """A refused or withdrawn request gives its prefill back, as far as it was not computed yet."""
    fleet = FleetAtWork(WORKER)
    charged = [fleet.reserve(at_s=1) for _ in range(10)]
    fleet.fleet.refresh(1)
    for each in charged[1:]:
        fleet.fleet.discharge(each, 1)
    assert fleet.fleet.congestion(1) == pytest.approx(0.05 / 0.95)
