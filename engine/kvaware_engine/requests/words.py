"""The words of request placement: what is demanded, what each option costs, what was decided.

They are built on the path of every request. A frozen dataclass sets its fields one by one through ``object``: 2 µs for
the 15 fields of a demand, a plain one 0.6 µs. So those on that path are plain, and nobody changes them once they exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvaware_engine.decisions import CostTerms
from kvaware_engine.observations import ObjectKey, Tier

__all__ = [
    "CODE_OF_REFUSAL",
    "Action",
    "BlockGroup",
    "EventType",
    "EventVerdict",
    "FloatArray",
    "IntArray",
    "Mode",
    "Option",
    "Phase",
    "Placement",
    "PlacementEvent",
    "PlacementReason",
    "PlacementRefusal",
    "Precision",
    "RequestDemand",
    "RunnerUp",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Phase(StrEnum):
    """Which part of a request is to be placed; unset: both, on one worker or on a prefill and a decode worker."""

    PREFILL = "prefill"
    DECODE = "decode"


class Precision(StrEnum):
    """How the matched tokens are known."""

    PRECISE = "precise"
    """By token ids, and the worker tells which blocks it holds."""
    APPROXIMATE = "approximate"
    """By what was sent where: text chunks, hashes of the caller's own, or a worker without KV events."""


class Action(StrEnum):
    """What happens about the KV cache at the chosen worker."""

    LOCAL = "local"
    REMOTE_READ = "remote_read"
    MIGRATE = "migrate"
    WARM_UP = "warm_up"
    RECOMPUTE = "recompute"
    WAIT = "wait"


class Mode(StrEnum):
    """Whether somebody has to see to the action, or the server does it by itself."""

    COMMANDED = "commanded"
    EXPECTED = "expected"


class PlacementReason(StrEnum):
    """Why a worker was chosen, or nobody: a CamelCase word for replies, logs and metrics' labels."""

    # choices
    PREFIX_RESIDENT = "PrefixResident"
    """It holds the longest part of the prompt that anybody holds, in HBM."""
    PREFIX_IN_LOWER_TIER = "PrefixInLowerTier"
    """The same, in CPU memory or on SSD."""
    REMOTE_READ = "RemoteRead"
    """It reads the prefix from another worker."""
    MIGRATE = "Migrate"
    WARM_UP = "WarmUp"
    SHORTER_WAIT = "ShorterWait"
    """Others hold more of the prompt, and waiting for them would take longer."""
    COLD = "Cold"
    """Nobody holds any of the prompt."""
    STAYS = "Stays"
    """Waiting at the worker where it is now is best."""
    ONLY_CANDIDATE = "OnlyCandidate"
    IN_TURN = "InTurn"
    LEAST_LOADED = "LeastLoaded"
    LESS_LOADED_OF_TWO = "LessLoadedOfTwo"
    NEAREST_CACHE = "NearestCache"
    # refusals
    NO_WORKER = "NoWorker"
    PROMPT_TOO_LONG = "PromptTooLong"
    TENANT_QUOTA_EXCEEDED = "TenantQuotaExceeded"
    SATURATED = "Saturated"
    DEADLINE_UNREACHABLE = "DeadlineUnreachable"
    TOO_MANY_REFUSALS = "TooManyRefusals"
    """The workers refused it as often as is tried."""
    DUPLICATE_REQUEST = "DuplicateRequest"
    """The request_id stands for another demand that is not finished."""
    MODEL_NOT_FOUND = "ModelNotFound"


CODE_OF_REFUSAL: Final[dict[PlacementReason, int]] = {
    PlacementReason.NO_WORKER: 503,
    PlacementReason.PROMPT_TOO_LONG: 400,
    PlacementReason.TENANT_QUOTA_EXCEEDED: 429,
    PlacementReason.SATURATED: 429,
    PlacementReason.DEADLINE_UNREACHABLE: 429,
    PlacementReason.TOO_MANY_REFUSALS: 503,
    PlacementReason.DUPLICATE_REQUEST: 409,
    PlacementReason.MODEL_NOT_FOUND: 404,
}
"""The status of each refusal (design §5). The edge needs no other table."""


