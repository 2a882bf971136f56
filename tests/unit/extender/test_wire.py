"""Bytes to kube-scheduler: written by hand for speed, so held to the plain serializer."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_crds.errors import WireError
from kvaware_engine import REASON_OF_CODE, FilterVerdict, Reason
from kvaware_extender.wire import OfferedPod, parse_offer, render_filter, render_priorities

names = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=20)
node_names = st.lists(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,40}[a-z0-9])?", fullmatch=True), max_size=20)
any_names = names | node_names


def body_of(offered: list[str], *, pod: dict[str, Any] | None = None) -> bytes:
    """A request as Go writes it."""
    pod = pod or {"metadata": {"uid": "u"}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": offered}, separators=(",", ":")).encode()


def verdict_of(offered: Sequence[str], codes: Sequence[int]) -> FilterVerdict:
    """A verdict with these codes."""
    counts = {reason: count for code, reason in enumerate(REASON_OF_CODE) if reason and (count := codes.count(code))}
    return FilterVerdict(nodes=offered, codes=np.array(codes, dtype=np.int8), reason=None, counts=counts)


@given(offered=any_names, data=st.data())
def test_priorities_are_what_a_serializer_would_write(offered, data):
    """Any name: quotes, control characters, other alphabets; packed where the names are plain."""
    scores = data.draw(st.lists(st.integers(0, 10), min_size=len(offered), max_size=len(offered)))
    expected = [{"Host": name, "Score": score} for name, score in zip(offered, scores, strict=True)]
    written = json.loads(render_priorities(parse_offer(body_of(offered)).names, scores))
    assert sorted(written, key=str) == sorted(expected, key=str)


def test_priorities_of_ordinary_names_are_compact_integer_literals():
    for offered in (["a", "b"], parse_offer(body_of(["a", "b"])).names):
        written = render_priorities(offered, [0, 10])
        assert written.translate(None, b" ") == written
        assert json.loads(written) == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 10}]


@given(offered=any_names, data=st.data())
def test_a_verdict_on_any_names_is_what_a_serializer_would_write(offered, data):
    """Both ways through, the packed one and the ordinary one, say the same."""
    codes = data.draw(st.lists(st.integers(0, len(REASON_OF_CODE) - 1), min_size=len(offered), max_size=len(offered)))
    offer = parse_offer(body_of(offered))
    assert list(offer.names) == offered
    packed = json.loads(render_filter(offer, verdict_of(offer.names, codes)))
    plain = json.loads(render_filter(offer._replace(names=offered), verdict_of(offered, codes)))
    assert sorted(packed.pop("NodeNames")) == sorted(plain.pop("NodeNames"))
    assert packed == plain


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a","b"]}', ["a", "b"], id="as Go writes it"),
        pytest.param(b'{"NodeNames":["a","b"],"Pod":{"metadata":{"uid":"u"}}}', ["a", "b"], id="names first"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames": ["a", "b"]}', ["a", "b"], id="spaces"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a","b" ]}', ["a", "b"], id="a space at the end"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["\\u0061","b"]}', ["a", "b"], id="escapes"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":[]}', [], id="empty"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["","b"]}', ["", "b"], id="an empty name"),
        pytest.param(
            b'{"Pod":{"metadata":{"uid":"u","annotations":{"x":"\\"NodeNames\\":[\\"z\\"]}"}}},"NodeNames":["a"]}',
            ["a"],
            id="the key inside a string",
        ),
        pytest.param(
            b'{"NodeNames":["a"],"Pod":{"metadata":{"uid":"u"},"NodeNames":["z"]}}', ["a"], id="the key inside the pod"
        ),
        pytest.param('{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["é"]}'.encode(), ["é"], id="another alphabet"),
    ],
)
def test_names_are_read_however_they_are_written(body, expected):
    """The packed way is for what kube-scheduler writes; everything else is JSON all the same."""
    assert list(parse_offer(body).names) == expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a",,"b"]}', id="two commas"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a""b"]}', id="no comma"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a"x"b"]}', id="a letter for a comma"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a",1]}', id="a number"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a]}', id="an open string"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"},"NodeNames":["a"]}', id="an open object"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["a"]}}', id="a brace too many"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["\x01"]}', id="a control character"),
        pytest.param(b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":["\xff"]}', id="no UTF-8"),
    ],
)
def test_what_is_not_json_is_an_error_on_either_way(body):
    """The packed way must not let through what a parser refuses."""
    with pytest.raises(WireError):
        parse_offer(body)


def test_an_empty_list_of_nodes_is_read_as_go_writes_it():
    """Go writes an empty slice as null."""
    offer = parse_offer(orjson.dumps({"Pod": {"metadata": {"uid": "u"}}, "Nodes": {"items": None}, "NodeNames": None}))
    assert (offer.names, offer.items) == ([], [])


def test_no_node_is_an_empty_list_never_null():
    """Null would mean that the extender answered in the other mode."""
    refused = FilterVerdict(nodes=["n1"], codes=np.array([1], np.int8), reason=None, counts={Reason.NODE_UNKNOWN: 1})
    nothing = FilterVerdict(nodes=[], codes=np.zeros(0, np.int8), reason=None, counts={})
    assert b'"NodeNames":[]' in render_filter(OfferedPod({}, "u", ["n1"], None), refused)
    assert b'"NodeNames":[]' in render_filter(parse_offer(body_of(["n1"])), refused)
    assert b'"NodeNames":null' in render_filter(OfferedPod({}, "u", [], []), nothing)
