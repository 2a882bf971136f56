"""The change that is said to flip a decision flips it, and one step less does not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine.policies import policy_named
from kvaware_engine.policies.least_loaded import LeastLoaded, Measure
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.changes import KINDS, NoChange, changed
from kvaware_engine.requests.choose import Choice, choose
from kvaware_engine.requests.explain_words import Change, ChangeKind, Flip
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.flips import find_flips, replay
from kvaware_engine.requests.hardware_classes import decode_figures
from kvaware_engine.requests.snapshot import Snapshot, take, take_pair
from kvaware_engine.requests.split import choose_pair, in_phase
from kvaware_engine.requests.words import Phase
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts
from kvaware_testing.worker_builders import hardware

COST = policy_named("cost")
TOKENS = 1000


def snapshot_of(*seats: Seat, policy: Any = COST, **others: Any) -> Snapshot:
    seen = candidates(*seats, **others)
    choice = choose(policy, seen)
    assert choice is not None
    return take(policy, seen, choice)


def flips_of(snapshot: Snapshot, *, total_ms: float = 1000.0) -> dict[ChangeKind, Flip]:
    return {flip.change.kind: flip for flip in find_flips(snapshot, total_ms=total_ms)[0]}


def check(snapshot: Snapshot, flip: Flip) -> None:
    """With it another worker or pair is chosen, as it says; with one step less the same as was."""
    was = replay(snapshot)
    other = replay(snapshot, flip.change)
    assert was is not None
    assert other is not None
    assert other.chosen != was.chosen
    if isinstance(other, Choice):
        assert snapshot.facts(other.chosen).worker == flip.worker
    else:
        assert flip.worker in {snapshot.facts(slot).worker for slot in (other.chosen.slot, other.chosen.prefill or 0)}
    if flip.change.steps > 1:
        less = replay(snapshot, Change(kind=flip.change.kind, steps=flip.change.steps - 1))
        assert less is not None
        assert less.chosen == was.chosen
    assert flip.amount == pytest.approx(flip.change.steps * KINDS[flip.change.kind].step)
    assert flip.relative > 0


@st.composite
def seats(draw: st.DrawFn) -> list[Seat]:
    """Correlated and uncorrelated load, holders that can be read from, pools without room, workers that are barred."""
    tokens = st.integers(0, TOKENS - 1).map(float)
    drawn = []
    for slot in range(draw(st.integers(2, 6))):
        batch = draw(st.integers(0, 19))
        half_step, per_token = decode_figures(hardware(), batch)
        can = draw(st.sampled_from(((), ("pull_from_peer",), ("pull_by_prefill", "migrate"), ("shared_store",))))
        matched = draw(st.just(0.0) | tokens)
        drawn.append(
            seat(
                facts=worker_facts(f"w{slot}", node=f"n{slot % 3}", rack=draw(st.sampled_from((None, "r1"))), can=can),
                matched=matched,
                cpu=draw(st.sampled_from((0.0, matched / 2))),
                queue_ms=draw(st.integers(0, 3000)) * 1.0,
                batch=float(batch),
                requests=batch + draw(st.integers(0, 3)) * 1.0,
                half_step_ms=half_step,
                decode_ms_per_token=per_token,
                confidence_ratio=draw(st.sampled_from((1.0, 0.7))),
                kv_free_tokens=draw(st.sampled_from((100_000.0, 900.0, float("nan")))),
                pressure_ms_per_token=draw(st.sampled_from((0.0, 0.1))),
                link_bytes_in_flight=draw(st.sampled_from((0.0, 1e9))),
                last_chosen=float(draw(st.integers(0, 5))),
                barred=draw(st.integers(0, 9)) == 0,
            )
        )
    return drawn


@settings(max_examples=40, deadline=None)
@given(
    seats=seats(),
    output=st.integers(1, 400),
    policy=st.sampled_from(("cost", "cost", "least_loaded", "locality", "power_of_two", "round_robin")),
    congestion=st.sampled_from((0.0, 0.5)),
)
def test_replaying_with_the_change_flips_the_decision(
    seats: list[Seat], output: int, policy: str, congestion: float
) -> None:
    seen = candidates(*seats, demand=request(input_tokens=TOKENS, hashes=60), output=output, congestion=congestion)
    choice = choose(policy_named(policy), seen)
    if choice is None:  # all are barred: there is no decision
        return
    snapshot = take(policy_named(policy), seen, choice)
    flips, why_none = find_flips(snapshot, total_ms=500.0)
    assert bool(flips) != bool(why_none)
    assert [flip.relative for flip in flips] == sorted(flip.relative for flip in flips)
    for flip in flips:
        check(snapshot, flip)


@settings(max_examples=25, deadline=None)
@given(seats=seats(), output=st.integers(1, 400), policy=st.sampled_from(("cost", "cost", "least_loaded")))
def test_with_split_roles_it_flips_the_pair(seats: list[Seat], output: int, policy: str) -> None:
    """Somebody else decodes, or somebody else computes the prompt."""
    seen = candidates(*seats, demand=request(input_tokens=TOKENS, hashes=60), output=output)
    snapshot = pair_of(seen, policy)
    if snapshot is None:
        return
    flips, why_none = find_flips(snapshot, total_ms=500.0)
    assert bool(flips) != bool(why_none)
    for flip in flips:
        check(snapshot, flip)


def pair_of(seen: Candidates, policy: str = "cost") -> Snapshot | None:
    """The first half of the workers prefills, the second decodes, and the last does both."""
    slots = np.arange(len(seen.facts))
    half, last = len(slots) // 2, len(slots) - 1
    parts = {
        phase: in_phase(seen, phase, barred=seen.barred + np.where(other, np.inf, 0.0))
        for phase, other in ((Phase.PREFILL, (slots >= half) & (slots < last)), (Phase.DECODE, slots < half))
    }
    whole = replace(seen, barred=seen.barred + np.where(slots < last, np.inf, 0.0))
    named = policy_named(policy)
    prefill, decode = parts[Phase.PREFILL], parts[Phase.DECODE]
    choice = choose_pair(named, prefill=prefill, decode=decode, whole=whole)
    return None if choice is None else take_pair(named, choice, prefill=prefill, decode=decode, whole=whole)


def test_the_prefill_of_a_pair_flips_too() -> None:
    """w0 holds 600 tokens, 300 ms, and waits for 100: 200 ms ahead of w1, who hands over as fast."""
    snapshot = pair_of(candidates(seat(matched=600, queue_ms=100), seat(), seat(), seat(queue_ms=9000)))
    assert snapshot is not None
    assert snapshot.split is not None
    assert (snapshot.split.chosen, snapshot.chosen) == (0, 2)
    flips = flips_of(snapshot)
    longer = flips[ChangeKind.PREFILL_QUEUE_LONGER]
    assert longer.amount == pytest.approx(200.1)
    assert longer.text == "With 200.1 ms more to wait at w0, w1 would have computed the prompt."
    assert flips[ChangeKind.PREFILL_MATCH_SHORTER].amount == 401


def test_a_queue_that_is_longer_by_the_difference_flips_it() -> None:
    """300 tokens held at 2,000 a second are worth 150 ms; 50 of them are eaten by the queue already."""
    snapshot = snapshot_of(seat(matched=300, queue_ms=50), seat(last_chosen=1))
    assert snapshot.chosen == 0
    flips = flips_of(snapshot)
    longer = flips[ChangeKind.CHOSEN_QUEUE_LONGER]
    assert longer.amount == pytest.approx(100.1)
    assert longer.relative == pytest.approx(0.1001)
    assert longer.text == "With 100.1 ms more to wait at w0, w1 would have been chosen."
    assert flips[ChangeKind.CHOSEN_MATCH_SHORTER].amount == 201
    assert flips[ChangeKind.RUNNER_UP_MATCH_LONGER].amount == 201
    assert flips[ChangeKind.RUNNER_UP_MATCH_LONGER].text == (
        "With 201 more tokens of the prompt held at w1, w1 would have been chosen."
    )
    assert ChangeKind.RUNNER_UP_QUEUE_SHORTER not in flips
    assert ChangeKind.LINKS_FASTER not in flips


def test_a_queue_at_the_runner_up_that_is_shorter_flips_it() -> None:
    """It waits for 400 ms and is 250 ms behind."""
    snapshot = snapshot_of(seat(matched=300, queue_ms=300), seat(queue_ms=400, last_chosen=1))
    shorter = flips_of(snapshot)[ChangeKind.RUNNER_UP_QUEUE_SHORTER]
    assert shorter.amount == pytest.approx(250.1)
    assert shorter.text == "With 250.1 ms less to wait at w1, w1 would have been chosen."


def test_queues_by_priority_are_changed_as_well() -> None:
    """Where priorities differ policies read another column than FREE_AT_S."""
    snapshot = snapshot_of(seat(queue_ms=9000), seat(last_chosen=1), waits_ahead_ms=[20.0, 80.0])
    assert snapshot.chosen == 0
    flips = flips_of(snapshot)
    assert flips[ChangeKind.CHOSEN_QUEUE_LONGER].amount == pytest.approx(60.1)
    assert flips[ChangeKind.RUNNER_UP_QUEUE_SHORTER].amount == pytest.approx(60.1)


def test_a_longer_answer_flips_it_to_the_faster_decoder() -> None:
    """100 ms ahead by what it holds, 1 ms behind per output token."""
    snapshot = snapshot_of(
        seat(matched=300, decode_ms_per_token=11), seat(decode_ms_per_token=10, last_chosen=1), output=50.0
    )
    assert snapshot.chosen == 0
    flips = flips_of(snapshot)
    assert flips[ChangeKind.OUTPUT_LONGER].amount == 101
    assert flips[ChangeKind.OUTPUT_LONGER].relative == pytest.approx(101 / 50)
    assert ChangeKind.OUTPUT_SHORTER not in flips


def test_slower_links_flip_a_remote_read() -> None:
    """w1 reads 800 tokens, 80 MB, at 1 GB/s in 80 ms and saves 400 ms; w0 holds them and waits for 200 ms."""
    seats = (
        seat(facts=worker_facts("w0", can=("pull_from_peer",)), matched=800, queue_ms=200),
        seat(facts=worker_facts("w1", can=("pull_from_peer",))),
    )
    snapshot = snapshot_of(*seats)
    assert snapshot.chosen == 1
    slower = flips_of(snapshot)[ChangeKind.LINKS_SLOWER]
    assert slower.amount == 60  # 80 ms / 0.4 are 200 ms, and of equal ones the lower slot goes first
    assert slower.text == "With links between workers 60 % slower, w0 would have been chosen."


def test_faster_links_flip_it_to_a_remote_read() -> None:
    """The read takes 80 ms and may take 60."""
    seats = (
        seat(facts=worker_facts("w0", can=("pull_from_peer",)), matched=800, queue_ms=60),
        seat(facts=worker_facts("w1", can=("pull_from_peer",))),
    )
    snapshot = snapshot_of(*seats)
    assert snapshot.chosen == 0
    faster = flips_of(snapshot)[ChangeKind.LINKS_FASTER]
    assert faster.amount == 34
    assert faster.unit == "%"


def test_the_steps_of_a_larger_batch_follow_from_the_profile() -> None:
    snapshot = snapshot_of(
        seat(matched=300, batch=9, requests=9, half_step_ms=10.0, decode_ms_per_token=20.0),
        seat(last_chosen=1, decode_ms_per_token=20.0),
    )
    seen = changed(snapshot, Change(kind=ChangeKind.CHOSEN_BATCH_LARGER, steps=5))
    half_step, per_token = decode_figures(hardware(), 14)
    assert seen.figures[Figure.HALF_STEP_MS, 0] == pytest.approx(half_step)
    assert seen.figures[Figure.DECODE_MS_PER_TOKEN, 0] == pytest.approx(per_token)
    assert seen.figures[Figure.BATCH, 0] == 14
    assert seen.figures[Figure.REQUESTS, 0] == 14
    assert flips_of(snapshot)[ChangeKind.CHOSEN_BATCH_LARGER].text == (
        "With 1 more sequence in the batch at w0, w1 would have been chosen."
    )


def test_least_loaded_is_flipped_by_its_own_measure_alone() -> None:
    policy = policy_named("least_loaded")
    snapshot = snapshot_of(
        seat(requests=2, matched=900), seat(requests=5, batch=5, decode_ms_per_token=20.0), policy=policy
    )
    flips = flips_of(snapshot)
    assert set(flips) == {ChangeKind.CHOSEN_BATCH_LARGER, ChangeKind.RUNNER_UP_BATCH_SMALLER}
    assert flips[ChangeKind.CHOSEN_BATCH_LARGER].amount == 4  # at 5 they are equal, and the lower slot goes first
    by_queue = snapshot_of(seat(queue_ms=10), seat(queue_ms=30), policy=LeastLoaded(measure=Measure.QUEUE))
    assert flips_of(by_queue)[ChangeKind.CHOSEN_QUEUE_LONGER].amount == pytest.approx(20.1, abs=0.11)


def test_turns_are_flipped_by_nothing_of_this() -> None:
    flips, why_none = find_flips(snapshot_of(seat(), seat(), policy=policy_named("round_robin")), total_ms=1.0)
    assert flips == ()
    assert "round_robin stays with it" in why_none


def test_without_another_candidate_nothing_can_flip_it() -> None:
    snapshot = snapshot_of(seat(), seat(barred=True))
    flips, why_none = find_flips(snapshot, total_ms=1.0)
    assert flips == ()
    assert why_none.startswith("There was no other candidate")


def test_what_cannot_be_decided_again_is_said() -> None:
    """Lots are drawn over all candidates; of a large fleet only some are kept."""
    policy = policy_named("power_of_two")
    seats = [seat(requests=float(1 + slot % 7), matched=1.0) for slot in range(400)]
    snapshot = snapshot_of(*seats, policy=policy)
    again = replay(snapshot)
    flips, why_none = find_flips(snapshot, total_ms=1.0)
    assert again is not None
    assert again.chosen != snapshot.chosen
    assert flips == ()
    assert "do not lead to the same choice again" in why_none


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (ChangeKind.CHOSEN_QUEUE_LONGER, 0),
        (ChangeKind.CHOSEN_MATCH_SHORTER, 301),
        (ChangeKind.RUNNER_UP_QUEUE_SHORTER, 1),
        (ChangeKind.RUNNER_UP_BATCH_SMALLER, 1),
        (ChangeKind.LINKS_SLOWER, 100),
    ],
)
def test_what_is_not_there_cannot_be_taken_away(kind: ChangeKind, steps: int) -> None:
    snapshot = snapshot_of(seat(matched=300), seat())
    with pytest.raises(NoChange, match=f"{kind}: expected 1 to"):
        replay(snapshot, Change(kind=kind, steps=steps))


def test_a_replay_leaves_the_snapshot_as_it_was() -> None:
    snapshot = snapshot_of(
        seat(matched=300, cpu=200, batch=3, requests=3),
        seat(queue_ms=500, batch=2, requests=2),
        waits_ahead_ms=[0.0, 500.0],
    )
    before = _bytes(snapshot.candidates)
    made = [kind for kind in ChangeKind if KINDS[kind].most(snapshot)]
    for kind in made:
        replay(snapshot, Change(kind=kind, steps=1))
    assert set(ChangeKind) - set(made) == {ChangeKind.PREFILL_QUEUE_LONGER, ChangeKind.PREFILL_MATCH_SHORTER}
    assert _bytes(snapshot.candidates) == before


def _bytes(seen: Candidates) -> tuple[Any, ...]:
    waits = seen.waits_ahead_ms
    return (
        seen.figures.tobytes(),
        seen.matched_tokens.tobytes(),
        None if waits is None else waits.tobytes(),
        dict(seen.lower_tokens),
        seen.deepest_tokens,
        seen.expected_output_tokens,
        seen.settings,
    )


def test_lower_tiers_hold_no_more_than_is_held() -> None:
    snapshot = snapshot_of(seat(matched=300, cpu=100, ssd=50), seat())
    seen = changed(snapshot, Change(kind=ChangeKind.CHOSEN_MATCH_SHORTER, steps=200))
    assert seen.lower_tokens[0] == (100.0, 0.0)
    assert seen.deepest_tokens == 100.0
