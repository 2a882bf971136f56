"""Tells pods what scrapes show about them: the conditions ``kvaware.io/{HBMOverrun,ForeignUseUnknown}``.

A condition is written only when it would say something else than the pod shows, at most once per verdict and pod, and
never as a first False. So a restart writes nothing again, and two writers cannot keep each other busy. Writes go out at
the pace of the wake-ups and leave them room: a pod that waits is more urgent than one that is told about its use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from kvaware_cluster import ConflictError, NotFoundError, Source, WorkerPod
from kvaware_crds.errors import UpstreamError
from kvaware_crds.names import CONDITION_FOREIGN_USE_UNKNOWN, CONDITION_HBM_OVERRUN
from kvaware_engine import Engine, ObjectKey, PodFindings
from kvaware_extender.errors import is_of_one_object
from kvaware_extender.freshness import Freshness
from kvaware_extender.metrics import Metrics
from kvaware_extender.pace import Pace

__all__ = ["FindingsView", "FindingsWriter", "finding_condition"]

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 10.0
"""Every update of a bound pod makes kube-scheduler try all pending pods again (verified on 1.37.2): writes that go out
together do so once, writes that trickle all the time. Verdicts take a minute to form anyway."""
LOOKED_AT_TOGETHER: Final = 256
"""Pods, some 0.5 ms: after a start every pod has a new verdict, and most show it already."""
WRITE_WITHIN_S: Final = 3.0
RETRY_AFTER_S: Final = 10.0
"""After a write that failed nothing is tried for this long: most likely nothing else would come through either."""


@dataclass(frozen=True, slots=True)
class _Text:
    reason: str
    message: str


TEXTS: Final[Mapping[tuple[str, bool], _Text]] = {
    (CONDITION_HBM_OVERRUN, True): _Text(
        "MoreThanReserved", "kvaware: the pod uses more HBM on a shared GPU than it reserved; others there may run out"
    ),
    (CONDITION_HBM_OVERRUN, False): _Text("WithinReservation", "kvaware: the pod uses no more HBM than it reserved"),
    (CONDITION_FOREIGN_USE_UNKNOWN, True): _Text(
        "NoExporter", "kvaware: no DCGM exporter shows what other programs use on the node; a margin is kept instead"
    ),
    (CONDITION_FOREIGN_USE_UNKNOWN, False): _Text(
        "ExporterAnswers", "kvaware: the node's DCGM exporter shows what other programs use"
    ),
}
"""Constant texts: figures would make every scrape another condition."""


class FindingsView(Protocol):
    """The store, as far as it shows pods with their conditions."""

    @property
    def worker_pods(self) -> Mapping[ObjectKey, WorkerPod]:
        """Every pod that asks for GPUs or names a model."""
        ...


@dataclass(slots=True)
class _Due:
    """A pod whose verdicts have changed."""

    pod: ObjectKey
    findings: PodFindings
    not_before_s: float = float("-inf")
    """The API server refused to write it."""


class FindingsWriter:
    """Pods with changed verdicts, and the loop that tells them."""

    def __init__(
        self,
        *,
        engine: Engine,
        source: Source,
        view: FindingsView,
        freshness: Freshness,
        pace: Pace,
        leave: int,
        metrics: Metrics,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Write nothing yet.

        Args:
            engine: Whose findings are told.
            source: Where conditions are written.
            view: What the pods show.
            freshness: While the view is stale nothing is written: what a pod shows is not known.
            pace: Shared with the wake-ups.
            leave: Writes that are left for them.
            metrics: Counts what was written.
            clock: Monotonic seconds.
            sleep: Between two looks.
        """
        self._engine = engine
        self._source = source
        self._view = view
        self._freshness = freshness
        self._pace = pace
        self._leave = leave
        self._metrics = metrics
        self._clock = clock
        self._sleep = sleep
        self._due: dict[str, _Due] = {}
        """Pod UID to what it is to be told, those that have waited longest first."""
        self._written: dict[str, dict[str, bool]] = {}
        """Pod UID to what we wrote last, by condition type; the store shows it a moment later."""
        self._not_before_s = float("-inf")
        self._looking = asyncio.Lock()

    def __len__(self) -> int:
        """Pods that wait to be told."""
        return len(self._due)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._due.pop(uid, None)
        self._written.pop(uid, None)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Take over new verdicts, then write as many conditions as the pace allows."""
        for uid, findings in self._engine.findings().items():
            pod = self._engine.pod_key(uid)
            if pod is not None:
                self._due[uid] = _Due(pod, findings)
        if not self._due or self._clock() < self._not_before_s or self._freshness.stale():
            return
        async with self._looking:  # two looks would write the same twice
            for number, (uid, due) in enumerate(list(self._due.items())):
                if number % LOOKED_AT_TOGETHER == 0:
                    await asyncio.sleep(0)
                if not await self._tell(uid, due):
                    return

    async def _tell(self, uid: str, due: _Due) -> bool:
        """Write what one pod does not show yet; False when no more writes may go out for now."""
        if self._clock() < due.not_before_s:
            return True
        shown = self._view.worker_pods.get(due.pod)
        if shown is None or shown.uid != uid or shown.finished or shown.terminating:
            self.forget(uid)
            return True
        wanted = (
            (CONDITION_HBM_OVERRUN, due.findings.hbm_overrun, shown.hbm_overrun),
            (CONDITION_FOREIGN_USE_UNKNOWN, due.findings.foreign_use_unknown, shown.foreign_use_unknown),
        )
        for kind, verdict, shows in wanted:
            # What was written a moment ago and is not shown yet counts as shown.
            if verdict is None or verdict == self._written.get(uid, {}).get(kind, shows):
                continue
            if not self._pace.take(leave=self._leave):
                return False
            try:
                await self._write(uid, due.pod, kind, holds=verdict)
            except (UpstreamError, TimeoutError) as e:
                self._metrics.findings["failed"].inc()
                log.warning(
                    "pod condition cannot be written", namespace=due.pod.namespace, pod=due.pod.name, error=str(e)
                )
                if is_of_one_object(e):  # the others must not wait behind it
                    due.not_before_s = self._clock() + RETRY_AFTER_S
                    return True
                self._not_before_s = self._clock() + RETRY_AFTER_S
                return False
        if self._due.get(uid) is due:  # else there is a newer verdict
            del self._due[uid]
        return True

    async def _write(self, uid: str, pod: ObjectKey, kind: str, *, holds: bool) -> None:
        """Write one condition. Raises: UpstreamError, TimeoutError."""
        condition = finding_condition(kind, holds=holds, at=datetime.now(UTC))
        try:
            async with asyncio.timeout(WRITE_WITHIN_S):
                await self._source.patch_pod_condition(
                    namespace=pod.namespace, name=pod.name, uid=uid, condition=condition
                )
        except (NotFoundError, ConflictError):
            self.forget(uid)
            return
        self._written.setdefault(uid, {})[kind] = holds
        self._metrics.findings[condition["reason"]].inc()
        log.info("pod condition written", namespace=pod.namespace, pod=pod.name, uid=uid, type=kind, holds=holds)


def finding_condition(kind: str, *, holds: bool, at: datetime) -> dict[str, Any]:
    """One of the two pod conditions; its texts are constant."""
    text = TEXTS[kind, holds]
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": text.reason,
        "message": text.message,
        "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
