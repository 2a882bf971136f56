"""The modelled worker, on virtual time."""

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine import GpuProduct, HardwareProfile
from kvaware_simulator import Happening, ModelledWorker, WorkerEvent, WorkerRequest

PROFILE = HardwareProfile(
    product=GpuProduct(name="gpu", words=("gpu",), tflops=1, hbm_bytes_per_s=1),
    model="m",
    parameters=1,
    gpus=1,
    prefill_base_ms=0,
    prefill_ms_per_token=1.0,
    prefill_ms_per_token_squared=0,
    decode_steps=((1, 10.0), (2, 20.0)),
)
"""A millisecond per prompt token; 10 ms per step alone, 20 for two."""


def worker(*, blocks: int = 100, batch_max: int = 8) -> ModelledWorker:
    return ModelledWorker(PROFILE, kv_blocks=blocks, block_tokens=10, batch_max=batch_max)


def request(name: str = "a", tokens: int = 100, answer: int = 1, hashes: tuple[int, ...] = ()) -> WorkerRequest:
    return WorkerRequest(id=name, input_tokens=tokens, output_tokens=answer, block_hashes=hashes)


def told(events: list[WorkerEvent]) -> list[tuple[str, str, int]]:
    """Request, what happened, when in ms."""
    return [(each.request.id, each.type.value, round(1000 * each.at_s)) for each in events]


def test_prefills_go_one_after_another() -> None:
    """The second waits 50 ms less the 20 ms that it came later: its first token is 80 ms after it came."""
    one = worker()
    events = one.submit(request("a", 50), now_s=0)
    events += one.submit(request("b", 50), now_s=0.02)
    events += one.advance(inf)
    assert told(events) == [
        ("a", "started", 0),
        ("a", "first_token", 50),
        ("a", "finished", 50),
        ("b", "started", 50),
        ("b", "first_token", 100),
        ("b", "finished", 100),
    ]
    assert events[-1].queue_wait_ms == pytest.approx(30)
    assert events[-1].ttft_ms == pytest.approx(80)
    assert events[0].ttft_ms is None


def test_a_cached_prefix_is_not_computed_again() -> None:
    """Of 100 tokens 4 blocks of 10 are there: 60 ms instead of 100."""
    one = worker()
    one.submit(request("a", 100, hashes=(1, 2, 3, 4, 5)), now_s=0)
    one.submit(request("b", 100, hashes=(1, 2, 3, 4, 9)), now_s=0)
    first, second = [each for each in one.advance(inf) if each.type is Happening.FINISHED]
    assert (first.cached_tokens, second.cached_tokens) == (0, 40)
    assert second.ttft_ms == pytest.approx(100 + 60)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    one = worker()
    one.submit(request("a", 20, hashes=(1, 2)), now_s=0)
    one.submit(request("b", 20, hashes=(1, 2)), now_s=0)
    assert one.advance(inf)[-1].cached_tokens == 19


def test_a_batch_decodes_together_at_its_own_speed() -> None:
    """A step takes 10 ms alone and 20 ms for two.

    By 20 ms, when b's first token is out, a has 19 of its 20 tokens to go. b needs 5 more steps of 20 ms: 120 ms. Then
    a has 14 left, 10 ms each: 260 ms.
    """
    one = worker()
    events = one.submit(request("a", 10, answer=21), now_s=0)
    events += one.submit(request("b", 10, answer=6), now_s=0)
    events += one.advance(inf)
    assert [each for each in told(events) if each[1] == "finished"] == [("b", "finished", 120), ("a", "finished", 260)]


def test_how_often_it_is_asked_changes_nothing() -> None:
    """A driver that wakes up late, or for nothing, sees the same times."""
    once, often = worker(), worker()
    for one in (once, often):
        one.submit(request("a", 37, answer=9), now_s=0)
        one.submit(request("b", 11, answer=5), now_s=0)
    events = [each for tick in range(60) for each in often.advance(0.005 * tick)]
    assert told(once.advance(0.3)) == told(events)


