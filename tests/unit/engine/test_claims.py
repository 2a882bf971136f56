"""Claims: of several objects that want the same thing the oldest owns it, and who is concerned is told."""

from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine.claims import Claims
from kvaware_engine.observations import ObjectKey

OLD, NEW, OTHER = (ObjectKey("ml", name) for name in ("old", "new", "other"))


def claims() -> Claims[str]:
    found: Claims[str] = Claims()
    found.put(NEW, "2026-02-01T00:00:00Z", ["x", "y"])
    found.put(OLD, "2026-01-01T00:00:00Z", ["x"])
    return found


def test_the_older_owns_and_ties_go_by_name():
    found = claims()
    assert (found.owner("x"), found.owner("y"), found.owner("z")) == (OLD, NEW, None)
    found.put(OTHER, "2026-01-01T00:00:00Z", ["x"])
    assert found.owner("x") == OLD
    found.put(ObjectKey("ml", "a"), "2026-01-01T00:00:00Z", ["x"])
    assert found.owner("x") == ObjectKey("ml", "a")


def test_whoever_may_own_more_or_less_now_is_told():
    """The younger one's condition must go when the older one lets go, or is deleted."""
    found = claims()
    assert found.put(OLD, "2026-01-01T00:00:00Z", []) == {NEW}
    assert found.owner("x") == NEW
    assert found.put(OTHER, "2026-01-02T00:00:00Z", ["x", "y"]) == {NEW}
    assert found.owner("x") == OTHER


def test_one_more_that_owns_nothing_concerns_nobody_else():
    """A thousand models of one name: each newcomer would have all others looked at."""
    assert claims().put(OTHER, "2026-03-01T00:00:00Z", ["x", "y"]) == set()


def test_the_same_claim_again_concerns_nobody():
    """Every status write comes back as an event of the object."""
    assert claims().put(NEW, "2026-02-01T00:00:00Z", ["y", "x"]) == set()


def test_an_object_made_anew_is_younger():
    """Deleted and created between two lists: its key is the same, its age is not."""
    found = claims()
    assert found.put(OLD, "2026-03-01T00:00:00Z", ["x"]) == {NEW}
    assert found.owner("x") == NEW


def test_nothing_is_left_of_what_is_gone():
    found = claims()
    for key in (OLD, NEW):
        found.put(key, "", [])
    assert found.claimants("x") == set()
    assert found._claimants == {}
    assert found._of == {}
    assert found._owner == {}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "3"]), st.frozensets(st.sampled_from("xyz"))),
        max_size=25,
    )
)
def test_after_any_order_of_changes_the_oldest_owns_and_losers_know_of_a_new_owner(steps):
    found: Claims[str] = Claims()
    wanted: dict[ObjectKey, tuple[str, frozenset[str]]] = {}
    for name, created_at, things in steps:
        key = ObjectKey("ml", name)
        before = {thing: found.owner(thing) for thing in "xyz"}
        told = found.put(key, created_at, things)
        wanted[key] = (created_at, things)
        for thing in "xyz":
            rivals = [(age, each) for each, (age, claimed) in wanted.items() if thing in claimed]
            assert found.owner(thing) == (min(rivals)[1] if rivals else None)
            if found.owner(thing) != before[thing]:
                assert found.claimants(thing) - {key} <= told
