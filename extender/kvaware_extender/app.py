"""The extender process: store → feed → engine → routes, two listeners, every task owned, and an orderly end."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from kvaware_cluster import Source, Store, TaskEndedError, WorkerScraper
from kvaware_cluster.profiles import load_profiles
from kvaware_engine import Engine, HardwareProfile, WorkerReport, Workers
from kvaware_extender import collectors
from kvaware_extender.binding import Binder
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.feed import Feed
from kvaware_extender.findings import FindingsWriter
from kvaware_extender.freshness import Freshness
from kvaware_extender.garbage import EVERY_S, Garbage, garbage_metrics
from kvaware_extender.intervals import Intervals
from kvaware_extender.memory import Memory
from kvaware_extender.metrics import Metrics
from kvaware_extender.openapi import describe
from kvaware_extender.pace import Pace
from kvaware_extender.preemption import Preemptions
from kvaware_extender.repeats import Repeats
from kvaware_extender.replies import MAX_BODY, errors_as_json
from kvaware_extender.requests_part import RequestsPart
from kvaware_extender.routes.models import model_routes
from kvaware_extender.routes.scheduler import scheduler_routes
from kvaware_extender.routes.service import service_routes
from kvaware_extender.routes.table import Route, add_routes
from kvaware_extender.routes.v1 import v1_routes
from kvaware_extender.routes.workers import worker_routes
from kvaware_extender.server_log import server_log
from kvaware_extender.settings import ExtenderSettings
from kvaware_extender.tasks import Tasks
from kvaware_extender.token_file import TokenFile
from kvaware_extender.token_reviews import TokenReviews
from kvaware_extender.verbs import Verbs
from kvaware_extender.wakeups import WakeUps
from kvaware_extender.worker_auth import WorkerAuth
from kvaware_extender.worker_feed import WorkerFeed
from kvaware_extender.worker_figures import WorkerFigures

__all__ = ["Extender", "run_extender", "running_extender"]

log = structlog.get_logger(__name__)

VERSION: Final = version("kvaware")
TICK_S: Final = 1.0
"""Intents end after 10 s and figures age in minutes: a second late does not matter."""
SHUTDOWN_MARGIN_S: Final = 1.0
"""Beyond the time that a bind may take."""


class Extender:
    """The wired parts. Nothing runs before ``running_extender``."""

    def __init__(
        self,
        settings: ExtenderSettings,
        source: Source,
        *,
        clock: Callable[[], float],
        profiles: Mapping[str, HardwareProfile] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.tasks = Tasks()
        self.metrics = Metrics(clock)
        self.engine = Engine(settings.engine)
        self.store = Store(source, settings=settings.store, clock=clock)
        self.freshness = Freshness(self.store, stale_view=settings.stale_view, max_view_age_s=settings.max_view_age_s)
        self.memory = Memory()
        self.decisions = DecisionLog(target=settings.decision_log, capacity=settings.decision_log_queue)
        pace = Pace(per_s=settings.wake_up.per_s, burst=settings.wake_up.burst, clock=clock)
        self.wakeups = WakeUps(
            engine=self.engine,
            source=source,
            view=self.store,
            freshness=self.freshness,
            metrics=self.metrics,
            settings=settings.wake_up,
            pace=pace,
            clock=clock,
        )
        self.findings = FindingsWriter(
            engine=self.engine,
            source=source,
            view=self.store,
            freshness=self.freshness,
            pace=pace,
            leave=settings.wake_up.burst // 2,
            metrics=self.metrics,
            clock=clock,
        )
        self.feed = Feed(
            self.engine,
            view=self.store,
            clock=clock,
            on_change=self.wakeups.poke,
            on_pod_placed=self.wakeups.forget,
            on_pod_gone=self._pod_gone,
        )
        self.store.subscribe(self.feed)
        self.workers = Workers(settings.workers, profiles)
        self.worker_feed = WorkerFeed(
            self.workers,
            view=self.store,
            metrics=self.metrics,
            report_timeout_s=settings.workers.report_timeout_s,
        )
        self.store.subscribe(self.worker_feed)
        self.store.on_worker_pod(self.worker_feed.membership.pod_changed)
        self.scraper = WorkerScraper(
            source.read_metrics,
            membership=self.worker_feed.membership,
            settings=settings.worker_scrape,
            clock=clock,
            reported=self._scraped,
        )
        self.worker_auth = _worker_auth(settings, source, clock=clock)
        self.requests = RequestsPart(
            settings=settings,
            workers=self.workers,
            membership=self.worker_feed.membership,
            profiles=profiles,
            view=self.store,
            freshness=self.freshness,
            metrics=self.metrics,
            decisions=self.decisions,
            clock=clock,
        )
        self.store.subscribe(self.requests.feed)
        self.figures = WorkerFigures(self.workers, view=self.store, scraper=self.scraper, clock=clock)
        self.binder = Binder(
            engine=self.engine,
            source=source,
            view=self.store,
            freshness=self.freshness,
            memory=self.memory,
            tasks=self.tasks,
            metrics=self.metrics,
            decisions=self.decisions,
            queue_length=lambda: len(self.wakeups),
            timeout_s=settings.bind_timeout_s,
            in_doubt_s=settings.in_doubt_s,
            clock=clock,
        )
        self.verbs = Verbs(
            engine=self.engine,
            freshness=self.freshness,
            memory=self.memory,
            repeats=Repeats(settings.repeat_cache_bytes),
            wakeups=self.wakeups,
            metrics=self.metrics,
            decisions=self.decisions,
            scheduler_name=settings.engine.scheduler_name,
            clock=clock,
        )
        self.preemptions = Preemptions(
            engine=self.engine,
            freshness=self.freshness,
            metrics=self.metrics,
            decisions=self.decisions,
            queue_length=lambda: len(self.wakeups),
            scheduler_name=settings.engine.scheduler_name,
            clock=clock,
        )
        collectors.register(
            self.metrics,
            engine=self.engine,
            view=self.store,
            feed=self.feed,
            wakeups=self.wakeups,
            binder=self.binder,
            decisions=self.decisions,
            figures=self.figures,
            findings=self.findings,
            requests=self.requests.placing.counts,
            ready=lambda: self.problem() is None,
        )
        self.routes = self._routes()
        self.scheduler_port = settings.scheduler_port
        self.api_port = settings.api_port

    def problem(self) -> str | None:
        """Why decisions cannot be made now; None: they can."""
        if self.tasks.ended is not None:
            return f"the background task {self.tasks.ended} has ended"
        return self.freshness.problem()

    def app(self, listener: str) -> web.Application:
        """The application of one listener."""
        limit = self.settings.max_body_bytes
        app = web.Application(middlewares=[errors_as_json], client_max_size=limit)
        app[MAX_BODY] = limit
        add_routes(app, tuple(route for route in self.routes if route.listener == listener))
        if listener == "api":
            app.on_shutdown.append(self.requests.streams.close)
        return app

    async def tick(self) -> None:
        """Let the engine's time pass, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            now_s = self.clock()
            self.engine.tick(now_s)
            self.requests.tick(now_s)

    def _routes(self) -> tuple[Route, ...]:
        return (
            *scheduler_routes(
                verbs=self.verbs,
                preemptions=self.preemptions,
                binder=self.binder,
                metrics=self.metrics,
                clock=time.perf_counter,
            ),
            *v1_routes(
                engine=self.engine,
                requests=self.requests.uses,
                view=self.store,
                freshness=self.freshness,
                memory=self.memory,
                clock=self.clock,
            ),
            *worker_routes(
                workers=self.workers,
                feed=self.worker_feed,
                auth=self.worker_auth,
                intervals=Intervals(self.settings.heartbeat.min_interval_s, clock=self.clock),
                view=self.store,
                freshness=self.freshness,
                metrics=self.metrics,
                clock=self.clock,
            ),
            *model_routes(
                engine=self.engine,
                workers=self.workers,
                view=self.store,
                freshness=self.freshness,
                clock=self.clock,
            ),
            *self.requests.routes(),
            *service_routes(
                problem=self.problem,
                metrics=self.metrics,
                before_metrics=self.figures.read,
                description=lambda: describe(self.routes, version=VERSION),
            ),
        )

    def _scraped(self, report: WorkerReport) -> None:
        self.worker_feed.scraped(report, now_s=self.clock())

    def _pod_gone(self, uid: str) -> None:
        self.wakeups.forget(uid)
        self.findings.forget(uid)
        self.memory.forget(uid)


