"""Reading Mooncake's traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvaware_simulator import TraceError, TraceRequest, parse_mooncake, read_mooncake, seen_before_ratio
from kvaware_testing.repository import REPOSITORY
from kvaware_testing.sample_trace import sample

EXAMPLE = REPOSITORY / "examples" / "traces" / "conversation.jsonl"


def line(timestamp: Any = 0, tokens: Any = 1100, answer: Any = 5, hashes: Any = (0, 1, 2)) -> str:
    """One request: two whole blocks and a part of a third."""
    hashes = list(hashes) if isinstance(hashes, tuple) else hashes
    record = {"timestamp": timestamp, "input_length": tokens, "output_length": answer, "hash_ids": hashes}
    return json.dumps(record)


def test_only_whole_blocks_count() -> None:
    """The last hash id of a prompt may stand for a part of a block, which no server can find again."""
    assert list(parse_mooncake([line(3000), "\n", line(6001, tokens=1536)])) == [
        TraceRequest(at_s=3.0, input_tokens=1100, output_tokens=5, block_hashes=(0, 1)),
        TraceRequest(at_s=6.001, input_tokens=1536, output_tokens=5, block_hashes=(0, 1, 2)),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(["{"], "line 1: expected a JSON object", id="no JSON"),
        pytest.param(["[1]"], "line 1: expected a JSON object, got list", id="no object"),
        pytest.param([line(), line(timestamp=None)], "line 2: timestamp: expected a number", id="nothing"),
        pytest.param([line(tokens=1.5)], "input_length: expected a number of 0 or more, got '1.5'", id="a fraction"),
        pytest.param([line(tokens=True)], "input_length: expected a number of 0 or more, got 'True'", id="a truth"),
        pytest.param([line(answer=-1)], "output_length: expected a number of 0 or more", id="negative"),
        pytest.param([line(answer=0)], "expected 1 to 16777216, got 1100, 0", id="no answer"),
        pytest.param([line(hashes="012")], "hash_ids: expected a list of numbers, got str", id="hashes of a kind"),
        pytest.param([line(hashes=(0, "1"))], "hash_ids: expected a number of 0 or more, got '1'", id="a text"),
        pytest.param([line(hashes=(0,))], "hash_ids: expected 2 or more", id="too few hashes"),
        pytest.param([line(3000), line(0)], "line 2: timestamp: expected 3000 or more", id="back in time"),
        pytest.param(
            [line(), line(hashes=(7, 1, 2))], "line 2: hash_ids: expected 1 after 0 as before", id="unchained"
        ),
        pytest.param(["", " \n"], "found none", id="nothing in it"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=r"^trace") as caught:
        list(parse_mooncake(lines))
    assert message in str(caught.value)


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "gone", None), (tmp_path / "binary", b"\xff\xfe\x00")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TraceError, match=f"^{path}: expected a trace"):
            read_mooncake(path)


def test_the_example_is_what_its_page_says() -> None:
    """397 requests; with a cache without end 38 % of the prompt tokens were seen before."""
    requests = read_mooncake(EXAMPLE)
    assert len(requests) == 397
    assert requests[-1].at_s < 1200
    assert round(seen_before_ratio(requests, block_tokens=512), 2) == 0.38


def test_a_sample_takes_whole_conversations_in_turn() -> None:
    """A conversation is told by its second block: all share the first."""
    lines = [line(1000 * n, hashes=(0, conversation, 100 + n)) for n, conversation in enumerate((1, 2, 3, 1, 2, 3, 1))]
    kept = [json.loads(each) for each in sample(lines, until_s=6, each=2)]
    assert [(each["timestamp"], each["hash_ids"][1]) for each in kept] == [(0, 1), (2000, 3), (3000, 1), (5000, 3)]
