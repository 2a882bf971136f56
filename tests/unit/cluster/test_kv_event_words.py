"""Messages of KV events, as servers send them → the engine's words."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster import PassedOver, parse_kv_events
from kvaware_cluster.parse.kv_events import RUN_BLOCKS, Unread
from kvaware_crds.errors import WireError
from kvaware_engine import Tier
from kvaware_engine.blocks.events import BlocksCleared, BlocksRemoved, BlocksStored
from kvaware_testing.kv_publisher import RECORDINGS, cleared, recorded, removed, stored

SEQUENCE = (7).to_bytes(8, "big")


def read(*events: Any, batch: Any = None) -> list[Any]:
    """The words of one batch."""
    payload = msgspec.msgpack.encode([1.5, list(events), 0] if batch is None else batch)
    return list(parse_kv_events([b"", SEQUENCE, payload]).events())


def words(name: str, line: int) -> list[Any]:
    """The words of one message of a recording."""
    return list(parse_kv_events(recorded(name)[line]).events())


def test_a_real_servers_batch():
    batch = parse_kv_events(recorded("events")[0])
    [event] = batch.events()
    assert batch.sequence == 0
    assert isinstance(event, BlocksStored)
    assert (event.engine_hashes[0], len(event.engine_hashes)) == (0x7668EAE7478BC177, 6)
    assert (event.parent, event.block_tokens, len(event.token_ids)) == (None, 32, 6 * 32)
    assert (event.tier, event.group_index, event.kind, event.adapter) == (Tier.HBM, 0, "full_attention", None)
    assert not any(event.extra_keys)


def test_a_batch_keeps_its_order():
    """Each store comes after the removals that made room for it."""
    kinds = [type(event) for event in words("events", 6)]
    assert kinds[0] is BlocksRemoved
    assert kinds[-1] is BlocksStored
    assert [type(event) for event in words("events", 7)] == [BlocksCleared, BlocksStored]


def test_a_salt_and_an_adapter_come_as_extra_keys():
    [salted] = words("events", 4)
    [lora], [both] = words("events-lora", 1), words("events-lora", 2)
    assert salted.extra_keys[0] == ["tenant-a"]
    assert (lora.adapter, lora.extra_keys[1]) == ("lora-a", ["lora-a"])
    assert both.extra_keys[0] == ["lora-a", "tenant-a"]


def test_hashes_as_bytes_are_their_low_64_bits():
    """``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`` sends 32 bytes; some servers send the low 64 bits of the same."""
    [event] = words("events-block-128-bytes", 0)
    [written] = read(stored([b"\xff" * 24 + b"\0" * 7 + b"\x05"], token_ids=[1] * 16, parent=b"\x01" * 32))
    [negative] = read(removed(-1, 5))
    assert all(0 <= block < 2**64 for block in event.engine_hashes)
    assert (list(written.engine_hashes), written.parent) == ([5], 0x0101010101010101)
    assert list(negative.engine_hashes) == [2**64 - 1, 5]


def test_a_sliding_window_goes_on_as_it_is():
    """llm-d/llm-d-router#2362: 4 hashes, tokens of 6 blocks; who applies it leaves it out, by its kind."""
    window, full = words("events-sliding-window", 0)
    assert (len(window.engine_hashes), len(window.token_ids), window.kind) == (4, 6 * 32, "sliding_window")
    assert (len(full.engine_hashes), full.kind, full.group_index) == (6, "full_attention", 1)


def test_a_reply_of_a_replay_is_read_like_a_live_message():
    replies = [msgspec.json.decode(line) for line in (RECORDINGS / "replay.jsonl").read_text("ascii").splitlines()]
    frames = [[bytes.fromhex(frame) for frame in reply["frames_hex"]] for reply in replies]
    assert [parse_kv_events(each).sequence for each in frames if each[-1]] == [
        reply["seq"] for reply in replies if reply["seq"] >= 0
    ]
    assert frames[-1] == [b"", b"", b"\xff" * 8, b""]


