"""The placer as a whole: what it chooses, reserves, moves and gives back."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvaware_engine import Amounts, ObjectKey, TenantQuotaObservation
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.settings import RequestLedgerSettings, RequestSettings
from kvaware_engine.requests.words import (
    Action,
    EventType,
    EventVerdict,
    PlacementReason,
    PlacementRefusal,
    Precision,
    RequestDemand,
)
from kvaware_testing.placer_builders import PlacerAtWork, model
from kvaware_testing.worker_builders import MODEL

PREFIX = tuple(range(1, 385))
"""6,144 tokens in blocks of 16."""


def own(number: int, blocks: int) -> tuple[int, ...]:
    """Blocks that only one request has."""
    return tuple(10_000_000 + number * 1000 + block for block in range(blocks))


def figures_of(world: PlacerAtWork) -> np.ndarray:
    """What can differ after everything has ended: not the order of turns."""
    world.placer.tick(world.now_s)
    figures = world.candidates(world.demand("look")).figures.copy()
    figures[Figure.LAST_CHOSEN] = 0
    figures[Figure.FREE_AT_S] = np.maximum(figures[Figure.FREE_AT_S], world.now_s)
    return figures


def test_a_request_goes_where_its_prefix_is():
    world = PlacerAtWork(4)
    first = world.placed("r1", input_tokens=6200, block_hashes=PREFIX)
    world.tells(first, EventType.FINISHED, output_tokens=10)
    world.now_s += 20
    for name in world.names:
        world.hears(name)
    second = world.placed("r2", input_tokens=6200, block_hashes=PREFIX)
    assert first.reason is PlacementReason.COLD
    assert first.option.action is Action.RECOMPUTE
    assert second.option.worker == first.option.worker
    assert (second.reason, second.option.matched_tokens) == (PlacementReason.PREFIX_RESIDENT, 6144)
    assert second.precision is Precision.APPROXIMATE, "the worker tells no events: it is what was sent there"


def test_64_requests_with_a_shared_prefix_at_once_do_not_herd():
    """Each choice equals the full scan, and no worker gets more than 1.3 times the mean."""
    world = PlacerAtWork(16, pool_blocks=40_000)
    taken: Counter[str] = Counter()
    for number in range(64):
        demand = world.demand(
            f"r{number}", input_tokens=8144, block_hashes=PREFIX + own(number, 125), expected_output_tokens=200
        )
        candidates = world.candidates(demand)
        policy = world.placer.policy(MODEL)
        scanned = choose(policy, candidates)
        assert scanned is not None
        by_options = {
            slot: policy.options(candidates, slot)[0].terms.total
            for slot, facts in enumerate(candidates.facts)
            if facts is not None
        }
        placement = world.placer.place(demand, now_s=world.now_s)
        assert placement.option.slot == scanned.chosen
        assert placement.option.terms.total == pytest.approx(min(by_options.values()), abs=1e-6)
        taken[placement.option.worker] += 1
    assert max(taken.values()) / (64 / 16) <= 1.3, taken


def test_with_a_long_prefix_and_a_tiny_own_part_requests_stay_together():
    """Waiting some tens of milliseconds for a prefix of three seconds is right."""
    world = PlacerAtWork(16, pool_blocks=40_000)
    first = world.placed("r0", input_tokens=6160, block_hashes=PREFIX, expected_output_tokens=4)
    world.tells(first, EventType.FINISHED, output_tokens=4)
    world.now_s += 10
    for name in world.names:
        world.hears(name)
    taken = [
        world.placed(f"s{number}", input_tokens=6160, block_hashes=PREFIX, expected_output_tokens=4).option.worker
        for number in range(8)
    ]
    assert set(taken) == {first.option.worker}


def test_idle_workers_take_turns():
    """AMD-AGI/Infera#103: 448 unrelated prompts, each finished before the next, all went to one of two."""
    world = PlacerAtWork(2)
    taken: Counter[str] = Counter()
    for number in range(400):
        placement = world.placed(f"r{number}", block_hashes=own(number, 60))
        taken[placement.option.worker] += 1
        world.tells(placement, EventType.FINISHED, output_tokens=10)
        world.now_s += 3
        for name in world.names:
            world.hears(name)
    assert all(180 <= count <= 220 for count in taken.values()), taken


