"""Tenants' limits on requests: all are checked before any is charged, 0 is nothing, unset is no limit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine.observations import TenantQuotaObservation
from kvaware_engine.requests.limits import Charge, Limit, LimitRefusal, RequestLimits
from kvaware_engine.requests.settings import RequestLedgerSettings
from kvaware_testing.builders import quota

NOW_S = 1_000.0


def limits(*quotas: TenantQuotaObservation, **of_a: Any) -> RequestLimits:
    """Of some quotas, or of one of tenant a."""
    made = RequestLimits(RequestLedgerSettings(bucket_s=1.0))
    for each in quotas or (quota("team-a", tenant="a", **of_a),):
        made.observe_quota(each.name, each)
    return made


def admit(
    book: RequestLimits, tenant: str = "a", *, tokens: float = 10, priority: int = 0, at_s: float = 0.0
) -> LimitRefusal | None:
    """None: it is admitted."""
    came = book.admit(tenant, tokens=tokens, priority=priority, now_s=NOW_S + at_s)
    return came if isinstance(came, LimitRefusal) else None


def charged(book: RequestLimits, *, tokens: float) -> Charge:
    came = book.admit("a", tokens=tokens, priority=0, now_s=NOW_S)
    assert isinstance(came, Charge)
    return came


def refused(book: RequestLimits, tenant: str = "a", **changes: Any) -> LimitRefusal:
    refusal = admit(book, tenant, **changes)
    assert refusal is not None
    return refusal


def test_a_tenant_without_limits_is_never_refused():
    book = limits(gpus=0)
    assert [admit(book, tokens=1e9) for _ in range(100)] == [None] * 100
    assert [admit(book, "nobody") for _ in range(100)] == [None] * 100
    assert (book.remote_bytes("a", NOW_S), book.migration_bytes("a", NOW_S), book.control("a", NOW_S)) == (None,) * 3
    assert (book.remote_bytes("b", NOW_S), book.migration_bytes("b", NOW_S), book.control("b", NOW_S)) == (None,) * 3


@pytest.mark.parametrize(
    "limit", ["requests_per_s", "tokens_per_s", "concurrent_requests"], ids=["requests", "tokens", "concurrency"]
)
def test_a_limit_of_zero_admits_nothing_and_waiting_does_not_help(limit: str):
    """Project-HAMi/HAMi#2312: a limit of 0, meant to block, was read as no limit."""
    book = limits(**{limit: 0})
    refusal = refused(book)
    assert (refusal.retryable, refusal.retry_after_s, refusal.at_most) == (False, None, 0)
    assert refusal.message == f"tenant a may have nothing: limits.{refusal.limit} of TenantQuota team-a is 0"
    assert refused(book, at_s=1e6).limit is refusal.limit
    assert book.in_flight("a") == 0


def test_parallel_requests_are_charged_before_they_run_and_settled_by_what_they_used():
    """envoyproxy/ai-gateway#680: tokens were charged when the response came, so parallel requests all passed."""
    book = limits(tokens_per_s=1_000)
    first = charged(book, tokens=900 + 100)
    replies = [admit(book, tokens=900 + 100) for _ in range(19)]
    assert [each.limit for each in replies if each is not None] == [Limit.TOKENS] * 19
    # when it finishes at once with 10 tokens out
    first.settle(actual_tokens=910, now_s=NOW_S)
    assert left(book, Limit.TOKENS) == pytest.approx(90)
    assert admit(book, tokens=90) is None
    assert refused(book, tokens=1).retry_after_s == pytest.approx(0.001)


def left(book: RequestLimits, limit: Limit, *, at_s: float = 0.0) -> float:
    (view,) = book.views(NOW_S + at_s)
    return {each.limit: each.left for each in view.limits}[limit]


def test_a_request_refused_for_concurrency_costs_no_rate():
    """BerriAI/litellm#39309: it still used up the request rate."""
    book = limits(requests_per_s=1, concurrent_requests=1)
    assert admit(book, at_s=0.0) is None
    assert refused(book, at_s=1.0).limit is Limit.CONCURRENT
    book.release("a")  # at 1.1 s
    assert admit(book, at_s=1.2) is None


@pytest.mark.parametrize(
    ("limit", "others"),
    [
        pytest.param({"tokens_per_s": 5}, {"requests_per_s": 5, "concurrent_requests": 5}, id="tokens"),
        pytest.param({"requests_per_s": 1}, {"tokens_per_s": 500, "concurrent_requests": 5}, id="requests"),
    ],
)
def test_a_refusal_leaves_every_other_limit_as_it_was(limit: dict[str, int], others: dict[str, int]):
    book = limits(**limit, **others)
    assert admit(book, tokens=6) is None
    before = book.views(NOW_S)
    assert admit(book, tokens=6) is not None
    assert book.views(NOW_S) == before


