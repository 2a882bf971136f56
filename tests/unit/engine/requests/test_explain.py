"""Every decision says why, in sentences whose figures are those of the decision."""

import json
from dataclasses import fields, replace
from math import inf, isclose, isfinite
from typing import Any

import numpy as np
import pytest

from kvaware_engine.decisions import CostTerms
from kvaware_engine.policies import POLICIES, policy_named
from kvaware_engine.profiles import ProfileOrigin
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.explain import explain
from kvaware_engine.requests.explain_words import Answer, ChangeKind, RequestExplanation
from kvaware_engine.requests.fit import FilterReason
from kvaware_engine.requests.hardware_classes import decode_figures
from kvaware_engine.requests.snapshot import Snapshot, take, take_pair
from kvaware_engine.requests.split import added, choose_pair, in_phase, pair_options
from kvaware_engine.requests.words import Action, Phase, Placement, PlacementReason, Precision, RunnerUp
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts
from kvaware_testing.worker_builders import hardware

WHERE, EMPTIEST, CACHE, HBM, BATCH, MIGRATION = range(6)
PULL = ("pull_from_peer",)


def placed(seen: Candidates, policy: str = "cost", **others: Any) -> tuple[Placement, Snapshot]:
    """As the placer does it."""
    named = policy_named(policy)
    choice = choose(named, seen)
    assert choice is not None
    option = named.best_option(seen, choice.chosen)
    placement = Placement(
        placement_id="p-1",
        demand=seen.demand,
        option=option,
        address=None,
        runner_up=None
        if choice.runner_up is None
        else RunnerUp(f"w{choice.runner_up}", named.best_option(seen, choice.runner_up).terms.total),
        reason=named.reason(seen, option, alone=choice.runner_up is None),
        policy=policy,
        precision=Precision.PRECISE,
        expected_output_tokens=int(seen.expected_output_tokens),
        candidates=int(np.isfinite(choice.costs).sum()),
        confidence_ratio=1.0,
        queue_length=0,
        hbm_free_bytes=None,
        decided_at_s=seen.now_s,
        expires_in_s=30.0,
        **others,
    )
    return placement, take(named, seen, choice)


def explained(*seats: Seat, policy: str = "cost", **others: Any) -> RequestExplanation:
    return explain(*placed(candidates(*seats, **others), policy))


def running(batch: int, **others: Any) -> Seat:
    """A worker whose decode figures are those of its batch."""
    half_step, per_token = decode_figures(hardware(), batch)
    told = {"batch": batch, "requests": batch, "half_step_ms": half_step, "decode_ms_per_token": per_token}
    return seat(**(told | others))


def emptiest_lost(**others: Any) -> RequestExplanation:
    """w0 holds 900 of 1,000 tokens, 450 ms, and is busy; w1 is empty; nothing can be read from another."""
    return explained(
        running(5, facts=worker_facts("w0"), matched=900, queue_ms=200, pressure_ms_per_token=0.1),
        running(0, facts=worker_facts("w1"), pressure_ms_per_token=0.1),
        **others,
    )


def answer(explanation: RequestExplanation, number: int) -> Answer:
    return explanation.answers[number]


def test_the_emptiest_lost_and_it_is_said_by_which_terms() -> None:
    """100 tokens to compute and 200 ms of queue against 1,000 tokens: 500 ms, and 90 for what it displaces."""
    explanation = emptiest_lost()
    assert (explanation.chosen, explanation.emptiest, explanation.runner_up) == ("w0", "w1", "w1")
    assert explanation.reason is PlacementReason.PREFIX_RESIDENT
    # 450 ms of prefill and 90 of displacement more, 210 of waiting less
    assert explanation.runner_up_behind == pytest.approx(330)
    said = answer(explanation, EMPTIEST)
    assert said.question == "Why not the emptiest GPU?"
    assert said.answer == (
        "The emptiest is w1 with 0 requests and 0 ms to wait; w0 has 5 requests and 200 ms. "
        "There it would cost 330 ms more (cache_access +450, compute_wait -210, memory_pressure +90)."
    )
    assert said.figures["surplus_ms"] == pytest.approx(330)
    assert said.figures["requests"] == 0


