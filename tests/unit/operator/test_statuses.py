"""Writing statuses: what differs, seldom, and never again what the API server does not keep."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvaware_cluster import ClusterApiError, ConflictError, Kind, NotFoundError
from kvaware_cluster.workloads import CustomResource
from kvaware_engine.observations import ObjectKey
from kvaware_operator.statuses import StatusWriter, WriteResult, differs, missing_paths, without
from kvaware_testing.operator_harness import model_of
from kvaware_testing.store_harness import FakeClock

STATUS: dict[str, Any] = {
    "replicas": 2,
    "roles": [{"name": "prefill", "replicas": 1}, {"name": "decode", "replicas": 1}],
    "conditions": [{"type": "Accepted", "status": "True"}, {"type": "Ready", "status": "False"}],
}


class Server:
    """Keeps statuses, and drops the fields that its CRD does not know."""

    def __init__(self, *dropped: str) -> None:
        self.dropped = frozenset(dropped)
        self.writes: list[Mapping[str, Any]] = []
        self.error: Exception | None = None

    async def write_status(
        self, kind: Kind, key: ObjectKey, *, uid: str, status: Mapping[str, Any], seen: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """See ``ClusterApi``."""
        if self.error is not None:
            raise self.error
        self.writes.append(status)
        return without(status, self.dropped)


def writer(server: Server, clock: FakeClock, results: list[WriteResult] | None = None) -> StatusWriter:
    return StatusWriter(
        server,  # type: ignore[arg-type]  # the one verb that is used
        interval_s=10.0,
        clock=clock,
        wrote=lambda _kind, result: None if results is None else results.append(result),
    )


def shown(resource: CustomResource, server: Server) -> CustomResource:
    """The object as the store has it once the last write has come back."""
    return replace(resource, status=without(server.writes[-1], server.dropped))


async def test_the_first_write_is_at_once_and_the_next_waits():
    server, clock = Server(), FakeClock()
    statuses, resource = writer(server, clock), model_of()
    assert await statuses.write(resource, STATUS) is None
    resource = shown(resource, server)
    clock.now_s += 4
    assert await statuses.write(resource, {**STATUS, "replicas": 3}) == pytest.approx(6)
    assert await statuses.write(resource, {**STATUS, "replicas": 4}) == pytest.approx(6), "still only one is pending"
    clock.now_s += 6
    assert await statuses.write(resource, {**STATUS, "replicas": 5}) is None
    assert [each["replicas"] for each in server.writes] == [2, 5], "what was in between is skipped"


async def test_the_same_status_is_never_written_twice():
    """strimzi/strimzi-kafka-operator#13079: also not before the watch has brought the first write back."""
    server, clock = Server(), FakeClock()
    statuses, resource = writer(server, clock), model_of()
    await statuses.write(resource, STATUS)
    for _ in range(3):
        clock.now_s += 60
        assert await statuses.write(resource, STATUS) is None, "the store is behind"
    resource = shown(resource, server)
    reordered = {**STATUS, "roles": STATUS["roles"][::-1], "conditions": STATUS["conditions"][::-1], "copies": []}
    assert await statuses.write(resource, reordered) is None
    assert len(server.writes) == 1


async def test_what_somebody_else_changed_is_set_right_again():
    server, clock = Server(), FakeClock()
    statuses, resource = writer(server, clock), model_of()
    await statuses.write(resource, STATUS)
    edited = replace(resource, status={**STATUS, "replicas": 99})
    clock.now_s += 10
    assert await statuses.write(edited, STATUS) is None
    assert len(server.writes) == 2


async def test_an_object_made_anew_is_written_at_once():
    server, clock = Server(), FakeClock()
    statuses, resource = writer(server, clock), model_of()
    await statuses.write(resource, STATUS)
    assert await statuses.write(replace(resource, uid="uid-new"), STATUS) is None
    assert len(server.writes) == 2


