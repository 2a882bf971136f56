"""A fleet's columns: what was reported of each worker, and what was reserved after that."""

from math import inf, isinf, isnan

import numpy as np
import pytest

from kvaware_engine import NodeObservation
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.fleet import FleetChange
from kvaware_testing.builders import model
from kvaware_testing.fleet_builders import FleetAtWork, reservation
from kvaware_testing.worker_builders import MODEL, WORKER, scrape

OTHER = "ml:llama-1:0"
LOAD = (Figure.REQUESTS, Figure.BATCH, Figure.KV_FREE_TOKENS)


def loads(fleet: FleetAtWork, worker: str = WORKER) -> tuple[float, ...]:
    """Requests, batch, free tokens."""
    return tuple(fleet.figure(figure, worker) for figure in LOAD)


def test_a_report_becomes_columns():
    """Every figure that the worker tells; what it leaves out is unknown and not 0."""
    fleet = FleetAtWork(WORKER, OTHER)
    fleet.hears(
        at_s=1,
        waiting=0,
        running=3,
        kv_blocks_total=100,
        kv_blocks_free=40,
        block_size_tokens=32,
        gpu_utilization_ratio=0.5,
        hbm_used_bytes=7,
        cpu_tier_free_bytes=8,
        ssd_tier_free_bytes=9,
    )
    assert loads(fleet) == (3, 3, 1280)  # 40 * 32
    told = {
        Figure.KV_TOTAL_TOKENS: 3200,
        Figure.GPU_UTILIZATION_RATIO: 0.5,
        Figure.HBM_USED_BYTES: 7,
        Figure.CPU_FREE_BYTES: 8,
        Figure.SSD_FREE_BYTES: 9,
        Figure.OBSERVED_AT_S: 1,
        Figure.HALF_STEP_MS: 10,  # a step of batch 3 takes 20 ms
        Figure.DECODE_MS_PER_TOKEN: 20,  # and one more makes it no longer
        Figure.REUSE_RATIO: 0.3,  # unknown_reuse_ratio
        Figure.PRESSURE_MS_PER_TOKEN: 0.15,  # times 0.5 ms per token
    }
    assert {figure: fleet.figure(figure) for figure in told} == pytest.approx(told)
    for figure in told.keys() - {Figure.HALF_STEP_MS, Figure.DECODE_MS_PER_TOKEN, Figure.REUSE_RATIO}:
        if figure is not Figure.PRESSURE_MS_PER_TOKEN:
            assert isnan(fleet.figure(figure, OTHER))
    assert (fleet.figure(Figure.HALF_STEP_MS, OTHER), fleet.figure(Figure.DECODE_MS_PER_TOKEN, OTHER)) == (0, 20)


def test_the_batch_effect_counts_every_sequence_that_one_more_slows_down():
    """From batch 10 to 11 a step gets 1 ms longer, for 10 sequences: 21 + 10 * 1."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=0, running=10)
    assert fleet.figure(Figure.DECODE_MS_PER_TOKEN) == pytest.approx(31)


def test_a_reservation_counts_at_once_and_is_gone_when_it_ends():
    """Queue, batch, KV pool and what is still to be answered; the first token ends its prefill alone."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1, waiting=0, running=3, kv_blocks_total=1000, kv_blocks_free=500)
    before = fleet.fleet.figures.copy()
    one, two = fleet.reserve(at_s=2), fleet.reserve(at_s=2)
    assert loads(fleet) == (5, 5, 8000 - 2 * 1100)
    assert fleet.figure(Figure.FREE_AT_S) == pytest.approx(3.0)  # two prefills of half a second
    assert fleet.figure(Figure.REMAINING_TOKENS) - before[Figure.REMAINING_TOKENS, 0] == 200
    assert fleet.figure(Figure.LAST_CHOSEN) == 2
    fleet.fleet.prefilled(one, 2.5)
    assert (fleet.figure(Figure.FREE_AT_S), loads(fleet)[1]) == (pytest.approx(3.0), 5)
    fleet.fleet.progressed(one, 40)
    assert fleet.figure(Figure.REMAINING_TOKENS) - before[Figure.REMAINING_TOKENS, 0] == 160
    for each in (one, two, two):  # told twice: once
        fleet.fleet.discharge(each, 2.6)
    changed = (fleet.fleet.figures != before) & ~(np.isnan(before) & np.isnan(fleet.fleet.figures))
    assert set(np.nonzero(changed)[0]) == {Figure.LAST_CHOSEN}
    assert loads(fleet) == (3, 3, 8000)