def test_the_measure_of_load_is_the_models():
    """One has fewer requests, the other a longer queue behind its long prompt; and it may change with the spec."""
    by_requests = model(policy="least_loaded")
    by_queue = replace(by_requests, policy_fields=(("measure", "queue"),))
    world = PlacerAtWork(2, seen=by_requests)
    one, other = (frozenset({name}) for name in world.names)
    world.placed(input_tokens=20_000, candidates=one)
    for _ in range(3):
        world.placed(input_tokens=100, candidates=other)
    assert {world.placed().option.worker} == one
    world.placer.observe_model(by_queue.key, by_queue)
    assert {world.placed().option.worker} == other
    world = PlacerAtWork(2, seen=by_queue)
    world.placed(input_tokens=20_000, candidates=one)
    for _ in range(3):
        world.placed(input_tokens=100, candidates=other)
    assert {world.placed().option.worker} == other


def test_the_same_demand_again_is_the_same_placement_and_another_is_a_conflict():
    world = PlacerAtWork()
    first = world.placed("r1")
    assert world.placed("r1") is first
    refusal = world.place("r1", input_tokens=999)
    assert isinstance(refusal, PlacementRefusal)
    assert refusal.reason is PlacementReason.DUPLICATE_REQUEST
    assert len(world.placer.ledger) == 1


def test_everything_is_given_back_when_a_request_finishes():
    world = PlacerAtWork()
    world.now_s += 1
    before = figures_of(world)
    placement = world.placed(block_hashes=own(1, 60))
    assert figures_of(world)[Figure.REQUESTS].sum() == 1
    assert world.tells(placement, EventType.STARTED)[0] is EventVerdict.TAKEN
    assert world.tells(placement, EventType.STARTED)[0] is EventVerdict.REPEATED
    assert world.tells(placement, EventType.FIRST_TOKEN)[0] is EventVerdict.TAKEN
    assert world.tells(placement, EventType.PROGRESS, output_tokens=5)[0] is EventVerdict.TAKEN
    assert world.tells(placement, EventType.FINISHED, output_tokens=10)[0] is EventVerdict.TAKEN
    assert world.tells(placement, EventType.FINISHED, output_tokens=10)[0] is EventVerdict.REPEATED
    assert world.tells(placement, EventType.PROGRESS)[0] is EventVerdict.LATE
    np.testing.assert_allclose(figures_of(world), before)
    assert len(world.placer.ledger) == 0


def test_finish_before_start_is_taken():
    world = PlacerAtWork()
    placement = world.placed()
    assert world.tells(placement, EventType.FINISHED)[0] is EventVerdict.TAKEN
    assert world.tells(placement, EventType.STARTED)[0] is EventVerdict.LATE
    assert len(world.placer.ledger) == 0


def test_a_request_of_which_nothing_is_heard_ends_and_one_that_reports_progress_does_not():
    world = PlacerAtWork()
    silent, alive = world.placed("silent"), world.placed("alive")
    for _ in range(10):
        world.now_s += 20
        for name in world.names:
            world.hears(name)
        world.tells(alive, EventType.PROGRESS, output_tokens=1)
    assert world.tells(silent, EventType.PROGRESS)[0] is EventVerdict.LATE
    assert [each.request_id for each in world.placer.ledger] == ["alive"]


def test_a_refused_request_goes_to_the_next_worker_and_three_refusals_are_the_end():
    world = PlacerAtWork(5)
    before = figures_of(world)[Figure.REQUESTS].sum()
    first = world.placed("r1")
    seen = [first.option.worker]
    placement = first
    for attempt in (2, 3):
        verdict, following = world.tells(placement, EventType.REFUSED, worker=placement.option.worker)
        assert verdict is EventVerdict.TAKEN
        assert not isinstance(following, PlacementRefusal)
        assert following is not None
        assert (following.attempt, following.placement_id) == (attempt, first.placement_id)
        seen.append(following.option.worker)
        placement = following
    assert len(set(seen)) == 3
    verdict, last = world.tells(placement, EventType.REFUSED, worker=placement.option.worker)
    assert isinstance(last, PlacementRefusal)
    assert (last.reason, last.retryable) == (PlacementReason.TOO_MANY_REFUSALS, True)
    assert len(world.placer.ledger) == 0
    assert figures_of(world)[Figure.REQUESTS].sum() == before


