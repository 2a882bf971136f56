"""``kvaware explain placement ID``: a request's placement in a reader's words."""

import json
from typing import Any

import pytest

from kvaware_testing.command_line import Kvaware
from kvaware_testing.extender_answers import cost
from kvaware_testing.fake_extender import FakeExtender

ID = "4f1c-2a"
ROUTE = f"GET /v1/placements/{ID}/explanation"


def worker(name: str, **terms: float) -> dict[str, Any]:
    """A worker in the running, with one option."""
    option = {"action": "local", "mode": "expected", "terms": cost(**terms)}
    return {"worker": name, "options": [option], "requests": 2, "matched_tokens": 8192}


def answer() -> tuple[int, Any]:
    return 200, {
        "placement_id": ID,
        "request": {
            "request_id": "r-1",
            "model": "ml/llama",
            "tenant": "acme",
            "input_tokens": 12_000,
            "expected_output_tokens": 200,
            "told_output_tokens": 300,
            "priority": 0,
            "phase": None,
            "adapter": None,
            "session": None,
        },
        "policy": "cost",
        "reason": "PrefixResident",
        "chosen": "ml:llama-0:0",
        "runner_up": "ml:llama-1:0",
        "runner_up_behind": 430.0,
        "in_the_running": 2,
        "candidates": [worker("ml:llama-0:0", cache_access=182.0), worker("ml:llama-1:0", cache_access=612.0)],
        "answers": [{"question": "Why not the emptiest GPU?", "answer": "It holds nothing of the prompt."}],
        "flip": None,
        "flips": [],
        "no_flip": "no single change would have",
    }


@pytest.mark.parametrize("args", [("placement", ID), (f"placement/{ID}",)], ids=["two words", "kubectl's slash form"])
def test_a_placement_is_explained_with_choice_and_runner_up(
    kvaware: Kvaware, server: FakeExtender, args: tuple[str, ...]
) -> None:
    server.answers[ROUTE] = answer()
    result = kvaware("explain", *args, server=server)
    assert result.code == 0, result.err
    assert "ml:llama-0:0 (PrefixResident)" in result.out
    assert "ml:llama-1:0, 430 ms dearer" in result.out
    assert "It holds nothing of the prompt." in result.out


def test_the_answer_can_be_had_as_json(kvaware: Kvaware, server: FakeExtender) -> None:
    server.answers[ROUTE] = answer()
    result = kvaware("explain", "placement", ID, "-o", "json", server=server)
    assert json.loads(result.out)["placement_id"] == ID


def test_an_id_cannot_name_another_route(kvaware: Kvaware, server: FakeExtender) -> None:
    """What people paste may be anything."""
    result = kvaware("explain", "placement", "x/../../tenants?y", server=server)
    assert result.code == 1
    assert server.asked == [("GET /v1/placements/x%2F..%2F..%2Ftenants%3Fy/explanation", None)]


@pytest.mark.parametrize("args", [("placement",), ("placement/",), ("placement", "")], ids=["alone", "slash", "empty"])
def test_a_placement_without_an_id_is_one_line(kvaware: Kvaware, args: tuple[str, ...]) -> None:
    result = kvaware("explain", *args)
    assert result.code == 2
    assert "expected 'placement ID' or 'placement/ID', got no ID" in result.err
    assert "Traceback" not in result.err
