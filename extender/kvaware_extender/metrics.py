"""The extender's metrics. Labels come from closed sets (verbs, reasons, results) or from what the cluster holds now.

What follows the cluster's objects (nodes, tenants) is read at scrape time, so that nothing outlives its object; nothing
takes a label from a request. What is counted of requests is in ``request_metrics.py``.
"""

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from prometheus_client import Counter

from kvaware_cluster.process_metrics import ProcessMetrics
from kvaware_engine import REFUSAL_TEXTS, Reason, ReportVerdict
from kvaware_extender.histograms import Seconds, histogram

__all__ = ["BindResult", "HeartbeatResult", "Metrics", "PreemptResult", "Verb"]

BUCKETS_S: Final = (
    0.00005,
    0.0001,
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.064,
    0.125,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
)
RATE_WINDOW_S: Final = 30
FINDINGS: Final = ("MoreThanReserved", "WithinReservation", "NoExporter", "ExporterAnswers", "failed")
"""Reasons of the conditions about HBM use, and writes that failed."""


class Verb(StrEnum):
    """What is asked: by kube-scheduler, and where a request goes."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    BIND = "bind"
    PREEMPT = "preempt"
    PLACE = "place"


OF_SCHEDULER: Final[tuple[Verb, ...]] = tuple(verb for verb in Verb if verb is not Verb.PLACE)


class PreemptResult(StrEnum):
    """What became of an offer to preempt."""

    KEPT = "kept"
    VETOED = "vetoed"
    WAITING = "waiting"
    STALE = "stale"


class BindResult(StrEnum):
    """How a bind ended."""

    BOUND = "bound"
    ALREADY_BOUND = "already_bound"
    BOUND_ELSEWHERE = "bound_elsewhere"
    REFUSED = "refused"
    STALE = "stale"
    POD_GONE = "pod_gone"
    API_REFUSED = "api_refused"
    IN_DOUBT = "in_doubt"
    BUSY = "busy"
    FAILED = "failed"


class HeartbeatResult(StrEnum):
    """What became of a worker's heartbeat."""

    TAKEN = "taken"
    OUTDATED = "outdated"
    TOO_SOON = "too_soon"
    UNREADABLE = "unreadable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    UNKNOWN_WORKER = "unknown_worker"
    UNAVAILABLE = "unavailable"
    """The view was stale, or the token could not be reviewed, or not yet."""


class Metrics(ProcessMetrics):
    """Everything that the extender counts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._decisions: deque[list[int]] = deque(maxlen=RATE_WINDOW_S + 1)  # [second, decisions in it]
        self._second = [-1, 0]
        """The last of them."""
        self._second_ends_s = 0
        self.rejected = 0
        """Pods that were refused, by filter or bind."""
        self.latency: Final = {verb: Seconds(BUCKETS_S) for verb in Verb}
        self._place_latency = self.latency[Verb.PLACE]
        self.repeats = self._counter("kvaware_filter_repeats", "Filters answered from the last verdict.")
        refusals = self._counter("kvaware_refusals", "Pods refused, by the reason that held most often.", ["reason"])
        self.refusals: Final = {reason: refusals.labels(reason) for reason in REFUSAL_TEXTS}
        nodes = self._counter("kvaware_node_refusals", "Nodes refused to pods by filter, by reason.", ["reason"])
        self.node_refusals: Final = {reason: nodes.labels(reason) for reason in REFUSAL_TEXTS}
        passed = self._counter("kvaware_not_ours", "Calls for pods that are not kvaware's, passed through.", ["verb"])
        self.not_ours: Final = {verb: passed.labels(verb) for verb in OF_SCHEDULER}
        binds = self._counter("kvaware_bind", "Binds, by how they ended.", ["result"])
        self.binds: Final = {result: binds.labels(result) for result in BindResult}
        preempts = self._counter(
            "kvaware_preempt", "Offers to preempt for pods of kvaware's, by the answer.", ["result"]
        )
        self.preempts: Final = {result: preempts.labels(result) for result in PreemptResult}
        self.added_victims = self._counter("kvaware_preempt_added_victims", "Victims offered on top, for HBM.")
        wakeups = self._counter("kvaware_wakeups", "Pod conditions written, by the status written.", ["status"])
        self.wakeups: Final = {status: wakeups.labels(status) for status in ("True", "False", "failed")}
        findings = self._counter("kvaware_findings", "Conditions about HBM use written to pods, by reason.", ["reason"])
        self.findings: Final = {reason: findings.labels(reason) for reason in FINDINGS}
        heartbeats = self._counter("kvaware_heartbeats", "Heartbeats of workers, by what became of them.", ["result"])
        self.heartbeats: Final = {result: heartbeats.labels(result) for result in HeartbeatResult}
        scrapes = self._counter("kvaware_worker_scrapes", "Reports read from workers' /metrics, by result.", ["result"])
        self.scrapes: Final = {verdict: scrapes.labels(verdict) for verdict in ReportVerdict}
        errors = self._counter("kvaware_internal_errors", "Calls that met an unforeseen error.", ["verb"])
        self.internal_errors: Final = {verb: errors.labels(verb) for verb in OF_SCHEDULER}

        text = "Time to answer one call of kube-scheduler, or to decide where one request goes, in seconds."
        self.collect_from(
            lambda: [
                histogram("scheduler_latency", text, ["verb"], [([verb], each) for verb, each in self.latency.items()])
            ]
        )

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def decided(self, verb: Verb, *, took_s: float) -> None:
        """Count one answered call."""
        self.latency[verb].observe(took_s)
        self._count(int(self._clock()))

    def placed(self, *, now_s: float, took_s: float) -> None:
        """Count one decision about a request. On the path of every request: 0.5 µs."""
        self._place_latency.observe(took_s)
        if now_s < self._second_ends_s:
            self._second[1] += 1
        else:
            self._count(int(now_s))

    def _count(self, second: int) -> None:
        if self._second[0] == second:
            self._second[1] += 1
        else:
            self._second = [second, 1]
            self._second_ends_s = second + 1
            self._decisions.append(self._second)

    def refused(self, reason: Reason) -> None:
        """Count one pod that was refused."""
        self.rejected += 1
        self.refusals[reason].inc()

    def qps(self) -> float:
        """Calls and requests answered per second, over the last whole ``RATE_WINDOW_S`` seconds."""
        now = int(self._clock())
        return sum(n for second, n in self._decisions if now - RATE_WINDOW_S <= second < now) / RATE_WINDOW_S
