"""Requests in flight: found by placement and by the client's key, kept alive by events, remembered when they ended."""

from dataclasses import replace
from typing import Any

import pytest

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.ledger import Ending, RequestLedger, Reservation, same_demand
from kvaware_engine.requests.settings import RequestLedgerSettings
from kvaware_engine.requests.words import RequestDemand
from kvaware_testing.placement_builders import placement

MODEL = ObjectKey("ml", "llama")
TTL_S = 30.0


def ledger(*, kept: int = 100, seed: str = "k") -> RequestLedger:
    return RequestLedger(RequestLedgerSettings(ttl_s=TTL_S, kept_finished=kept), seed=seed)


def demand(request_id: str = "r1", *, tenant: str = "a", **changes: Any) -> RequestDemand:
    return RequestDemand(**{"model": MODEL, "input_tokens": 100, **changes}, request_id=request_id, tenant=tenant)


def reserved(
    book: RequestLedger,
    request_id: str = "r1",
    *,
    tenant: str = "a",
    on: str = "ml:llama-0:0",
    incarnation: str = "1",
    prefill_on: str | None = None,
    prefill_incarnation: str = "1",
    at_s: float = 0.0,
) -> Reservation:
    """One that was just taken over."""
    common: dict[str, Any] = {
        "placement_id": book.new_id(),
        "demand": demand(request_id, tenant=tenant),
        "reserved_at_s": at_s,
        "placement": placement(),
    }
    prefill = None
    if prefill_on is not None:
        prefill = Reservation(**common, slot=1, worker=prefill_on, incarnation=prefill_incarnation)
    made = Reservation(**common, slot=0, worker=on, incarnation=incarnation, prefill=prefill)
    book.reserve(made)
    return made


def test_a_reservation_is_found_by_its_placement_and_by_the_clients_key():
    book = ledger()
    made = reserved(book)
    assert book.find(made.placement_id) is made
    assert book.in_flight("a", "r1") is made
    assert book.in_flight("b", "r1") is None, "another tenant's key is another key"
    assert book.on_worker("ml:llama-0:0") == [made]
    assert (len(book), list(book)) == (1, [made])
    assert (made.request_id, made.tenant, made.model, made.input_tokens) == ("r1", "a", MODEL, 100)


def test_placement_ids_are_short_unique_and_the_same_for_the_same_seed():
    first, second, other = ledger(seed="k1-"), ledger(seed="k1-"), ledger(seed="k2-")
    ids = [first.new_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert max(map(len, ids)) <= 6
    assert ids == [second.new_id() for _ in range(1_000)]
    assert not set(ids) & {other.new_id() for _ in range(1_000)}, "ids of before a restart are unknown"


def test_a_key_in_flight_is_reserved_once():
    """The placer asks before; two reservations under one key would leave one behind."""
    book = ledger()
    made = reserved(book)
    with pytest.raises(ValueError, match="expected one that is not in flight"):
        reserved(book)
    assert book.in_flight("a", "r1") is made
    assert len(book) == 1


def test_a_key_may_be_used_again_once_its_request_ended():
    book = ledger()
    first = reserved(book)
    book.settle(first, 1.0)
    second = reserved(book, at_s=2.0)
    assert book.in_flight("a", "r1") is second
    assert book.find(first.placement_id) is first, "and events of the first are still told from those of the second"


def test_a_request_that_was_refused_once_is_remembered_from_its_own_end_on():
    """Each attempt is a reservation under the same placement id: the place of the first is not that of the last."""
    book = ledger(kept=3)
    first = reserved(book)
    book.release(first, 1.0)
    for number in range(2):
        book.settle(reserved(book, f"other{number}"), 2.0)
    again = replace(first, ending=None, ended_at_s=None, attempt=2)
    book.reserve(again)
    book.settle(again, 3.0)
    for number in range(2):
        book.settle(reserved(book, f"later{number}"), 4.0)
        assert book.find(again.placement_id) is again, f"{number + 1} of 3 ended since"
    book.settle(reserved(book, "later2"), 4.0)
    assert book.find(again.placement_id) is None


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param({}, True, id="equal"),
        pytest.param({"block_hashes": (1, 2)}, True, id="another kind of sequence"),
        pytest.param({"block_hashes": [1, 3]}, False, id="other blocks"),
        pytest.param({"block_hashes": [1]}, False, id="fewer blocks"),
        pytest.param({"input_tokens": 101}, False, id="another length"),
        pytest.param({"model": ObjectKey("ml", "other")}, False, id="another model"),
        pytest.param({"priority": 1}, False, id="another priority"),
    ],
)
def test_the_same_demand_again_is_told_from_another_one(change: dict[str, Any], *, same: bool):
    one = demand(block_hashes=[1, 2])
    assert same_demand(one, replace(one, **change)) is same


def test_it_expires_when_nothing_is_heard():
    book = ledger()
    made = reserved(book, at_s=100.0)
    assert book.expire(100.0 + TTL_S - 0.001) == []
    assert book.expire(100.0 + TTL_S) == [made]
    assert made.ending is Ending.EXPIRED
    assert (len(book), book.on_worker(made.worker), book.in_flight("a", "r1")) == (0, [], None)
    assert book.expire(1e9) == []


def test_one_that_still_reports_progress_is_never_reaped():
    """A decode of minutes is no leak: the lease lives by its events."""
    book = ledger()
    made, silent = reserved(book, "lives"), reserved(book, "silent")
    now_s = 0.0
    for _ in range(1_000):
        now_s += TTL_S * 0.9
        book.renew(made, now_s)
        book.expire(now_s + TTL_S * 0.05)
    assert made.ending is None
    assert silent.ending is Ending.EXPIRED