async def test_fields_that_an_older_crd_drops_end_the_writing_until_the_spec_changes():
    """slauger/openvox-operator#555: what is read back always differs, and was written again for ever."""
    server, clock, results = Server("roles[].replicas"), FakeClock(), []
    statuses, resource = writer(server, clock, results), model_of()
    await statuses.write(resource, STATUS)
    resource = shown(resource, server)
    for _ in range(30):
        clock.now_s += 10
        await statuses.write(resource, STATUS)
        await statuses.write(resource, {**STATUS, "replicas": 7})
    assert len(server.writes) == 1
    assert results == [WriteResult.FIELDS_LOST]
    assert statuses.lost_fields() == {Kind.INFERENCE_MODEL: {"roles[].replicas"}}
    changed = replace(resource, generation=resource.generation + 1)
    await statuses.write(changed, {**STATUS, "replicas": 7})
    assert len(server.writes) == 2


async def test_what_one_object_lost_the_next_does_not_try():
    """A thousand models, and one CRD."""
    server, clock = Server("roles[].replicas"), FakeClock()
    statuses, first = writer(server, clock), model_of(name="first")
    await statuses.write(first, STATUS)
    second = replace(model_of(name="second"), status=without(STATUS, server.dropped))
    await statuses.write(second, STATUS)
    assert len(server.writes) == 1


async def test_a_crd_that_was_brought_up_to_date_gets_the_whole_status():
    server, clock = Server("roles[].replicas"), FakeClock()
    statuses, resource = writer(server, clock), model_of()
    await statuses.write(resource, STATUS)
    resource = shown(resource, server)
    server.dropped = frozenset()
    statuses.crd_changed(Kind.INFERENCE_MODEL)
    clock.now_s += 10
    await statuses.write(resource, STATUS)
    assert server.writes[-1] == STATUS
    assert statuses.lost_fields() == {}


async def test_a_new_object_shows_that_the_crd_is_up_to_date():
    """Nobody may watch CRDs: then the next status that holds the field tells."""
    server, clock = Server("roles[].replicas"), FakeClock()
    statuses = writer(server, clock)
    await statuses.write(model_of(name="first"), STATUS)
    server.dropped = frozenset()
    await statuses.write(model_of(name="poor"), {"replicas": 1})
    assert statuses.lost_fields(), "a status without the field tells nothing"
    await statuses.write(model_of(name="second"), STATUS)
    assert statuses.lost_fields() == {}


async def test_a_failed_write_is_counted_and_remembered_by_nobody():
    server, clock, results = Server(), FakeClock(), []
    statuses, resource = writer(server, clock, results), model_of()
    server.error = ClusterApiError("broken", status=500, reason="")
    with pytest.raises(ClusterApiError):
        await statuses.write(resource, STATUS)
    server.error = None
    assert await statuses.write(resource, STATUS) is None
    assert results == [WriteResult.FAILED, WriteResult.WRITTEN]


async def test_an_object_that_went_meanwhile_is_no_failure():
    """The watch tells that it is gone, or that another one has its name."""
    server, clock, results = Server(), FakeClock(), []
    statuses, resource = writer(server, clock, results), model_of()
    for error in (
        NotFoundError("gone", status=404, reason="NotFound"),
        ConflictError("another UID", status=409, reason="Conflict"),
    ):
        server.error = error
        assert await statuses.write(resource, STATUS) is None
    assert results == []


@pytest.mark.parametrize(
    ("present", "wanted", "different"),
    [
        pytest.param(STATUS, STATUS, False, id="same"),
        pytest.param({}, {"roles": [], "used": {}}, False, id="nothing said and nothing there"),
        pytest.param({"replicas": 0}, {}, True, id="zero is said"),
        pytest.param({"list": [1, 2]}, {"list": [2, 1]}, True, id="the order of a plain list counts"),
        pytest.param(
            {"conditions": [{"type": "A", "status": "True"}]}, {"conditions": [{"type": "A", "status": "False"}]}, True,
            id="one item differs",
        ),
    ],
)  # fmt: skip
def test_what_differs(present, wanted, different):
    assert differs(present, wanted) is different


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        pytest.param(STATUS, set(), id="all"),
        pytest.param({}, {"replicas", "roles", "conditions"}, id="nothing"),
        pytest.param(
            {**STATUS, "roles": [{"name": "decode"}, {"name": "prefill"}]}, {"roles[].replicas"}, id="in items"
        ),
        pytest.param({**STATUS, "replicas": 99}, set(), id="another value is kept too"),
    ],
)
def test_what_the_server_did_not_keep(kept, missing):
    assert missing_paths(STATUS, kept) == missing
    assert missing_paths(without(STATUS, frozenset(missing)), kept) == set()
