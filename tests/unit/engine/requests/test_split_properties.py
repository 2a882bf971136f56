"""The cheapest pair is the cheapest of all pairs, whatever the fleet looks like."""

from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine.policies import policy_named
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import TIE_MS
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.options import best_option
from kvaware_engine.requests.settings import RequestCostSettings, RequestSettings
from kvaware_engine.requests.split import Pair, added, choose_pair, handover_ms, in_phase, pair_options
from kvaware_engine.requests.words import Action, Phase
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts

Parts = tuple[Candidates, Candidates, Candidates | None]
FEW = (0.0, 50.0, 400.0)
OTHER_ROLE = {Phase.PREFILL: "decode", Phase.DECODE: "prefill"}
SEEDS = st.integers(0, 2**32 - 1)


def random_seat(draw: Random, slot: int, *, crowded: bool) -> Seat:
    """One worker; ``crowded``: on the node where all are."""
    return seat(
        facts=worker_facts(
            f"w{slot}",
            role=draw.choice(["prefill", "decode", "both"]),
            node="n1" if crowded else draw.choice([None, "n1", "n2"]),
            rack="r1" if crowded else draw.choice([None, "r1", "r2"]),
            clique=None if crowded else draw.choice([None, "c1"]),
            domain=draw.choice(["d1", "d1", "d1", "d2"]),
        ),
        matched=draw.choice([0.0, 0.0, 512.0, 1999.0]),
        queue_ms=draw.choice(FEW),
        half_step_ms=draw.choice([0.0, 5.0]),
        risk_ms=draw.choice([0.0, 1.0]),
        barred=draw.random() < 0.25,
        kv_free_tokens=draw.choice([1e5, 1e5, 1000.0]),
        confidence_ratio=draw.choice([1.0, 0.5]),
        link_bytes_in_flight=draw.choice([0.0, 0.0, 1e9]),
        last_chosen=float(draw.randint(0, 2)),
    )


def random_parts(seed: int) -> Parts:
    draw = Random(seed)  # noqa: S311 - no secret is drawn
    crowded = draw.random() < 0.4
    seen = candidates(
        *[random_seat(draw, slot, crowded=crowded) for slot in range(draw.randint(1, 9))],
        demand=request(input_tokens=2000, hashes=125),
        bytes_per_token=draw.choice([None, 1e5, 1e5]),
        congestion=draw.choice([0.0, 0.5]),
        empty_slots=draw.choice([0, 2]),
        settings=RequestSettings(costs=RequestCostSettings(transfer_latency_ms=draw.choice([0.0, 5.0]))),
    )
    return split(seen, whole=draw.random() < 0.5)


def split(seen: Candidates, *, whole: bool) -> Parts:
    roles = np.array(["" if each is None else each.role for each in seen.facts])
    first, second = (
        in_phase(seen, phase, barred=seen.barred + np.where(roles == OTHER_ROLE[phase], inf, 0.0)) for phase in Phase
    )
    undivided = None
    if whole:
        undivided = candidates_like(seen, barred=seen.barred + np.where(roles == "both", 0.0, inf))
    return first, second, undivided


def candidates_like(seen: Candidates, *, barred: np.ndarray) -> Candidates:
    like = in_phase(seen, Phase.DECODE, barred=barred)
    like.demand = seen.demand
    return like


def every_pair(parts: Parts) -> dict[int, tuple[float, int | None]]:
    """Brute force: by decoding slot the least cost and where the prompt is computed then, by the scalar reference."""
    prefill, decode, whole = parts
    found: dict[int, tuple[float, int | None]] = {}
    slots = [slot for slot, facts in enumerate(decode.facts) if facts is not None]
    for slot in slots:
        costs: list[tuple[float, int | None]] = []
        if whole is not None and whole.barred[slot] == 0:
            costs.append((best_option(whole, slot).terms.total, None))
        if decode.barred[slot] == 0:
            second = best_option(decode, slot)
            for first in slots:
                here, there = decode.facts[first], decode.facts[slot]
                assert here is not None
                assert there is not None
                if first == slot or prefill.barred[first] > 0 or here.transfer_domain != there.transfer_domain:
                    continue
                total = best_option(prefill, first).terms.total + second.terms.total
                costs.append((total + handover_ms(decode, first, second), first))
        if costs:
            least = min(cost for cost, _ in costs)
            equal = [first for cost, first in costs if cost <= least + TIE_MS / 2]
            turn = decode.figures[Figure.LAST_CHOSEN]
            found[slot] = (least, min(equal, key=lambda at: (-1, -1) if at is None else (turn[at], at)))
    return found


