"""A rate's bucket: what is admitted when, debt, and that waiting for as long as one was told is enough."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine.requests.buckets import Bucket

NOW_S = 1_000.0


def test_a_full_bucket_admits_as_much_as_it_holds_and_no_more():
    bucket = Bucket(1_000, depth_s=1)
    assert bucket.wait_s(1_000, NOW_S) == 0
    bucket.charge(1_000, NOW_S)
    # 500 come in half a second
    assert bucket.wait_s(500, NOW_S) == pytest.approx(0.5)
    assert bucket.wait_s(500, NOW_S + 0.5) == 0
    assert bucket.level(NOW_S + 0.5) == pytest.approx(500)


def test_asking_charges_nothing():
    bucket = Bucket(10, depth_s=1)
    for _ in range(100):
        assert bucket.wait_s(10, NOW_S) == 0
    assert bucket.level(NOW_S) == 10


def test_more_than_it_holds_is_admitted_when_it_is_full_and_goes_into_debt():
    """Else a prompt of 2,000 tokens could never pass a limit of 1,000 a second."""
    bucket = Bucket(1_000, depth_s=1)
    assert bucket.wait_s(2_000, NOW_S) == 0
    bucket.charge(2_000, NOW_S)
    assert bucket.level(NOW_S) == pytest.approx(-1_000)
    assert bucket.wait_s(1, NOW_S) == pytest.approx(1.001)
    assert bucket.wait_s(2_000, NOW_S) == pytest.approx(2), "on average 1,000 a second"


def test_one_a_second_is_admitted_by_a_bucket_that_holds_half_of_one():
    bucket = Bucket(1, depth_s=0.5)
    assert bucket.wait_s(1, NOW_S) == 0
    bucket.charge(1, NOW_S)
    assert bucket.wait_s(1, NOW_S) == pytest.approx(1)


def test_what_is_given_back_never_makes_it_more_than_full():
    bucket = Bucket(1_000, depth_s=1)
    bucket.charge(600, NOW_S)
    bucket.refund(90)
    assert bucket.level(NOW_S) == pytest.approx(490)
    bucket.refund(5_000)
    assert bucket.level(NOW_S) == 1_000
    bucket.charge(100, NOW_S)
    assert bucket.level(NOW_S) == pytest.approx(900), "and what was too much is not saved up"


def test_what_is_kept_for_others_is_not_admitted():
    bucket = Bucket(1_000, depth_s=1)
    bucket.charge(700, NOW_S)
    assert bucket.wait_s(100, NOW_S) == 0
    assert bucket.wait_s(100, NOW_S, kept=250) == pytest.approx(0.05)  # 350 are needed, 300 are there
    assert bucket.wait_s(900, NOW_S, kept=250) == pytest.approx(0.7), "when it is full, not later"


def test_a_higher_rate_brings_back_sooner_what_was_taken():
    bucket = Bucket(10, depth_s=1)
    bucket.charge(1_000, NOW_S)
    bucket = bucket.at_rate(1_000)
    assert bucket.level(NOW_S) == pytest.approx(0)  # 1,000 are still missing, of 1,000
    assert bucket.wait_s(1_000, NOW_S) == pytest.approx(1)


def test_a_lower_rate_shuts_nobody_out_for_longer_than_before():
    bucket = Bucket(1_000, depth_s=1)
    bucket.charge(500, NOW_S)
    bucket = bucket.at_rate(10)
    assert bucket.wait_s(10, NOW_S) == pytest.approx(0.5)
    assert bucket.wait_s(5, NOW_S) == 0


@given(
    rates=st.lists(st.integers(1, 10**9), min_size=1, max_size=6),
    amounts=st.lists(st.floats(1, 1e6), min_size=1, max_size=6),
    data=st.data(),
)
def test_all_that_was_charged_given_back_leaves_a_full_bucket_and_nothing_beyond(rates, amounts, data):
    """Whatever the rates were and became between: one that gives back cannot take from what others are charged."""
    bucket, charged = Bucket(rates[0], depth_s=1), []
    bucket.charge(1, NOW_S)  # stays: what others took
    for rate in rates:
        bucket = bucket.at_rate(rate)
        for amount in data.draw(st.lists(st.sampled_from(amounts), max_size=3)):
            bucket.charge(amount, NOW_S)
            charged.append((bucket, amount))
    others = Bucket(rates[0], depth_s=1)
    others.charge(1, NOW_S)
    for rate in rates:
        others = others.at_rate(rate)
    for before, amount in charged:
        before.refund(amount)
        assert before.latest is bucket
    assert bucket.level(NOW_S) == pytest.approx(others.level(NOW_S), rel=1e-6, abs=1e-6 * bucket.rate_per_s)


def test_the_same_rate_is_the_same_bucket():
    bucket = Bucket(10, depth_s=1)
    assert bucket.at_rate(10) is bucket.latest is bucket


@pytest.mark.parametrize("rate", [0, -1, nan, inf])
def test_a_rate_that_is_no_rate_is_turned_away(rate: float):
    with pytest.raises(ValueError, match="expected a finite rate"):
        Bucket(rate, depth_s=1)


@given(
    rate=st.integers(1, 10**12) | st.floats(1e-3, 1e12),
    depth_s=st.floats(1e-3, 3_600),
    begins_s=st.floats(0, 1e9),
    steps=st.lists(
        st.tuples(st.floats(0, 10), st.floats(1e-3, 1e12), st.floats(0, 1), st.sampled_from(["charge", "ask"])),
        max_size=20,
    ),
    amount=st.floats(1e-3, 1e12),
    kept_ratio=st.sampled_from([0.0, 0.25]),
)
def test_waiting_for_as_long_as_one_was_told_is_enough(rate, depth_s, begins_s, steps, amount, kept_ratio):
    """A client that waits exactly Retry-After is admitted when nobody else came, whatever rounds where."""
    bucket = Bucket(rate, depth_s=depth_s)
    now_s = begins_s
    for after_s, size, used_ratio, what in steps:
        now_s += after_s
        if what == "charge":
            bucket.charge(size, now_s)
            bucket.refund(size * (1 - used_ratio))
        elif bucket.wait_s(size, now_s) == 0:
            bucket.charge(size, now_s)
    wait_s = bucket.wait_s(amount, now_s, kept=kept_ratio * bucket.depth)
    assert wait_s >= 0
    assert bucket.wait_s(amount, now_s + wait_s, kept=kept_ratio * bucket.depth) == 0


@given(
    rate=st.integers(1, 10_000),
    sizes=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5_000)), min_size=1, max_size=50),
)
def test_no_more_than_the_rate_and_one_bucket_are_admitted(rate, sizes):
    """Over any time: a bucket, the rate, and what the last one went into debt."""
    bucket = Bucket(rate, depth_s=1)
    now_s, admitted, last = NOW_S, 0.0, 0.0
    for after_s, size in sizes:
        now_s += after_s
        if bucket.wait_s(size, now_s) == 0:
            bucket.charge(size, now_s)
            admitted, last = admitted + size, size
    assert admitted <= rate * (now_s - NOW_S) + max(rate, last) + 0.1
