"""Names as bytes are the same names, and find the same rows as a dict would."""

from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine import PackedNames
from kvaware_engine.names import NameTable

ascii_names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=70)


@given(names=st.lists(ascii_names, max_size=30))
def test_packed_names_are_a_sequence_of_the_same_strings(names):
    packed = PackedNames.of(names)
    assert list(packed) == names
    assert len(packed) == len(names)
    assert [packed[i] for i in range(len(names))] == names
    assert packed[1:3] == names[1:3]


@given(known=st.lists(ascii_names, unique=True, max_size=60), asked=st.lists(ascii_names, max_size=30), data=st.data())
def test_the_table_finds_what_a_dict_finds(known, asked, data):
    """Any lengths, known and unknown names, the same one twice."""
    if known:
        asked = asked + data.draw(st.lists(st.sampled_from(known), max_size=30))
    rows = {name: number * 7 for number, name in enumerate(known)}
    found = NameTable(rows, missing=-1).find(PackedNames.of(asked))
    assert found.tolist() == [rows.get(name, -1) for name in asked]


def test_thousands_of_like_names_are_told_apart():
    """They differ in one character of the second word, and share slots of the table."""
    names = [f"gpu-node-pool-{i:05d}" for i in range(5000)]
    table = NameTable({name: number for number, name in enumerate(names)}, missing=-1)
    asked = [*reversed(names), "gpu-node-pool-99999", "gpu-node-pool-0000", "gpu-node-pool-000000"]
    assert table.find(PackedNames.of(asked)).tolist() == [*reversed(range(5000)), -1, -1, -1]


def test_a_table_without_names_finds_nothing():
    assert NameTable({}, missing=-1).find(PackedNames.of(["a"])).tolist() == [-1]
