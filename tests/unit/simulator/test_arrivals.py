"""When recorded requests arrive in a replay."""

import pytest

from kvaware_simulator import TraceRequest, arrivals_s


def requests(*times_s: float) -> list[TraceRequest]:
    return [TraceRequest(at_s=at_s, input_tokens=1, output_tokens=1, block_hashes=()) for at_s in times_s]


def test_requests_of_one_tick_are_spread_until_the_next() -> None:
    """100 requests under one timestamp were no burst: the trace tells no more than the 3 s in which they came."""
    times_s = arrivals_s(requests(*[0.0] * 100, *[3.0] * 100), within_s=6, seed=1)
    assert list(times_s) == sorted(times_s)
    assert all(0 <= each < 3 for each in times_s[:100])
    assert all(3 <= each < 6 for each in times_s[100:])
    # of 100 evenly drawn times each third of the tick holds 33 on average, with a standard deviation of 4.7
    assert all(15 < sum(third <= each < third + 1 for each in times_s[:100]) < 55 for third in range(3))


def test_all_gaps_are_shortened_by_one_factor() -> None:
    """Ticks at 0, 3 and 9 s, the last as long as the median gap of 4.5 s: 13.5 s in 1.35 s."""
    times_s = arrivals_s(requests(10.0, 13.0, 19.0), within_s=1.35, seed=1)
    assert 0 <= times_s[0] < 0.3 <= times_s[1] < 0.9 <= times_s[2] < 1.35


def test_the_same_seed_gives_the_same_arrivals() -> None:
    trace = requests(0.0, 0.0, 3.0, 3.0)
    assert arrivals_s(trace, within_s=5, seed=7) == arrivals_s(trace, within_s=5, seed=7)
    assert arrivals_s(trace, within_s=5, seed=7) != arrivals_s(trace, within_s=5, seed=8)


def test_a_single_request_arrives_within_the_time() -> None:
    [at_s] = arrivals_s(requests(100.0), within_s=2, seed=1)
    assert 0 <= at_s < 2


def test_nothing_can_be_spread_over_no_time() -> None:
    with pytest.raises(ValueError, match="got 1 and 0"):
        arrivals_s(requests(1.0), within_s=0, seed=1)
