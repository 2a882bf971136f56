"""Only who leads writes."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kvaware_cluster import ClusterApi, Kind, Scale, ScaleTarget
from kvaware_engine.observations import ObjectKey
from kvaware_operator.errors import NotLeadingError
from kvaware_operator.leaders_api import LeadersApi

LLAMA = ScaleTarget("apps/v1", "Deployment", "ml", "llama")
KEY = ObjectKey("ml", "llama")
SCALE = Scale(uid="u", replicas=1, current_replicas=1, selector="", resource_version="1")
WRITES: dict[str, Callable[[Any], Any]] = {
    "write_scale": lambda api: api.write_scale(LLAMA, replicas=2, seen=SCALE),
    "write_status": lambda api: api.write_status(Kind.INFERENCE_MODEL, KEY, uid="u", status={}),
    "write_deletion_cost": lambda api: api.write_deletion_cost(KEY, uid="u", cost=-1000),
}


class Recording:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*_: Any, **__: Any) -> str:
            self.called.append(name)
            return name

        return call


def test_every_verb_that_writes_is_among_those_checked():
    verbs = {name for name, _ in inspect.getmembers(ClusterApi, inspect.isfunction) if not name.startswith("_")}
    assert verbs == {*WRITES, "read_scale"}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_is_made_while_the_lease_is_held_and_not_after(name: str):
    held, inner = True, Recording()
    api = LeadersApi(inner, leads=lambda: held)  # type: ignore[arg-type]  # answers to every name
    await WRITES[name](api)
    held = False
    with pytest.raises(NotLeadingError, match=r"ml/llama: not written, expected to hold the lease"):
        await WRITES[name](api)
    assert inner.called == [name]


async def test_reading_is_everybodys():
    inner = Recording()
    await LeadersApi(inner, leads=lambda: False).read_scale(LLAMA)  # type: ignore[arg-type]  # answers to every name
    assert inner.called == ["read_scale"]