def test_a_refusal_told_twice_moves_the_request_once():
    world = PlacerAtWork(3)
    first = world.placed()
    _, second = world.tells(first, EventType.REFUSED, worker=first.option.worker)
    verdict, again = world.tells(first, EventType.REFUSED, worker=first.option.worker)
    assert verdict is EventVerdict.REPEATED
    assert again is second


def test_a_worker_that_refused_is_passed_over_until_it_is_well():
    """ai-dynamo/dynamo#12138: after one refusal a worker stayed excluded for good."""
    world = PlacerAtWork(2)
    placement = world.placed("r1")
    _, following = world.tells(placement, EventType.REFUSED, worker=placement.option.worker)
    assert following is not None
    assert world.placed("r2").option.worker != placement.option.worker
    world.now_s += 1
    world.hears(placement.option.worker)
    assert world.placed("r3").option.worker == placement.option.worker


@pytest.mark.parametrize("roles", [("both", "both"), ("prefill", "decode")])
def test_a_request_that_every_worker_refuses_does_not_close_the_model_to_others(roles: tuple[str, str]):
    """Of those that are marked alike the others take one; asked again, each says for itself."""
    world = PlacerAtWork(2)
    for name, role in zip(world.names, roles, strict=True):
        world.expect(name, role=role)
    poison = world.placed("poison")
    for name in world.names:
        world.tells(poison, EventType.REFUSED, worker=name)
    refusal = world.place("poison", candidates=frozenset({"ml:nobody:0"}))
    assert isinstance(refusal, PlacementRefusal)
    assert refusal.reason is PlacementReason.NO_WORKER
    other = world.placed("other")
    explained = world.placer.explain(other.placement_id)
    assert explained is not None
    assert explained.chosen == other.option.worker


def test_started_elsewhere_moves_the_reservation():
    world = PlacerAtWork(3)
    placement = world.placed(block_hashes=own(1, 60))
    other = next(name for name in world.names if name != placement.option.worker)
    assert world.tells(placement, EventType.STARTED, worker=other)[0] is EventVerdict.TAKEN
    moved = world.placer.placement(placement.placement_id)
    assert moved is not None
    assert moved.option.worker == other
    slots = {facts.worker: slot for slot, facts in enumerate(world.candidates(world.demand("x")).facts) if facts}
    requests = figures_of(world)[Figure.REQUESTS]
    assert (requests[slots[other]], requests[slots[placement.option.worker]]) == (1, 0)
    assert world.tells(placement, EventType.STARTED, worker="ml:nobody:0")[0] is EventVerdict.UNKNOWN_WORKER


def test_a_prompt_longer_than_the_context_or_than_any_pool_is_a_mistake_of_the_client():
    """llm-d/llm-d-router#2909, #2910: a 503 would invite retries that cannot succeed."""
    world = PlacerAtWork(2, pool_blocks=100, seen=model(max_context_tokens=5000))
    for tokens, most in ((6000, 5000), (2000, 1600)):
        refusal = world.place(input_tokens=tokens)
        assert isinstance(refusal, PlacementRefusal)
        assert refusal.reason is PlacementReason.PROMPT_TOO_LONG
        assert refusal.details == {"input_tokens": tokens, "input_tokens_max": most}
        assert not refusal.retryable


def test_a_prompt_that_only_a_worker_that_drains_has_room_for_may_come_again():
    """A client that is told 400 gives up."""
    world = PlacerAtWork(2, pool_blocks=100)
    world.now_s += 1
    world.hears(world.names[0], kv_blocks_total=1000, kv_blocks_free=1000, draining=True)
    refusal = world.place(input_tokens=2000)
    assert isinstance(refusal, PlacementRefusal)
    assert (refusal.reason, refusal.retryable) == (PlacementReason.NO_WORKER, True)


@pytest.mark.parametrize("told", [10_000_000, None])
def test_no_answer_is_expected_beyond_the_context(told: int | None):
    """One that says ten million would keep everybody else from its worker."""
    lengths = RequestSettings(ledger=RequestLedgerSettings(expected_output_tokens=8000))
    world = PlacerAtWork(2, settings=lengths, seen=model(max_context_tokens=5000))
    placement = world.placed(input_tokens=4000, expected_output_tokens=told)
    assert placement.expected_output_tokens == 1000
    assert world.placed(input_tokens=5000, expected_output_tokens=told).expected_output_tokens == 0


