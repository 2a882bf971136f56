"""A request_id that comes twice: the same is what the client sent again, whatever the cluster became between."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.ledger import same_demand
from kvaware_engine.requests.words import RequestDemand
from kvaware_extender.demand_wire import Demand, read
from kvaware_extender.prompts import Prompts
from kvaware_testing.placement_harness import SimplePlacer, demand, worker_at

DEMAND = msgspec.json.Decoder(Demand)
FORMS = [
    pytest.param({"token_ids": list(range(100))}, id="tokens"),
    pytest.param({"prompt": "some text" * 20}, id="text"),
    pytest.param({"messages": [{"role": "user", "content": "hello " * 20}]}, id="chat"),
    pytest.param({"block_hashes": [1, 2, 3]}, id="hashes"),
    pytest.param({"input_tokens": 100}, id="length"),
]


class Changed(SimplePlacer):
    """The same model after its workers told another block size, its tenant got a default, and so on."""

    def adapter(self, model: ObjectKey, served_name: str) -> str | None:
        return served_name

    def root(self, model: ObjectKey, adapter: str | None, salt: str | None) -> int:
        return super().root(model, adapter, salt) ^ 1

    def block_tokens(self, model: ObjectKey) -> int:
        return 32

    def priority(self, tenant: str, asked: int | None) -> int:
        return 3 if asked is None else min(asked, 4)


def made(models: SimplePlacer, **sent: Any) -> RequestDemand:
    prompts = Prompts(
        models, chunk_characters=4, worker_at=lambda *_: None if type(models) is Changed else worker_at(*_)
    )
    got = asyncio.run(prompts.demand(read(DEMAND, json.dumps(demand(**sent)).encode()), "a"))
    assert isinstance(got, RequestDemand), got
    return got


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        pytest.param({"priority": 9}, id="priority above the new maximum"),
        pytest.param({"current_worker": "10.0.0.7:8000", "candidates": ["10.0.0.7:8000", "ml:w1:0"]}, id="addresses"),
        pytest.param({"cache_salt": "s", "session": "x", "deadline_ms": 5, "expected_output_tokens": 7}, id="all else"),
    ],
)
def test_what_is_sent_again_is_the_same_although_the_cluster_changed(form: dict[str, Any], more: dict[str, Any]):
    """A gateway that sends again after a time-out cannot know what a quota or a worker's report made of it."""
    first = made(SimplePlacer(), **form, **more)
    assert same_demand(first, made(SimplePlacer(), **form, **more))
    assert same_demand(first, made(Changed(), **form, **more))


@pytest.mark.parametrize("models", [SimplePlacer(), Changed()], ids=["unchanged", "changed"])
@pytest.mark.parametrize(
    "other",
    [
        {"priority": 0},
        {"session": "y"},
        {"cache_salt": "other"},
        {"adapter": "lora"},
        {"deadline_ms": 6},
        {"phase": "decode"},
        {"expected_output_tokens": 8},
        {"candidates": ["ml:w1:0"]},
        {"current_worker": "ml:w1:0"},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", FORMS)
def test_another_demand_is_told_whatever_changed(form: dict[str, Any], other: dict[str, Any], models: SimplePlacer):
    assert not same_demand(made(SimplePlacer(), **form), made(models, **form, **other))


@pytest.mark.parametrize("models", [SimplePlacer(), Changed()], ids=["unchanged", "changed"])
@pytest.mark.parametrize(
    "other",
    [
        {"token_ids": list(range(101))},
        {"prompt": "some text" * 20 + "!"},
        {"prompt": "some text" * 20, "input_tokens": 44},
        {"messages": [{"role": "user", "content": "hello " * 21}]},
        {"block_hashes": [1, 2, 3, 4]},
        {"block_hashes": [1, 2, 3], "input_tokens": 100},
        {"input_tokens": 101},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_of_another_length_or_form_is_another_demand(
    form: dict[str, Any], other: dict[str, Any], models: SimplePlacer
):
    assert not same_demand(made(SimplePlacer(), **form), made(models, **other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"token_ids": list(range(100))}, {"token_ids": [7, *range(1, 100)]}),
        ({"prompt": "some text" * 20}, {"prompt": "same text" * 20}),
        ({"block_hashes": [1, 2, 3]}, {"block_hashes": [1, 2, 4]}),
    ],
    ids=["tokens", "text", "hashes"],
)
def test_another_prompt_of_the_same_length_is_another_demand(one: dict[str, Any], other: dict[str, Any]):
    """As far as its hashes tell, which begin at the same root, with the same tokens in each."""
    assert not same_demand(made(SimplePlacer(), **one), made(SimplePlacer(), **other))


def test_the_order_of_candidates_is_no_difference():
    names = ["ml:w0:0", "ml:w1:0"]
    assert same_demand(made(SimplePlacer(), candidates=names), made(Changed(), candidates=names[::-1]))