def test_the_emptiest_won() -> None:
    explanation = explained(running(5), running(0), running(0, last_chosen=1.0))
    assert answer(explanation, EMPTIEST).answer == "It goes to the emptiest: w1 has 0 requests, and nobody has fewer."
    as_empty = explained(running(0, queue_ms=10), running(0, matched=100, queue_ms=20))
    assert as_empty.chosen == "w1"
    assert answer(as_empty, EMPTIEST).figures["emptiest"] == "w1"


def test_where_it_goes_is_said_with_its_cost_and_the_runner_ups_distance() -> None:
    said = answer(emptiest_lost(), WHERE)
    assert said.answer.startswith("To w0: nobody holds more of the prompt in HBM. It costs ")
    assert "; the runner-up, w1, is 330 ms dearer (cache_access +450, compute_wait -210, " in said.answer
    assert said.figures["runner_up"] == "w1"


def test_nobody_else_could_take_it() -> None:
    explanation = explained(seat(), seat(barred=True))
    assert answer(explanation, WHERE).answer.endswith(", nobody else could take it.")
    assert explanation.runner_up is None
    assert explanation.runner_up_behind is None
    assert explanation.flip is None
    assert explanation.no_flip.startswith("There was no other candidate")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_terms_add_up_for_every_option_of_every_policy(policy: str) -> None:
    """The best option's total is what the cost policy compared; JSON has neither NaN nor infinity."""
    explanation = explained(
        running(5, facts=worker_facts("w0", can=PULL), matched=900, cpu=300, queue_ms=200),
        running(0, facts=worker_facts("w1", can=PULL), kv_free_tokens=float("nan"), observed_at_s=float("nan")),
        running(3, facts=worker_facts("w2"), matched=100, kv_free_tokens=500, gpu_utilization_ratio=float("nan")),
        seat(facts=worker_facts("w3"), barred=True),
        policy=policy,
        demand=request(hashes=60),
        congestion=0.3,
    )
    assert explanation.policy == policy
    assert len(explanation.answers) == 6
    for candidate in explanation.candidates:
        assert bool(candidate.options) == (candidate.filtered is None)
        for option in candidate.options:
            terms = {field.name: getattr(option.terms, field.name) for field in fields(CostTerms)}
            total = sum(terms.values()) - 2 * terms["locality_gain"]
            assert isclose(option.terms.total, total, abs_tol=1e-9)
            assert all(isfinite(value) for value in terms.values())
        if policy == "cost" and candidate.options:
            assert candidate.options[0].terms.total == pytest.approx(candidate.policy_cost)
    for said in explanation.answers:
        assert said.answer.endswith(".")
        json.dumps(dict(said.figures), allow_nan=False)
    for candidate in explanation.candidates:
        numbers = [getattr(candidate, field.name) for field in fields(candidate)]
        assert all(isfinite(number) for number in numbers if isinstance(number, float))


def test_a_policy_that_compares_no_costs_says_so_and_shows_them() -> None:
    """By requests w1 wins; by cost w0 would be 240 ms cheaper."""
    explanation = explained(running(5, matched=900, queue_ms=200), running(0), policy="least_loaded")
    assert explanation.chosen == "w1"
    assert explanation.runner_up_behind == 5
    said = answer(explanation, WHERE).answer
    assert said.startswith("To w1: it has the least load. The policy least_loaded does not compare costs. It costs ")
    assert "; the runner-up, w0, is 5 behind by the policy's measure, and would cost 240 ms less" in said
    turn = explained(running(5), running(0, last_chosen=9), policy="round_robin")
    assert (turn.chosen, turn.emptiest) == ("w0", "w1")
    assert answer(turn, EMPTIEST).answer.endswith(": the policy round_robin does not compare that.")
    assert turn.flip is None
    assert "round_robin stays with it" in turn.no_flip


def test_the_cache_is_nowhere_here_or_elsewhere() -> None:
    nowhere = answer(explained(seat(), seat()), CACHE)
    assert nowhere.answer == "Nobody holds any of the prompt: all 1,000 tokens are computed, 500 ms."
    here = answer(emptiest_lost(), CACHE)
    assert here.answer == (
        "It is not elsewhere: w0 holds 900 of the prompt's 1,000 tokens, and nobody holds more. "
        "900 tokens are taken from its own cache, the rest is computed, 50 ms."
    )


