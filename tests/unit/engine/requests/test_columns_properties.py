"""The columns equal the scalar reference, and the choice a full scan of it, on random fleets."""

from math import inf, isfinite, nan
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine.policies import policy_named
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.choose import TIE_MS, choose
from kvaware_engine.requests.columns import costs_ms
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.options import best_option, options
from kvaware_engine.requests.settings import RequestCostSettings, RequestSettings
from kvaware_engine.requests.words import Phase
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts
from kvaware_testing.worker_builders import hardware

CLASSES = [hardware(), hardware(prefill=(12.0, 0.2, 1e-5)), hardware(prefill=(3.0, 1.0, 2e-4))]
CAPABILITIES = ["pull_from_peer", "pull_by_prefill", "shared_store", "migrate", "pin"]
EVEN = (0.0, 100.0, 250.0)
"""Few values, so that ties happen."""
SEEDS = st.integers(0, 2**32 - 1)
"""Fleets are drawn from a seed: of Hypothesis itself one fleet has 200 draws, which take ten times as long."""


def random_seat(draw: Random, slot: int, *, rich: bool, busy: float | None) -> Seat:
    """One worker; ``busy``: all are as busy as this."""
    own = draw.choice(EVEN) if draw.random() < 0.5 else draw.uniform(0, 5000)
    matched = draw.choice([0.0, 0.0, 64.0, 960.0, 1984.0])
    lower = draw.choice([0.0, 0.25, 1.0]) * matched if rich else 0.0
    if lower == 1984.0:
        lower += draw.choice([0.0, 1.0])  # whole blocks, of which the prompt's last token is computed anyway
    ssd = draw.choice([0.0, 0.5, 1.0]) * lower
    return seat(
        facts=worker_facts(
            f"w{slot}",
            node=draw.choice([None, "n1", "n2"]),
            rack=draw.choice([None, "r1", "r2"]),
            zone=draw.choice([None, "z1"]),
            clique=draw.choice([None, "c1"]),
            can=draw.sample(CAPABILITIES, draw.randint(0, 5)) if rich else (),
            domain=draw.choice(["d1", "d1", "d2"]),
        ),
        matched=matched,
        cpu=lower - ssd,
        ssd=ssd,
        barred=draw.random() < 0.25,
        queue_ms=own if busy is None else busy * draw.choice([0.9, 1.0, 1.1]),
        batch=draw.choice([0.0, 8.0]),
        requests=draw.choice([0.0, 3.0]),
        half_step_ms=draw.choice(EVEN) / 20,
        decode_ms_per_token=10 + draw.choice(EVEN) / 100,
        pressure_ms_per_token=draw.choice(EVEN) / 1000,
        risk_ms=draw.choice(EVEN) / 10,
        confidence_ratio=draw.choice([1.0, 1.0, 0.5, 0.0]),
        remaining_tokens=draw.choice(EVEN),
        kv_total_tokens=draw.choice([nan, 3000.0, 1e5]),
        kv_free_tokens=draw.choice([nan, -10.0, 0.0, 1500.0, 3000.0, 1e5, 1e5]),
        link_bytes_in_flight=draw.choice([0.0, 1e8]),
        last_chosen=float(draw.randint(0, 3)),
        hardware_class=float(draw.randint(0, 2)) if rich else 0.0,
    )


