"""A placer with workers that report, driven by a clock of its own."""

from typing import Any

from kvaware_engine import HardwareProfile, ModelObservation, ObjectKey, Workers, WorkerSettings
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.placer import Placer
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.words import (
    EventType,
    EventVerdict,
    Placement,
    PlacementEvent,
    PlacementRefusal,
    RequestDemand,
)
from kvaware_testing.worker_builders import MODEL, hardware, heartbeat, place

__all__ = ["PlacerAtWork", "model"]


def model(key: ObjectKey = MODEL, **fields: Any) -> ModelObservation:
    """An InferenceModel with one role, served under its name."""
    given: dict[str, Any] = {
        "uid": f"uid-{key.name}",
        "model_id": "seven-7b",
        "revision": "",
        "roles": (),
        "served_names": (key.name,),
        "kv_bytes_per_token": 131_072,
        "block_size_tokens": 16,
        **fields,
    }
    return ModelObservation(key=key, **given)


class PlacerAtWork:
    """One model's workers, named ``ml:w-0:0`` and so on. Reports are due every 10 s and count for 40 s."""

    def __init__(
        self,
        workers: int = 2,
        *,
        settings: RequestSettings | None = None,
        profile: HardwareProfile | None = None,
        pool_blocks: int | None = 10_000,
        seen: ModelObservation | None = None,
        places: dict[str, Any] | None = None,
        **told: Any,
    ) -> None:
        """Begin with idle workers that have just reported.

        Args:
            workers: How many.
            settings: Of requests.
            profile: Of their hardware; by default half a millisecond of prefill per token.
            pool_blocks: Of 16 tokens each.
            seen: The model.
            places: More of where they are.
            told: More of what they report.
        """
        self.now_s = 1000.0
        profiles = {"test": profile or hardware()}
        reports = WorkerSettings(report_interval_s=10, report_timeout_intervals=4, absence_kept_s=60)
        self.workers = Workers(reports, profiles)
        self.placer = Placer(self.workers, settings, profiles, seed="p-")
        self.seen = seen or model()
        self.placer.observe_model(self.seen.key, self.seen)
        self.names = [f"ml:w-{number}:0" for number in range(workers)]
        self._told = {
            "kv_blocks_total": pool_blocks,
            "kv_blocks_free": pool_blocks,
            "block_size_tokens": 16,
            "waiting": 0,
            "running": 0,
            **told,
        }
        self._seq = 0
        self._requests = 0
        for name in self.names:
            self.expect(name, **(places or {}))
            self.hears(name)

    def expect(self, worker: str, **told: Any) -> None:
        """The API server shows it."""
        described: dict[str, Any] = {"product": "test", "model_id": "seven-7b", **told}
        self.workers.expect(worker, place(worker, **described))

    def hears(self, worker: str, **told: Any) -> None:
        """It reports, as it did when it began unless told otherwise."""
        self._seq += 1
        report = heartbeat(worker, seq=self._seq, at_s=self.now_s, **{**self._told, **told})
        self.workers.observe(report, now_s=self.now_s)

    def demand(self, request_id: str | None = None, **fields: Any) -> RequestDemand:
        """1,000 tokens of which nobody holds anything."""
        if request_id is None:
            self._requests += 1
            request_id = f"r{self._requests}"
        given: dict[str, Any] = {
            "model": self.seen.key,
            "tenant": "default",
            "input_tokens": 1000,
            "expected_output_tokens": 100,
            **fields,
        }
        return RequestDemand(request_id=request_id, **given)

    def place(self, request_id: str | None = None, **fields: Any) -> Placement | PlacementRefusal:
        """Decide now."""
        return self.placer.place(self.demand(request_id, **fields), now_s=self.now_s)

    def placed(self, request_id: str | None = None, **fields: Any) -> Placement:
        """Decide now; it must be placed."""
        outcome = self.place(request_id, **fields)
        assert isinstance(outcome, Placement), outcome
        return outcome

    def tells(
        self, placement: Placement | str, event: EventType, **fields: Any
    ) -> tuple[EventVerdict, Placement | PlacementRefusal | None]:
        """An event comes."""
        placement_id = placement if isinstance(placement, str) else placement.placement_id
        return self.placer.event(placement_id, PlacementEvent(type=event, **fields), now_s=self.now_s)

    def candidates(self, demand: RequestDemand) -> Candidates:
        """What a policy would see now."""
        seen = self.placer.candidates(demand, now_s=self.now_s)
        assert seen is not None
        return seen