def test_read_migrate_and_recompute_are_compared() -> None:
    """80 MB at 1 GB/s: 80 ms instead of 400; no copy, as neither can."""
    explanation = explained(
        seat(facts=worker_facts("w0", can=PULL), matched=800, queue_ms=5000),
        seat(facts=worker_facts("w1", can=PULL), matched=0),
    )
    said = answer(explanation, CACHE)
    assert (explanation.chosen, said.figures["action"], said.figures["source"]) == ("w1", Action.REMOTE_READ, "w0")
    assert said.answer == (
        "w0 holds 800 of the prompt's 1,000 tokens, w1 0. 800 tokens are used, of which 80.0 MB are read from w0; the "
        "rest is computed, 100 ms. In all it costs there: a read 1,180 ms, computing all 1,500 ms. "
        "A copy was not offered: w1 lacks the capability migrate."
    )
    assert said.figures["remote_read_ms"] == pytest.approx(1180)
    assert said.figures["recompute_ms"] == pytest.approx(1500)
    assert said.figures["migrate_ms"] is None
    moved = answer(explanation, MIGRATION)
    assert moved.answer == (
        "Nothing that kvaware started is on the link of w1's node; this decision adds 80.0 MB, which go after that. "
        "What waiting does not hide of it is 80 ms, in the cost. The tenant's reads and copies are not limited."
    )


@pytest.mark.parametrize(
    ("holder", "other", "why", "given"),
    [
        (PULL, (), "w1 lacks all of the capabilities pull_from_peer, shared_store, pull_by_prefill", {}),
        ((), PULL, "w0 lacks all of the capabilities pull_from_peer, shared_store, pull_by_prefill", {}),
        (PULL, ("shared_store",), "w0 and w1 have none in common of pull_from_peer, shared_store, ", {}),
        (PULL, PULL, "reading takes 80.0 MB, and the tenant may move 1.0 MB now", {"remote_bytes": 1e6}),
        (PULL, PULL, "the size of a token's KV cache is unknown", {"bytes_per_token": None}),
    ],
)
def test_why_it_is_not_read(holder: tuple[str, ...], other: tuple[str, ...], why: str, given: dict[str, Any]) -> None:
    explanation = explained(
        seat(facts=worker_facts("w0", can=holder), matched=800, queue_ms=5000),
        seat(facts=worker_facts("w1", can=other)),
        **given,
    )
    assert explanation.chosen == "w1"
    assert f"A read was not offered: {why}" in answer(explanation, CACHE).answer


def test_other_transfer_domains_are_named() -> None:
    explanation = explained(
        seat(facts=worker_facts("w0", can=PULL, domain="a"), matched=800, queue_ms=5000),
        seat(facts=worker_facts("w1", can=PULL, domain="b")),
    )
    said = answer(explanation, CACHE).answer
    assert "A read was not offered: w0 and w1 are in different transfer domains ('a' and 'b')" in said


def test_hbm_that_suffices_that_is_short_and_that_is_unknown() -> None:
    fits = answer(explained(seat(pressure_ms_per_token=0.5)), HBM)
    assert fits.answer == (
        "Prompt and expected output take 1,100 tokens of w0's KV pool (0.1 GiB); 100,000 of 100,000 are free or can be "
        "freed (9.3 GiB). It fits. It displaces up to 1,100 cached tokens, priced at 550 ms."
    )
    assert fits.figures["displaced_tokens"] == pytest.approx(1100)
    short = answer(explained(running(4, kv_free_tokens=600, remaining_tokens=400), bytes_per_token=None), HBM)
    assert "500 tokens have no room yet: the server lets it wait" in short.answer
    assert short.figures["kv_free_tokens"] == 600
    unknown = answer(explained(seat(kv_free_tokens=float("nan"))), HBM)
    assert "how much of it is free is unknown" in unknown.answer
    assert unknown.figures["kv_free_tokens"] is None


def test_the_batch_before_and_after() -> None:
    """Beyond 10 sequences a step grows by 1 ms for each: 12 at 22 ms, 13 at 23."""
    said = answer(explained(running(12)), BATCH)
    assert said.answer == (
        "A step at w0 goes from 22.0 to 23.0 ms for the 12 sequences in its batch: over 100 output tokens 1,200 ms for "
        "all of them together, beside the 2,300 ms that it decodes itself. Its prefill keeps w0 for 500 ms."
    )
    assert said.figures["step_after_ms"] == pytest.approx(23)
    alone = answer(explained(running(0)), BATCH)
    assert alone.answer.startswith("Nothing decodes at w0: a step takes 20.0 ms, its output of 100 tokens 2,000 ms.")
    prefill = answer(explained(running(3), demand=request(phase=Phase.PREFILL)), BATCH)
    assert prefill.answer == "It decodes nothing there. Its prefill keeps w0 for 500 ms."