def test_more_tokens_than_expected_are_taken_later():
    book = limits(tokens_per_s=1_000)
    charged(book, tokens=500).settle(actual_tokens=2_500, now_s=NOW_S)
    assert left(book, Limit.TOKENS) == pytest.approx(-1_500)
    assert refused(book, tokens=100).retry_after_s == pytest.approx(1.6)


def test_a_prompt_larger_than_a_second_of_the_rate_passes_a_full_bucket():
    book = limits(tokens_per_s=1_000)
    assert admit(book, tokens=2_000) is None
    assert refused(book, tokens=2_000, at_s=1.0).retry_after_s == pytest.approx(1.0)
    assert admit(book, tokens=2_000, at_s=2.0) is None


def test_a_request_that_could_not_be_placed_costs_nothing():
    book = limits(requests_per_s=1, tokens_per_s=10, concurrent_requests=1)
    book.undo("a", charged(book, tokens=10))
    assert admit(book) is None


def test_all_quotas_of_a_tenant_apply_and_the_refusal_names_the_one_that_said_no():
    book = limits(
        quota("wide", tenant="a", tokens_per_s=1_000, requests_per_s=1),
        quota("narrow", tenant="a", tokens_per_s=100, requests_per_s=50),
        quota("other", tenant="b", tokens_per_s=0),
    )
    assert admit(book, tokens=100) is None
    refusal = refused(book, tokens=50)
    assert (refusal.limit, refusal.quota, refusal.retry_after_s) == (Limit.REQUESTS, "wide", pytest.approx(1.0))
    # when the wide one limits no requests any more
    book.observe_quota("wide", quota("wide", tenant="a", tokens_per_s=1_000))
    refusal = refused(book, tokens=50)
    assert (refusal.limit, refusal.quota, refusal.retry_after_s) == (Limit.TOKENS, "narrow", pytest.approx(0.5))
    # and when the narrow one is gone
    book.observe_quota("narrow", None)
    assert admit(book, tokens=800) is None


def test_a_quota_may_pass_from_one_tenant_to_another():
    """The field is immutable, but an object can be deleted and made again under its name."""
    book = limits(quota("q", tenant="a", concurrent_requests=0))
    book.observe_quota("q", quota("q", tenant="b", concurrent_requests=0))
    assert admit(book, "a") is None
    assert refused(book, "b").quota == "q"
    book.observe_quota("q", None)
    book.observe_quota("q", None)
    assert admit(book, "b") is None
    assert book.views(NOW_S) == []


def test_what_is_settled_goes_to_the_bucket_that_was_charged():
    """Also when the limit changed since; of one that is gone, or came again, nothing is left to settle with."""
    book = limits(tokens_per_s=1_000)
    request = charged(book, tokens=500)
    book.observe_quota("team-a", quota("team-a", tenant="a", tokens_per_s=100))
    request.settle(actual_tokens=700, now_s=NOW_S)
    assert left(book, Limit.TOKENS) == pytest.approx(100 - 50 - 200)  # half a second, and 200 of the present rate
    book.observe_quota("team-a", None)
    book.observe_quota("team-a", quota("team-a", tenant="a", tokens_per_s=100))
    assert admit(book, tokens=100) is None
    request.undo()
    assert left(book, Limit.TOKENS) == pytest.approx(0)


def test_what_was_taken_stays_taken_when_a_quota_changes():
    """Else editing a label of a quota would fill its tenant's buckets."""
    book = limits(tokens_per_s=1_000, concurrent_requests=2)
    assert admit(book, tokens=1_000) is None
    book.observe_quota("team-a", quota("team-a", tenant="a", tokens_per_s=2_000, concurrent_requests=1))
    assert refused(book, tokens=500).limit is Limit.CONCURRENT
    book.release("a")
    assert refused(book, tokens=1_500).retry_after_s == pytest.approx(0.25)  # 1,000 of 2,000 are left


def test_requests_in_flight_count_although_their_tenants_quota_came_later():
    book = RequestLimits(RequestLedgerSettings())
    assert admit(book) is None
    book.observe_quota("q", quota("q", tenant="a", concurrent_requests=1))
    assert refused(book).left == 0
    book.release("a")
    assert admit(book) is None


def test_made_up_tenants_leave_nothing_behind():
    """A client that sends another tenant with each request must not grow memory."""
    book = limits(requests_per_s=1)
    for i in range(1_000):
        assert book.admit(f"made-up-{i}", tokens=10, priority=0, now_s=NOW_S) is None, "and nothing is charged"
        assert book.control(f"made-up-{i}", NOW_S) is None
        book.priority(f"made-up-{i}", 5)
        book.release(f"made-up-{i}")
    assert book._in_flight == {}
    assert set(book._limits) == {"a"}


