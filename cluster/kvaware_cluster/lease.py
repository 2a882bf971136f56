"""Of several processes one leads: leader election on a Lease, as client-go does it.

``kubernetes.aio.leaderelection`` was read and is not used (37.0.2): it judges other holders by the wall clock, a call
that hangs outlasts its renew deadline, what leads is cancelled but not awaited, its failures are lost, and the lease is
not released at the end, so that the next one waits out its full duration.

::

    follow ──taken──▶ lead, renewing every retry_s ──work ends or is cancelled──▶ release
      ▲  │                    │
      └──┘ held by another    └── taken by another, or not renewed for renew_deadline_s: stop the work, LeaseLostError

Nobody's clock is compared with anybody else's: a holder's lease counts from when *this* process saw it change, and our
own from before the renewal was sent. So ours ends here before it ends for others, if clocks run at about one speed.
"""

import asyncio
import math
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog

from kvaware_cluster.errors import ConflictError, LeaseLostError, NotFoundError
from kvaware_cluster.kubernetes_http import KubernetesHttp, object_of, object_path
from kvaware_cluster.settings import LeaseTiming
from kvaware_cluster.source import RawObject
from kvaware_crds.errors import ConfigError, KvawareError, UpstreamError

__all__ = ["LeaderLease", "new_identity"]

