"""Demands and events in, answers out: what single calls, batches and streams share."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from kvaware_crds.errors import StaleViewError, WireError
from kvaware_engine.requests.words import (
    EventType,
    EventVerdict,
    Placement,
    PlacementEvent,
    PlacementRefusal,
    RequestDemand,
)
from kvaware_extender.demand_wire import Demand, Event, LongDemand, StreamEvent, read
from kvaware_extender.errors import ApiError
from kvaware_extender.freshness import Freshness
from kvaware_extender.placement_wire import (
    AnsweredEvent,
    ErrorBody,
    EventAnswer,
    Failure,
    PlacementAnswer,
    error_body,
    placement_answer,
    refusal_error,
)
from kvaware_extender.prompts import Prompts, read_slowly
from kvaware_extender.replies import api_error, unforeseen
from kvaware_extender.turns import Turn

__all__ = ["LONG_BYTES", "Answering", "Placing", "read_demand", "unknown_placement"]

LONG_BYTES: Final = 64 * 1024
"""A longer body is read in slices: at 13 ns a byte of token ids, this one holds up others for 0.8 ms."""
LOOK_EVERY_S: Final = 0.1
"""At the view's age: that takes 5 µs, and a tenth of a second more or less is none of its minute."""

ENDED: Final = ApiError(
    status=409,
    code="PlacementEnded",
    message="the placement has ended: it was finished or refused to the last, or nothing was heard of it for its time; "
    "place the request again",
    retryable=True,
)

DEMAND: Final = msgspec.json.Decoder(Demand)
LONG_DEMAND: Final = msgspec.json.Decoder(LongDemand)
EVENT: Final = msgspec.json.Decoder(StreamEvent)

Outcome = Placement | PlacementRefusal


class Placing(Protocol):
    """Who decides: the engine's ``Placer``, counted and logged."""

    def place(self, demand: RequestDemand, *, now_s: float, trace_id: str | None = None) -> Outcome:
        """Choose a worker and reserve."""
        ...

    def refused(self, refusal: PlacementRefusal, *, trace_id: str | None = None) -> None:
        """A demand was refused before it came to deciding."""
        ...

    def event(
        self, placement_id: str, event: PlacementEvent, *, now_s: float, trace_id: str | None = None
    ) -> tuple[EventVerdict, Outcome | None]:
        """Take a report over; for a refusal, the next attempt."""
        ...