def test_a_count_does_not_say_when_it_is_free_again():
    """Nobody knows when a request ends; a figure would be made up."""
    full = limits(concurrent_requests=1, requests_per_s=1)
    admit(full)
    told = refused(full)
    assert (told.limit, told.retryable, told.retry_after_s) == (Limit.CONCURRENT, True, None)
    assert told.message == (
        "tenant a: expected at most 1 by limits.concurrentRequests of TenantQuota team-a, 0 of them left at this "
        "priority, and one more came"
    )


def test_a_refusal_says_what_was_expected_and_what_came():
    book = limits(tokens_per_s=1_000)
    admit(book, tokens=600)
    told = refused(book, tokens=500)
    assert told.message == (
        "tenant a: expected at most 1000 by limits.tokensPerSecond of TenantQuota team-a, 400 of them left now at this "
        "priority, got 500"
    )
    assert told.details == {
        "tenant": "a",
        "quota": "team-a",
        "limit": "tokensPerSecond",
        "expected_at_most": 1_000,
        "left": pytest.approx(400),
        "came": 500,
    }


# -- priorities -----------------------------------------------------------------------------------------------------


def test_a_flood_of_low_priority_leaves_a_quarter_to_the_highest_in_use():
    """Priority decides who is shed first."""
    book = limits(tokens_per_s=1_000)
    assert admit(book, tokens=100, priority=5) is None
    low = [admit(book, tokens=100, priority=0) for _ in range(20)]
    assert low.count(None) == 6  # 1,000 - 100, of which 250 are kept
    assert low[-1] is not None
    assert (low[-1].limit, low[-1].left) == (Limit.TOKENS, pytest.approx(50))
    assert [admit(book, tokens=100, priority=5) for _ in range(4)][:3] == [None] * 3
    # and it waits for what it may have
    assert refused(book, tokens=100, priority=0).retry_after_s == pytest.approx(0.35)


def test_of_requests_in_flight_a_quarter_is_kept_as_well():
    book = limits(concurrent_requests=8)
    assert admit(book, priority=5) is None
    assert [admit(book, priority=0) for _ in range(8)].count(None) == 5
    assert [admit(book, priority=5) for _ in range(8)].count(None) == 2


def test_a_limit_too_small_to_share_is_not_shared():
    """Of one request at a time nothing can be kept."""
    book = limits(concurrent_requests=1, requests_per_s=1)
    admit(book, priority=5)
    book.release("a")
    assert admit(book, priority=0, at_s=1.0) is None


def test_nothing_is_kept_for_a_priority_that_nobody_uses():
    book = limits(tokens_per_s=1_000)
    assert admit(book, tokens=1_000, priority=0) is None
    book = limits(tokens_per_s=1_000)
    assert admit(book, tokens=10, priority=5, at_s=0.0) is None
    assert admit(book, tokens=1_000, priority=0, at_s=10.1) is None, "it was last asked for 10.1 s ago"


@pytest.mark.parametrize(
    ("asked", "default", "most", "expected"),
    [
        pytest.param(None, None, None, 0, id="none set"),
        pytest.param(7, None, None, 7, id="as it asks"),
        pytest.param(None, 3, None, 3, id="the default"),
        pytest.param(0, 3, None, 0, id="zero is asked for"),
        pytest.param(7, 3, 5, 5, id="lowered"),
        pytest.param(-7, 3, 5, -7, id="below the maximum"),
        pytest.param(None, None, -2, -2, id="the default is lowered, too"),
    ],
)
def test_priorities_are_as_the_quota_allows(asked, default, most, expected):
    book = limits(priority_default=default, priority_max=most)
    assert book.priority("a", asked) == expected
    assert book.priority("b", asked) == (asked or 0)


def test_of_several_quotas_the_oldest_default_and_the_least_maximum_hold():
    book = limits(
        quota("young", tenant="a", priority_default=9, priority_max=9, created_at="2026-02-01T00:00:00Z"),
        quota("old", tenant="a", priority_default=2, created_at="2026-01-01T00:00:00Z"),
        quota("oldest", tenant="a", priority_max=20, created_at="2025-01-01T00:00:00Z"),
    )
    assert book.priority("a", None) == 2
    assert book.priority("a", 50) == 9


# -- bytes and control calls ----------------------------------------------------------------------------------------