def test_a_report_never_erases_what_was_reserved_after_it():
    """It was observed before the reservation and arrives later: both count."""
    fleet = FleetAtWork(WORKER)
    fleet.reserve(at_s=2)
    fleet.hears(at_s=1, now_s=3, waiting=1, running=4, kv_blocks_total=1000, kv_blocks_free=500)
    assert loads(fleet) == (6, 6, 8000 - 1100)
    # 1 waits for others: 1,024 tokens from 1.0 s, then our own prefill of half a second from 2.0 s
    assert fleet.figure(Figure.FREE_AT_S) == pytest.approx(2.5)


def test_what_was_reserved_before_a_report_is_in_it_and_leaves_when_it_ends():
    """The rule of design 004: until the next report its end is subtracted."""
    fleet = FleetAtWork(WORKER)
    one = fleet.reserve(at_s=2)
    fleet.hears(at_s=3, waiting=0, running=5, kv_blocks_total=1000, kv_blocks_free=500)
    assert loads(fleet) == (5, 5, 8000)
    fleet.fleet.discharge(one, 4)
    assert loads(fleet) == (4, 4, 8000 + 1100)
    fleet.hears(at_s=5, waiting=0, running=5, kv_blocks_free=500)
    assert loads(fleet) == (5, 5, 8000)


def test_of_two_sources_the_later_observation_holds_and_reservations_are_added_to_it():
    """ai-dynamo/dynamo#7753: two sources, one number, and the last writer won: overload was never seen."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1.0, kv_blocks_total=1000, kv_blocks_free=100)
    fleet.reserve(at_s=1.1)
    fleet.takes(scrape(at_s=0.5, kv_usage_ratio=0.2), now_s=1.2)  # 800 free, but earlier
    assert fleet.figure(Figure.KV_FREE_TOKENS) == 1600 - 1100
    fleet.workers.observe(scrape(at_s=1.15, kv_usage_ratio=0.8), now_s=1.3)  # later than the reservation: in it
    fleet.follow(1.3)
    assert fleet.figure(Figure.KV_FREE_TOKENS) == 3200


def test_each_figure_counts_from_its_own_observation():
    """A heartbeat that tells the pool alone says nothing of the batch: the reservation between stays in that."""
    fleet = FleetAtWork(WORKER)
    fleet.takes(scrape(at_s=1, waiting=0, running=2, kv_usage_ratio=0.5), now_s=1)
    fleet.reserve(at_s=2)
    fleet.hears(at_s=3, kv_blocks_total=1000, kv_blocks_free=400)
    assert loads(fleet) == (3, 3, 6400)


def test_a_short_absence_of_the_same_incarnation_keeps_what_runs_there():
    """ai-dynamo/dynamo#13513: bookings of a worker that left discovery were deleted; back again it looked idle."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1, waiting=0, running=0)
    for _ in range(20):
        fleet.reserve(at_s=2)
    fleet.expect(ready=False, now_s=3)
    assert not fleet.may_be_chosen(now_s=3)
    fleet.expect(now_s=4)
    assert (fleet.may_be_chosen(now_s=4), fleet.figure(Figure.REQUESTS)) == (True, 20)
    fleet.expect(gone=True, now_s=5)
    assert not fleet.may_be_chosen(now_s=5)
    fleet.expect(now_s=6)
    assert (fleet.may_be_chosen(now_s=6), fleet.figure(Figure.REQUESTS)) == (True, 20)
    assert set(fleet.changes) == {FleetChange.CAME, FleetChange.SAME, FleetChange.ABSENT}


