"""What can be brought from other workers: who can, over which link, what waiting hides, and what a tenant may move."""

import pytest

from kvaware_engine.observations import Tier
from kvaware_engine.requests.columns import costs_ms
from kvaware_engine.requests.options import options
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.settings import RequestCostSettings, RequestSettings
from kvaware_engine.requests.transfers import sources_of
from kvaware_engine.requests.words import Action, Mode, Option
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts

PROMPT = 10_000
HELD = 8000
"""At 100 kB a token 800 MB; 4,000 ms of prefill."""


def at(worker: str, *, can: str | None = "pull_from_peer", **place: object) -> object:
    return worker_facts(worker, can=(can,) if can else (), **place)  # type: ignore[arg-type]


def offered(target: Seat, *holders: Seat, **told: object) -> list[Option]:
    seen = candidates(target, *holders, demand=request(input_tokens=PROMPT), **told)  # type: ignore[arg-type]
    found = options(seen, 0)
    assert costs_ms(seen)[0] == pytest.approx(found[0].terms.total)
    return list(found)


def of(action: Action, offers: list[Option]) -> Option:
    (one,) = (option for option in offers if option.action is action)
    return one


@pytest.mark.parametrize(
    ("can", "action", "mode", "tier"),
    [
        ("pull_from_peer", Action.REMOTE_READ, Mode.COMMANDED, Tier.CPU),
        ("pull_by_prefill", Action.REMOTE_READ, Mode.COMMANDED, Tier.HBM),
        ("shared_store", Action.REMOTE_READ, Mode.EXPECTED, Tier.CPU),
        ("migrate", Action.MIGRATE, Mode.COMMANDED, Tier.HBM),
        (None, Action.WARM_UP, Mode.COMMANDED, None),
        ("pin", Action.WARM_UP, Mode.COMMANDED, None),
    ],
)
def test_each_option_needs_its_capability(can: str | None, action: Action, mode: Mode, tier: Tier | None):
    """Who reads and who is read from both need it; without any the only way to a second copy is a prefill."""
    offers = offered(seat(facts=at("t", can=can)), seat(matched=HELD, facts=at("h", can=can)))
    option = of(action, offers)
    assert (option.mode, option.tier) == (mode, tier)
    assert {each.action for each in offers} == {action, Action.RECOMPUTE}
    half = offered(seat(facts=at("t", can=can)), seat(matched=HELD, facts=at("h", can=None)))
    assert {each.action for each in half} == {Action.WARM_UP, Action.RECOMPUTE}


def test_nothing_moves_between_transfer_domains():
    """Another revision, layout or connector version: the bytes would mean nothing."""
    offers = offered(seat(facts=at("t", domain="d1")), seat(matched=HELD, facts=at("h", domain="d2")))
    assert {each.action for each in offers} == {Action.WARM_UP, Action.RECOMPUTE}


@pytest.mark.parametrize(
    ("target", "holder", "ms"),
    [
        pytest.param({"clique": "c", "node": "n"}, {"clique": "c", "node": "n"}, 8, id="NVLink: 800 MB at 100 GB/s"),
        pytest.param({"node": "n"}, {"node": "n"}, 80, id="PCIe of the node: 10 GB/s"),
        pytest.param({"rack": "r", "node": "n1"}, {"rack": "r", "node": "n2"}, 160, id="rack: 5 GB/s"),
        pytest.param({"zone": "z", "rack": "r1"}, {"zone": "z", "rack": "r2"}, 400, id="zone: 2 GB/s"),
        pytest.param({"zone": "z1"}, {"zone": "z2"}, 800, id="elsewhere: 1 GB/s"),
        pytest.param({}, {}, 800, id="unknown places have nothing in common"),
    ],
)
def test_a_read_takes_its_bytes_over_the_nearest_link(target: dict[str, str], holder: dict[str, str], ms: float):
    """And replaces the prefill of what it brings."""
    option = of(Action.REMOTE_READ, offered(seat(facts=at("t", **target)), seat(matched=HELD, facts=at("h", **holder))))
    assert option.terms.network == pytest.approx(ms)
    assert option.terms.cache_access == pytest.approx(0.5 * (PROMPT - HELD))
    assert (option.source, option.matched_tokens, option.transfer_bytes) == ("h", HELD, 800_000_000)


def test_bytes_in_flight_are_in_front_on_the_network_but_not_inside_a_node():
    """The busier of the two nodes' links counts."""
    busy = {"link_bytes_in_flight": 500e6}
    racks = [at(name, rack="r", node=name) for name in ("t", "h")]
    nodes = [at(name, node="n") for name in ("t", "h")]
    for (target, holder), ms in ((racks, 160 + 100), (nodes, 80)):
        for where in ({}, busy), (busy, {}):
            one, two = where
            offers = offered(seat(facts=target, **one), seat(matched=HELD, facts=holder, **two))
            assert of(Action.REMOTE_READ, offers).terms.network == pytest.approx(ms)