def test_remote_reads_and_copies_are_masked_by_what_is_left_of_their_rates():
    book = limits(remote_read_bytes_per_s=1_000, migration_bytes_per_s=0)
    assert book.remote_bytes("a", NOW_S) == float("inf"), "a full bucket may go into debt, or large reads never happen"
    assert book.migration_bytes("a", NOW_S) == 0
    book.charge_remote_read("a", 600, NOW_S)
    assert book.remote_bytes("a", NOW_S) == pytest.approx(400)
    book.charge_remote_read("a", 5_000, NOW_S)
    assert book.remote_bytes("a", NOW_S) == 0
    assert book.remote_bytes("a", NOW_S + 5.0) == pytest.approx(400)  # -4,600 + 5,000


def test_copies_at_the_same_time_are_counted():
    book = limits(concurrent_migrations=1, migration_bytes_per_s=1_000)
    book.charge_migration("a", 100, NOW_S)
    assert book.migration_bytes("a", NOW_S) == 0
    book.end_migration("a")
    assert book.migration_bytes("a", NOW_S) == pytest.approx(900)
    assert limits(concurrent_migrations=1).migration_bytes("a", NOW_S) is None
    assert limits(concurrent_migrations=0).migration_bytes("a", NOW_S) == 0


def test_control_calls_have_a_rate_of_their_own():
    book = limits(control_requests_per_s=2, requests_per_s=0)
    assert [book.control("a", NOW_S) for _ in range(2)] == [None, None]
    told = book.control("a", NOW_S)
    assert told is not None
    assert (told.limit, told.retryable, told.retry_after_s) == (Limit.CONTROL, True, pytest.approx(0.5))
    blocked = limits(control_requests_per_s=0).control("a", NOW_S)
    assert blocked is not None
    assert (blocked.retryable, blocked.retry_after_s) == (False, None)


def test_a_view_shows_every_limit_that_is_set():
    book = limits(
        quota("q1", tenant="b", tokens_per_s=1_000, concurrent_requests=5, remote_read_bytes_per_s=0),
        quota("q2", tenant="a", gpus=3, priority_default=1, priority_max=4),
    )
    admit(book, "b", tokens=250)
    first, second = book.views(NOW_S)
    assert (first.tenant, first.limits, first.priority_default, first.priority_max) == ("a", (), 1, 4)
    assert (second.tenant, second.concurrent_requests) == ("b", 1)
    assert [(str(each.limit), each.quota, each.at_most, each.left) for each in second.limits] == [
        ("tokensPerSecond", "q1", 1_000, pytest.approx(750)),
        ("concurrentRequests", "q1", 5, 4),
        ("remoteReadBytesPerSecond", "q1", 0, 0),
    ]


# -- what holds always ----------------------------------------------------------------------------------------------

REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.integers(1, 5_000),
        st.integers(-1, 2),
        st.floats(0, 3),
        st.sampled_from(["finish", "undo", "run on"]),
    ),
    max_size=30,
)
RATE = st.none() | st.integers(1, 10_000)


@given(
    requests_per_s=RATE, tokens_per_s=RATE, begins_s=st.floats(0, 1e9), requests=REQUESTS, tokens=st.integers(1, 10**6)
)
def test_who_waits_exactly_as_long_as_told_is_admitted(requests_per_s, tokens_per_s, begins_s, requests, tokens):
    """Retry-After is truthful for any history, rate and clock, at any priority, when nobody else came."""
    book = limits(requests_per_s=requests_per_s, tokens_per_s=tokens_per_s)
    now_s = begins_s
    for after_s, size, priority, used_ratio, then in requests:
        now_s += after_s
        charge = book.admit("a", tokens=size, priority=priority, now_s=now_s)
        if isinstance(charge, LimitRefusal) or then == "run on":
            continue
        if then == "undo":
            book.undo("a", charge)
        else:
            if charge is not None:
                charge.settle(actual_tokens=size * used_ratio, now_s=now_s)
            book.release("a")
    for priority in (-1, 2):
        refusal = book.admit("a", tokens=tokens, priority=priority, now_s=now_s)
        if isinstance(refusal, LimitRefusal):
            assert refusal.retry_after_s is not None
            now_s += refusal.retry_after_s
            again = book.admit("a", tokens=tokens, priority=priority, now_s=now_s)
            assert not isinstance(again, LimitRefusal)


@given(most=st.integers(0, 6), steps=st.lists(st.booleans(), max_size=60))
def test_never_more_in_flight_than_allowed_and_each_admitted_one_counts_once(most, steps):
    """At no moment: check and charge are one."""
    book = limits(concurrent_requests=most)
    running = 0
    for arrives in steps:
        if arrives:
            running += admit(book) is None
        elif running:
            book.release("a")
            running -= 1
        assert book.in_flight("a") == running <= most