def test_a_huge_prompt_does_not_go_to_a_nearly_full_worker():
    """llm-d/llm-d-router#2909: the request itself was not counted."""
    world = PlacerAtWork(2, pool_blocks=1100)
    world.now_s += 1
    world.hears(world.names[0], kv_blocks_free=100, running=1)
    world.hears(world.names[1], kv_blocks_free=1000, running=1)
    assert world.placed(input_tokens=8000).option.worker == world.names[1]


def test_nobody_there_is_no_worker_and_one_report_brings_them_back():
    """llm-d/llm-d-router#2408, #2547, gpustack/gpustack#6030: stale is not busy, and unavailable is not unknown."""
    world = PlacerAtWork(1)
    fresh = world.placed().confidence_ratio
    world.now_s += 25
    stale = world.placed().confidence_ratio
    assert 0 < stale < fresh
    world.now_s += 30
    refusal = world.place()
    assert isinstance(refusal, PlacementRefusal)
    assert (refusal.reason, refusal.retryable) == (PlacementReason.NO_WORKER, True)
    world.hears(world.names[0])
    assert world.placed().confidence_ratio == fresh
    unknown = world.placer.place(
        RequestDemand(request_id="u", model=ObjectKey("ml", "other"), tenant="t", input_tokens=1), now_s=world.now_s
    )
    assert isinstance(unknown, PlacementRefusal)
    assert unknown.reason is PlacementReason.MODEL_NOT_FOUND


def quota(**limits: int) -> TenantQuotaObservation:
    """Of the tenant ``default``."""
    return TenantQuotaObservation(
        name="q", uid="u", created_at="2026-01-01T00:00:00Z", tenant="default", namespaces=(), limits=Amounts(**limits)
    )


def test_twenty_at_once_cannot_all_pass_a_token_limit_and_what_was_not_generated_is_given_back():
    """envoyproxy/ai-gateway#680."""
    world = PlacerAtWork(4)
    world.placer.observe_quota("q", quota(tokens_per_s=1000))
    outcomes = [world.place(f"r{n}", input_tokens=900, expected_output_tokens=100) for n in range(20)]
    placed = [each for each in outcomes if not isinstance(each, PlacementRefusal)]
    refused = [each for each in outcomes if isinstance(each, PlacementRefusal)]
    assert (len(placed), len(refused)) == (1, 19)
    assert {each.reason for each in refused} == {PlacementReason.TENANT_QUOTA_EXCEEDED}
    assert len(world.placer.ledger) == 1
    world.tells(placed[0], EventType.FINISHED, output_tokens=10)
    small = world.place("small", input_tokens=80, expected_output_tokens=10)
    assert not isinstance(small, PlacementRefusal)


def test_who_waits_as_long_as_told_is_admitted():
    world = PlacerAtWork(4)
    world.placer.observe_quota("q", quota(requests_per_s=3))
    while True:
        outcome = world.place()
        if isinstance(outcome, PlacementRefusal):
            break
    assert outcome.retry_after_s is not None
    world.now_s += outcome.retry_after_s
    assert not isinstance(world.place(), PlacementRefusal)


def test_a_limit_of_nothing_invites_no_retry():
    """Project-HAMi/HAMi#2312."""
    world = PlacerAtWork(1)
    world.placer.observe_quota("q", quota(requests_per_s=0))
    refusal = world.place()
    assert isinstance(refusal, PlacementRefusal)
    assert (refusal.reason, refusal.retryable, refusal.retry_after_s) == (
        PlacementReason.TENANT_QUOTA_EXCEEDED,
        False,
        None,
    )


def test_what_could_not_be_placed_cost_nothing():
    """BerriAI/litellm#39309: a refused request used up the rate."""
    world = PlacerAtWork(1)
    world.placer.observe_quota("q", quota(requests_per_s=1))
    world.now_s += 100
    assert isinstance(world.place(), PlacementRefusal), "its worker is not heard"
    world.hears(world.names[0])
    assert not isinstance(world.place(), PlacementRefusal)


