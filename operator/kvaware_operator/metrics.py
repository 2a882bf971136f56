"""The operator's metrics. Labels are closed sets, or objects of the cluster: their series end with the object."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from kvaware_cluster import Kind
from kvaware_cluster.process_metrics import ProcessMetrics
from kvaware_engine.observations import ObjectKey
from kvaware_operator.statuses import WriteResult
from kvaware_operator.work_queue import Result

__all__ = ["Metrics"]

BUCKETS_S: Final = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0, 64.0)


class Metrics(ProcessMetrics):
    """Everything that the operator counts."""

    def __init__(self) -> None:
        super().__init__()
        self._desired = Gauge(
            "kvaware_desired_replicas",
            "Replicas that the load asks for; absent: unknown, or not scaled.",
            ["namespace", "model", "role"],
            registry=self.registry,
        )
        self._roles: dict[ObjectKey, set[str]] = {}
        """Roles with a series, by model."""
        self._looks = Histogram(
            "kvaware_operator_look_seconds",
            "Time to look at one object, by kind and how it ended.",
            ["kind", "result"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._status_writes = self._counter("status_writes", "Statuses written, by kind and result.", "kind", "result")
        self._scales = self._counter("scales", "Workloads set to another size.", "direction", "result")
        self._costs = self._counter("deletion_costs", "Deletion costs written to pods.", "change")
        self._polls = self._counter("load_polls", "Questions about loads to the extender.", "result")
        self._events = self._counter("kopf_events", "Events that kopf told of.", "kind")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvaware_operator_{name}", text, labels, registry=self.registry)

    def desired(self, model: ObjectKey, replicas: Mapping[str, int | None]) -> None:
        """What each scaled role of a model should have; None: unknown."""
        known = {role: number for role, number in replicas.items() if number is not None}
        for role in self._roles.get(model, set()) - known.keys():
            self._desired.remove(*model, role)
        for role, number in known.items():
            self._desired.labels(*model, role).set(number)
        if known:
            self._roles[model] = set(known)
        else:
            self._roles.pop(model, None)

    def forget_model(self, model: ObjectKey) -> None:
        """The model is gone, or not scaled any more."""
        self.desired(model, {})

    def looked(self, kind: Kind, result: Result, took_s: float) -> None:
        """One look at one object ended."""
        self._looks.labels(kind, result).observe(took_s)

    def status_written(self, kind: Kind, result: WriteResult) -> None:
        """A status was written, or could not be."""
        self._status_writes.labels(kind, result).inc()

    def scaled(self, *, down: bool, result: str) -> None:
        """A workload's scale was written: ``done``, ``conflict`` or ``failed``."""
        self._scales.labels("down" if down else "up", result).inc()

    def cost_written(self, *, removed: bool) -> None:
        """A pod's deletion cost was set or taken off."""
        self._costs.labels("removed" if removed else "set").inc()

    def polled(self, result: str) -> None:
        """A load was asked for: ``answered`` or ``failed``."""
        self._polls.labels(result).inc()

    def kopf_event(self, kind: Kind) -> None:
        """Kopf told of an object."""
        self._events.labels(kind).inc()
