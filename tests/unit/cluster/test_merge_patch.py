from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster.merge_patch import leftovers, merge_patch, without_nulls
from kvaware_testing.fake_objects import merged

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(old=objects, new=objects)
def test_a_patch_makes_the_new_of_the_old(old: dict[str, Any], new: dict[str, Any]):
    old, new = without_nulls(old), without_nulls(new)
    assert merged(old, merge_patch(old, new)) == new


@given(seen=objects, stored=objects, new=objects)
def test_two_patches_make_the_new_of_anything(seen: dict[str, Any], stored: dict[str, Any], new: dict[str, Any]):
    """What was seen may have nothing to do with what is stored by now."""
    stored, new = without_nulls(stored), without_nulls(new)
    once = merged(stored, merge_patch(without_nulls(seen), new))
    left = leftovers(once, new)
    assert merged(once, left) == new
    assert bool(left) == (once != new)


@given(value=objects)
def test_no_null_is_left_at_any_depth(value: dict[str, Any]):
    def nulls(part: Any) -> int:
        if isinstance(part, dict):
            return sum(item is None or nulls(item) for item in part.values())
        return sum(nulls(item) for item in part) if isinstance(part, list) else 0

    assert nulls(without_nulls(value)) == 0


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        pytest.param({"a": 1}, {"a": 1}, {"a": 1}, id="what is equal is said again: what was seen may be old"),
        pytest.param({"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": None}, id="removed"),
        pytest.param({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": None, "y": 3}}, id="inside"),
        pytest.param({"a": [1, 2]}, {"a": [2]}, {"a": [2]}, id="lists as a whole"),
        pytest.param({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="another type"),
        pytest.param({}, {}, {}, id="nothing"),
    ],
)
def test_patches(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]):
    assert merge_patch(old, new) == patch


def test_tuples_become_lists_and_what_was_given_is_not_changed():
    given_ = {"conditions": ({"type": "Ready", "message": None},)}
    assert without_nulls(given_) == {"conditions": [{"type": "Ready"}]}
    assert given_ == {"conditions": ({"type": "Ready", "message": None},)}