def test_waiting_hides_a_transfer():
    """It runs while the request waits for its prefill: only the rest is charged."""
    place = {"rack": "r"}
    for queue_ms, exposed in ((0, 160), (100, 60), (500, 0)):
        target = seat(facts=at("t", **place), queue_ms=queue_ms)
        option = of(Action.REMOTE_READ, offered(target, seat(matched=HELD, facts=at("h", **place))))
        assert option.terms.network == pytest.approx(exposed)
        copied = seat(facts=at("t", can="migrate", **place), queue_ms=queue_ms)
        option = of(Action.MIGRATE, offered(copied, seat(matched=HELD, facts=at("h", can="migrate", **place))))
        assert (option.terms.migration, option.terms.network) == (pytest.approx(exposed), 0)


def test_a_pull_by_prefill_waits_for_the_holders_own_queue():
    """The hand-over is a call at the holder: its queue, half a step, and one token's prefill come first."""
    holder = seat(matched=HELD, facts=at("h", can="pull_by_prefill"), queue_ms=300, half_step_ms=10)
    option = of(Action.REMOTE_READ, offered(seat(facts=at("t", can="pull_by_prefill")), holder))
    assert option.terms.network == pytest.approx(300 + 10 + 0.5 + 800)


def test_the_sources_own_lower_tiers_come_first():
    """100 MB at 10 GB/s from its CPU memory, 100 MB at 1 GB/s from its SSD."""
    holder = seat(matched=HELD, cpu=1000, ssd=1000, facts=at("h"))
    option = of(Action.REMOTE_READ, offered(seat(facts=at("t")), holder))
    assert option.terms.network == pytest.approx(10 + 100 + 800)
    assert option.tier is Tier.SSD


def test_only_what_is_missing_is_read():
    """The own prefix stays; its part of the other's is not moved."""
    option = of(Action.REMOTE_READ, offered(seat(matched=3000, facts=at("t")), seat(matched=HELD, facts=at("h"))))
    assert option.transfer_bytes == 500_000_000
    assert option.terms.network == pytest.approx(500)


def test_a_tenant_reads_and_copies_within_its_limits():
    """A limit of 0 masks the option; the prefill is always left."""
    told = {"remote_bytes": 799e6, "migration_bytes": 800e6}
    both = [worker_facts(name, can=("pull_from_peer", "migrate")) for name in ("t", "h")]
    offers = offered(seat(facts=both[0]), seat(matched=HELD, facts=both[1]), **told)
    assert {each.action for each in offers} == {Action.MIGRATE, Action.RECOMPUTE}
    nothing = {"remote_bytes": 0.0, "migration_bytes": 0.0}
    offers = offered(seat(facts=both[0]), seat(matched=HELD, facts=both[1]), **nothing)
    assert {each.action for each in offers} == {Action.RECOMPUTE}


def test_without_the_bytes_of_a_token_nothing_is_moved():
    """No transfer can be priced: a prefill is the only way to a copy."""
    offers = offered(seat(facts=at("t")), seat(matched=HELD, facts=at("h")), bytes_per_token=None)
    assert {each.action for each in offers} == {Action.RECOMPUTE, Action.WARM_UP}


def test_servers_that_read_while_decoding_pay_per_step():
    """0.2 ms for each of 100 tokens, for a read alone."""
    settings = RequestSettings(costs=RequestCostSettings(transfer_latency_ms=5, remote_step_penalty_ms=0.2))
    option = of(
        Action.REMOTE_READ,
        offered(seat(facts=at("t")), seat(matched=HELD, facts=at("h")), settings=settings),
    )
    assert option.terms.network == pytest.approx(5 + 800 + 20)


def test_a_warm_up_is_never_cheaper_than_to_compute_at_once():
    """Two prefills instead of one: shown with its price, chosen by nobody."""
    first, second = offered(seat(facts=at("t", can=None)), seat(matched=HELD, facts=at("h", can=None)), congestion=0.5)
    assert (first.action, second.action) == (Action.RECOMPUTE, Action.WARM_UP)
    assert second.terms.migration == pytest.approx(0.5 * HELD)
    assert second.terms.cache_access == pytest.approx(0.5 * (PROMPT - HELD))
    assert second.terms.total == pytest.approx(first.terms.total)


def test_sources_are_the_deepest_then_the_least_busy_then_in_order():
    """At most ``sources_max``, by what is expected to be there; who is not heard is none, who is full may be one."""
    seen = candidates(
        seat(matched=500),
        seat(matched=900, link_bytes_in_flight=5.0),
        seat(matched=900),
        seat(matched=900, barred=True),
        seat(matched=999, barred=False),
        seat(matched=950, confidence_ratio=0.5),
        seat(),
    )
    seen.figures[0, 4] = float("inf")  # the worker itself is barred, not only for this demand
    assert [source.slot for source in sources_of(seen)] == [2, 3, 1, 0]
    assert [source.tokens for source in sources_of(seen)] == [900, 900, 900, 500]


def test_rows_of_sources_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch):
    """Each is some columns per source: at 7,000 workers all of them would be 250 MB."""
    monkeypatch.setattr("kvaware_engine.requests.reach._ROWS_BYTES", 10 * 5 * 100)
    reach = Reach([worker_facts(f"w{slot}", can=("migrate",)) for slot in range(100)])
    first = reach.row(0)
    assert reach.row(0) is first
    for slot in range(100):
        reach.row(slot)
    assert len(reach._rows) == 10
    assert reach.row(0) is not first
