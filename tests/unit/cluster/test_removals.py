from kvaware_cluster.removals import RemovalHold
from kvaware_engine.observations import ObjectKey

A, B = ObjectKey("", "a"), ObjectKey("", "b")


def test_without_a_hold_every_removal_is_believed():
    hold = RemovalHold(None)
    assert not hold.deleted(A, at_s=0.0)
    assert list(hold.listed({A}, began_at_s=0.0)) == []
    assert hold.look_at_s() is None


def test_a_list_confirms_a_deletion_only_when_the_hold_is_over():
    hold = RemovalHold(3.0)
    assert hold.deleted(A, at_s=10.0)
    assert hold.look_at_s() == 13.0
    assert set(hold.listed({A}, began_at_s=12.9)) == {A}
    assert set(hold.listed({A}, began_at_s=13.0)) == set()
    assert hold.look_at_s() is None


def test_what_a_list_misses_first_waits_for_a_later_list():
    hold = RemovalHold(3.0)
    assert set(hold.listed({A}, began_at_s=10.0)) == {A}
    assert set(hold.listed({A, B}, began_at_s=12.0)) == {A, B}
    assert hold.look_at_s() == 13.0
    assert set(hold.listed({A, B}, began_at_s=13.0)) == {B}
    assert hold.look_at_s() == 15.0


def test_what_was_there_in_between_is_missed_anew():
    hold = RemovalHold(3.0)
    hold.deleted(A, at_s=0.0)
    hold.present(A)
    hold.deleted(A, at_s=2.0)
    assert hold.look_at_s() == 5.0
    hold.listed((), began_at_s=3.0)  # a list holds it
    assert set(hold.listed({A}, began_at_s=6.0)) == {A}


def test_a_time_in_which_the_kind_was_unknown_does_not_count():
    hold = RemovalHold(3.0)
    hold.deleted(A, at_s=0.0)
    hold.start_over()
    assert hold.look_at_s() is None
    assert set(hold.listed({A}, began_at_s=100.0)) == {A}