def random_fleet(seed: int) -> Candidates:
    """Uncorrelated and correlated load, one class or three, with and without everything that is rare."""
    draw = Random(seed)  # noqa: S311 - no secret is drawn
    rich = draw.random() < 0.6
    busy = draw.choice([None, draw.uniform(0, 5000)])
    here = [random_seat(draw, slot, rich=rich, busy=busy) for slot in range(draw.randint(1, 12))]
    tokens = draw.choice([1985, 2000, 5000])
    return candidates(
        *here,
        demand=request(
            input_tokens=tokens,
            hashes=draw.choice([0, tokens // 16]),
            phase=draw.choice([None, None, *Phase]),
            current_worker=draw.choice([None, None, "w0", "elsewhere"]),
        ),
        output=draw.choice([0.0, 200.0]),
        classes=CLASSES if rich else CLASSES[:1],
        congestion=draw.choice([0.0, 0.7]),
        bytes_per_token=draw.choice([None, 1e5, 1e6]),
        waits_ahead_ms=draw.choice([None, [draw.choice(EVEN) for _ in here]]),
        indexed=draw.random() < 0.5,
        empty_slots=draw.choice([0, 2]),
        remote_bytes=draw.choice([None, None, 0.0, 1e8]),
        migration_bytes=draw.choice([None, None, 0.0, 1e8]),
        reuse_ratio=draw.choice([None, 0.9]),
        settings=RequestSettings(
            costs=RequestCostSettings(
                transfer_latency_ms=draw.choice([0.0, 5.0]),
                remote_step_penalty_ms=draw.choice([0.0, 0.2]),
                sources_max=draw.choice([0, 1, 4]),
            )
        ),
    )


def reference(seen: Candidates) -> list[float]:
    return [
        options(seen, slot)[0].terms.total if isfinite(seen.barred[slot]) else inf for slot in range(len(seen.facts))
    ]


def scan(costs: list[float], seen: Candidates) -> tuple[int | None, int | None]:
    """Chosen and runner-up, by the rule in words."""

    def least(among: list[int]) -> int | None:
        if not among:
            return None
        bound = min(costs[slot] for slot in among) + TIE_MS
        equal = [slot for slot in among if costs[slot] <= bound]
        return min(equal, key=lambda slot: (seen.figures[Figure.LAST_CHOSEN, slot], slot))

    running = [slot for slot, cost in enumerate(costs) if isfinite(cost)]
    chosen = least(running)
    return chosen, least([slot for slot in running if slot != chosen])


@given(SEEDS)
@settings(max_examples=300, deadline=None)
def test_the_column_is_the_least_of_each_workers_options(seed: int):
    """Whatever is rare: lower tiers, low confidence, unknown pools, mixed classes, reads and copies, phases, masks."""
    seen = random_fleet(seed)
    before = [seen.figures.copy(), seen.matched_tokens.copy(), seen.barred.copy()]
    costs = costs_ms(seen)
    np.testing.assert_allclose(costs, reference(seen), rtol=0, atol=1e-6)
    assert all(isfinite(cost) == isfinite(bar) for cost, bar in zip(costs, seen.barred, strict=True))
    for was, now in zip(before, [seen.figures, seen.matched_tokens, seen.barred], strict=True):
        np.testing.assert_array_equal(was, now, "the columns are live: nobody may change them")


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_choice_and_runner_up_are_those_of_a_full_scan(seed: int):
    """Ties included: costs within 1e-6 ms go by turns, then to the lower slot."""
    seen = random_fleet(seed)
    # By the columns' own sums: two roundings of one number may stand on two sides of the tie's bound.
    costs = costs_ms(seen).tolist()
    choice = choose(policy_named("cost"), seen)
    found = (None, None) if choice is None else (choice.chosen, choice.runner_up)
    assert found == scan(costs, seen)
    if choice is not None:
        np.testing.assert_array_equal(choice.costs, costs)
        assert abs(min(reference(seen)) - costs[choice.chosen]) <= 2 * TIE_MS


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_the_best_option_is_the_first_of_all(seed: int):
    """The short way equals the long one, and every option's terms are finite, none but the gain lowers the total."""
    seen = random_fleet(seed)
    for slot in (at for at, facts in enumerate(seen.facts) if facts is not None):
        offered = options(seen, slot)
        assert best_option(seen, slot) == offered[0]
        totals = [option.terms.total for option in offered]
        assert totals == pytest.approx(sorted(totals), abs=2e-6)
        for option in offered:
            terms = option.terms
            parts = [
                terms.compute_wait,
                terms.cache_access,
                terms.migration,
                terms.memory_pressure,
                terms.network,
                terms.risk,
            ]
            assert all(isfinite(part) and part >= 0 for part in [*parts, terms.locality_gain])
            assert abs(sum(parts) - terms.locality_gain - terms.total) < 1e-6
