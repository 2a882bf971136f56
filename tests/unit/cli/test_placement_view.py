"""What the extender says of a placement is shown whole: who, what it would have cost, what flips it, six answers."""

import io
import json
from typing import Any

import pytest

from kvaware_cli.errors import ServerError
from kvaware_cli.output import console
from kvaware_cli.placement_view import MOST_WORKERS, print_placement
from kvaware_engine.policies import policy_named
from kvaware_engine.requests.choose import choose
from kvaware_engine.requests.explain import explain
from kvaware_engine.requests.snapshot import take
from kvaware_engine.requests.words import Placement, Precision
from kvaware_extender.render import render_json
from kvaware_testing.candidate_builders import Seat, candidates, request, seat, worker_facts


def answered(*seats: Seat, policy: str = "cost", **fields: Any) -> dict[str, Any]:
    """The body of ``GET /v1/placements/{id}/explanation``, by the engine and the extender's own JSON."""
    seen, named = candidates(*seats, demand=request(request_id="chat-42", hashes=60)), policy_named(policy)
    choice = choose(named, seen)
    assert choice is not None
    option = named.best_option(seen, choice.chosen)
    placement = Placement(
        placement_id="p-7",
        demand=seen.demand,
        option=option,
        address=None,
        reason=named.reason(seen, option),
        policy=policy,
        precision=Precision.PRECISE,
        expected_output_tokens=100,
        candidates=len(seats),
        confidence_ratio=1.0,
        queue_length=0,
        hbm_free_bytes=None,
        decided_at_s=seen.now_s,
        expires_in_s=30.0,
        **fields,
    )
    body = json.loads(render_json(explain(placement, take(named, seen, choice))))
    assert isinstance(body, dict)
    return body


def printed(body: Any, *, width: int = 1000) -> str:
    out = console(plain=True, file=(text := io.StringIO()))
    out.width = width
    print_placement(out, body)
    return text.getvalue()


BUSY = (seat(matched=800, queue_ms=100, requests=4.0), seat())
"""w0 holds 800 of 1,000 tokens; w1 is empty."""


def test_the_choice_the_terms_the_flip_and_the_answers_are_shown() -> None:
    text = printed(answered(*BUSY))
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("→")}
    assert list(rows) == ["w0"]
    assert "local" in rows["w0"]
    assert " 800 " in rows["w0"]
    assert "1,176  compute_wait 1,100, cache_access 100, locality_gain -24" in rows["w0"]
    assert "choice     w0 (PrefixResident)" in text
    assert "runner-up  w1, 300 ms dearer" in text
    assert "flips      With 300.1 ms more to wait at w0, w1 would have been chosen." in text
    assert "believed   to 1.00, by a report 0.0 s old" in text
    assert text.count("?\n  ") == 6
    assert "  The emptiest is w1 with 0 requests" in text
    assert "FROM" not in text
    assert "MEASURE" not in text


def test_the_other_options_stand_below_the_chosen_and_the_runner_up() -> None:
    can = ("pull_from_peer",)
    seats = [seat(facts=worker_facts(f"w{n}", can=can), matched=800.0 * (n == 0), queue_ms=5000 * n) for n in range(3)]
    lines = printed(answered(*seats)).splitlines()
    [head] = [number for number, line in enumerate(lines) if "WORKER" in line]
    words = [line.split()[:3] for line in lines[head + 1 : head + 6]]
    assert words == [
        ["→", "w0", "local"],
        ["or", "recompute", words[1][2]],
        ["w1", "remote_read", "w0"],
        ["or", "recompute", words[3][2]],
        ["w2", "remote_read", "w0"],
    ]


def test_another_policys_measure_has_a_column() -> None:
    text = printed(answered(*BUSY, policy="least_loaded"))
    assert "MEASURE" in text
    assert "runner-up  w0, 4.0 behind, as least_loaded measures" in text


def test_long_lists_are_cut_but_not_who_is_told_of() -> None:
    """The emptiest is the dearest."""
    count = MOST_WORKERS + 8
    seats = [seat(requests=3.0, queue_ms=float(n), matched=100.0) for n in range(count - 1)]
    text = printed(answered(*seats, seat(queue_ms=9000)))
    assert f"\n   w{count - 1} " in text
    assert f"\n   and {count - MOST_WORKERS - 1} more\n" in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_width_cuts_a_figure(width: int) -> None:
    """Cloud names are long; what a terminal has no room for goes on in the next line."""
    name = "inference:llama-70b-pool-h100-8x-us-central1-{}-xk7p:0"
    can = ("pull_from_peer",)
    seats = [
        seat(facts=worker_facts(name.format(n), can=can), matched=800.0 * (n == 0), queue_ms=9000 - n) for n in range(3)
    ]
    text = printed(answered(*seats), width=width)
    assert "memory_pressure" not in text
    for figure in ("8,998", "compute_wait", "locality_gain", "100,000"):
        assert figure in text


def test_what_is_not_known_is_said_so() -> None:
    body = answered(seat(kv_free_tokens=float("nan"), observed_at_s=float("nan")), seat(barred=True), attempt=2)
    text = printed(body)
    assert "attempt    2: 1 worker refused it before" in text
    assert "runner-up  none: no other worker could take it" in text
    assert "flips      There was no other candidate" in text
    assert "filtered   1 worker PassedOver" in text
    assert "believed   to 1.00, it has not reported" in text
    assert "note       w0 has not reported" in text
    [row] = [line for line in text.splitlines() if line.startswith("→")]
    assert " ? " in row


def test_split_roles_name_both_workers_and_the_parts() -> None:
    body = answered(*BUSY)
    body["prefill"] = "w1"
    for candidate, phase in zip(body["candidates"], ("decode", "prefill"), strict=True):
        for option in candidate["options"]:
            option["phase"] = phase
    text = printed(body)
    assert "prefill    at w1" in text
    assert "decode: local" in text
    assert "prefill: recompute" in text
    assert text.count("→") == 2


def test_an_answer_of_another_version_is_the_servers_fault() -> None:
    body = answered(*BUSY) | {"unheard_of": 1}
    assert "w0" in printed(body)
    del body["chosen"]
    with pytest.raises(ServerError, match="chosen"):
        printed(body)
