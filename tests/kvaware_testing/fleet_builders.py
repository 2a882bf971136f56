"""Builders of one model's columns and of what is reserved on them. Every argument has a harmless default."""

from typing import Any

from kvaware_engine import HardwareProfile, NodeObservation, WorkerReport, Workers, WorkerSettings
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.fleet import FleetChange, WorkerFleet
from kvaware_engine.requests.ledger import Reservation
from kvaware_engine.requests.links import NodeLinks
from kvaware_engine.requests.settings import RequestSettings
from kvaware_engine.requests.words import RequestDemand
from kvaware_testing.placement_builders import placement
from kvaware_testing.worker_builders import MODEL, WORKER, hardware, heartbeat, place

__all__ = ["FleetAtWork", "reservation"]


class FleetAtWork:
    """A fleet that follows its workers. Reports are due every 10 s and count for 40 s."""

    def __init__(
        self,
        *names: str,
        settings: RequestSettings | None = None,
        profile: HardwareProfile | None = None,
        links: NodeLinks | None = None,
    ) -> None:
        reports = WorkerSettings(report_interval_s=10, report_timeout_intervals=4, absence_kept_s=60)
        profiles = {"test": profile or hardware()}
        self.workers = Workers(reports, profiles)
        self.fleet = WorkerFleet(
            MODEL, settings or RequestSettings(), ProfileBook(profiles), reports=reports, links=links
        )
        self.nodes: dict[str, NodeObservation] = {}
        self.changes: list[FleetChange] = []
        self._changed: list[str] = []
        self._seq = 0
        self.workers.subscribe(self._changed.append)
        for name in names:
            self.expect(name)

    def expect(self, worker: str = WORKER, *, now_s: float = 0.0, gone: bool = False, **told: Any) -> None:
        """The API server shows it, or does not any more."""
        described: dict[str, Any] = {"product": "test", "model_id": "seven-7b"}
        self.workers.expect(worker, None if gone else place(worker, **(described | told)))
        self.follow(now_s)

    def hears(self, worker: str = WORKER, *, at_s: float, now_s: float | None = None, **told: Any) -> None:
        """A heartbeat comes; its figures by their names."""
        self._seq += 1
        self.takes(heartbeat(worker, seq=self._seq, at_s=at_s, **told), now_s=at_s if now_s is None else now_s)

    def takes(self, report: WorkerReport, *, now_s: float) -> None:
        """Any report comes."""
        self.workers.observe(report, now_s=now_s)
        self.follow(now_s)

    def follow(self, now_s: float) -> None:
        """Look at every worker of which something changed."""
        self.workers.tick(now_s)
        for worker in self._changed:
            known = self.workers.place(worker)
            node = self.nodes.get(known.node or "") if known is not None else None
            self.changes.append(self.fleet.follow(self.workers, worker, node, now_s))
        self._changed.clear()

    def slot(self, worker: str = WORKER) -> int:
        """Its column."""
        return self.fleet.slot_of[worker]

    def figure(self, figure: Figure, worker: str = WORKER, *, now_s: float | None = None) -> float:
        """One figure, after a refresh where a time is given."""
        if now_s is not None:
            self.fleet.refresh(now_s)
        return float(self.fleet.figures[figure, self.slot(worker)])

    def may_be_chosen(self, worker: str = WORKER, *, now_s: float) -> bool:
        """Whether it is not barred."""
        return self.figure(Figure.BARRED, worker, now_s=now_s) == 0

    def reserve(self, worker: str = WORKER, *, at_s: float, **told: Any) -> Reservation:
        """Charge a request to it."""
        column = self.fleet.facts[self.slot(worker)]
        assert column is not None
        reserved = reservation(self.slot(worker), incarnation=column.incarnation, worker=worker, at_s=at_s, **told)
        self.fleet.charge(reserved, at_s)
        return reserved


def reservation(
    slot: int = 0,
    *,
    worker: str = WORKER,
    incarnation: str = "uid-1/start-1",
    at_s: float = 0.0,
    input_tokens: int = 1000,
    uncached_tokens: int | None = None,
    prefill_ms: float | None = None,
    expected_output_tokens: float = 100,
    priority: int = 0,
    transfer_bytes: int = 0,
) -> Reservation:
    """1,000 prompt tokens without a hit: half a second of prefill on the hardware of ``hardware()``."""
    uncached = input_tokens if uncached_tokens is None else uncached_tokens
    return Reservation(
        placement_id=f"p{at_s}",
        demand=RequestDemand(
            request_id=f"r{at_s}", model=MODEL, tenant="default", input_tokens=input_tokens, priority=priority
        ),
        slot=slot,
        worker=worker,
        incarnation=incarnation,
        reserved_at_s=at_s,
        placement=placement(),
        prefill_ms=uncached * 0.5 if prefill_ms is None else prefill_ms,
        uncached_tokens=uncached,
        expected_output_tokens=expected_output_tokens,
        kv_tokens=input_tokens + expected_output_tokens,
        transfer_bytes=transfer_bytes,
    )