def test_the_longest_unheard_expire_first():
    book = ledger()
    first, second, third = (reserved(book, f"r{i}", at_s=float(i)) for i in range(3))
    book.renew(first, 3.0)
    assert list(book) == [second, third, first]
    assert book.expire(2.5 + TTL_S) == [second, third]
    assert book.expire(4.0 + TTL_S) == [first]


def test_what_ended_is_ended_once_and_remembered_for_late_events():
    book = ledger()
    made = reserved(book)
    assert book.settle(made, 5.0)
    assert not book.settle(made, 6.0)
    assert not book.release(made, 7.0)
    assert book.find(made.placement_id) is made
    assert (made.ending, made.ended_at_s) == (Ending.SETTLED, 5.0)


def test_only_the_last_that_ended_are_remembered():
    book = ledger(kept=10)
    made = [reserved(book, f"r{i}") for i in range(25)]
    for each in made:
        book.release(each, 1.0)
    assert [each for each in made if book.find(each.placement_id) is each] == made[15:]
    assert {each.ending for each in made} == {Ending.RELEASED}


def test_a_short_absence_of_the_same_incarnation_keeps_its_reservations():
    """ai-dynamo/dynamo#13513: bookings were deleted, and the worker looked idle when it was back."""
    book = ledger()
    for i in range(20):
        reserved(book, f"r{i}", incarnation="uid/start-1")
    # when it is back as what it was
    assert book.lose("ml:llama-0:0", 1.0, incarnation="uid/start-1") == []
    assert len(book.on_worker("ml:llama-0:0")) == 20


def test_a_new_incarnation_drops_the_reservations_of_the_one_before():
    """ai-dynamo/dynamo#13513, the other half: a restarted container runs none of them."""
    book = ledger()
    old = [reserved(book, f"r{i}", incarnation="uid/start-1") for i in range(20)]
    elsewhere = reserved(book, "elsewhere", on="ml:llama-1:0")
    new = reserved(book, "new", incarnation="uid/start-2")
    assert book.lose("ml:llama-0:0", 1.0, incarnation="uid/start-2") == old
    assert {each.ending for each in old} == {Ending.LOST}
    assert list(book) == [elsewhere, new]


def test_a_worker_that_is_gone_keeps_nothing():
    book = ledger()
    made = reserved(book)
    assert book.lose(made.worker, 1.0) == [made]
    assert book.lose("ml:never-seen:0", 1.0) == []
    assert len(book) == 0


def test_a_pair_holds_on_both_workers_until_the_prompt_is_handed_over():
    book = ledger()
    made = reserved(book, on="ml:decode-0:0", prefill_on="ml:prefill-0:0")
    prefill = made.prefill
    assert made.parts == (made, prefill)
    assert book.on_worker("ml:prefill-0:0") == book.on_worker("ml:decode-0:0") == [made]
    # when its first token comes
    assert book.handed_over(made) is prefill
    assert (made.prefilled, made.parts) == (True, (made,))
    assert book.on_worker("ml:prefill-0:0") == []
    assert book.lose("ml:prefill-0:0", 1.0) == [], "what happens there concerns it no more"
    assert book.handed_over(made) is None
    book.settle(made, 2.0)
    assert book.on_worker("ml:decode-0:0") == []


@pytest.mark.parametrize("gone", ["ml:decode-0:0", "ml:prefill-0:0"])
def test_a_pair_ends_with_either_of_its_workers(gone: str):
    book = ledger()
    made = reserved(book, on="ml:decode-0:0", prefill_on="ml:prefill-0:0")
    assert book.lose(gone, 1.0) == [made]
    assert book.on_worker("ml:decode-0:0") == book.on_worker("ml:prefill-0:0") == []


def test_a_pair_on_one_worker_is_held_there_once():
    book = ledger()
    made = reserved(book, on="ml:both-0:0", prefill_on="ml:both-0:0")
    assert book.on_worker("ml:both-0:0") == [made]
    book.handed_over(made)
    assert book.on_worker("ml:both-0:0") == [made]
    book.settle(made, 1.0)
    assert book.on_worker("ml:both-0:0") == []


def test_it_moves_to_the_worker_that_took_the_request():
    """``started`` elsewhere, or the next attempt after a refusal."""
    book = ledger()
    made = reserved(book, prefill_on="ml:prefill-0:0")
    book.move(made, slot=5, worker="ml:llama-5:0", incarnation="9")
    assert (made.slot, made.worker, made.incarnation, made.prefill) == (5, "ml:llama-5:0", "9", None)
    assert book.on_worker("ml:llama-0:0") == book.on_worker("ml:prefill-0:0") == []
    assert book.on_worker("ml:llama-5:0") == [made]
    assert book.find(made.placement_id) is made


def test_ids_that_nobody_can_guess():
    """Of known ones no other follows: neither the next of this ledger nor the same of another."""
    ledgers = [RequestLedger(RequestLedgerSettings(), seed="s-") for _ in range(2)]
    for number, ledger in enumerate(ledgers):
        ledger.keep_ids_secret(bytes([number]) * 32)
    ids = [[ledger.new_id() for _ in range(100)] for ledger in ledgers]
    endings = {each.rpartition("-")[2] for given in ids for each in given}
    assert len(endings) == 200
    assert {len(each) for each in endings} == {16}
    assert [each.rpartition("-")[0] for each in ids[0]] == [f"s-{number:x}" for number in range(1, 101)]