@given(SEEDS)
@settings(max_examples=150, deadline=None)
def test_both_workers_are_those_of_a_scan_of_all_pairs(seed: int):
    """Hand-over over the link between the two included; workers of role ``both`` compete with the pairs."""
    prefill, decode, whole = parts = random_parts(seed)
    policy = policy_named("cost")
    scan = every_pair(parts)
    choice = choose_pair(policy, prefill=prefill, decode=decode, whole=whole)
    if choice is None:
        assert not scan
        return
    finite = {slot: cost for slot, cost in enumerate(choice.costs.tolist()) if cost < inf}
    assert finite == pytest.approx({slot: cost for slot, (cost, _) in scan.items()}, abs=1e-6)
    turn = decode.figures[Figure.LAST_CHOSEN]
    left = dict(finite)
    for pair in (choice.chosen, choice.runner_up):
        if pair is None:
            assert not left
            continue
        equal = [slot for slot, cost in left.items() if cost <= min(left.values()) + TIE_MS]
        assert pair.slot == min(equal, key=lambda slot: (turn[slot], slot))
        assert pair.prefill == scan[pair.slot][1]
        del left[pair.slot]
        parts_of = pair_options(policy, pair, prefill=prefill, decode=decode, whole=whole)
        terms = parts_of.option.terms
        if parts_of.prefill is not None:
            terms = added(terms, parts_of.prefill.terms)
        assert terms.total == pytest.approx(finite[pair.slot], abs=1e-6)


@given(SEEDS, st.sampled_from(["round_robin", "least_loaded", "power_of_two", "locality"]))
@settings(max_examples=60, deadline=None)
def test_policies_without_a_price_choose_pairs_that_can_hand_over(seed: int, name: str):
    """Their costs cannot be added to a hand-over's, but a pair without a domain in common cannot be."""
    prefill, decode, whole = parts = random_parts(seed)
    choice = choose_pair(policy_named(name), prefill=prefill, decode=decode, whole=whole)
    scan = every_pair(parts)
    assert (choice is None) == (not scan)
    if choice is not None:
        assert set(np.isfinite(choice.costs).nonzero()[0].tolist()) == set(scan)
        first, second = choice.chosen.prefill, choice.chosen.slot
        if first is not None:
            assert prefill.barred[first] == 0
            assert prefill.facts[first].transfer_domain == decode.facts[second].transfer_domain  # type: ignore[union-attr]


def test_the_hand_over_is_priced_over_the_link_between_the_two():
    """A prefill worker in the rack wins over an idle one elsewhere by the time that 200 MB take over the two links."""
    # given
    near = seat(facts=worker_facts("near", role="prefill", rack="r1"), queue_ms=100)
    far = seat(facts=worker_facts("far", role="prefill"))
    last = seat(facts=worker_facts("decode", role="decode", rack="r1"))
    parts = split(candidates(near, far, last, demand=request(input_tokens=2000)), whole=False)
    # when
    choice = choose_pair(policy_named("cost"), prefill=parts[0], decode=parts[1])
    # then
    assert choice is not None
    assert choice.chosen == Pair(slot=2, prefill=0)
    assert choice.runner_up is None
    both = pair_options(policy_named("cost"), choice.chosen, prefill=parts[0], decode=parts[1])
    assert both.prefill is not None
    # near: 100 ms queue + 2,000 tokens * 0.5 ms; decode: 100 tokens * 10 ms; 2,000 * 100 kB ÷ 5 GB/s = 40 ms (far: 200)
    assert both.prefill.terms.total == pytest.approx(1100)
    assert both.option.terms.network == pytest.approx(40)
    assert both.option.terms.compute_wait == pytest.approx(1000)
    assert both.option.terms.cache_access == 0
    assert (both.option.action, both.option.source) == (Action.REMOTE_READ, "near")
    assert both.option.transfer_bytes == 200_000_000


def test_one_worker_does_all_of_it_where_a_hand_over_costs_more():
    """Workers of both roles compete with the pairs."""
    # given: a pair over a far link, 200 ms, or one worker with 150 ms of queue
    pair = (seat(facts=worker_facts("p", role="prefill")), seat(facts=worker_facts("d", role="decode")))
    alone = seat(facts=worker_facts("b", role="both"), queue_ms=150)
    prefill, decode, whole = split(candidates(*pair, alone, demand=request(input_tokens=2000)), whole=True)
    # when
    choice = choose_pair(policy_named("cost"), prefill=prefill, decode=decode, whole=whole)
    # then
    assert choice is not None
    assert choice.chosen == Pair(slot=2, prefill=None)
    assert choice.runner_up == Pair(slot=1, prefill=0)
    with pytest.raises(ValueError, match="expected the whole demand"):
        pair_options(policy_named("cost"), choice.chosen, prefill=prefill, decode=decode)
