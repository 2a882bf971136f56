"""What the placer keeps books of, where a request does not go the straight way: nothing is lost, or counted twice."""

import pytest

from kvaware_engine import Amounts, TenantQuotaObservation
from kvaware_engine.requests import explain as explain_module
from kvaware_engine.requests.attempts import Attempts
from kvaware_engine.requests.explain_words import ExplainedCandidate
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.fit import FilterReason
from kvaware_engine.requests.settings import RequestLedgerSettings, RequestSettings
from kvaware_engine.requests.snapshot import Snapshot
from kvaware_engine.requests.words import (
    Action,
    EventType,
    EventVerdict,
    Mode,
    Phase,
    Placement,
    PlacementReason,
    PlacementRefusal,
)
from kvaware_testing.placer_builders import PlacerAtWork, model
from kvaware_testing.worker_builders import MODEL

PREFIX = tuple(range(1, 385))
"""6,144 tokens in blocks of 16."""


def limited(world: PlacerAtWork, **limits: int) -> None:
    """A quota of the tenant ``default``."""
    quota = TenantQuotaObservation(
        name="q", uid="u", created_at="2026-01-01T00:00:00Z", tenant="default", namespaces=(), limits=Amounts(**limits)
    )
    world.placer.observe_quota("q", quota)


def one_holds_it(world: PlacerAtWork) -> str:
    """A request with the prefix came and went. Returns: The worker that holds it now."""
    first = world.placed("first", input_tokens=6200, block_hashes=PREFIX, expected_output_tokens=10)
    world.tells(first, EventType.FINISHED, output_tokens=10)
    world.now_s += 20
    for name in world.names:
        world.hears(name)
    return first.option.worker


def split_fleet(world: PlacerAtWork, *roles: str, **told: object) -> None:
    """Workers of these roles, named after them."""
    for number, role in enumerate(roles):
        name = f"ml:{role}-{number}:0"
        world.names.append(name)
        world.expect(name, role=role, node=f"n{number}")
        world.hears(name, **told)


def test_a_copy_counts_for_its_tenant_until_the_first_token():
    """It is made by then; an answer of a minute must not keep the tenant from the next copy."""
    world = PlacerAtWork(2, capabilities=("migrate",))
    holder = one_holds_it(world)
    other = next(name for name in world.names if name != holder)
    limited(world, concurrent_migrations=1)
    wanted = {"input_tokens": 6200, "block_hashes": PREFIX, "candidates": frozenset({other})}
    placement = world.placed("r1", **wanted)
    assert placement.option.action is Action.MIGRATE
    assert world.placed("r2", **(wanted | {"block_hashes": (*PREFIX[:300], 9)})).option.action is not Action.MIGRATE
    world.tells(placement, EventType.FIRST_TOKEN)
    assert world.placer.limits.migration_bytes("default", world.now_s) is None
    world.tells(placement, EventType.FINISHED, output_tokens=10)
    assert world.placer.limits.views(world.now_s)[0].concurrent_migrations == 0


def test_a_copy_that_its_worker_refuses_does_not_count_any_more():
    world = PlacerAtWork(2, capabilities=("migrate",))
    holder = one_holds_it(world)
    other = next(name for name in world.names if name != holder)
    limited(world, concurrent_migrations=5)
    placement = world.placed("r1", input_tokens=6200, block_hashes=PREFIX, candidates=frozenset({other}))
    assert placement.option.action is Action.MIGRATE
    world.tells(placement, EventType.REFUSED)
    assert world.placer.limits.views(world.now_s)[0].concurrent_migrations == 0


def test_a_request_that_runs_elsewhere_does_there_what_nobody_has_to_command():
    """A copy was commanded for nobody there, so none is expected, charged or ended."""
    world = PlacerAtWork(2, capabilities=("migrate",))
    holder = one_holds_it(world)
    other = next(name for name in world.names if name != holder)
    placement = world.placed("r1", input_tokens=6200, block_hashes=PREFIX)
    assert placement.option.worker == holder
    world.tells(placement, EventType.STARTED, worker=other)
    moved = world.placer.placement(placement.placement_id)
    assert moved is not None
    assert (moved.option.worker, moved.option.mode, moved.option.transfer_bytes) == (other, Mode.EXPECTED, 0)
    assert world.tells(placement, EventType.FINISHED, output_tokens=10)[0] is EventVerdict.TAKEN
    assert world.placer.limits.in_flight("default") == 0