def _worker_auth(settings: ExtenderSettings, source: Source, *, clock: Callable[[], float]) -> WorkerAuth:
    """Who may report for a worker, by the settings."""
    heartbeat = settings.heartbeat
    reviews = TokenReviews(
        source,
        audiences=heartbeat.audiences,
        good_s=heartbeat.remember_s,
        bad_s=heartbeat.remember_bad_s,
        most=heartbeat.remembered,
        per_s=heartbeat.reviews_per_s,
        burst=heartbeat.review_burst,
        clock=clock,
    )
    return WorkerAuth(
        token_file=TokenFile(Path(heartbeat.token_file), clock=clock) if heartbeat.token_file else None,
        reviews=reviews if heartbeat.review_tokens else None,
        audiences=heartbeat.audiences,
        service_accounts=heartbeat.service_accounts,
    )


@asynccontextmanager
async def running_extender(
    settings: ExtenderSettings, source: Source, *, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Extender]:
    """Start everything; at the end let running binds finish, then stop everything. The source stays its owner's."""
    own_profiles = Path(settings.hardware_profiles) if settings.hardware_profiles else None
    profiles = await asyncio.to_thread(load_profiles, own_profiles)
    extender = Extender(settings, source, clock=clock, profiles=profiles)
    await extender.worker_auth.open()
    await extender.requests.open()
    await asyncio.to_thread(extender.decisions.open)
    runners: list[web.AppRunner] = []
    try:
        extender.tasks.loop("store", extender.store.run())
        extender.tasks.loop("tick", extender.tick())
        extender.tasks.loop("wake-ups", extender.wakeups.run())
        extender.tasks.loop("findings", extender.findings.run())
        if settings.worker_scrape.enabled:
            extender.tasks.loop("worker-scrape", extender.scraper.run())
        if extender.requests.kv is not None:
            extender.tasks.loop("kv-events", extender.requests.kv.followers.run())
        extender.scheduler_port = await _listen(
            extender, runners, "scheduler", settings.scheduler_host, settings.scheduler_port
        )
        extender.api_port = await _listen(extender, runners, "api", settings.api_host, settings.api_port)
        log.info("listening", scheduler_port=extender.scheduler_port, api_port=extender.api_port)
        yield extender
    finally:
        for runner in runners:  # no new calls; the running ones get their answers
            await runner.cleanup()
        await extender.tasks.close(grace_s=settings.bind_timeout_s + SHUTDOWN_MARGIN_S)
        await asyncio.to_thread(extender.decisions.close)


