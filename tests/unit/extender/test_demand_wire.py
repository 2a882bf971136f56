"""Bodies of demands that are odd and yet JSON."""

import json

import msgspec
import pytest

from kvaware_crds.errors import WireError
from kvaware_extender.demand_wire import Demand, RawBatch, read

DEMAND = msgspec.json.Decoder(Demand)
BATCH = msgspec.json.Decoder(RawBatch)


def body(prompt: str) -> bytes:
    """A demand with this text between the quotes, as it stands."""
    return b'{"request_id": "r", "model": "m", "prompt": "%b"}' % prompt.encode()


@pytest.mark.parametrize(
    ("sent", "read_as"),
    [
        (r"cut \ud83d", "cut \ufffd"),
        (r"\ud83d here", "\ufffd here"),
        (r"\uDE00 here", "\ufffd here"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ud83d\ude00\ude00", "😀\ufffd"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\ud83d and \ud83d\ude00 and \\ud83d", "\ufffd and 😀 and \\ud83d"),
    ],
)
def test_half_a_surrogate_pair_is_read_as_encoders_write_it(sent: str, read_as: str) -> None:
    """What JavaScript makes of a text that is cut in the middle of an emoji."""
    assert read(DEMAND, body(sent)).prompt == read_as


def test_one_text_that_was_cut_leaves_a_batch_readable() -> None:
    sent = b'{"demands": [%b, %b]}' % (body(r"\ud83d"), body("whole"))
    assert [read(DEMAND, each).prompt for each in read(BATCH, sent).demands] == ["\ufffd", "whole"]


def test_pairs_and_everything_else_are_read_as_they_are() -> None:
    text = '😀 "quoted" \\ud83d \n ü'
    assert read(DEMAND, json.dumps({"request_id": "r", "model": "m", "prompt": text}).encode()).prompt == text


@pytest.mark.parametrize("sent", [r"\ud8", r"\u", "\\", r"\x"])
def test_a_broken_escape_is_the_callers_mistake(sent: str) -> None:
    with pytest.raises(WireError, match="expected a JSON object"):
        read(DEMAND, body(sent))