@pytest.mark.parametrize("by", ["the API server", "its heartbeats"])
def test_another_incarnation_drops_what_ran_there(by: str):
    """Its KV pool is empty; what was reserved on the one before does not count again when it ends."""
    fleet = FleetAtWork(WORKER)
    fleet.hears(at_s=1, waiting=0, running=0)
    old = [fleet.reserve(at_s=2, priority=number) for number in range(20)]
    if by == "the API server":
        fleet.expect(incarnation="uid-1/start-2", now_s=3)
    else:
        fleet._seq = -1
        fleet.hears(at_s=50)
    assert fleet.changes[-1] is FleetChange.STARTED_AGAIN
    assert (fleet.figure(Figure.REQUESTS), fleet.figure(Figure.REMAINING_TOKENS)) == (0, 0)
    assert fleet.fleet.waits_ahead_ms(100, 51) is None
    for each in old:
        fleet.fleet.prefilled(each, 51)
        fleet.fleet.progressed(each, 3)
        fleet.fleet.discharge(each, 52)
    assert (fleet.figure(Figure.REQUESTS), fleet.figure(Figure.REMAINING_TOKENS)) == (0, 0)


def test_nobody_is_charged_on_an_incarnation_that_is_gone():
    """Nor twice: the caller broke the contract."""
    fleet = FleetAtWork(WORKER)
    with pytest.raises(ValueError, match="expected 'uid-0' there"):
        fleet.fleet.charge(reservation(fleet.slot(), incarnation="uid-0"), 1)
    with pytest.raises(ValueError, match="nobody"):
        fleet.fleet.charge(reservation(5), 1)
    charged = fleet.reserve(at_s=1)
    with pytest.raises(ValueError, match="not charged yet"):
        fleet.fleet.charge(charged, 1)


def test_a_slot_is_given_again_only_when_no_reservation_names_it():
    """Else the end of an old one would be taken for that of another worker's."""
    fleet = FleetAtWork(WORKER)
    old, slot = fleet.reserve(at_s=1), fleet.slot()
    fleet.expect(gone=True, now_s=2)
    fleet.workers.tick(3)
    fleet.follow(70)  # forgotten after 60 s
    assert (fleet.changes[-1], WORKER in fleet.fleet.slot_of, fleet.fleet.facts[slot]) == (
        FleetChange.FORGOTTEN,
        False,
        None,
    )
    fleet.expect(OTHER, now_s=71)
    assert fleet.slot(OTHER) != slot
    fleet.fleet.discharge(old, 72)
    fleet.expect("ml:llama-2:0", now_s=73)
    assert fleet.slot("ml:llama-2:0") == slot
    assert loads(fleet, "ml:llama-2:0")[:2] == (0, 0)


def test_more_workers_than_slots_double_the_columns():
    """What was there stays; a slot without a worker is barred."""
    fleet = FleetAtWork(*(f"ml:w-{number}:0" for number in range(17)))
    fleet.hears("ml:w-3:0", at_s=1, waiting=0, running=7)
    charged = fleet.reserve("ml:w-16:0", at_s=1)
    for number in range(17, 40):
        fleet.expect(f"ml:w-{number}:0", now_s=2)
    assert (fleet.fleet.slots, len(fleet.fleet.facts)) == (64, 64)
    assert (fleet.figure(Figure.REQUESTS, "ml:w-3:0"), fleet.figure(Figure.REQUESTS, "ml:w-16:0")) == (7, 1)
    fleet.fleet.discharge(charged, 2)
    assert fleet.figure(Figure.REQUESTS, "ml:w-16:0") == 0
    fleet.fleet.refresh(2)
    barred = fleet.fleet.figures[Figure.BARRED]
    assert [isinf(each) for each in barred] == [False] * 40 + [True] * 24
    never_unknown = [
        figure
        for figure in Figure
        if figure
        not in {
            Figure.KV_TOTAL_TOKENS,
            Figure.KV_FREE_TOKENS,
            Figure.GPU_UTILIZATION_RATIO,
            Figure.HBM_USED_BYTES,
            Figure.CPU_FREE_BYTES,
            Figure.SSD_FREE_BYTES,
            Figure.OBSERVED_AT_S,
        }
    ]
    assert not any(isnan(each) for each in fleet.fleet.figures[never_unknown].flat)