def test_a_request_that_moved_is_explained_as_it_was_decided():
    world = PlacerAtWork(2)
    placement = world.placed("r1", input_tokens=6200, block_hashes=PREFIX)
    other = next(name for name in world.names if name != placement.option.worker)
    world.tells(placement, EventType.STARTED, worker=other)
    explained = world.placer.explain(placement.placement_id)
    assert explained is not None
    assert explained.chosen == placement.option.worker == explained.candidates[0].worker
    assert explained.terms == placement.option.terms


def test_what_a_prefill_worker_reads_from_another_counts_for_its_tenant():
    """Of a pair both parts move bytes: the limit would mean nothing where roles are split."""
    world = PlacerAtWork(0)
    split_fleet(world, "prefill", "prefill", "decode", "decode", capabilities=("pull_from_peer",))
    first = world.placed("first", input_tokens=6200, block_hashes=PREFIX, expected_output_tokens=10)
    assert first.prefill is not None
    world.tells(first, EventType.FINISHED, output_tokens=10)
    rate = 10**10
    limited(world, remote_read_bytes_per_s=rate)
    others = frozenset(world.names) - {first.prefill.worker, first.option.worker}
    placement = world.placed("r1", input_tokens=6200, block_hashes=PREFIX, candidates=others)
    assert placement.prefill is not None
    assert placement.prefill.action is Action.REMOTE_READ
    moved = placement.prefill.transfer_bytes + placement.option.transfer_bytes
    assert placement.prefill.transfer_bytes > 0
    (left,) = (limit.left for limit in world.placer.limits.views(world.now_s)[0].limits)
    assert left == pytest.approx(rate - moved)


def test_the_demand_of_a_refused_attempt_stays_whole_for_the_next():
    """The first attempt's snapshot is forgotten while the second still runs: the hashes are the second's as well."""
    world = PlacerAtWork(3, settings=RequestSettings(ledger=RequestLedgerSettings(kept_explained=2)))
    wanted = {"input_tokens": 6200, "block_hashes": PREFIX}
    placement = world.placed("r1", **wanted)
    _, following = world.tells(placement, EventType.REFUSED)
    assert not isinstance(following, PlacementRefusal)
    for number in range(4):
        world.placed(f"other-{number}")
    assert world.placed("r1", **wanted) is following
    assert following is not None
    assert tuple(following.demand.block_hashes) == PREFIX


def test_who_asks_again_keeps_the_place():
    """The answer says for how long it is reserved: that has to be true of a repeated one, too."""
    world = PlacerAtWork(settings=RequestSettings(ledger=RequestLedgerSettings(ttl_s=30)))
    placement = world.placed("r1")
    world.now_s += 20
    assert world.placed("r1") is placement
    world.now_s += 20
    world.placer.tick(world.now_s)
    assert len(world.placer.ledger) == 1
    world.now_s += 11
    world.placer.tick(world.now_s)
    assert len(world.placer.ledger) == 0


def test_a_mistake_in_deciding_costs_the_tenant_nothing(monkeypatch: pytest.MonkeyPatch):
    world = PlacerAtWork()
    limited(world, requests_per_s=1, concurrent_requests=1)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Attempts, "decide", broken)
        with pytest.raises(ZeroDivisionError):
            world.place()
    assert world.placer.limits.in_flight("default") == 0
    assert not isinstance(world.place(), PlacementRefusal)


def test_a_saturated_prefill_sheds_however_idle_those_are_that_decode():
    world = PlacerAtWork(0, settings=RequestSettings(ledger=RequestLedgerSettings(saturation_wait_s=2.0)))
    split_fleet(world, "prefill", "decode", "decode", capabilities=("pull_by_prefill",))
    outcomes = [world.place() for _ in range(10)]
    shed = [each for each in outcomes if isinstance(each, PlacementRefusal)]
    assert {each.reason for each in shed} == {PlacementReason.SATURATED}
    assert 3 <= len(shed) <= 6  # half a second of prefill each: some five fit into two seconds