LEASES: Final = "/apis/coordination.k8s.io/v1/leases"
RETRY_JITTER_RATIO: Final = 0.2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def new_identity() -> str:
    """A name for this process that no other has: a container that restarts keeps its host's name."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"


class LeaderLease:
    """One Lease, and whether this process holds it. One per event loop; ``run`` once at a time."""

    def __init__(
        self,
        http: KubernetesHttp,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        timing: LeaseTiming | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Connect nothing yet.

        Args:
            http: Closed by its own owner. Better one of its own: a renewal should not wait behind a thousand writes.
            namespace: Of the Lease.
            name: Of the Lease; created where there is none.
            identity: ``new_identity()``: no other candidate may have it.
            clock: Monotonic seconds.
            timing: See there.
            rng: For jitter.
            sleep: By the same clock.
            wall: For the times in the Lease, which are for people to read; nothing is judged by them.
        Raises: ConfigError when the times do not follow each other: retry < renew deadline < duration; or a name is
            empty.
        """
        timing = timing or LeaseTiming()
        if not timing.retry_s * (1 + RETRY_JITTER_RATIO) < timing.renew_deadline_s < timing.duration_s:
            raise ConfigError(
                f"expected lease times with 1.2 x retry_s < renew_deadline_s < duration_s, got {timing.retry_s:g}, "
                f"{timing.renew_deadline_s:g} and {timing.duration_s:g}"
            )
        self._http = http
        if not namespace or not name:
            raise ConfigError(f"expected namespace and name of a Lease, got {namespace!r} and {name!r}")
        self._path = object_path(LEASES, namespace, name)
        self._collection = self._path.rsplit("/", 1)[0]
        self._what = f"lease {namespace}/{name}"
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._clock = clock
        self._timing = timing
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._sleep = sleep
        self._wall = wall
        self._seen: RawObject | None = None
        """The Lease as last answered; None: read it first."""
        self._seen_spec: RawObject = {}
        self._seen_at_s = clock()
        self._renewed_at_s: float | None = None
        """When the last renewal that was carried out had been sent; None: not ours."""
        self.problem: str | None = None
        """Why the last try failed, another holder apart; None: it did not."""
        self._trouble = ""

    def held(self) -> bool:
        """Whether this process leads, by its own clock. To be asked right before what only a leader may do."""
        return self._renewed_at_s is not None and self._clock() < self._renewed_at_s + self._timing.duration_s

    @property
    def holder(self) -> str:
        """Who leads, as last seen; empty: nobody, or not known yet."""
        return _holder(self._seen_spec)

    async def run(self, on_lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, then run ``on_lead`` while it is held; returns or raises as that does.

        However it ends, ``on_lead`` has ended before the lease can be another's, and the lease is released if it is
        still ours. Following never ends by itself: whatever the API server answers is tried again.
        Raises: LeaseLostError when the lease was lost; ``on_lead`` was cancelled.
        """
        await self._follow()
        log.info("leading", lease=self._what, identity=self._identity)
        work = asyncio.create_task(_awaited(on_lead), name="lead")
        renewing = asyncio.create_task(self._renew_until_lost(), name="renew-lease")
        ended_itself = False
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            ended_itself = work.done()
            if not ended_itself:
                log.error("lease lost", lease=self._what, identity=self._identity, holder=self.holder)
        finally:  # also when this task is cancelled
            try:
                await self._stop(work)
            finally:
                renewing.cancel()
            await asyncio.wait([renewing])
            lost = None if renewing.cancelled() else renewing.exception()
            await self._release()
            if not ended_itself and work.done() and not work.cancelled() and (error := work.exception()) is not None:
                log.error("work failed while it was stopped", error=type(error).__name__, problem=str(error))
        if ended_itself:
            work.result()
        elif lost is not None:
            raise lost

    async def _follow(self) -> None:
        while True:
            if await self._try():
                return
            await self._sleep(self._retry_s())

    async def _renew_until_lost(self) -> None:
        """Renew for ever. Raises: LeaseLostError."""
        while True:
            await self._sleep(self._retry_s())
            await self._renew()

    async def _renew(self) -> None:
        """Renew once, within the deadline since the last renewal. Raises: LeaseLostError."""
        deadline_s = (self._renewed_at_s or 0.0) + self._timing.renew_deadline_s
        while (left_s := deadline_s - self._clock()) > 0:
            # each try gets half of the deadline at most, so that one call that hangs is not the last
            if await self._try(limit_s=min(left_s, self._timing.renew_deadline_s / 2)):
                return
            if self._renewed_at_s is None:
                raise LeaseLostError(f"{self._what}: taken by {self.holder or 'nobody'}")
            await self._sleep(max(0.0, min(self._retry_s(), deadline_s - self._clock())))
        raise LeaseLostError(f"{self._what}: not renewed for {self._timing.renew_deadline_s:g} s")

    async def _try(self, *, limit_s: float | None = None) -> bool:
        """Take or renew the lease. Returns: whether that was carried out; if not, or if in doubt, it is tried again."""
        try:
            async with asyncio.timeout(self._timing.renew_deadline_s / 2 if limit_s is None else limit_s):
                held = await self._take_or_renew()
        except (KvawareError, TimeoutError) as error:
            self._seen = None  # perhaps carried out, perhaps not: read it first
            self._troubled(error)
            return False
        self._troubled(None)
        return held

    async def _take_or_renew(self) -> bool:
        if self._seen is None or self._renewed_at_s is None:  # a leader need not read: its write fails if it is old
            try:
                self._saw(await self._http.read(self._path, what=self._what))
            except NotFoundError:
                return await self._write("POST", self._collection, {"metadata": self._metadata()}, {})
        seen, spec = self._seen or {}, self._seen_spec
        holder = _holder(spec)
        if holder != self._identity:
            if self._renewed_at_s is not None:  # another one has led meanwhile, even if it does no more
                self._renewed_at_s = None
                return False
            if holder and self._clock() < self._seen_at_s + _duration_s(spec, self._timing.duration_s):
                return False
        try:
            return await self._write("PUT", self._path, seen, spec)
        except ConflictError:
            if self._renewed_at_s is None:
                raise
            self._saw(await self._http.read(self._path, what=self._what))  # who wrote it? Not to be learned later
            if self.holder != self._identity:
                self._renewed_at_s = None
            return False

    async def _write(self, method: str, path: str, seen: RawObject, spec: RawObject) -> bool:
        """Write the lease as ours, with the precondition that it is as it was seen."""
        sent_at_s = self._clock()
        now = _micro_time(self._wall())
        ours = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._timing.duration_s),
            "renewTime": now,
        }
        if _holder(spec) != self._identity:
            ours["acquireTime"] = now
            before = spec.get("leaseTransitions")
            ours["leaseTransitions"] = before + 1 if type(before) is int else 0
        body = {**seen, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": ours}
        self._saw(object_of(await self._http.write(method, path, body, what=self._what), what=self._what))
        self._renewed_at_s = sent_at_s
        return True

    async def _stop(self, work: asyncio.Task[None]) -> None:
        """Cancel the work and wait for its end, at most until the lease could be another's."""
        work.cancel()
        if self._renewed_at_s is None:  # it is another's already
            await self._ended(work, limit_s=self._timing.duration_s - self._timing.renew_deadline_s)
        while not work.done() and self.held():  # renewals go on while there is nothing wrong with them
            await self._ended(work, limit_s=self._timing.retry_s)
        if not work.done():
            log.error("work goes on after its lease has ended", lease=self._what)

    async def _ended(self, work: asyncio.Task[None], *, limit_s: float) -> None:
        limit = asyncio.create_task(_awaited(partial(self._sleep, limit_s)), name="lease-limit")
        try:
            await asyncio.wait({work, limit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()

    async def _release(self) -> None:
        """Give the lease back, so that the next one need not wait it out; harmless when that fails."""
        held, self._renewed_at_s = self.held(), None
        if not held:
            return
        try:
            async with asyncio.timeout(self._timing.renew_deadline_s / 2):
                self._saw(await self._http.read(self._path, what=self._what))  # a renewal may have been cut off
                if self.holder != self._identity or self._seen is None:
                    return
                spec = {
                    **self._seen_spec,
                    "holderIdentity": "",
                    "leaseDurationSeconds": 1,
                    "renewTime": _micro_time(self._wall()),
                }
                await self._http.write("PUT", self._path, {**self._seen, "spec": spec}, what=f"release of {self._what}")
                self._seen_spec = spec
        except (KvawareError, TimeoutError) as error:
            log.warning("lease not released", lease=self._what, trouble=type(error).__name__, error=str(error))

    def _saw(self, lease: RawObject) -> None:
        spec = lease.get("spec") or {}
        if type(spec) is not dict:
            raise UpstreamError(f"{self._what}: expected an object with spec")
        if spec != self._seen_spec:
            self._seen_spec, self._seen_at_s = spec, self._clock()
        self._seen = lease

    def _troubled(self, error: Exception | None) -> None:
        """Note why a try failed; the change is logged, not the repetition. A conflict is how elections go."""
        error = None if isinstance(error, ConflictError) else error
        self.problem = None if error is None else f"{type(error).__name__}: {error}"
        trouble = "" if error is None else type(error).__name__
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if error is None:
            log.info("lease is answered again", lease=self._what)
        else:
            log.warning("lease not taken or renewed", lease=self._what, problem=self.problem)

    def _metadata(self) -> RawObject:
        return {"name": self._name, "namespace": self._namespace}

    def _retry_s(self) -> float:
        return self._timing.retry_s * (1 + RETRY_JITTER_RATIO * self._rng.random())


async def _awaited(on_lead: Callable[[], Awaitable[None]]) -> None:
    await on_lead()


def _holder(spec: RawObject) -> str:
    holder = spec.get("holderIdentity")
    return holder if type(holder) is str else ""


def _duration_s(spec: RawObject, default_s: float) -> float:
    duration: Any = spec.get("leaseDurationSeconds")
    return float(duration) if type(duration) is int and duration > 0 else default_s


def _micro_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
