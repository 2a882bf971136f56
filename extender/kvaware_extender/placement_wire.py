"""Bodies of ``/v1/placements`` as they go out: where a request goes, and what became of an event (design, §6).

The schemas in ``/openapi.json`` are made from the same types that are encoded: 1.5 µs for an answer.
"""

from math import ceil
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kvaware_engine.decisions import CostTerms
from kvaware_engine.requests.words import CODE_OF_REFUSAL, Option, Placement, PlacementRefusal
from kvaware_extender.errors import ApiError

__all__ = [
    "AnsweredEvent",
    "AnsweredFrame",
    "BatchAnswer",
    "ErrorBody",
    "EventAnswer",
    "Failure",
    "PlacementAnswer",
    "encode",
    "error_body",
    "placement_answer",
    "refusal_error",
    "schemas",
]


class WorkerAnswer(Struct, kw_only=True, gc=False):
    """Where to send it."""

    id: str
    address: str | None
    """Host and port; null: unknown."""


class KvAnswer(Struct, kw_only=True, gc=False):
    """What happens about the KV cache there."""

    action: str
    mode: str
    """``commanded``: somebody has to see to it; ``expected``: the server does it by itself."""
    source: str | None
    """The worker that blocks come from; null: its own, or none."""
    tier: str | None
    matched_tokens: int
    transfer_bytes: int
    precision: str


class CostAnswer(Struct, kw_only=True, gc=False):
    """Milliseconds of delay to this request and to those around it; the total is the sum less the gain."""

    total: float
    compute_wait: float
    cache_access: float
    migration: float
    memory_pressure: float
    network: float
    risk: float
    locality_gain: float


class PrefillAnswer(Struct, kw_only=True, gc=False):
    """Where the prompt is computed, where that is another worker than the one that answers."""

    id: str
    address: str | None
    kv: KvAnswer
    cost_ms: CostAnswer


class RunnerUp(Struct, kw_only=True, gc=False):
    """The best other worker."""

    worker: str
    total_ms: float


class PlacementAnswer(Struct, kw_only=True, gc=False):
    """Where a request goes. It is reserved there until ``expires_in_ms`` have passed without an event of it."""

    placement_id: str
    worker: WorkerAnswer
    prefill_worker: PrefillAnswer | None
    kv: KvAnswer
    cost_ms: CostAnswer
    reason: str
    runner_up: RunnerUp | None
    expires_in_ms: int
    request_id: str | UnsetType = UNSET
    """Whose answer it is, where it is one of several."""


class ErrorBody(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Why not."""

    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    details: dict[str, Any] = {}


class Failure(Struct, kw_only=True, omit_defaults=True, gc=False):
    """One of several that was not placed, or not taken. Without a key: it could not be read; ``index`` is its place."""

    error: ErrorBody
    request_id: str | None = None
    placement_id: str | None = None
    index: int | None = None


class EventAnswer(Struct, kw_only=True, omit_defaults=True, gc=False):
    """What became of an event; of a refused one, where the request goes next, or why nowhere."""

    result: str
    placement: PlacementAnswer | None = None
    error: ErrorBody | None = None


class AnsweredEvent(EventAnswer, kw_only=True, omit_defaults=True, gc=False):
    """The same, one of several."""

    placement_id: str


class BatchAnswer(Struct, kw_only=True):
    """Answers in the order of the demands: of each a placement, or a failure."""

    answers: list[Any]


class AnsweredFrame(Struct, kw_only=True, omit_defaults=True):
    """One frame of a stream from kvaware: of each demand a placement or a failure, of each event what became of it.

    ``error``: a whole frame could not be read.
    """

    answers: list[Any] = []
    events: list[Any] = []
    error: ErrorBody | None = None


def placement_answer(placement: Placement, *, request_id: str | UnsetType = UNSET) -> PlacementAnswer:
    """Where a request goes; with its id where it is one of several."""
    option, prefill, runner_up = placement.option, placement.prefill, placement.runner_up
    return PlacementAnswer(
        placement_id=placement.placement_id,
        worker=WorkerAnswer(id=option.worker, address=placement.address),
        prefill_worker=None
        if prefill is None
        else PrefillAnswer(
            id=prefill.worker,
            address=placement.prefill_address,
            kv=_kv(prefill, placement),
            cost_ms=_cost(prefill.terms),
        ),
        kv=_kv(option, placement),
        cost_ms=_cost(option.terms),
        reason=placement.reason,
        runner_up=None if runner_up is None else RunnerUp(worker=runner_up.worker, total_ms=runner_up.total_ms),
        expires_in_ms=int(placement.expires_in_s * 1000),
        request_id=request_id,
    )


def _kv(option: Option, placement: Placement) -> KvAnswer:
    return KvAnswer(
        action=option.action,
        mode=option.mode,
        source=option.source,
        tier=option.tier,
        matched_tokens=option.matched_tokens,
        transfer_bytes=option.transfer_bytes,
        precision=placement.precision,
    )


def _cost(terms: CostTerms) -> CostAnswer:
    return CostAnswer(
        total=terms.total,
        compute_wait=terms.compute_wait,
        cache_access=terms.cache_access,
        migration=terms.migration,
        memory_pressure=terms.memory_pressure,
        network=terms.network,
        risk=terms.risk,
        locality_gain=terms.locality_gain,
    )


def refusal_error(refusal: PlacementRefusal) -> ApiError:
    """A refusal as the caller is told about it: waiting is advised only where it helps."""
    return ApiError(
        status=CODE_OF_REFUSAL[refusal.reason],
        code=str(refusal.reason),
        message=refusal.message,
        retryable=refusal.retryable,
        retry_after_s=refusal.retry_after_s if refusal.retryable else None,
        details=refusal.details,
    )


def error_body(error: ApiError) -> ErrorBody:
    """What stands under ``error``."""
    return ErrorBody(
        code=error.code,
        message=error.message,
        retryable=error.retryable,
        retry_after_ms=None if error.retry_after_s is None else ceil(error.retry_after_s * 1000),
        details=dict(error.details),
    )


def encode(answer: Struct) -> bytes:
    """As JSON. What is no finite number is null."""
    return _ENCODER.encode(answer)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=lambda value: value.item())
"""Figures of the engine may be numpy's scalars."""


def schemas() -> dict[str, Any]:
    """JSON schemas of everything here that is described in ``/openapi.json``, by name."""
    answers = [PlacementAnswer, BatchAnswer, EventAnswer, AnsweredEvent, AnsweredFrame, Failure]
    _, found = msgspec.json.schema_components(answers, ref_template="#/components/schemas/{name}")
    placed, happened = found["AnsweredFrame"]["properties"]["answers"], found["AnsweredFrame"]["properties"]["events"]
    for answered, one in (
        (placed, "PlacementAnswer"),
        (found["BatchAnswer"]["properties"]["answers"], "PlacementAnswer"),
        (happened, "AnsweredEvent"),
    ):
        answered["items"] = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in (one, "Failure")]}
    return found