@dataclass(slots=True, kw_only=True)
class RequestDemand:
    """What one request needs. Never changed once made, but that the hashes go when its request is over."""

    request_id: str
    """The client's key: the same one again gets the same placement."""
    model: ObjectKey
    tenant: str
    input_tokens: int
    """1 or more."""
    block_hashes: Sequence[int] = ()
    """Chained 64-bit hashes of the prompt's whole blocks, first block first: equal hashes mean equal prompts up to
    there."""
    block_tokens: int = 16
    """Tokens that one hash stands for."""
    precision: Precision = Precision.PRECISE
    """``approximate``: the hashes are of text, or the caller's own: workers' events say nothing of them."""
    expected_output_tokens: int | None = None
    """None: the client does not say."""
    priority: int = 0
    """Higher goes first."""
    session: str | None = None
    deadline_ms: float | None = None
    """From now to the first token."""
    phase: Phase | None = None
    adapter: str | None = None
    current_worker: str | None = None
    candidates: frozenset[str] | None = None
    """Ids of the only workers that may be chosen; None: all."""
    sent: tuple[object, ...] | None = field(default=None, compare=False, repr=False)
    """All that the client sent but the prompt, and how long that is; None: the client made the demand itself. Only to
    tell whether it sends the same again."""
    root: int = field(default=0, compare=False, repr=False)
    """Where its hashes begin."""

    @property
    def reusable_tokens(self) -> int:
        """The most that any cache spares: the last token is computed always, since it draws the first of the answer.

        Servers take whole blocks from their cache (vLLM 0.32 finds 160 of 192 tokens in blocks of 32). Pieces of text
        are not such blocks.
        """
        most = self.input_tokens - 1
        return most // self.block_tokens * self.block_tokens if self.precision is Precision.PRECISE else most


@dataclass(slots=True)
class Option:
    """One candidate with one action. Never changed once made."""

    slot: int
    """The worker's column in its model's fleet."""
    worker: str
    action: Action
    mode: Mode
    terms: CostTerms
    source: str | None = None
    """The worker that the blocks come from; None: its own, or none."""
    tier: Tier | None = None
    """The lowest tier that blocks are taken from; None: no block is reused."""
    matched_tokens: int = 0
    """Tokens that need no prefill there."""
    transfer_bytes: int = 0
    prefill_ms: float = 0.0
    """How long it keeps the worker's prefill: what later requests wait for."""
    wait_ms: float = 0.0
    """Until its prefill begins."""


class RunnerUp(NamedTuple):
    """The best worker that was not chosen."""

    worker: str
    total_ms: float
    """What it would have cost."""


@dataclass(slots=True)
class Placement:
    """What was decided, and reserved. Never changed once made. On the path of requests it is made by position."""

    placement_id: str
    demand: RequestDemand
    option: Option
    address: str | None
    reason: PlacementReason
    policy: str
    precision: Precision
    expected_output_tokens: int
    candidates: int
    """How many workers were still in the running."""
    confidence_ratio: float
    """How far the chosen worker's state is believed."""
    queue_length: int
    """Requests waiting or running there, before this one."""
    hbm_free_bytes: int | None
    """Of its KV pool, before this one; None: unknown."""
    decided_at_s: float
    expires_in_s: float
    runner_up: RunnerUp | None = None
    """The best other worker; None: there was no other candidate. Its terms are the explanation's."""
    attempt: int = 1
    """1, and one more for each worker that refused it."""
    prefill: Option | None = None
    """Where the prompt is computed, when the roles are split; then ``option`` is where it is decoded."""
    prefill_address: str | None = None
    prefill_confidence_ratio: float = 0.0
    """How far that worker's state is believed."""


@dataclass(slots=True, kw_only=True)
class PlacementRefusal:
    """Why a demand was not placed."""

    demand: RequestDemand
    reason: PlacementReason
    message: str
    """What was expected and what came, with figures; for people."""
    retryable: bool = False
    retry_after_s: float | None = None
    """When the same demand is admitted if nobody else comes; None: waiting does not help, or nobody knows."""
    details: dict[str, int | float | str] = field(default_factory=dict)


class EventType(StrEnum):
    """What became of a placed request."""

    STARTED = "started"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text
    PROGRESS = "progress"
    FINISHED = "finished"
    REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class PlacementEvent:
    """One report on a placed request. What is left out is unknown."""

    type: EventType
    worker: str | None = None
    """Where it is; None: where it was placed. ``started`` elsewhere moves the reservation there."""
    output_tokens: int | None = None
    """So far."""
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its cache."""
    queue_wait_ms: float | None = None
    ttft_ms: float | None = None
    reason: str | None = None
    """Of a refusal, in the worker's words."""


class EventVerdict(StrEnum):
    """What became of an event."""

    TAKEN = "taken"
    REPEATED = "repeated"
    """It was known: nothing changed."""
    LATE = "late"
    """The request was finished already: nothing changed."""
    UNKNOWN_PLACEMENT = "unknown_placement"
    """There is none, or it expired, or ended long ago."""
    UNKNOWN_WORKER = "unknown_worker"
    """The event names a worker that the model does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """A run of blocks that the same workers hold: ``/v1/block-groups``."""

    prefix: str
    """Hash of the prompt up to the group's end, hexadecimal."""
    start_tokens: int
    """Of the prompt before it."""
    tokens: int
    hits: int
    """Prompts that ran through it."""
    copies: tuple[tuple[str, Tier], ...]
    """Worker and the best tier in which it holds all of it."""
