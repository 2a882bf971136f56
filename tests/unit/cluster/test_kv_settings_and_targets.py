"""Where workers' KV events are, as the membership tells it, and what can be tuned about following them."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from kvaware_cluster import Change, KvEventSettings, KvEventTarget, WorkerMembership, WorkerPod
from kvaware_engine.observations import ModelObservation, ModelWorkers, ObjectKey, RoleFootprint

LABELS = {"kvaware.io/model": "llama"}


class Told:
    """A membership and the streams that it told of, as they are now."""

    def __init__(self) -> None:
        self.now: dict[str, KvEventTarget] = {}
        self.told: list[str] = []
        self.membership = WorkerMembership(placed=lambda worker, place: None)
        self.membership.on_stream(self._told)

    def _told(self, worker: str, target: KvEventTarget | None) -> None:
        self.told.append(worker)
        if target is None:
            del self.now[worker]
        else:
            self.now[worker] = target

    def model(self, **ports: int | None) -> None:
        key = ObjectKey("ml", "llama")
        roles = (RoleFootprint(name="both", gpus_per_pod=1, hbm_per_gpu_bytes=None),)
        model = ModelObservation(
            key=key,
            uid="u",
            model_id="m",
            revision="",
            roles=roles,
            workers=ModelWorkers(**ports),  # type: ignore[arg-type]  # ports alone
        )
        self.membership.model_changed(Change("inferencemodel", key, None, model))

    def pod(self, **changes: Any) -> None:
        given: dict[str, Any] = {"ip": "10.0.0.7", "ready": True, "finished": False, "started_at": "t1", **changes}
        pod = WorkerPod(
            uid="u-p",
            key=ObjectKey("ml", "p"),
            model="llama",
            role=None,
            node="n1",
            terminating=False,
            unschedulable=False,
            labels=LABELS,
            **given,
        )
        self.membership.pod_changed(Change("workerpod", pod.key, None, pod))


@pytest.fixture
def told() -> Told:
    return Told()


def test_each_rank_is_on_a_port_of_its_own(told):
    told.model(kv_events_port=5557, kv_events_replay_port=5657)
    told.pod(ip="fd00::7")
    told.membership.heard("ml:p:0")
    told.membership.heard("ml:p:3")
    assert told.now == {
        f"ml:p:{rank}": KvEventTarget(
            worker=f"ml:p:{rank}",
            incarnation="u-p/t1",
            address=f"[fd00::7]:{5557 + rank}",
            replay_address=f"[fd00::7]:{5657 + rank}",
        )
        for rank in (0, 3)
    }


def test_without_a_port_or_an_address_there_is_nothing_to_follow(told):
    told.model()
    told.pod()
    assert told.now == {}
    told.model(kv_events_port=5557)
    assert told.now["ml:p:0"].replay_address is None
    told.pod(ip=None)
    assert told.now == {}


def test_a_rank_beyond_the_last_port_is_not_followed(told):
    told.model(kv_events_port=65_535)
    told.pod()
    told.membership.heard("ml:p:0")
    told.membership.heard("ml:p:1")
    assert set(told.now) == {"ml:p:0"}


def test_readiness_is_nothing_to_tell_and_another_incarnation_is(told):
    """What a worker holds stays while it is not Ready for a moment (ai-dynamo/dynamo#13513)."""
    told.model(kv_events_port=5557)
    told.pod()
    told.pod(ready=False)
    told.pod()
    assert told.told == ["ml:p:0"]
    told.pod(started_at="t2")
    assert told.told == ["ml:p:0"] * 2
    assert told.now["ml:p:0"].incarnation == "u-p/t2"
    told.pod(finished=True)
    assert told.now == {}


def test_who_asks_late_is_told_all(told):
    told.model(kv_events_port=5557)
    told.pod()
    late: list[str] = []
    told.membership.on_stream(lambda worker, target: late.append(worker))
    assert late == ["ml:p:0"]


def test_promised_defaults_of_following_events():
    """Each changes how much a loop does at once, how much memory a worker may take, or how long one is waited for."""
    settings = KvEventSettings()
    assert settings.enabled
    assert (settings.slice_blocks, settings.high_water_batches, settings.frame_bytes) == (32, 1000, 8 * 2**20)
    assert (settings.replay_wait_s, settings.replay_pause_s) == (5.0, 60.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("slice_blocks", 0), ("high_water_batches", 0), ("frame_bytes", 10), ("replay_wait_s", 0), ("replay_pause_s", -1)],
)
def test_settings_beyond_their_bounds_are_refused(field: str, value: float):
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(KvEventSettings).validate_python({field: value})