def test_facts_tell_what_a_worker_is():
    """Place, node, capabilities of spec and heartbeat together, transfer domain with the model's revision."""
    fleet = FleetAtWork()
    fleet.nodes["n1"] = NodeObservation(name="n1", uid="u", rack="r", zone="z", clique="c")
    fleet.expect(role="prefill")
    fleet.fleet.configure(model(name="llama", namespace="ml"))
    fleet.hears(at_s=1, capabilities=("tiers",), adapters=("sql",), transfer_domain="tp4")
    facts = fleet.fleet.facts[fleet.slot()]
    assert facts is not None
    assert (facts.worker, facts.role, facts.node, facts.rack, facts.zone, facts.clique) == (
        WORKER,
        "prefill",
        "n1",
        "r",
        "z",
        "c",
    )
    assert (facts.capabilities, facts.adapters, facts.address) == ({"tiers"}, {"sql"}, "10.0.0.1:8000")
    assert facts.transfer_domain.endswith("|16|told=tp4")
    assert (facts.publishes_events, fleet.fleet.workers[fleet.slot()]) == (False, WORKER)
    fleet.fleet.follow_events(WORKER, followed=True)
    renewed = fleet.fleet.facts[fleet.slot()]
    assert renewed is not None
    assert renewed.publishes_events


def test_a_pool_for_one_tenant_alone_and_the_smallest_kv_pool_are_known_without_looking():
    """So that a decision looks at each worker only where it has to."""
    fleet = FleetAtWork(WORKER, OTHER)
    assert (fleet.fleet.reserves, fleet.fleet.smallest_pool_tokens) == (False, inf)
    fleet.hears(at_s=1, kv_blocks_total=100)
    fleet.hears(OTHER, at_s=1, kv_blocks_total=50)
    fleet.fleet.follow(fleet.workers, OTHER, None, 1, reserved_for=frozenset({"a"}))
    assert (fleet.fleet.reserves, fleet.fleet.smallest_pool_tokens) == (True, 800)
    fleet.fleet.drop(OTHER)
    assert (fleet.fleet.reserves, fleet.fleet.smallest_pool_tokens) == (False, 1600)


def test_workers_of_one_product_share_a_class_and_a_profile():
    """As many classes as there is different hardware, whatever their number."""
    fleet = FleetAtWork(WORKER, OTHER)
    fleet.expect("ml:llama-2:0", gpus=2)
    assert [fleet.figure(Figure.HARDWARE_CLASS, worker) for worker in (WORKER, OTHER, "ml:llama-2:0")] == [0, 0, 1]
    assert [profile.gpus for profile in fleet.fleet.classes] == [1, 2]


def test_a_worker_that_serves_another_model_now_leaves():
    """Its reservations are gone with it."""
    fleet = FleetAtWork(WORKER)
    fleet.expect(model=MODEL._replace(name="other"), now_s=1)
    assert (fleet.changes[-1], fleet.fleet.slot_of) == (FleetChange.FORGOTTEN, {})
    assert fleet.fleet.follow(fleet.workers, WORKER, None, 1) is FleetChange.UNKNOWN
    assert fleet.fleet.absent(WORKER) is FleetChange.UNKNOWN


def test_what_ended_since_a_report_stays_out_when_other_figures_are_told():
    """A heartbeat with the pool alone counts everything up anew; so does a report that was observed before the end."""
    fleet = FleetAtWork(WORKER)
    one, two = fleet.reserve(at_s=1), fleet.reserve(at_s=1)
    fleet.takes(scrape(at_s=2, waiting=0, running=2, kv_usage_ratio=0.5), now_s=2)
    fleet.fleet.discharge(one, 3)
    fleet.hears(at_s=4, kv_blocks_total=1000, kv_blocks_free=500)
    assert loads(fleet) == (1, 1, 8000)
    fleet.fleet.discharge(two, 5)
    fleet.takes(scrape(at_s=4.5, waiting=0, running=1, kv_usage_ratio=0.5), now_s=5.5)
    assert loads(fleet) == (0, 0, 8000 + 1100)