def test_who_is_first_in_the_queue_waits_for_room() -> None:
    """Of 12 blocks a holds 6 until 50 + 40 ms. b needs 10 of them; c needs 2, and is not let past."""
    one = worker(blocks=12)
    events = one.submit(request("a", 50, answer=5, hashes=()), now_s=0)
    events += one.submit(request("b", 90, answer=1), now_s=0)
    events += one.submit(request("c", 10, answer=1), now_s=0)
    assert one.figures().kv_blocks_free == 12 - 6  # 55 tokens in blocks of 10
    events += one.advance(inf)
    assert [each for each in told(events) if each[1] == "started"] == [
        ("a", "started", 0),
        ("b", "started", 90),
        ("c", "started", 180),
    ]


def test_a_full_batch_lets_nobody_in() -> None:
    one = worker(batch_max=1)
    one.submit(request("a", 10, answer=11), now_s=0)
    one.submit(request("b", 10, answer=1), now_s=0)
    assert ("b", "started", 110) in told(one.advance(inf))


def test_what_never_fits_is_not_taken() -> None:
    one = worker(blocks=5)
    huge = request("a", 50, answer=1)
    assert not one.takes(huge)
    with pytest.raises(ValueError, match="expected at most 5 blocks, got 6"):
        one.submit(huge, now_s=0)


def test_time_does_not_go_back() -> None:
    one = worker()
    one.advance(1.0)
    with pytest.raises(ValueError, match=r"later, got 0\.5"):
        one.advance(0.5)


def test_its_figures_are_those_of_a_heartbeat() -> None:
    """At 60 ms: b, 60 ms in its prefill of 100 tokens of which 20 were cached, has 40 tokens to go; c waits with 30."""
    one = worker()
    one.submit(request("a", 20, answer=50, hashes=(1, 2)), now_s=0)
    one.submit(request("b", 100, answer=1, hashes=(1, 2, 3)), now_s=0)
    one.submit(request("c", 50, answer=1, hashes=(1, 2)), now_s=0)
    one.advance(0.06)
    figures = one.figures()
    assert (figures.waiting, figures.running, figures.batch_size) == (1, 2, 1)
    assert figures.queued_tokens == 40 + 30
    # a: 2 + 5 blocks; b: 1 more of its own, 7 without a hash, 1 for its answer
    assert (figures.kv_blocks_total, figures.kv_blocks_free) == (100, 100 - 7 - 9)


requests = st.lists(
    st.fixed_dictionaries(
        {
            "tokens": st.integers(1, 90),
            "answer": st.integers(1, 30),
            "branch": st.integers(0, 3),
            "gap_ms": st.integers(0, 200),
        }
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=50)
@given(requests)
def test_every_request_is_answered_in_order_and_leaves_nothing_behind(asked: list[dict[str, Any]]) -> None:
    """Started, first token, finished, once each; prefills in the order of coming; the pool is free at the end."""
    one = worker(blocks=14, batch_max=3)
    events: list[WorkerEvent] = []
    now_s = 0.0
    for number, each in enumerate(asked):
        now_s += each["gap_ms"] / 1000
        hashes = tuple(100 * each["branch"] + depth for depth in range(each["tokens"] // 10))
        events += one.submit(request(str(number), each["tokens"], each["answer"], hashes), now_s=now_s)
    events += one.advance(inf)
    assert [each.at_s for each in events] == sorted(each.at_s for each in events)
    assert [each.request.id for each in events if each.type is Happening.STARTED] == [str(n) for n in range(len(asked))]
    for number in range(len(asked)):
        mine = [each for each in events if each.request.id == str(number)]
        assert [each.type for each in mine] == list(Happening)
        assert mine[-1].cached_tokens < mine[-1].request.input_tokens
    assert one.cache.free_blocks == 14
    figures = one.figures()
    assert (figures.waiting, figures.running, figures.queued_tokens) == (0, 0, 0)