def test_the_lowest_priority_is_shed_first():
    settings = RequestSettings(ledger=RequestLedgerSettings(saturation_wait_s=2.0))
    world = PlacerAtWork(1, settings=settings)
    outcomes = [world.place(input_tokens=1000) for _ in range(10)]
    shed = [each for each in outcomes if isinstance(each, PlacementRefusal)]
    assert shed
    assert {each.reason for each in shed} == {PlacementReason.SATURATED}
    assert shed[0].retry_after_s is not None
    assert isinstance(world.place(priority=1), PlacementRefusal) is False
    assert isinstance(world.place(priority=0), PlacementRefusal)


@pytest.mark.parametrize("asked", [{}, {"deadline_ms": 5000}], ids=["saturated", "deadline"])
def test_who_waits_exactly_as_long_as_a_full_model_says_is_placed(asked: dict[str, float]):
    """Sums of floats differ in their last digits, and a wait of 30,000 ms is not longer than 30,000 ms."""
    for workers in (1, 2, 4):
        world = PlacerAtWork(workers, pool_blocks=None)
        while not isinstance(
            outcome := world.place(input_tokens=7000, expected_output_tokens=1, **asked), PlacementRefusal
        ):
            world.now_s += 0.003
        assert outcome.retryable
        assert outcome.retry_after_s is not None
        world.now_s += outcome.retry_after_s
        assert not isinstance(world.place(input_tokens=7000, **asked), PlacementRefusal)


def test_a_deadline_that_no_waiting_makes_reachable_invites_no_retry():
    """And names the quickest worker, not the cheapest: that has a smaller batch, and a queue."""
    world = PlacerAtWork(2)
    world.now_s += 1
    world.hears(world.names[0], running=200)
    world.hears(world.names[1], waiting=1, queued_tokens=800)
    refusal = world.place(input_tokens=1000, expected_output_tokens=1000, deadline_ms=400)
    assert isinstance(refusal, PlacementRefusal)
    assert (refusal.retryable, refusal.retry_after_s) == (False, None)
    assert 500 <= refusal.details["first_token_ms"] < 700


def test_a_deadline_that_nobody_can_meet_is_refused():
    world = PlacerAtWork(2)
    refusal = world.place(input_tokens=1000, deadline_ms=100)
    assert isinstance(refusal, PlacementRefusal)
    assert refusal.reason is PlacementReason.DEADLINE_UNREACHABLE
    assert not isinstance(world.place(input_tokens=1000, deadline_ms=60_000), PlacementRefusal)


def test_another_incarnation_drops_what_was_reserved_and_a_short_absence_does_not():
    """ai-dynamo/dynamo#13513."""
    world = PlacerAtWork(1)
    for number in range(20):
        world.placed(f"r{number}")
    world.workers.expect(world.names[0], None)
    world.now_s += 1
    world.placer.tick(world.now_s)
    world.expect(world.names[0])
    world.hears(world.names[0], running=20)
    world.placer.tick(world.now_s)
    assert len(world.placer.ledger) == 20
    world.expect(world.names[0], incarnation="another")
    world.hears(world.names[0])
    world.placer.tick(world.now_s)
    assert len(world.placer.ledger) == 0
    assert world.placer.limits.in_flight("default") == 0
    assert figures_of(world)[Figure.REQUESTS].sum() == 0


def test_a_sleeping_worker_is_no_candidate_and_holds_no_blocks():
    """vllm-project/aibrix#2287."""
    world = PlacerAtWork(2)
    first = world.placed(input_tokens=6200, block_hashes=PREFIX)
    world.tells(first, EventType.FINISHED, output_tokens=10)
    world.hears(first.option.worker, asleep=True)
    candidates = world.candidates(world.demand("look", input_tokens=6200, block_hashes=PREFIX))
    assert candidates.deepest_tokens == 0
    assert np.isinf(candidates.barred[first.option.slot])


def test_a_model_that_goes_takes_its_reservations_along():
    world = PlacerAtWork(2)
    placement = world.placed()
    world.placer.observe_model(MODEL, None)
    assert len(world.placer.ledger) == 0
    assert world.placer.limits.in_flight("default") == 0
    refusal = world.place()
    assert isinstance(refusal, PlacementRefusal)
    assert world.tells(placement, EventType.FINISHED)[0] is EventVerdict.LATE