def test_pools_that_stay_full_for_long_shed_as_queues_do():
    """Nothing waits for prefill there, and all of it waits for room."""
    world = PlacerAtWork(
        1, pool_blocks=250, settings=RequestSettings(ledger=RequestLedgerSettings(saturation_wait_s=2.0))
    )
    world.now_s += 1
    world.hears(world.names[0], kv_blocks_free=0, running=1)
    outcome = world.place(input_tokens=1500, expected_output_tokens=2000)
    assert isinstance(outcome, PlacementRefusal)
    assert outcome.reason is PlacementReason.SATURATED


def test_a_deadline_is_met_where_it_can_be():
    """By turns it would go to the one with a queue; the other makes it."""
    world = PlacerAtWork(2, seen=model(policy="round_robin"))
    busy = world.placed("long", input_tokens=10_000).option.worker
    idle = world.placed("short", input_tokens=10).option.worker
    assert busy != idle
    placement = world.placed("r1", input_tokens=1000, deadline_ms=800)
    assert placement.option.worker == idle
    explained = world.placer.explain(placement.placement_id)
    assert explained is not None
    assert {each.worker: each.filtered for each in explained.candidates} == {idle: None, busy: FilterReason.TOO_LATE}


def test_another_revision_of_the_weights_has_no_blocks_yet():
    """Neither under the hashes of before nor by what workers told of them."""
    world = PlacerAtWork(2)
    root = world.placer.root(MODEL, None, None)
    one_holds_it(world)
    running = world.placed("running", input_tokens=6200, block_hashes=PREFIX)
    world.placer.observe_model(MODEL, model(revision="another"))
    assert world.placer.root(MODEL, None, None) != root
    assert world.placer.index_blocks() == {MODEL: 0}
    assert world.placed("r1", input_tokens=6200, block_hashes=PREFIX).reason is PlacementReason.COLD
    world.tells(running, EventType.FINISHED, output_tokens=10)
    assert len(world.placer.ledger) == 1


def test_what_only_prefills_takes_no_room_for_an_answer():
    world = PlacerAtWork(1)
    free = world.candidates(world.demand("look")).figures[Figure.KV_FREE_TOKENS, 0]
    world.placed("r1", input_tokens=1000, expected_output_tokens=500, phase=Phase.PREFILL)
    assert world.candidates(world.demand("look")).figures[Figure.KV_FREE_TOKENS, 0] == free - 1000


def test_an_index_that_is_wrong_of_a_worker_is_built_anew():
    """vllm-project/aibrix#2287: who emptied its cache without a word is found out by what it does not find."""
    world = PlacerAtWork(1)
    one_holds_it(world)
    held = []
    for number in range(12):
        placement = world.placed(f"r{number}", input_tokens=6200, block_hashes=PREFIX)
        world.tells(placement, EventType.FIRST_TOKEN, cached_tokens=0)
        held.append(world.candidates(world.demand("look", input_tokens=6200, block_hashes=PREFIX)).deepest_tokens)
        world.tells(placement, EventType.FINISHED, output_tokens=1)
    assert held.index(0) == 10  # (15/16)^11 = 0.49: less than half of what was predicted was found


def test_an_explanation_stays_the_same_when_its_request_ends_meanwhile(monkeypatch: pytest.MonkeyPatch):
    """It runs in a thread, and with a request's end its hashes go: half of the figures would be another demand's."""
    world = PlacerAtWork(2, settings=RequestSettings(ledger=RequestLedgerSettings(kept_explained=1)))
    placement = world.placed("r1", input_tokens=6200, block_hashes=PREFIX)
    before = world.placer.explain(placement.placement_id)
    in_order = explain_module.in_order

    def ends_first(snapshot: Snapshot) -> tuple[ExplainedCandidate, ...]:
        world.tells(placement, EventType.FINISHED, output_tokens=10)
        world.placed("r2")
        assert not placement.demand.block_hashes
        return in_order(snapshot)

    monkeypatch.setattr(explain_module, "in_order", ends_first)
    assert world.placer.explain(placement.placement_id) == before


