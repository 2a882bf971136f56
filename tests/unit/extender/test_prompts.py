"""What a demand's body becomes for the engine, and what is said of a wrong one."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import msgspec
import orjson
import pytest

from kvaware_crds.errors import WireError
from kvaware_engine.blocks.hashing import chain, opaque_hashes, text_hashes
from kvaware_engine.requests.words import Phase, PlacementRefusal, Precision, RequestDemand
from kvaware_extender.demand_wire import Demand, Event, LongDemand, read
from kvaware_extender.placement_wire import refusal_error
from kvaware_extender.prompts import Prompts, _own_root, read_slowly
from kvaware_testing.placement_harness import LLAMA, SimplePlacer, demand, worker_at

DEMAND = msgspec.json.Decoder(Demand)
LONG = msgspec.json.Decoder(LongDemand)
MODELS = SimplePlacer()
ROOT = MODELS.root(LLAMA, None, None)
SALTED = MODELS.root(LLAMA, "lora", "mine")


def made(**sent: Any) -> RequestDemand:
    """A body as the engine gets it; chunks of 4 characters."""
    got = outcome(**sent)
    assert isinstance(got, RequestDemand), got
    return got


def outcome(**sent: Any) -> RequestDemand | PlacementRefusal:
    """The same, or why not."""
    prompts = Prompts(MODELS, chunk_characters=4, worker_at=worker_at)
    return asyncio.run(prompts.demand(read(DEMAND, json.dumps(demand(**sent)).encode()), "a"))


def test_token_ids_are_hashed_block_by_block_from_the_root_of_model_adapter_and_salt():
    got = made(token_ids=list(range(40)), adapter="lora", cache_salt="mine")
    assert (got.input_tokens, got.block_tokens, got.precision) == (40, 16, Precision.PRECISE)
    assert got.block_hashes == chain(SALTED, range(40), block_tokens=16)
    assert len(got.block_hashes) == 2


def test_a_long_prompt_is_hashed_in_slices_to_the_same_blocks():
    """100,000 tokens are 6,250 blocks; 600,001 characters are 150,000 chunks of 4."""
    token_ids = [number * 7919 % 50_000 for number in range(100_000)]
    assert made(token_ids=token_ids).block_hashes == chain(ROOT, token_ids, block_tokens=16)
    text = "abcdefg" * 85_714 + "xyz"
    got = made(prompt=text, input_tokens=len(text))
    assert got.block_hashes == text_hashes(ROOT, text, chunk_characters=4)


def test_a_salt_named_like_an_adapter_shares_nothing_with_it():
    """vllm#44701: both entered the hash as the same kind of string."""
    kinds = [{"adapter": "x"}, {"cache_salt": "x"}, {}]
    for form in ({"token_ids": list(range(16))}, {"prompt": "some text"}, {"block_hashes": [1, 2]}):
        assert len({tuple(made(**form, **kind).block_hashes) for kind in kinds}) == 3


def test_text_is_matched_by_its_chunks():
    """10 characters: two whole chunks of 4, and of the 5 tokens that are told 2 are in each."""
    got = made(prompt="abcdefghij", input_tokens=5)
    assert (got.input_tokens, got.block_tokens, got.precision) == (5, 2, Precision.APPROXIMATE)
    assert got.block_hashes == text_hashes(ROOT, "abcdefghij", chunk_characters=4)


def test_the_length_of_text_is_a_quarter_of_its_characters_unless_told():
    assert made(prompt="a" * 403).input_tokens == 100
    assert made(prompt="ab").input_tokens == 1


def test_hashes_never_stand_for_more_tokens_than_there_are():
    """Whoever says 3 tokens of 100 characters is believed: the last hashes stand for none."""
    for tokens in (1, 3, 24, 25, 26, 99):
        got = made(prompt="a" * 100, input_tokens=tokens)
        assert len(got.block_hashes) * got.block_tokens <= tokens


