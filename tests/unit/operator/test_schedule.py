"""The schedule of the work queue: one entry per key, back-off per key, no hot loop, nobody blocks anybody."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_operator.work_queue import Schedule


def schedule(*, first_s: float = 1.0, max_s: float = 8.0) -> Schedule[str]:
    return Schedule(first_s=first_s, max_s=max_s, rng=random.Random(1))  # noqa: S311  # jitter


def test_a_key_that_is_asked_for_many_times_runs_once():
    queue = schedule()
    for _ in range(3):
        queue.request("a", now_s=0.0)
    assert queue.take(now_s=0.0) == "a"
    assert queue.take(now_s=0.0) is None
    queue.done("a", now_s=1.0)
    assert len(queue) == 0


def test_what_is_asked_for_while_it_runs_runs_once_more_afterwards():
    """What changed after the look began may not have been seen by it; two looks at one object never overlap."""
    queue = schedule()
    queue.request("a", now_s=0.0)
    assert queue.take(now_s=0.0) == "a"
    queue.request("a", now_s=0.5)
    queue.request("a", now_s=0.6)
    assert queue.take(now_s=0.7) is None
    queue.done("a", now_s=1.0)
    assert queue.take(now_s=1.0) == "a"
    queue.done("a", now_s=1.1)
    assert queue.take(now_s=9.0) is None


def test_of_two_requests_the_earlier_holds():
    queue = schedule()
    queue.request("a", now_s=0.0, after_s=5.0)
    queue.request("a", now_s=1.0, after_s=1.0)
    queue.request("a", now_s=1.0, after_s=9.0)
    assert queue.next_due_s() == 2.0
    assert queue.take(now_s=1.9) is None
    assert queue.take(now_s=2.0) == "a"


def test_look_again_after_is_kept_unless_something_comes_before():
    queue = schedule()
    queue.request("a", now_s=0.0)
    queue.take(now_s=0.0)
    queue.done("a", now_s=0.0, again_after_s=10.0)
    assert queue.next_due_s() == 10.0
    queue.request("a", now_s=3.0)
    assert queue.take(now_s=3.0) == "a"


def test_a_failing_key_waits_longer_each_time_and_no_longer_than_the_limit():
    queue = schedule()
    queue.request("a", now_s=0.0)
    now_s, waits = 0.0, []
    for _ in range(6):
        assert queue.take(now_s=now_s) == "a"
        queue.failed("a", now_s=now_s)
        due_s = queue.next_due_s()
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = due_s
    # half of 1, 2, 4, 8, 8, 8 seconds is fixed, half is drawn
    for wait_s, ceiling_s in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert ceiling_s / 2 <= wait_s <= ceiling_s


def test_a_failing_key_does_not_hold_up_the_others():
    queue = schedule()
    for key in ("poisoned", "a", "b"):
        queue.request(key, now_s=0.0)
    assert queue.take(now_s=0.0) == "poisoned"
    queue.failed("poisoned", now_s=0.0)
    assert [queue.take(now_s=0.0), queue.take(now_s=0.0)] == ["a", "b"]
    assert queue.failing == 1


@pytest.mark.parametrize("when", ["while it runs", "while it waits"])
def test_events_bring_a_failing_key_forward_but_make_no_hot_loop_of_it(when):
    """A spec that was repaired is looked at soon; an object that always fails, at most once per first back-off."""
    queue = schedule(first_s=1.0, max_s=60.0)
    queue.request("a", now_s=0.0)
    now_s = 0.0
    for _ in range(5):  # its back-off has grown
        queue.take(now_s=now_s)
        queue.failed("a", now_s=now_s)
        now_s = queue.next_due_s() or 0.0
    queue.take(now_s=now_s)
    if when == "while it runs":
        queue.request("a", now_s=now_s)
    queue.failed("a", now_s=now_s)
    if when == "while it waits":
        queue.request("a", now_s=now_s + 0.1)
    assert queue.next_due_s() == now_s + 1.0


def test_a_server_that_names_a_wait_is_obeyed():
    queue = schedule()
    queue.request("a", now_s=0.0)
    queue.take(now_s=0.0)
    queue.failed("a", now_s=0.0, at_least_s=30.0)
    assert queue.next_due_s() == 30.0


def test_success_forgets_the_failures():
    queue = schedule()
    queue.request("a", now_s=0.0)
    queue.take(now_s=0.0)
    queue.failed("a", now_s=0.0)
    queue.take(now_s=1.0)
    queue.done("a", now_s=1.0)
    assert (len(queue), queue.failing) == (0, 0)
    queue.request("a", now_s=1.0)
    assert queue.take(now_s=1.0) == "a"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["request", "take", "done", "failed"])), max_size=60))
def test_whatever_happens_no_request_is_lost_and_nothing_runs_twice_at_once(steps):
    """After the last step, letting time pass serves every key that was asked for since its last look began."""
    queue = schedule()
    now_s, running, owed = 0.0, set(), set()
    for key, step in steps:
        now_s += 0.25
        if step == "request":
            queue.request(key, now_s=now_s)
            owed.add(key)
        elif step == "take":
            taken = queue.take(now_s=now_s)
            if taken is not None:
                assert taken not in running
                running.add(taken)
                owed.discard(taken)
        elif key in running:
            running.discard(key)
            if step == "done":
                queue.done(key, now_s=now_s)
            else:
                queue.failed(key, now_s=now_s)
                owed.add(key)
    for key in sorted(running):
        queue.done(key, now_s=now_s)
    served = set()
    while (taken := queue.take(now_s=now_s + 100.0)) is not None:
        served.add(taken)
        queue.done(taken, now_s=now_s + 100.0)
    assert served == owed
    assert len(queue) == 0
    assert queue.next_due_s() is None