def test_an_answer_longer_than_can_be_is_neither_learned_nor_charged():
    """40 of 10,000,000 tokens made every later request seem to fill a whole pool: nobody was served any more."""
    world = PlacerAtWork(2)
    limited(world, tokens_per_s=10**6)
    for number in range(40):
        world.tells(world.placed(f"r{number}"), EventType.FINISHED, output_tokens=10**7)
        world.now_s += 1
    expected = RequestLedgerSettings().expected_output_tokens
    assert world.placer.lengths.expected(MODEL, "default") == expected
    assert world.placed("next", expected_output_tokens=None).expected_output_tokens == expected


def test_a_refusal_of_a_worker_that_nobody_knows_is_said_to_be_one():
    world = PlacerAtWork(2)
    placement = world.placed("r1")
    verdict, following = world.tells(placement, EventType.REFUSED, worker="ml:nobody:0")
    assert (verdict, following) == (EventVerdict.UNKNOWN_WORKER, None)
    refused = placement.option.worker
    assert world.tells(placement, EventType.REFUSED, worker=refused)[0] is EventVerdict.TAKEN
    world.workers.expect(refused, None)
    world.now_s += 3600
    assert world.tells(placement, EventType.REFUSED, worker=refused)[0] in {EventVerdict.REPEATED, EventVerdict.LATE}


def test_the_one_token_of_a_prefill_is_no_answer():
    """Where a gateway places both phases itself: of what is computed twice most answers would seem to have one."""
    world = PlacerAtWork(2)
    for number in range(30):
        phase, output = (Phase.DECODE, 300) if number % 3 == 0 else (Phase.PREFILL, 1)
        world.tells(world.placed(f"r{number}", phase=phase), EventType.FINISHED, output_tokens=output)
    assert world.placer.lengths.expected(MODEL, "default") == 300


def test_a_prefill_worker_that_tells_late_that_it_started_does_not_take_the_answer_over():
    """Events come in any order: by then its part is over, and the other worker decodes."""
    world = PlacerAtWork(0)
    split_fleet(world, "prefill", "decode", capabilities=("pull_by_prefill",))
    placement = world.placed("r1")
    assert placement.prefill is not None
    world.tells(placement, EventType.FIRST_TOKEN)
    world.tells(placement, EventType.STARTED, worker=placement.prefill.worker)
    assert world.placer.placement(placement.placement_id) is placement


MUCH = 10**9


@pytest.mark.parametrize("ends", [EventType.FINISHED, EventType.REFUSED])
@pytest.mark.parametrize(
    ("before", "goes"),
    [
        pytest.param({}, False, id="no quota before"),
        pytest.param({"concurrent_requests": 1000}, False, id="another limit before"),
        pytest.param({"tokens_per_s": MUCH, "requests_per_s": MUCH}, False, id="a higher one before"),
        pytest.param({"tokens_per_s": MUCH, "requests_per_s": MUCH}, True, id="one that was gone between"),
    ],
)
def test_what_was_never_charged_is_not_given_back(before: dict[str, int], ends: EventType, *, goes: bool):
    """A new limit would let a multiple of itself through for as long as requests of before end."""
    ledger = RequestLedgerSettings(attempts_max=1, saturation_wait_s=1e6)
    world = PlacerAtWork(1, settings=RequestSettings(ledger=ledger))
    if before:
        limited(world, **before)
    earlier = [world.placed(input_tokens=1000, expected_output_tokens=4000) for _ in range(20)]
    if goes:
        world.placer.observe_quota("q", None)
    refused = ends is EventType.REFUSED  # then the request itself is given back, too
    limited(world, tokens_per_s=1000, **({"requests_per_s": 1} if refused else {}))
    world.now_s += 1  # what they took of a higher rate is there again
    passed = 0
    for each in earlier:
        passed += isinstance(world.place(input_tokens=900, expected_output_tokens=100), Placement)
        world.tells(each, ends, output_tokens=None if refused else 1)
    assert passed == 1