def test_what_is_on_the_link_and_what_the_tenant_may_move() -> None:
    busy = answer(
        explained(seat(link_bytes_in_flight=3e6), remote_bytes=5e6, migration_bytes=None),
        MIGRATION,
    )
    assert busy.answer == (
        "kvaware has 3.0 MB on the link of w0's node, and this decision starts no transfer: it adds nothing to "
        "anybody's P99. The tenant may still read 5.0 MB now and copy without limit."
    )
    full = answer(explained(seat(), remote_bytes=inf, migration_bytes=0.0), MIGRATION)
    assert full.answer.endswith("The tenant may still read any amount now and copy 0.0 MB now.")


def test_a_copy_by_prefill_is_no_transfer() -> None:
    """Whoever explains a demand that was placed with it: no policy chooses it today."""
    placement, snapshot = placed(candidates(seat(matched=0), seat(matched=900, queue_ms=9000)))
    warm = replace(placement.option, action=Action.WARM_UP, terms=CostTerms(migration=450.0), prefill_ms=500.0)
    explanation = explain(replace(placement, option=warm), snapshot)
    assert "this decision computes a copy, 450 ms, in the cost" in answer(explanation, MIGRATION).answer
    assert "A copy of 0 tokens is computed there first" in answer(explanation, CACHE).answer


def test_who_was_filtered_and_why() -> None:
    """One of each; the last refused the request before, of which nothing else is left."""
    demand = request(adapter="lora", phase=Phase.DECODE, candidates=frozenset(f"w{n}" for n in range(8) if n != 2))
    seats = [
        seat(facts=worker_facts("w0")),
        seat(facts=worker_facts("w1")),
        seat(facts=worker_facts("w2"), barred=True),
        seat(facts=worker_facts("w3", role="prefill"), barred=True),
        seat(facts=worker_facts("w4", adapters=frozenset({"other"})), barred=True),
        seat(facts=worker_facts("w5", reserved_for=frozenset({"acme"})), barred=True),
        seat(facts=worker_facts("w6"), kv_total_tokens=999, barred=True),
        seat(facts=worker_facts("w7"), barred=True),
    ]
    seats[1].figures["barred"] = float("inf")
    explanation = explained(*seats, demand=demand)
    assert {each.worker: each.filtered for each in explanation.candidates} == {
        "w0": None,
        "w1": FilterReason.UNAVAILABLE,
        "w2": FilterReason.NOT_AMONG_CANDIDATES,
        "w3": FilterReason.OTHER_ROLE,
        "w4": FilterReason.ADAPTER_NOT_SERVED,
        "w5": FilterReason.RESERVED_FOR_OTHERS,
        "w6": FilterReason.POOL_TOO_SMALL,
        "w7": FilterReason.PASSED_OVER,
    }
    assert explanation.filtered[FilterReason.UNAVAILABLE] == 1
    assert explanation.in_the_running == 1


def test_what_is_not_exact_is_said() -> None:
    explanation = explained(
        seat(
            facts=worker_facts("w0", publishes_events=False),
            confidence_ratio=0.6,
            observed_at_s=988.0,
            kv_free_tokens=float("nan"),
        ),
        classes=[hardware(origin=ProfileOrigin.GUESS)],
        bytes_per_token=None,
    )
    guessed = "Times are extrapolated: the profile of seven on 1 test is a guess, since the GPU or the model's size is "
    guessed += "unknown."
    assert explanation.approximations == (
        "Matched tokens are approximate: the worker tells no KV events, so they follow from what was sent where.",
        "w0 reported 12.0 s before: believed to 0.60.",
        guessed,
        "How much of w0's KV pool is free is unknown.",
        "The size of a token's KV cache is unknown: no transfer was priced.",
        "The client did not say how long the answer will be: 100 tokens as usual.",
    )
    assert explanation.candidates[0].age_s == 12
    assert explanation.candidates[0].precision is Precision.APPROXIMATE