class Answering:
    """One for all routes."""

    def __init__(self, *, placing: Placing, prompts: Prompts, freshness: Freshness, clock: Callable[[], float]) -> None:
        self._placing = placing
        self._prompts = prompts
        self._freshness = freshness
        self._clock = clock
        self._fresh_until_s = float("-inf")

    async def place(self, sent: Demand, *, tenant: str, trace_id: str | None) -> Outcome:
        """Choose a worker and reserve. Raises: WireError, StaleViewError."""
        if self._clock() >= self._fresh_until_s:
            self._require_fresh()
        demand = await self._prompts.demand(sent, tenant)
        if isinstance(demand, PlacementRefusal):  # no model has the name: the engine need not be asked
            self._placing.refused(demand, trace_id=trace_id)
            return demand
        return self._placing.place(demand, now_s=self._clock(), trace_id=trace_id)

    def event(self, placement_id: str, sent: Event, *, trace_id: str | None) -> EventAnswer:
        """Take a report over. Raises: ApiError 404, StaleViewError where it asks for another worker."""
        verdict, following = self._take(placement_id, sent, trace_id=trace_id)
        placement, error = _following(following, sent.type)
        return EventAnswer(result=verdict, placement=placement, error=error)

    async def place_many(
        self, sent: Sequence[Demand | msgspec.Raw], *, tenant: str, trace_id: str | None
    ) -> list[PlacementAnswer | Failure]:
        """Place each in turn; what is wrong with one is said of it alone."""
        answers: list[PlacementAnswer | Failure] = []
        turn = Turn()
        for index, one in enumerate(sent):
            if turn.over():
                await turn.pass_on()
            request_id: str | None = None
            try:
                demand = one if isinstance(one, Demand) else await read_demand(one)
                request_id = demand.request_id
                outcome = await self.place(demand, tenant=tenant, trace_id=trace_id)
            except Exception as e:  # noqa: BLE001 - also of what is unforeseen: the others are answered
                answers.append(_failure(_error_of(e), request_id=request_id, index=index))
                continue
            if isinstance(outcome, Placement):
                answers.append(placement_answer(outcome, request_id=outcome.demand.request_id))
            else:
                answers.append(_failure(refusal_error(outcome), request_id=request_id, index=index))
        return answers

    async def take_many(
        self, sent: Sequence[StreamEvent | msgspec.Raw], *, trace_id: str | None
    ) -> list[AnsweredEvent | Failure]:
        """Take each report over in turn; what is wrong with one is said of it alone."""
        answers: list[AnsweredEvent | Failure] = []
        turn = Turn()
        for index, one in enumerate(sent):
            if turn.over():
                await turn.pass_on()
            placement_id: str | None = None
            try:
                event = one if isinstance(one, StreamEvent) else read(EVENT, one)
                placement_id = event.placement_id
                verdict, following = self._take(placement_id, event, trace_id=trace_id)
            except Exception as e:  # noqa: BLE001 - also of what is unforeseen: the others are answered
                answers.append(_failure(_error_of(e), placement_id=placement_id, index=index))
                continue
            placement, error = _following(following, event.type)
            answers.append(AnsweredEvent(placement_id=placement_id, result=verdict, placement=placement, error=error))
        return answers

    def _take(self, placement_id: str, sent: Event, *, trace_id: str | None) -> tuple[EventVerdict, Outcome | None]:
        if sent.type is EventType.REFUSED:
            self._require_fresh()  # another worker is chosen; everything else is known without the cluster
        event = PlacementEvent(
            type=sent.type,
            worker=sent.worker,
            output_tokens=sent.output_tokens,
            cached_tokens=sent.cached_tokens,
            queue_wait_ms=sent.queue_wait_ms,
            ttft_ms=sent.ttft_ms,
            reason=sent.reason,
        )
        verdict, following = self._placing.event(placement_id, event, now_s=self._clock(), trace_id=trace_id)
        if verdict is EventVerdict.UNKNOWN_PLACEMENT:
            raise unknown_placement(placement_id)
        if verdict is EventVerdict.UNKNOWN_WORKER:
            message = f"worker: expected one of the model's, by its id, got {(sent.worker or '')[:64]!r}"
            raise ApiError(status=404, code="WorkerNotFound", message=message)
        return verdict, following

    def _require_fresh(self) -> None:
        if self._freshness.stale():
            self._freshness.require()
        self._fresh_until_s = self._clock() + LOOK_EVERY_S


def unknown_placement(placement_id: str) -> ApiError:
    """What is said of an id that stands for nothing."""
    message = f"there is no placement {placement_id[:64]!r}: it expired, or ended long ago, or never was"
    return ApiError(status=404, code="PlacementNotFound", message=message)


async def read_demand(body: bytes | msgspec.Raw) -> Demand:
    """One demand, however long. Raises: WireError."""
    if len(body) > LONG_BYTES:
        return await read_slowly(LONG_DEMAND, body)
    return read(DEMAND, body)


def _following(outcome: Outcome | None, type_: EventType) -> tuple[PlacementAnswer | None, ErrorBody | None]:
    """Where the request goes after a refusal, or why nowhere. Who refuses too late is told so: its request waits."""
    if outcome is None:
        return None, error_body(ENDED) if type_ is EventType.REFUSED else None
    if isinstance(outcome, Placement):
        return placement_answer(outcome), None
    return None, error_body(refusal_error(outcome))


def _error_of(error: Exception) -> ApiError:
    if isinstance(error, WireError | StaleViewError | ApiError):
        return api_error(error)
    return unforeseen(error, of="one of many")


def _failure(error: ApiError, *, index: int, request_id: str | None = None, placement_id: str | None = None) -> Failure:
    """By its key where it could be read, else by its place."""
    unread = request_id is None and placement_id is None
    return Failure(
        error=error_body(error),
        request_id=request_id,
        placement_id=placement_id,
        index=index if unread else None,
    )
