"""What a millisecond of prefill taken now costs those who come next."""

import pytest

from kvaware_engine.requests.congestion import Congestion
from kvaware_engine.requests.settings import RequestCostSettings

SETTINGS = RequestCostSettings(congestion_window_s=10, congestion_max_ratio=0.95)


def test_the_price_grows_with_the_utilisation_and_has_a_bound():
    """10 s of prefill in 10 s: one worker is full, two are half full, four a quarter."""
    congestion = Congestion(SETTINGS)
    assert congestion.price(1, 0) == 0
    for _ in range(10):
        congestion.reserved(1000, 0.1)
    assert congestion.utilisation(2, 0.1) == pytest.approx(0.5)
    assert [congestion.price(workers, 0.1) for workers in (0, 1, 2, 4)] == pytest.approx(
        [19, 19, 2 * 0.5 ** (6**0.5 - 1), 4 / 3 * 0.25 ** (10**0.5 - 1)]
    )


def test_what_is_older_than_the_window_does_not_count():
    """In twentieths of it."""
    congestion = Congestion(SETTINGS)
    congestion.reserved(1000, 0.1)
    congestion.reserved(2000, 5.0)
    assert [round(10 * congestion.utilisation(1, now_s), 6) for now_s in (5.0, 9.9, 10.1, 14.9, 15.1, 1000)] == [
        3,
        3,
        2,
        2,
        0,
        0,
    ]


def test_what_was_not_done_is_given_back_while_it_counts():
    """Not below nothing, and not once it has left the window."""
    congestion = Congestion(SETTINGS)
    congestion.reserved(1000, 0.1)
    congestion.reserved(3000, 4.0)
    congestion.returned(1000, 4.0, 4.2)
    congestion.returned(500, 0.1, 4.2)
    assert congestion.utilisation(1, 4.2) == pytest.approx(0.25)
    congestion.returned(9000, 4.0, 4.9)
    assert congestion.utilisation(1, 4.9) == pytest.approx(0.05)
    congestion.reserved(1000, 20.0)
    congestion.returned(1000, 4.0, 20.0)
    assert congestion.utilisation(1, 20.0) == pytest.approx(0.1)


def test_a_clock_that_stands_still_or_goes_back_loses_nothing():
    """What is given then is of the part that is now."""
    congestion = Congestion(SETTINGS)
    congestion.reserved(1000, 7.0)
    congestion.reserved(1000, 3.0)
    assert congestion.utilisation(1, 2.0) == pytest.approx(0.2)
