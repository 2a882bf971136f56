"""The operator process: lease → store, queues, polls, kopf; probes beside them from the start; an orderly end.

::

    store, kopf, loads, tenants, workloads ──key──▶ queue per kind ──▶ reconcile ──▶ scale, costs, status
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from kvaware_cluster import (
    ExtenderClient,
    Kind,
    KubernetesApi,
    KubernetesHttp,
    KubernetesSource,
    LeaderLease,
    Source,
    Store,
    TaskEndedError,
    WorkloadWatches,
    new_identity,
)
from kvaware_cluster.profiles import load_profiles
from kvaware_cluster.workloads import ScaleTarget
from kvaware_engine import HardwareProfile, Scaler
from kvaware_engine.observations import ObjectKey
from kvaware_operator import collectors
from kvaware_operator.handlers import Memo
from kvaware_operator.handlers.memo import Requests
from kvaware_operator.kopf_thread import KopfThread
from kvaware_operator.leaders_api import LeadersApi
from kvaware_operator.loads import Loads
from kvaware_operator.metrics import Metrics
from kvaware_operator.probes import serving_probes
from kvaware_operator.readiness import readiness
from kvaware_operator.reconcile.block_group import BlockGroupReconciler
from kvaware_operator.reconcile.inference_model import ModelReconciler
from kvaware_operator.reconcile.tenant_quota import QuotaReconciler
from kvaware_operator.scales import Scales
from kvaware_operator.settings import OperatorSettings
from kvaware_operator.statuses import StatusWriter
from kvaware_operator.tenants import Tenants
from kvaware_operator.view import KINDS, View, versionless
from kvaware_operator.work_queue import WorkQueue

__all__ = ["Operator", "run_operator", "running_operator"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
WANT_AFTER_S: Final = 0.05
"""Changes of scale targets come in bursts (the first list): the watches are told once per burst."""
SETTLE_AGAIN_S: Final = 0.1
QUIET_AGAIN_S: Final = 0.2
FIRST_LOADS_POLLS: Final = 1.5
"""Poll intervals in which every model that is there at the start was asked about once."""
UNWATCHED_SHOWN: Final = 5
"""Kinds that ``/readyz`` names: specs can name any number of them."""
OTHER_WORKERS: Final = 2
"""Looks at a time at quotas, and at block groups: they only write statuses."""


class Operator:
    """The wired parts. Nothing runs before ``lead``."""

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        source: Source,
        http: KubernetesHttp,
        extender: ExtenderClient,
        profiles: Mapping[str, HardwareProfile] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        kopf_login: Callable[..., Any] | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            settings: See there.
            source: What the store reads from; closed by its own owner, as the next two.
            http: For questions and writes.
            extender: For loads, headroom, tenants and workers.
            profiles: Of hardware, for the scaler.
            clock: Monotonic seconds.
            wall: For the times of conditions.
            kopf_login: See ``KopfThread``.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.ended: str | None = None
        """Name of the first background task that ended by itself."""
        self._leading = False
        self._leading_since_s = 0.0
        self._clock = clock
        self._want_handle: asyncio.TimerHandle | None = None
        self._crds: dict[Kind, str] = {}
        queues = {
            kind: WorkQueue[ObjectKey](
                str(kind),
                first_s=settings.queue.backoff_first_s,
                max_s=settings.queue.backoff_max_s,
                timeout_s=settings.queue.timeout_s,
                clock=clock,
            )
            for kind in (Kind.INFERENCE_MODEL, Kind.TENANT_QUOTA, Kind.KV_CACHE_BLOCK_GROUP)
        }
        self.queues: Mapping[Kind, WorkQueue[ObjectKey]] = queues
        self.store = Store(source, settings=settings.store, clock=clock, kinds=KINDS, details=True)
        self.view = View(self.store, look=self.look, scaled=self._scaled)
        self.lease: LeaderLease | None = None
        """Whose holder alone may write; None: there is nobody else."""
        api = KubernetesApi(http, clock=clock)
        self.api = LeadersApi(api, leads=lambda: self.lease is None or self.lease.held())
        self.workloads = WorkloadWatches(
            http,
            api.discovery,
            changed=self._workload_changed,
            clock=clock,
            settings=settings.workload_watches,
        )
        self.scales = Scales(
            self.api,
            max_age_s=settings.scale_max_age_s,
            unwatched_max_age_s=settings.unwatched_scale_max_age_s,
            watched=lambda target: self.workloads.age_s(target.workload_kind) is not None,
            clock=clock,
        )
        self.loads = Loads(
            extender,
            poll_s=settings.poll_s,
            grace_s=settings.load_grace_s,
            scaled=lambda: self.view.scaled_models() if self.view.known(Kind.INFERENCE_MODEL) else {},
            changed=queues[Kind.INFERENCE_MODEL].request,
            clock=clock,
            asked=self.metrics.polled,
        )
        self.tenants = Tenants(
            extender,
            poll_s=settings.poll_s,
            wanted=lambda: bool(self.view.resources(Kind.TENANT_QUOTA)),
            changed=self._tenant_changed,
        )
        self.statuses = StatusWriter(
            self.api, interval_s=settings.status_interval_s, clock=clock, wrote=self.metrics.status_written
        )
        self._profiles = profiles or {}
        self._scaler: Scaler | None = None
        """Begins with the lead: what a load asked for while another operator led is not known here."""
        self._model_reconciler = partial(
            ModelReconciler,
            view=self.view,
            api=self.api,
            extender=extender,
            scales=self.scales,
            loads=self.loads,
            statuses=self.statuses,
            metrics=self.metrics,
            max_view_age_s=settings.max_view_age_s,
            clock=clock,
            wall=wall,
        )
        self.quotas = QuotaReconciler(view=self.view, tenants=self.tenants, statuses=self.statuses, wall=wall)
        self.groups = BlockGroupReconciler(view=self.view, statuses=self.statuses, wall=wall)
        self.kopf = KopfThread(self._memo(), login=kopf_login) if settings.kopf else None
        collectors.register(
            self.metrics,
            leading=lambda: self._leading,
            ready=lambda: self.ready()[0],
            ages_s=self._ages_s,
            queues=queues,
            statuses=self.statuses,
            kopf_restarts=lambda: 0 if self.kopf is None else self.kopf.restarts,
        )

    def look(self, kind: Kind, key: ObjectKey) -> None:
        """Have an object looked at."""
        self.queues[kind].request(key)

    def ready(self) -> tuple[bool, str]:
        """Whether the operator can do its work, and what hampers it."""
        return readiness(
            leading=self._leading,
            lease_problem=None if self.lease is None else self.lease.problem,
            ended=self.ended,
            ages_s=self._ages_s(),
            max_age_s=self.settings.max_view_age_s,
            notes=self._notes(),
        )

    async def lead(self) -> None:
        """Do the work until cancelled. Raises: TaskEndedError when a part of it ends by itself."""
        self._leading, self._leading_since_s = True, self._clock()
        tasks = [asyncio.create_task(work, name=name) for name, work in self._work().items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            first = min(done, key=tasks.index)
            error = None if first.cancelled() else first.exception()
            log.error("background task ended by itself", task=first.get_name(), exc_info=error)
            self.ended = first.get_name()
            raise TaskEndedError(first.get_name()) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._want_handle is not None:
                self._want_handle.cancel()
            self._leading = False

    def _work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Everything that runs for as long as this process leads, by name."""
        now_s = self._clock()
        self._scaler = Scaler(self.settings.scaling, self._profiles, now_s=now_s)
        first_loads_until_s = now_s + FIRST_LOADS_POLLS * self.settings.poll_s
        models = self._model_reconciler(scaler=self._scaler, first_loads_until_s=first_loads_until_s)
        looks = {
            Kind.INFERENCE_MODEL: (models.look, self.settings.queue.workers),
            Kind.TENANT_QUOTA: (self.quotas.look, OTHER_WORKERS),
            Kind.KV_CACHE_BLOCK_GROUP: (self.groups.look, OTHER_WORKERS),
        }
        work: dict[str, Coroutine[Any, Any, None]] = {
            f"look-at-{kind}s": self.queues[kind].run(
                partial(self._settled, look),
                workers=workers,
                grace_s=self.settings.stop_timeout_s,
                ended=lambda result, took_s, kind=kind: self.metrics.looked(kind, result, took_s),  # type: ignore[misc]  # the loop's own kind
            )
            for kind, (look, workers) in looks.items()
        }
        work |= {
            "store": self.store.run(),
            "workloads": self.workloads.run(),
            "loads": self.loads.run(),
            "tenants": self.tenants.run(),
        }
        return work if self.kopf is None else {**work, "kopf": self._run_kopf(self.kopf)}

    async def _run_kopf(self, kopf: KopfThread) -> None:
        """Start kopf once everything was looked at: its first list would only ask for all of it again.

        At 1,000 models it costs 6 s of CPU, which the first looks need more.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.kopf_after_s):
                while not self._looked_at_all():  # noqa: ASYNC110  # nobody tells of it, and nothing waits for this
                    await asyncio.sleep(QUIET_AGAIN_S)
        await kopf.run()

    def _looked_at_all(self) -> bool:
        return None not in self.store.ages().values() and not any(len(queue) for queue in self.queues.values())

    async def _settled(self, look: Callable[[ObjectKey], Awaitable[float | None]], key: ObjectKey) -> float | None:
        """A look, once every kind is known, or was waited for in vain."""
        left_s = self._leading_since_s + self.settings.settle_s - self._clock()
        if left_s > 0 and None in self.store.ages().values():
            return min(left_s, SETTLE_AGAIN_S)
        return await look(key)

    def _ages_s(self) -> Mapping[Kind, float | None]:
        return self.store.ages() if self._leading else {}

    def _notes(self) -> Mapping[str, str]:
        notes = {
            str(kind): f"the installed CRD is older than this operator and drops {', '.join(sorted(fields))}"
            for kind, fields in self.statuses.lost_fields().items()
        }
        unwatched = self.workloads.unwatched() if self._leading else {}
        for workload in sorted(unwatched)[:UNWATCHED_SHOWN]:
            notes[f"{workload.api_version} {workload.kind}"] = (
                f"not watched, so its scales are read every so often: {unwatched[workload]}"
            )
        if (more := len(unwatched) - UNWATCHED_SHOWN) > 0:
            notes["kinds of workloads that are not watched either"] = str(more)
        for kind, queue in self.queues.items():
            if queue.failing:
                notes[f"{kind}s that could not be brought to their spec"] = str(queue.failing)
        return notes

    def _scaled(self, key: ObjectKey, before: frozenset[ScaleTarget], now: frozenset[ScaleTarget]) -> None:
        for target in before - now:
            if not self.view.targets.claimants(versionless(target)):
                self.scales.forget(target)
        if not now:
            self.loads.forget(key)
            if self._scaler is not None:
                self._scaler.forget(key)
        if self._want_handle is None or self._want_handle.when() < asyncio.get_running_loop().time():
            self._want_handle = asyncio.get_running_loop().call_later(WANT_AFTER_S, self._want)

    def _want(self) -> None:
        self.workloads.want(self.view.scale_targets())

    def _workload_changed(self, target: ScaleTarget) -> None:
        self.scales.changed(target)
        self.view.target_changed(target)

    def _tenant_changed(self, tenant: str) -> None:
        for key, quota in self.store.objects(Kind.TENANT_QUOTA).items():
            if quota.tenant == tenant:
                self.look(Kind.TENANT_QUOTA, key)

    def _crd_seen(self, kind: Kind, version: str) -> None:
        before = self._crds.get(kind)
        self._crds[kind] = version
        if before not in {None, version}:
            self.statuses.crd_changed(kind)
            for key in self.store.resources(kind):
                self.look(kind, key)

    def _memo(self) -> Memo:
        """What kopf's handlers reach: ways into this loop."""
        loop = asyncio.get_running_loop()

        def hand_over(call: Callable[..., None], *arguments: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(call, *arguments)

        def told(kind: Kind, key: ObjectKey) -> None:
            self.metrics.kopf_event(kind)
            self.look(kind, key)

        def requests(kind: Kind) -> Requests:
            return Requests(lambda key: hand_over(told, kind, key))

        return Memo(
            models=requests(Kind.INFERENCE_MODEL),
            groups=requests(Kind.KV_CACHE_BLOCK_GROUP),
            quotas=requests(Kind.TENANT_QUOTA),
            crd_seen=lambda kind, version: hand_over(self._crd_seen, kind, version),
        )


@asynccontextmanager
async def running_operator(
    operator: Operator, *, lease: LeaderLease | None
) -> AsyncIterator[tuple[asyncio.Task[None], int]]:
    """Answer probes and work, once the lease is held, until the block ends. Yields: the work, and the probes' port."""
    settings = operator.settings
    operator.lease = lease
    async with serving_probes(settings.host, settings.port, ready=operator.ready, metrics=operator.metrics) as port:
        work = asyncio.create_task(operator.lead() if lease is None else lease.run(operator.lead), name="operator")
        try:
            yield work, port
        finally:
            work.cancel()
            await asyncio.wait([work])


async def run_operator(settings: OperatorSettings, *, kubeconfig: str | None = None) -> None:
    """Run the operator until SIGTERM or SIGINT, then end in order.

    Raises: TaskEndedError when a part of it ended by itself, LeaseLostError when another may act: the process must not
    go on. ConfigError, OSError when it cannot start.
    """
    own = Path(settings.hardware_profiles) if settings.hardware_profiles else None
    profiles = await asyncio.to_thread(load_profiles, own)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as open_things:
        source = await KubernetesSource.connect(kubeconfig=kubeconfig, settings=settings.kubernetes)
        open_things.push_async_callback(source.close)
        http = await KubernetesHttp.connect(kubeconfig=kubeconfig, settings=settings.kubernetes)
        open_things.push_async_callback(http.close)
        extender = ExtenderClient(settings.extender_url, settings=settings.extender)
        open_things.push_async_callback(extender.close)
        lease = None
        if settings.lease.enabled:
            lease_http = await KubernetesHttp.connect(kubeconfig=kubeconfig, settings=settings.kubernetes)
            open_things.push_async_callback(lease_http.close)
            lease = await _lease(settings, lease_http)
        operator = Operator(settings, source=source, http=http, extender=extender, profiles=profiles)
        async with running_operator(operator, lease=lease) as (work, port):
            log.info("listening", port=port, lease=lease is not None)
            await _until(stop, work)
            log.info("stopping")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


async def _lease(settings: OperatorSettings, http: KubernetesHttp) -> LeaderLease:
    namespace = settings.lease.namespace or await asyncio.to_thread(_own_namespace)
    return LeaderLease(
        http,
        namespace=namespace,
        name=settings.lease.name,
        identity=new_identity(),
        clock=time.monotonic,
        timing=settings.lease.timing,
    )


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


async def _until(stop: asyncio.Event, work: asyncio.Task[None]) -> None:
    """Wait for the stop signal. Raises: what the work raises when it ends before that."""
    stopped = asyncio.create_task(stop.wait(), name="stop-signal")
    try:
        await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