def test_split_roles_get_a_worker_for_each_part():
    world = PlacerAtWork(0)
    for number, role in enumerate(["prefill", "prefill", "decode", "decode"]):
        name = f"ml:{role}-{number}:0"
        world.names.append(name)
        world.expect(name, role=role)
        world.hears(name, capabilities=("pull_by_prefill",))
    placement = world.placed(block_hashes=own(1, 60))
    assert placement.prefill is not None
    assert "prefill" in placement.prefill.worker
    assert "decode" in placement.option.worker
    assert placement.option.transfer_bytes > 0
    before = world.candidates(world.demand("look")).figures[Figure.REQUESTS].sum()
    assert before == 2
    world.tells(placement, EventType.FIRST_TOKEN)
    assert world.candidates(world.demand("look")).figures[Figure.REQUESTS].sum() == 1
    world.tells(placement, EventType.FINISHED, output_tokens=10)
    assert world.candidates(world.demand("look")).figures[Figure.REQUESTS].sum() == 0


def test_each_policy_places():
    for name in ("round_robin", "least_loaded", "power_of_two", "locality", "cost"):
        world = PlacerAtWork(4, seen=model(policy=name))
        placement = world.placed(block_hashes=own(1, 60))
        assert placement.policy == name
        explanation = world.placer.explain(placement.placement_id)
        assert explanation is not None
        assert explanation.chosen == placement.option.worker


def test_of_requests_that_are_over_only_the_latest_keep_what_they_saw():
    """Memory: hashes and snapshots of thousands of long prompts would be hundreds of megabytes."""
    world = PlacerAtWork(2, settings=RequestSettings(ledger=RequestLedgerSettings(kept_explained=3, kept_finished=10)))
    placements = []
    for number in range(8):
        placements.append(world.placed(block_hashes=own(number, 60)))
        world.tells(placements[-1], EventType.FINISHED, output_tokens=5)
    running = world.placed("long", block_hashes=own(99, 60))
    placements += [world.placed(block_hashes=own(number, 60)) for number in range(20, 24)]
    explained = [world.placer.explain(each.placement_id) is not None for each in placements]
    assert explained == [False] * 8 + [False] + [True] * 3
    assert not any(len(each.demand.block_hashes) for each in placements[:8])
    assert len(running.demand.block_hashes) == 60, "it is compared with while it runs"
    world.tells(running, EventType.FINISHED, output_tokens=5)
    assert len(running.demand.block_hashes) == 0


def test_a_served_name_that_a_worker_tells_as_an_adapter_is_one():
    """Requests name adapters like models; only the workers say which names are adapters."""
    world = PlacerAtWork(2, seen=model(served_names=("base", "sql-lora")))
    world.now_s += 1
    world.placer.tick(world.now_s)
    world.hears(world.names[0], adapters=("sql-lora",))
    world.hears(world.names[1], adapters=())
    assert world.placer.resolve("sql-lora") == MODEL
    assert world.placer.adapter(MODEL, "sql-lora") == "sql-lora"
    assert world.placer.adapter(MODEL, "base") is None
    assert world.placed(adapter="sql-lora").option.worker == world.names[0]
    assert world.placer.root(MODEL, "sql-lora", None) != world.placer.root(MODEL, None, "sql-lora")


def test_what_displaces_nothing_costs_nothing():
    """An empty pool was priced as if each new token threw out a cached one."""
    world = PlacerAtWork(1, pool_blocks=1000)
    assert world.placed("cold", block_hashes=own(1, 62)).option.terms.memory_pressure == 0
    for number in range(20):
        world.tells(
            world.placed(input_tokens=4000, block_hashes=own(10 + number, 250)), EventType.FINISHED, output_tokens=1
        )
    world.now_s += 1
    world.hears(world.names[0])
    assert world.placed("full", block_hashes=own(2, 62)).option.terms.memory_pressure > 0


def test_nobody_is_charged_for_an_answer_that_cannot_be():
    """A typing error, or malice, in one event must not lock a tenant out for hours."""
    world = PlacerAtWork(2, pool_blocks=1000)
    world.placer.observe_quota("q", quota(tokens_per_s=1000))
    placement = world.placed(input_tokens=500, expected_output_tokens=10_000_000)
    assert placement.expected_output_tokens == 15_500, "what is left of a pool of 16,000 tokens"
    world.tells(placement, EventType.FINISHED, output_tokens=10_000_000)
    refusal = world.place(input_tokens=500)
    assert isinstance(refusal, PlacementRefusal)
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s < 20
