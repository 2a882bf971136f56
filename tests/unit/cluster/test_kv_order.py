"""The order of a worker's batches: what follows, what comes again, what is missing, what begins anew."""

from kvaware_cluster.kv_order import EventOrder, Step


def order(*taken: int, live: bool = True) -> EventOrder:
    """These were taken, each at its own sequence as a time."""
    made = EventOrder()
    for sequence in taken:
        if live:
            made.live(sequence, float(sequence))
        made.took(sequence, float(sequence))
    return made


def test_the_first_may_be_any():
    """Whoever comes late begins with what is told then."""
    assert EventOrder().live(4711, 1.0) is Step.NEXT
    assert EventOrder().replayed(12) is Step.NEXT


def test_one_more_is_the_next():
    assert order(3).live(4, 4.0) is Step.NEXT
    assert order(3).replayed(4) is Step.NEXT


def test_more_than_one_more_is_a_gap():
    assert order(3).live(5, 5.0) is Step.GAP
    assert order(3).replayed(5) is Step.GAP


def test_down_in_the_live_stream_is_a_restart_whatever_the_servers_clock_says():
    assert order(903, 904, 905).live(0, 906.0) is Step.RESTARTED
    assert order(903, 904, 905).live(0, -5.0) is Step.RESTARTED
    assert order(0).live(0, 0.0) is Step.RESTARTED


def test_what_a_replay_brought_waits_in_the_live_stream_too():
    """The replay went to 6; the live stream begins with 5."""
    replayed = order(*range(7), live=False)
    assert replayed.live(5, 5.0) is Step.AGAIN
    assert replayed.live(6, 6.0) is Step.AGAIN
    assert replayed.live(7, 7.0) is Step.NEXT


def test_a_restart_right_after_a_replay_is_younger_than_what_the_replay_brought():
    """Taken for a repetition, it would be passed over until its sequence is past 905."""
    assert order(*range(906), live=False).live(0, 906.0) is Step.RESTARTED


def test_a_replay_may_repeat():
    assert order(5).replayed(5) is Step.AGAIN
    assert order(5).replayed(2) is Step.AGAIN


def test_after_starting_over_any_is_the_next_and_the_live_stream_still_goes_up():
    begun = order(905)
    assert begun.live(0, 906.0) is Step.RESTARTED
    begun.start_over()
    assert begun.last is None
    assert begun.live(1, 907.0) is Step.NEXT
    assert begun.live(0, 908.0) is Step.RESTARTED