def test_a_chat_that_goes_on_begins_with_the_chunks_of_what_was_said_before():
    turns = [
        {"role": "system", "content": "You are terse."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    grown = [made(messages=turns[:number]).block_hashes for number in range(1, 5)]
    for before, after in pairwise(grown):
        assert len(after) > len(before)
        assert list(after[: len(before)]) == list(before)


def test_who_says_something_else_shares_only_the_beginning():
    """The same words as another role, name or tool call are another prompt."""
    said = [
        {"role": "user", "content": "aaaa bbbb cccc dddd"},
        {"role": "system", "content": "aaaa bbbb cccc dddd"},
        {"role": "user", "name": "bob", "content": "aaaa bbbb cccc dddd"},
        {"role": "user", "content": "aaaa bbbb", "tool_call_id": "cccc dddd"},
    ]
    assert len({tuple(made(messages=[one]).block_hashes) for one in said}) == len(said)


def test_hashes_of_the_callers_own_are_numbers_or_their_digits():
    """JSON of browsers has no 64-bit numbers."""
    numbers = made(block_hashes=[7, 2**64 - 1])
    assert numbers.block_hashes == made(block_hashes=["7", str(2**64 - 1)]).block_hashes
    assert numbers.block_hashes == made(block_hashes=[7, "18446744073709551615"]).block_hashes
    assert (numbers.input_tokens, numbers.block_tokens, numbers.precision) == (32, 16, Precision.APPROXIMATE)


def test_hashes_of_the_callers_own_never_meet_ours():
    ours = made(token_ids=list(range(32))).block_hashes
    assert not set(ours) & set(made(block_hashes=list(ours)).block_hashes)


def test_a_prompt_that_is_not_shown_matches_nothing():
    got = made(input_tokens=500)
    assert (got.input_tokens, got.block_hashes) == (500, ())


def test_everything_else_is_handed_on():
    got = made(
        expected_output_tokens=0,
        priority=-3,
        session="s",
        deadline_ms=250,
        phase="decode",
        adapter="lora",
        current_worker="10.0.0.7:8000",
        candidates=["ml:w1:0", "10.0.0.7:8000", "[::7]:8000", "10.0.0.9:1"],
    )
    assert (got.request_id, got.model, got.tenant) == ("r0", LLAMA, "a")
    assert (got.expected_output_tokens, got.priority, got.session) == (0, -3, "s")
    assert (got.deadline_ms, got.phase, got.adapter) == (250, Phase.DECODE, "lora")
    assert got.current_worker == "ml:w0:0"
    assert got.candidates == {"ml:w0:0", "ml:w1:0", "10.0.0.9:1"}, "an address that nobody has matches nobody"


def test_a_request_that_names_no_priority_gets_its_tenants():
    """0 is a priority as any other."""
    assert (made(priority=0).priority, made().priority) == (0, 7)


def test_null_is_left_out():
    body = dict.fromkeys(("prompt", "messages", "block_hashes", "priority", "deadline_ms", "candidates"))
    assert made(**body, token_ids=list(range(20))) == made()


BAD = [
    pytest.param({"token_ids": []}, "token_ids: expected array of length >= 1, got 0", id="no tokens"),
    pytest.param({"token_ids": None}, "expected one of token_ids, prompt, messages, block_hashes", id="no prompt"),
    pytest.param({"token_ids": [1, -1]}, "token_ids[1]: expected int >= 0", id="negative token"),
    pytest.param({"token_ids": [2**32]}, "token_ids[0]: expected int <= 4294967295", id="token of 33 bits"),
    pytest.param({"token_ids": [1.5]}, "token_ids[0]: expected int, got float", id="half a token"),
    pytest.param({"token_ids": [True]}, "token_ids[0]: expected int, got bool", id="a truth"),
    pytest.param({"token_ids": "abc"}, "token_ids: expected array | null, got str", id="token ids in words"),
    pytest.param({"prompt": ""}, "prompt: expected str of length >= 1, got 0", id="empty prompt"),
    pytest.param({"messages": []}, "messages: expected array of length >= 1, got 0", id="empty chat"),
    pytest.param({"messages": [{"content": "x"}]}, "messages[0].role: expected it, got nothing", id="nobody says it"),
    pytest.param({"prompt": "a", "token_ids": [1]}, "got token_ids and prompt", id="two prompts"),
    pytest.param({"block_hashes": [-1]}, "block_hashes[0]: expected a whole number from 0 to 2^64", id="negative hash"),
    pytest.param({"block_hashes": [1, 2**64]}, "block_hashes[1]: expected a whole number", id="hash of 65 bits"),
    pytest.param({"block_hashes": ["0x1f"]}, "block_hashes[0]: expected a whole number", id="hexadecimal hash"),
    pytest.param(
        {"block_hashes": [1, "\u0661"]}, "block_hashes[1]: expected a whole number", id="digits of another script"
    ),
    pytest.param({"block_hashes": ["9" * 5000]}, "block_hashes[0]: expected a whole number", id="long digits"),
    pytest.param({"block_hashes": [1.0]}, "block_hashes[0]: expected int | str, got float", id="fraction for a hash"),
    pytest.param({"input_tokens": 0}, "input_tokens: expected int >= 1, got 0", id="length 0"),
    pytest.param({"input_tokens": 10_000_001}, "expected int <= 10000000, got 10000001", id="endless"),
    pytest.param({"token_ids": [1, 2], "input_tokens": 3}, "input_tokens: expected 2, as many as", id="miscounted"),
    pytest.param({"block_hashes": [1, 2], "input_tokens": 31}, "input_tokens: expected 32 or more", id="fewer tokens"),
    pytest.param({"expected_output_tokens": -1}, "expected_output_tokens: expected int >= 0, got -1", id="less output"),
    pytest.param({"deadline_ms": 0}, "deadline_ms: expected float > 0.0, got 0", id="no time"),
    pytest.param({"deadline_ms": -5.5}, "deadline_ms: expected float > 0.0, got -5.5", id="negative time"),
    pytest.param({"deadline_ms": 1e12}, "deadline_ms: expected float <=", id="years"),
    pytest.param({"priority": 2**40}, "priority: expected int <= 1000000000, got 1099511627776", id="priority"),
    pytest.param({"phase": "both"}, "phase: expected 'prefill' or 'decode', got 'both'", id="phase"),
    pytest.param({"request_id": ""}, "request_id: expected str of length >= 1, got 0", id="empty id"),
    pytest.param({"request_id": "a" * 257}, "request_id: expected str of length <= 256, got 257", id="long id"),
    pytest.param({"request_id": "a\nb"}, "request_id: expected printable ASCII characters", id="two lines"),
    pytest.param({"session": "\x1b[31m"}, "session: expected printable ASCII characters", id="escape sequence"),
    pytest.param({"request_id": 7}, "request_id: expected str, got int", id="a number for an id"),
    pytest.param({"candidates": []}, "candidates: expected array | null of length >= 1", id="no candidate"),
    pytest.param({"priorty": 1}, "priorty: unknown field; expected adapter, block_hashes,", id="misspelt"),
]


@pytest.mark.parametrize(("sent", "text"), BAD)
def test_a_wrong_demand_is_told_what_was_expected_and_what_came(sent, text):
    with pytest.raises(WireError) as error:
        made(**sent)
    assert text.replace(" | null", "") in str(error.value).replace(" | null", "")
    assert len(str(error.value)) < 400


def test_an_empty_body_is_said_to_be_one():
    with pytest.raises(WireError, match="expected a JSON object, got an empty body"):
        read(DEMAND, b"")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"model"',
        b'{"request_id":"r","model":"llama","deadline_ms":NaN}',
        b'{"request_id":"r","model":"llama","deadline_ms":Infinity}',
        b'{"request_id":"r","model":"llama","deadline_ms":1e999}',
        b'{"request_id":"r","model":"llama","input_tokens":' + b"9" * 5000 + b"}",
        b'{"request_id":"r","model":"llama","prompt":"\xff"}',
        b'{"request_id":"r","model":"llama","messages":' + b"[" * 100_000,
        b'{"request_id":"r","model":"llama","messages":[{"role":"u","content":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
        b'{"request_id":"r","model":"llama","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(12),
)
def test_what_is_no_demand_at_all_is_said_so(body):
    with pytest.raises(WireError, match=r"expected|out of range|unknown field"):
        read(DEMAND, body)


def test_an_unknown_model_is_a_404_that_repeats_a_little_of_the_name():
    refused = outcome(model="x" * 300)
    assert isinstance(refused, PlacementRefusal)
    told = refusal_error(refused)
    assert (told.status, told.code) == (404, "ModelNotFound")
    assert len(told.message) < 200
    assert (refused.demand.model, refused.demand.tenant, refused.demand.input_tokens) == (("", "x" * 64), "a", 20)


def test_nothing_of_a_prompt_is_repeated():
    """Messages end up in logs of gateways."""
    secret = "the-secret-word"
    bodies = [
        demand(prompt=[secret]),
        demand(messages=[{"role": "user", "content": secret, "tool_calls": secret}]),
        demand(messages=[{"role": 7, "content": secret}]),
        demand(cache_salt=secret * 100),
        demand(token_ids=[1, secret]),
    ]
    for body in bodies:
        with pytest.raises(WireError) as error:
            read(DEMAND, orjson.dumps(body))
        assert secret not in str(error.value)


async def test_a_long_demand_read_in_slices_is_the_same_one():
    body = orjson.dumps(demand(token_ids=list(range(100_000)), session="s", priority=2))
    assert len(body) > 500_000
    assert await read_slowly(LONG, body) == read(DEMAND, body)
    spaced = body.replace(b",", b" ,\n ").replace(b"[", b"[ ").replace(b"]", b" ] ")
    assert await read_slowly(LONG, spaced) == read(DEMAND, body)
    assert await read_slowly(LONG, orjson.dumps(demand(prompt="a"))) == read(DEMAND, orjson.dumps(demand(prompt="a")))


@pytest.mark.parametrize(
    "token_ids",
    ['"abc"', "{}", "7", "[]", "[ ]", "[1,]", "[,1]", "[1,,2]", "[1,-1]", "[1,2.5]", "[1,[2]]", '[1,"2"]', "[true]"],
)
async def test_wrong_token_ids_of_a_long_demand_are_refused_as_well(token_ids):
    body = b'{"request_id":"r","model":"llama","token_ids":%b}' % token_ids.encode()
    with pytest.raises(WireError, match=r"token_ids|JSON"):
        await read_slowly(LONG, body)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        pytest.param({}, "type: expected it, got nothing", id="nothing"),
        pytest.param({"type": "done"}, "type: expected 'started' or 'first_token'", id="type"),
        pytest.param({"type": 3}, "type: expected str, got int", id="type as a number"),
        pytest.param({"type": "finished", "output_tokens": -1}, "output_tokens: expected int >= 0, got -1", id="less"),
        pytest.param({"type": "finished", "output_tokens": 1.5}, "expected int | null, got float", id="half a token"),
        pytest.param({"type": "finished", "ttft_ms": -1}, "ttft_ms: expected float >= 0.0, got -1", id="before"),
        pytest.param({"type": "finished", "ttft_ms": 1e300}, "ttft_ms: expected float <=", id="ages"),
        pytest.param({"type": "refused", "reason": "x" * 1025}, "reason: expected str of length <= 1024", id="story"),
        pytest.param({"type": "started", "worker": ""}, "worker: expected str of length >= 1", id="nowhere"),
        pytest.param({"type": "finished", "tokens": 3}, "tokens: unknown field", id="unknown"),
    ],
)
def test_a_wrong_event_is_told_what_was_expected_and_what_came(sent, text):
    with pytest.raises(WireError) as error:
        read(msgspec.json.Decoder(Event), orjson.dumps(sent))
    assert text.replace(" | null", "") in str(error.value).replace(" | null", "")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({"token_ids": [1] * 200_000}, id="token ids"),
        pytest.param({"prompt": "a" * 2_000_000}, id="text"),
        pytest.param({"block_hashes": list(range(9000))}, id="hashes"),
        pytest.param({"block_hashes": [str(each) for each in range(9000)]}, id="hashes in digits"),
    ],
)
async def test_others_come_between_where_a_prompt_is_long(sent):
    prompts = Prompts(MODELS, chunk_characters=4, worker_at=worker_at)
    making = asyncio.create_task(prompts.demand(read(DEMAND, json.dumps(demand(**sent)).encode()), "a"))
    turns = 0
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3
    assert isinstance(making.result(), RequestDemand)


def test_hashes_are_the_same_in_one_piece_and_in_many():
    """The chain goes on over the seams."""
    many = list(range(2**40, 2**40 + 5000))
    assert made(block_hashes=many).block_hashes == opaque_hashes(_own_root(LLAMA, ROOT), many)
