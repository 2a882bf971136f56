"""Bind: the one place where a reservation is made for good, and where the cluster is told.

What can go wrong lies between "asked the API server" and "know what it did". A reservation whose binding is *in doubt*
stays booked; the pod is read until it is known (``Doubts``), so that nothing is booked twice and nothing for ever.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from kvaware_cluster import ClusterApiError, ConflictError, Source, parse_pod, render_reservation
from kvaware_crds.errors import UpstreamError
from kvaware_crds.names import ANNOTATION_RESERVATION
from kvaware_engine import REFUSAL_TEXTS, Engine, ObjectKey, PodDemand, PodObservation, Reason, Refusal
from kvaware_extender.decision_log import DecisionLog
from kvaware_extender.doubts import Doubt, Doubts
from kvaware_extender.freshness import Freshness
from kvaware_extender.locks import KeyedLocks
from kvaware_extender.memory import Memory
from kvaware_extender.metrics import BindResult, Metrics, Verb
from kvaware_extender.ours import group_of
from kvaware_extender.records import Bound
from kvaware_extender.tasks import Tasks
from kvaware_extender.view import View
from kvaware_extender.wire import BindArgs

__all__ = ["Binder", "node_of", "uid_of"]

log = structlog.get_logger(__name__)

BOUND_ELSEWHERE: Final = REFUSAL_TEXTS[Reason.ALREADY_BOUND]
POD_GONE: Final = "kvaware: the pod does not exist any more, or is another one of the same name"
IN_DOUBT: Final = "kvaware: the API server did not say in time whether the pod was bound; asking it"
DOUBT_ELSEWHERE: Final = "kvaware: an earlier binding of this pod to another node is not decided yet"
BUSY: Final = "kvaware: an earlier bind of this pod is still running"
NOT_READ: Final = "kvaware: the pod could not be read from the API server"
NOT_BOUND: Final = "kvaware: the API server did not take the binding"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one bind ended."""

    result: BindResult
    text: str = ""
    """Empty when the pod is bound where it should be."""
    decision_id: str = ""
    """In the reservation that was asked to be written; empty: none was."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """The pod to bind, as far as it matters here."""

    node: str | None
    demand: PodDemand | None
    """None: not ours, bound without a reservation."""
    group: ObjectKey | None = None
    """Of a pod that is not ours: the group that it is placed with."""


class Binder:
    """Binds pods, one attempt per UID at a time, each within ``timeout_s``."""

    def __init__(
        self,
        *,
        engine: Engine,
        source: Source,
        view: View,
        freshness: Freshness,
        memory: Memory,
        tasks: Tasks,
        metrics: Metrics,
        decisions: DecisionLog,
        queue_length: Callable[[], int],
        timeout_s: float,
        in_doubt_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._source = source
        self._view = view
        self._freshness = freshness
        self._memory = memory
        self._tasks = tasks
        self._metrics = metrics
        self._decisions = decisions
        self._queue_length = queue_length
        self._timeout_s = timeout_s
        self._clock = clock
        self._locks = KeyedLocks()
        self.doubts = Doubts(
            engine=engine, source=source, locks=self._locks, limit_s=in_doubt_s, read_timeout_s=timeout_s, clock=clock
        )

    async def bind(self, args: BindArgs, *, trace_id: str | None = None) -> str:
        """Bind the pod. The caller may hang up: the attempt goes on, and shutdown waits for it.

        Returns: Empty on success, else why not, constant per reason.
        """
        return await asyncio.shield(self._tasks.job(f"bind {args.uid}", self._attempt(args, trace_id)))

    async def _attempt(self, args: BindArgs, trace_id: str | None) -> str:
        demand = self._memory.demand(args.uid) if self._memory.knows(args.uid) else None
        # Set by whoever knows more, read when the time is over.
        late = Outcome(BindResult.BUSY, BUSY)
        try:
            async with asyncio.timeout(self._timeout_s), self._locks.hold(args.uid):
                late = Outcome(BindResult.API_REFUSED, NOT_READ)
                found = await self._look_up(args)
                if isinstance(found, Outcome):
                    outcome = found
                else:
                    demand = found.demand
                    late = Outcome(BindResult.IN_DOUBT, IN_DOUBT)
                    outcome = await self._bind(args, found)
        except TimeoutError:
            outcome = late
        self._metrics.binds[outcome.result].inc()
        if demand is not None:
            self._record(args, demand, outcome, trace_id)
        return outcome.text

    async def _look_up(self, args: BindArgs) -> _Pod | Outcome:
        """The pod, or the end of the attempt: it cannot be read, or is gone. Nothing is asked to be bound here."""
        try:
            pod = await self._find(args, self.doubts.get(args.uid))
        except UpstreamError as e:
            log.warning("pod cannot be read for bind", namespace=args.namespace, pod=args.name, error=str(e))
            return Outcome(BindResult.API_REFUSED, NOT_READ)
        return Outcome(BindResult.POD_GONE, POD_GONE) if pod is None else pod

    async def _bind(self, args: BindArgs, pod: _Pod) -> Outcome:
        """Bind a pod that exists, under the UID's lock."""
        if pod.node is not None:
            if pod.node == args.node:
                return Outcome(BindResult.ALREADY_BOUND)
            return Outcome(BindResult.BOUND_ELSEWHERE, BOUND_ELSEWHERE)
        doubt = self.doubts.get(args.uid)
        if doubt is not None and doubt.node != args.node:
            # The first binding may still take effect: a second one elsewhere could double the booking.
            return Outcome(BindResult.IN_DOUBT, DOUBT_ELSEWHERE)
        if pod.demand is None:
            refusal = self._group_refusal(pod.group) if pod.group is not None else None
            if refusal is not None:
                self._metrics.refused(refusal)
                return Outcome(BindResult.REFUSED, REFUSAL_TEXTS[refusal])
            self._metrics.not_ours[Verb.BIND].inc()
            return await self._write(args, {})
        return await self._reserve_and_write(args, pod.demand)

    def _group_refusal(self, group: ObjectKey) -> Reason | None:
        """Why a pod that is not ours must not begin its group: pods that are ours could not follow."""
        return None if self._freshness.stale() else self._engine.begin_group(group, now_s=self._clock())

    async def _reserve_and_write(self, args: BindArgs, demand: PodDemand) -> Outcome:
        # No await between the look at the view and the reservation: in one loop that makes it check-and-take.
        if self._freshness.stale():
            return Outcome(BindResult.STALE, REFUSAL_TEXTS[Reason.STALE_VIEW])
        held_before = args.node in self._engine.holder(args.uid)
        reservation = self._engine.reserve(
            demand, args.node, now_s=self._clock(), decision_id=self._decision_id(args, demand)
        )
        if isinstance(reservation, Refusal):
            self._metrics.refused(reservation.reason)
            return Outcome(BindResult.REFUSED, reservation.text)
        # From here on every way out, cancellation included, either knows what the API server did or is a doubt.
        result: BindResult | None = None
        try:
            outcome = await self._write(args, {ANNOTATION_RESERVATION: render_reservation(reservation)})
            result = outcome.result
        finally:
            match result:
                case BindResult.BOUND | BindResult.ALREADY_BOUND:
                    self.doubts.drop(args.uid)
                    self._engine.settle(args.uid, args.node, now_s=self._clock())
                case None | BindResult.IN_DOUBT:
                    doubt = self.doubts.add(uid=args.uid, namespace=args.namespace, name=args.name, node=args.node)
                    self._tasks.errand(f"doubt {args.uid}", self.doubts.clear_up(doubt))
                case BindResult.POD_GONE | BindResult.BOUND_ELSEWHERE:
                    self.doubts.drop(args.uid)
                    self._engine.release(args.uid, args.node)
                case _ if not held_before:
                    self._engine.release(args.uid, args.node)
                case _:
                    pass  # this request was refused; an earlier one has taken effect, or still may
        return replace(outcome, decision_id=reservation.decision_id)

    def _decision_id(self, args: BindArgs, demand: PodDemand) -> str:
        """Of the decision that sent the pod to this node, so that its log record and its reservation join."""
        decided = self._memory.decision(demand.uid)
        chosen = decided.decision.chosen if decided else None
        return decided.decision.decision_id if decided and chosen and chosen.node == args.node else ""

    async def _write(self, args: BindArgs, annotations: Mapping[str, str]) -> Outcome:
        """Tell the API server. IN_DOUBT when it may or may not have bound the pod."""
        try:
            await self._source.bind(
                namespace=args.namespace, name=args.name, uid=args.uid, node=args.node, annotations=annotations
            )
        except ConflictError:
            return await self._after_conflict(args)
        except ClusterApiError as e:
            if e.status >= 500:
                return Outcome(BindResult.IN_DOUBT, IN_DOUBT)
            log.warning("binding refused", namespace=args.namespace, pod=args.name, node=args.node, error=str(e))
            if e.status == 404:
                return Outcome(BindResult.POD_GONE, POD_GONE)
            return Outcome(BindResult.API_REFUSED, f"{NOT_BOUND} ({e.status} {e.reason})")
        except UpstreamError:
            return Outcome(BindResult.IN_DOUBT, IN_DOUBT)
        return Outcome(BindResult.BOUND)

    async def _after_conflict(self, args: BindArgs) -> Outcome:
        """409: bound already (an earlier attempt that answered too late), another UID, or being deleted."""
        try:
            raw = await self._source.get_pod(args.namespace, args.name)
        except UpstreamError:
            return Outcome(BindResult.IN_DOUBT, IN_DOUBT)
        if raw is None or uid_of(raw) != args.uid:
            return Outcome(BindResult.POD_GONE, POD_GONE)
        node = node_of(raw)
        if node == args.node:
            return Outcome(BindResult.ALREADY_BOUND)
        if node is not None:
            return Outcome(BindResult.BOUND_ELSEWHERE, BOUND_ELSEWHERE)
        return Outcome(BindResult.API_REFUSED, f"{NOT_BOUND} (409 Conflict)")

    async def _find(self, args: BindArgs, doubt: Doubt | None) -> _Pod | None:
        """The pod with this UID: as the store has it, as filter saw it, or read now. None: there is no such pod."""
        if doubt is None:
            seen = self._view.pod(args.namespace, args.name)
            if seen is not None and seen.uid == args.uid:
                return self._pod(seen)
            # A store that has another UID under this name, or none, may be behind: filter's word is newer.
            if self._memory.knows(args.uid):
                demand = self._memory.demand(args.uid)
                return _Pod(None, demand, self._memory.group(args.uid) if demand is None else None)
        raw = await self._source.get_pod(args.namespace, args.name)
        if doubt is not None:
            self.doubts.learn(doubt, raw, read_at_s=None)
        if raw is None or uid_of(raw) != args.uid:
            return None
        parsed = parse_pod(raw)
        return _Pod(node_of(raw), None, group_of(raw)) if parsed is None else self._pod(parsed)

    def _pod(self, seen: PodObservation) -> _Pod:
        return _Pod(seen.node, self._engine.demand(seen) if self._engine.is_ours(seen) else None)

    def _record(self, args: BindArgs, demand: PodDemand, outcome: Outcome, trace_id: str | None) -> None:
        """Log what became of a pod of ours; filter and prioritize told the rest."""
        decided = self._memory.decision(args.uid)
        chosen = decided.decision.chosen if decided else None
        self._decisions.put(
            Bound(
                at=datetime.now(UTC),
                demand=demand,
                node=args.node,
                result=outcome.result,
                error=outcome.text,
                chosen=chosen if chosen and chosen.node == args.node else None,
                decision_id=outcome.decision_id or self._decision_id(args, demand),
                queue_length=self._queue_length(),
                trace_id=trace_id,
            )
        )


def node_of(raw: Mapping[str, Any]) -> str | None:
    """Where the API server has it bound."""
    node = (raw.get("spec") or {}).get("nodeName")
    return node or None


def uid_of(raw: Mapping[str, Any]) -> str | None:
    """Its UID."""
    uid = (raw.get("metadata") or {}).get("uid")
    return uid if isinstance(uid, str) else None