MAP = stored([1, 2], parent=9, lora_name="a", extra_keys=[["a"], None], group_idx=3)
ROW = ["BlockStored", [1, 2], 9, MAP["token_ids"], 16, None, "GPU", "a", [["a"], None], 3, "full_attention"]
WORD = BlocksStored(
    engine_hashes=[1, 2],
    parent=9,
    token_ids=MAP["token_ids"],
    block_tokens=16,
    adapter="a",
    extra_keys=[["a"], None],
    group_index=3,
    kind="full_attention",
)


@pytest.mark.parametrize(
    ("event", "word"),
    [
        pytest.param(MAP, WORD, id="a map"),
        pytest.param(ROW, WORD, id="an array, as up to vLLM 0.23"),
        pytest.param([*ROW, None, "LOCAL", None, "s"], WORD, id="an array with fields of a later version"),
        pytest.param({**MAP, "session_id": "s", "ownership": None}, WORD, id="a map with fields that nobody uses"),
        pytest.param(
            ["BlockStored", [1], None, list(range(16)), 16],
            BlocksStored(engine_hashes=[1], token_ids=list(range(16)), block_tokens=16),
            id="trailing fields are missing",
        ),
        pytest.param(
            {"type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 0, "medium": "CPU"},
            BlocksStored(engine_hashes=[1], tier=Tier.CPU),
            id="an offload tier without tokens",
        ),
        pytest.param(["BlockRemoved", [1], "GPU"], BlocksRemoved(engine_hashes=[1]), id="a removal as an array"),
        pytest.param(["BlockRemoved", [1]], BlocksRemoved(engine_hashes=[1]), id="without a medium it is HBM"),
        pytest.param(["AllBlocksCleared"], BlocksCleared(), id="a clear as an array"),
        pytest.param(cleared(), BlocksCleared(), id="a clear as a map"),
    ],
)
def test_old_and_new_forms_say_the_same(event, word):
    assert read(event) == [word]
    assert read(batch={"ts": 1.0, "events": [event], "data_parallel_rank": 2}) == [word]
    assert read(batch=[1, [event]]) == [word]


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.HBM),
        ("gpu", Tier.HBM),
        ("CPU", Tier.CPU),
        ("CPU_TIER1", Tier.CPU),
        ("CPU_PINNED", Tier.CPU),
        ("CPU_TIER2", Tier.SSD),
        ("DISK", Tier.SSD),
        ("STORAGE", Tier.SSD),
    ],
)
def test_what_servers_call_their_tiers(medium, tier):
    assert read(stored([1], medium=medium))[0].tier is tier
    assert read(removed(1, medium=medium))[0].tier is tier


@pytest.mark.parametrize(
    ("event", "why"),
    [
        pytest.param({"type": "BlockMigrated"}, PassedOver.UNKNOWN_TYPE, id="of a later version"),
        pytest.param(["BlockMigrated", 1], PassedOver.UNKNOWN_TYPE, id="of a later version, as an array"),
        pytest.param(stored([1], medium="EXTERNAL"), PassedOver.ELSEWHERE, id="in a shared store"),
        pytest.param(removed(1, locality="REMOTE"), PassedOver.ELSEWHERE, id="with somebody else"),
        pytest.param(stored([1], lora_id=3), PassedOver.ADAPTER, id="of an adapter without a name"),
        pytest.param(stored([1], block_size="16"), PassedOver.STORE, id="a store with a text for a number"),
        pytest.param(stored([1], token_ids=[[1, 2]] * 16), PassedOver.STORE, id="pairs of tokens"),
        pytest.param(stored([1], block_hashes=["1"]), PassedOver.STORE, id="hashes as texts"),
        pytest.param(stored([1], extra_keys=[["x" * 1025]]), PassedOver.STORE, id="a salt without an end"),
        pytest.param(stored([1], extra_keys=[[[]] * 600_000]), PassedOver.STORE, id="keys without an end"),
        pytest.param(stored([1], lora_name="x" * 1025), PassedOver.STORE, id="a name without an end"),
        pytest.param(removed(1, block_hashes=[1.5]), PassedOver.UNREADABLE, id="a removal of half a block"),
        pytest.param({"type": "BlockRemoved"}, PassedOver.UNREADABLE, id="a removal of what"),
        pytest.param({"type": 7}, PassedOver.UNREADABLE, id="a number for a type"),
        pytest.param({}, PassedOver.UNREADABLE, id="an empty map"),
        pytest.param([], PassedOver.UNREADABLE, id="an empty array"),
        pytest.param(7, PassedOver.UNREADABLE, id="a number"),
    ],
)
def test_what_is_not_applied_says_why_and_the_rest_is(event, why):
    first, second, third = read(removed(1), event, stored([2]))
    assert isinstance(first, BlocksRemoved)
    assert isinstance(second, Unread)
    assert (second.why, bool(second.problem)) == (why, True)
    assert isinstance(third, BlocksStored)