def test_other_ways_not_to_be_exact() -> None:
    text = explained(seat(observed_at_s=float("nan")), demand=request(precision=Precision.APPROXIMATE))
    assert "text or the caller's own hashes" in text.approximations[0]
    assert text.approximations[1] == "w0 has not reported: its state is believed to 1.00."
    long = explained(seat(), demand=request(input_tokens=9000, expected_output_tokens=100))
    assert long.approximations == (
        "Times are extrapolated: seven on 1 test was measured for shorter prompts or smaller batches.",
    )
    many = explained(*[seat(queue_ms=float(slot)) for slot in range(300)])
    assert many.approximations[-1] == (
        "Of 300 columns 16 were kept: the cheapest, the emptiest, and those that hold most."
    )
    assert many.in_the_running == 300
    exact = explained(seat(), demand=request(expected_output_tokens=100))
    assert exact.approximations == ()


def test_what_would_have_flipped_it() -> None:
    explanation = emptiest_lost()
    assert explanation.flip == explanation.flips[0]
    by_kind = {flip.change.kind: flip for flip in explanation.flips}
    assert (
        by_kind[ChangeKind.CHOSEN_QUEUE_LONGER].text == "With 330.1 ms more to wait at w0, w1 would have been chosen."
    )
    assert explanation.no_flip == ""


def test_split_roles_are_explained_together() -> None:
    """w0 holds 600 tokens and computes the other 400; w2 decodes and gets 100 MB in 100 ms."""
    seats = (
        seat(facts=worker_facts("w0", role="prefill"), matched=600),
        seat(facts=worker_facts("w1", role="prefill")),
        running(2, facts=worker_facts("w2", role="decode")),
        running(12, facts=worker_facts("w3", role="decode")),
    )
    seen = candidates(*seats)
    prefills = np.array([0.0, 0.0, np.inf, np.inf])
    prefill = in_phase(seen, Phase.PREFILL, barred=prefills)
    decode = in_phase(seen, Phase.DECODE, barred=prefills[::-1].copy())
    cost = policy_named("cost")
    choice = choose_pair(cost, prefill=prefill, decode=decode)
    assert choice is not None
    assert choice.runner_up is not None
    pair = pair_options(cost, choice.chosen, prefill=prefill, decode=decode)
    other = pair_options(cost, choice.runner_up, prefill=prefill, decode=decode)
    assert pair.prefill is not None
    placement, _ = placed(seen)
    placement = replace(
        placement,
        option=pair.option,
        prefill=pair.prefill,
        runner_up=RunnerUp(other.option.worker, other.option.terms.total),
        reason=PlacementReason.PREFIX_RESIDENT,
        candidates=4,
    )
    explanation = explain(placement, take_pair(cost, choice, prefill=prefill, decode=decode))
    assert (explanation.chosen, explanation.prefill, explanation.runner_up) == ("w2", "w0", "w3")
    assert [each.worker for each in explanation.candidates] == ["w2", "w3", "w0", "w1"]
    assert not explanation.filtered
    by_name = {each.worker: each for each in explanation.candidates}
    assert {option.phase for option in by_name["w2"].options} == {Phase.DECODE}
    assert {option.phase for option in by_name["w1"].options} == {Phase.PREFILL}
    assert explanation.prefill_terms is not None
    together = added(explanation.terms, explanation.prefill_terms)
    assert together.total == pytest.approx(by_name["w2"].policy_cost)
    assert by_name["w2"].options[0].terms == explanation.terms
    assert by_name["w3"].options[0].terms == other.option.terms
    said = answer(explanation, WHERE).answer
    assert said.startswith("Its prompt to w0, its output to w2: ")
    assert "The prompt costs 200 ms there (cache_access 200), the output " in said
    assert "Then 100.0 MB of it are handed over to w2, " in answer(explanation, CACHE).answer
    assert answer(explanation, MIGRATION).figures["transfer_bytes"] == 100_000_000
    assert answer(explanation, BATCH).answer.endswith("Its prefill keeps w0 for 200 ms.")
    kinds = {flip.change.kind for flip in explanation.flips}
    assert ChangeKind.PREFILL_QUEUE_LONGER in kinds
    assert ChangeKind.CHOSEN_BATCH_LARGER in kinds
