"""Conditions: what was found beside what was there, and nothing moves that did not change."""

from datetime import timedelta

import pytest

from kvaware_crds import ConditionType as Type
from kvaware_operator.conditions import Finding, named, settle
from kvaware_testing.operator_harness import NOW

BEFORE = "2026-01-01T00:00:00Z"


def condition(type_: str, status: str = "True", *, reason: str = "Because", message: str = "", generation: int = 1):
    return {
        "type": type_,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": BEFORE,
        "reason": reason,
        "message": message,
    }


def test_the_time_moves_only_with_the_status():
    """strimzi/strimzi-kafka-operator#13079: a new time each round woke its own writer, every second."""
    found = Finding.true(Type.ACCEPTED, "Other", "another sentence")
    [settled] = settle([condition("Accepted")], [found], generation=7, now=NOW)
    assert settled == {
        **condition("Accepted", reason="Other", message="another sentence", generation=7),
        "lastTransitionTime": BEFORE,
    }
    [flipped] = settle([condition("Accepted")], [Finding.false(Type.ACCEPTED, "Invalid")], generation=7, now=NOW)
    assert flipped["lastTransitionTime"] == "2026-03-01T12:00:00Z"


def test_the_same_findings_give_the_same_bytes_at_any_later_time():
    findings = [Finding.true(Type.ACCEPTED, "Valid"), Finding.true(Type.NAME_CONFLICT, "OwnedByOlder", "x")]
    first = settle([], findings, generation=1, now=NOW)
    again = settle(first, findings, generation=1, now=NOW + timedelta(days=1))
    assert again == first


@pytest.mark.parametrize(
    ("before", "findings", "expected"),
    [
        pytest.param([], [Finding.false(Type.HBM_OVERRUN, "No")], {}, id="trouble that never was is left out"),
        pytest.param(
            [condition("HBMOverrun")],
            [Finding.false(Type.HBM_OVERRUN, "No")],
            {"HBMOverrun": "False"},
            id="trouble that was is said to be over",
        ),
        pytest.param(
            [condition("HBMOverrun")], [], {"HBMOverrun": "False"}, id="trouble that nobody speaks of any more is over"
        ),
        pytest.param([], [Finding.unknown(Type.READY, "X")], {"Ready": "Unknown"}, id="unknown is said"),
        pytest.param([], [Finding.false(Type.ACCEPTED, "X")], {"Accepted": "False"}, id="a bad answer is said at once"),
        pytest.param([condition("Foreign")], [], {"Foreign": "True"}, id="what others wrote stays"),
        pytest.param(
            [condition("Ready")], [Finding.true(Type.ACCEPTED, "Valid")], {"Accepted": "True", "Ready": "True"},
            id="a type that is not about trouble stays as it was",
        ),
    ],
)  # fmt: skip
def test_what_is_written(before, findings, expected):
    settled = settle(before, findings, generation=1, now=NOW)
    assert {each["type"]: each["status"] for each in settled} == expected


def test_the_order_is_always_the_same():
    findings = [Finding.true(type_, "X") for type_ in reversed(Type)]
    settled = settle([condition("Zebra"), condition("Ape")], findings, generation=1, now=NOW)
    assert [each["type"] for each in settled] == [*Type, "Ape", "Zebra"]


def test_a_message_stays_short():
    [settled] = settle([], [Finding.true(Type.READY, "X", "m" * 5000)], generation=1, now=NOW)
    assert len(settled["message"]) == 1024


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param(["b", "a"], "a, b", id="all of few"),
        pytest.param([f"p-{i}" for i in range(5)], "p-0, p-1, p-2 and 2 more", id="some of many"),
    ],
)
def test_names_of_many_are_counted(names, text):
    assert named(names) == text
