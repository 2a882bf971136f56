"""Bytes to kube-scheduler: written by hand for speed, so held to the plain serializer."""

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from kvaware_extender.wire import OfferedPod, parse_offer, render_filter, render_priorities

names = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=20)


@given(names=names, data=st.data())
def test_priorities_are_what_a_serializer_would_write(names, data):
    """Any name: quotes, control characters, other alphabets."""
    scores = data.draw(st.lists(st.integers(0, 10), min_size=len(names), max_size=len(names)))
    expected = [{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)]
    assert json.loads(render_priorities(names, scores)) == expected


def test_priorities_of_ordinary_names_are_compact_integer_literals():
    assert render_priorities(["a", "b"], [10, 0]) == b'[{"Host":"a","Score":10},{"Host":"b","Score":0}]'


@given(names=names)
def test_an_offer_of_any_names_is_read_and_given_back(names):
    body = orjson.dumps({"Pod": {"metadata": {"uid": "u"}}, "Nodes": None, "NodeNames": names})
    offer = parse_offer(body)
    assert offer.names == names
    assert orjson.loads(render_filter(offer, names, {}))["NodeNames"] == names


def test_an_empty_list_of_nodes_is_read_as_go_writes_it():
    """Go writes an empty slice as null."""
    offer = parse_offer(orjson.dumps({"Pod": {"metadata": {"uid": "u"}}, "Nodes": {"items": None}, "NodeNames": None}))
    assert (offer.names, offer.items) == ([], [])


def test_no_node_is_an_empty_list_never_null():
    """Null would mean that the extender answered in the other mode."""
    offer = OfferedPod({}, "u", ["n1"], None)
    assert b'"NodeNames":[]' in render_filter(offer, [], {"n1": "why"})
    assert b'"NodeNames":null' in render_filter(OfferedPod({}, "u", [], []), [], {})