async def run_extender(settings: ExtenderSettings, source: Source) -> None:
    """Run the extender until SIGTERM or SIGINT, then end in order. Closes the source.

    Raises: TaskEndedError when a background task ends by itself: the process must not stay up with a frozen view.
    """
    garbage = Garbage(clock=time.monotonic)
    garbage.begin()  # before anybody calls
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running_extender(settings, source) as extender:
            extender.metrics.collect_from(lambda: garbage_metrics(garbage))
            extender.tasks.loop("garbage", _watch(garbage))
            await _until(stop, extender.tasks)
            log.info("stopping")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await source.close()
        garbage.end()


async def _until(stop: asyncio.Event, tasks: Tasks) -> None:
    """Wait for the stop signal. Raises: TaskEndedError."""
    stopped = asyncio.create_task(stop.wait(), name="stop-signal")
    failed: asyncio.Task[TaskEndedError] = asyncio.create_task(tasks.failure(), name="task-watch")
    try:
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise failed.result()
    finally:
        for task in (stopped, failed):
            task.cancel()
        await asyncio.gather(stopped, failed, return_exceptions=True)


async def _watch(garbage: Garbage) -> None:
    """Keep the garbage collector out of the way, until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        garbage.look()


async def _listen(extender: Extender, runners: list[web.AppRunner], listener: str, host: str, port: int) -> int:
    """Open one listener. Returns: its port."""
    runner = web.AppRunner(
        extender.app(listener),
        access_log=None,
        logger=server_log(),
        shutdown_timeout=extender.settings.bind_timeout_s + SHUTDOWN_MARGIN_S,
    )
    runners.append(runner)
    await runner.setup()
    if listener == "api" and runner.server is not None:
        runner.server.request_handler = extender.requests.express(runner.server.request_handler)
    await web.TCPSite(runner, host, port).start()
    bound: int = runner.addresses[0][1]
    return bound