def test_a_long_event_becomes_several_words():
    """Whoever applies them can stop in between; together they say the same."""
    hashes = list(range(1, 151))
    keys = [["salt"], *[None] * 149]
    parts = read(stored(hashes, parent=7, extra_keys=keys), removed(*hashes))
    stores, removals = parts[:3], parts[3:]
    assert [len(part.engine_hashes) for part in parts] == [64, 64, 22] * 2
    assert RUN_BLOCKS == 64
    assert [part.parent for part in stores] == [7, 64, 128]
    assert [each for part in stores for each in part.token_ids] == stored(hashes)["token_ids"]
    assert [each for part in stores for each in part.extra_keys] == keys
    assert [block for part in removals for block in part.engine_hashes] == hashes


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        pytest.param([], "expected 3 frames", id="nothing"),
        pytest.param([b""] * 5, "expected 3 frames", id="too many frames"),
        pytest.param([b"", b"7", b"\x90"], "expected a sequence of 8 bytes, got 1", id="a short sequence"),
        pytest.param([b"", b"\xff" * 8, b""], "got the end of a replay", id="the end of a replay"),
        pytest.param([b"", SEQUENCE, b""], "expected a batch", id="an empty payload"),
        pytest.param([b"", SEQUENCE, b"\xc1"], "expected a batch", id="no msgpack"),
        pytest.param([b"", SEQUENCE, b"\x93\xcb"], "expected a batch", id="cut off"),
        pytest.param([b"", SEQUENCE, msgspec.msgpack.encode({"ts": 1.0})], "events", id="no events"),
        pytest.param([b"", SEQUENCE, msgspec.msgpack.encode(["now", []])], "expected a batch", id="a text for a time"),
        pytest.param([b"", SEQUENCE, msgspec.msgpack.encode([1, [0] * 65_537])], "expected a batch", id="many events"),
    ],
)
def test_what_is_no_message_is_an_error(frames, expected):
    with pytest.raises(WireError, match=expected):
        parse_kv_events(frames)


def test_lists_within_lists_without_end_are_an_error():
    """The reader is recursive."""
    deep = b"\x91" * 100_000 + b"\xc0"
    whole = msgspec.msgpack.encode(stored([1], extra_keys=None)).replace(
        b"\xaaextra_keys\xc0", b"\xaaextra_keys" + deep
    )
    with pytest.raises(WireError, match="recursion"):
        parse_kv_events([b"", SEQUENCE, b"\x92\x01\x91" + whole])


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELD = st.sampled_from([*MAP, "locality", "type"])


@given(
    st.lists(
        ODD | st.dictionaries(FIELD, ODD) | st.builds(lambda **odd: {**MAP, **odd}, token_ids=ODD, medium=ODD),
        max_size=4,
    )
)
def test_whatever_comes_is_read_or_named(events):
    """Nothing else is raised, and nothing that is read has parts of the wrong kind."""
    for event in read(*events):
        match event:
            case BlocksStored():
                assert all(type(block) is int and 0 <= block < 2**64 for block in event.engine_hashes)
                assert all(type(token) is int for token in event.token_ids)
            case BlocksRemoved():
                assert all(type(block) is int and 0 <= block < 2**64 for block in event.engine_hashes)
            case _:
                assert isinstance(event, BlocksCleared | Unread)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_read_or_named(frames):
    try:
        events = list(parse_kv_events(frames).events())
    except WireError:
        events = []
    assert all(isinstance(event, BlocksStored | BlocksRemoved | BlocksCleared | Unread) for event in events)
