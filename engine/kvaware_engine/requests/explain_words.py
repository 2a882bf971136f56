"""What an explanation of a request's placement consists of: frozen values without NaN or infinity, fit for JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvaware_engine.decisions import CostTerms
from kvaware_engine.observations import ObjectKey, Tier
from kvaware_engine.requests.fit import FilterReason
from kvaware_engine.requests.words import Action, Mode, Phase, PlacementReason, Precision

__all__ = [
    "Answer",
    "Change",
    "ChangeKind",
    "ExplainedCandidate",
    "ExplainedOption",
    "Figures",
    "Flip",
    "RequestExplanation",
    "RequestSummary",
]

Figures = Mapping[str, float | int | str | bool | None]
"""What a sentence says, by name, with the unit at the name's end; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedOption:
    """One worker with one action, and what it would cost."""

    phase: Phase | None
    """The part of the request that it does; None: all of it."""
    action: Action
    mode: Mode
    source: str | None
    tier: Tier | None
    matched_tokens: int
    transfer_bytes: int
    wait_ms: float
    prefill_ms: float
    terms: CostTerms
    """With their total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCandidate:
    """One worker as it was believed to be at the decision."""

    worker: str
    role: str
    node: str | None
    filtered: FilterReason | None
    """None: in the running."""
    policy_cost: float | None
    """What the policy compares: milliseconds for ``cost``, a measure of its own for the others; None where filtered.
    With split roles that of the best pair in which this worker decodes, hand-over included, or of its prefill alone."""
    options: tuple[ExplainedOption, ...]
    """Cheapest first; empty where filtered. For a policy that compares something else than cost, for information.
    With split roles, of the parts that it could do."""
    matched_tokens: int
    """Of the prompt, held there without a gap, in any tier."""
    requests: int
    """Waiting or running."""
    batch: int
    """Sequences that decode."""
    wait_ms: float
    """Until the prompts before this one are computed."""
    kv_free_tokens: int | None
    kv_total_tokens: int | None
    gpu_utilization_ratio: float | None
    confidence_ratio: float
    age_s: float | None
    """Of its last report at the decision."""
    precision: Precision
    extrapolated: bool
    """Its hardware profile was not measured for this model and GPU, or not for so long a prompt or so large a batch."""

    @property
    def best(self) -> ExplainedOption | None:
        """The option that counts."""
        return self.options[0] if self.options else None


class ChangeKind(StrEnum):
    """What is changed to see whether the decision would be another. The amount is always above 0."""

    CHOSEN_QUEUE_LONGER = "chosen_queue_longer"
    RUNNER_UP_QUEUE_SHORTER = "runner_up_queue_shorter"
    CHOSEN_MATCH_SHORTER = "chosen_match_shorter"
    RUNNER_UP_MATCH_LONGER = "runner_up_match_longer"
    OUTPUT_LONGER = "output_longer"
    OUTPUT_SHORTER = "output_shorter"
    LINKS_SLOWER = "links_slower"
    LINKS_FASTER = "links_faster"
    CHOSEN_BATCH_LARGER = "chosen_batch_larger"
    RUNNER_UP_BATCH_SMALLER = "runner_up_batch_smaller"
    PREFILL_QUEUE_LONGER = "prefill_queue_longer"
    """With split roles: where the prompt is computed."""
    PREFILL_MATCH_SHORTER = "prefill_match_shorter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that could have been otherwise."""

    kind: ChangeKind
    steps: int
    """1 or more: how far, in steps of the kind (``flips.STEPS``). Whole steps, so that one less is well-defined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """The smallest change of one kind with which another worker would have been chosen."""

    change: Change
    amount: float
    """The change in ``unit``."""
    unit: str
    """``ms``, ``tokens``, ``%`` or ``sequences``."""
    relative: float
    """The amount as a share of what it changes, for comparing kinds: see ``flips``."""
    worker: str
    """Who would have been chosen."""
    text: str
    """As a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One of the six questions of design.md §9."""

    question: str
    answer: str
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """What was asked for."""

    request_id: str
    model: ObjectKey
    tenant: str
    input_tokens: int
    expected_output_tokens: float
    told_output_tokens: int | None
    """As the client said, which may be more than can be; None: it did not."""
    priority: int
    phase: Phase | None
    adapter: str | None
    session: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExplanation:
    """Everything about one placement, as it was believed when it was decided."""

    placement_id: str
    request: RequestSummary
    policy: str
    reason: PlacementReason
    precision: Precision
    attempt: int
    decided_at_s: float
    chosen: str
    """Where it goes; with split roles, where it is decoded."""
    prefill: str | None
    """With split roles, where its prompt is computed."""
    terms: CostTerms
    """Of the placement as it was made; with split roles the decode worker's, and ``prefill_terms`` the other's."""
    prefill_terms: CostTerms | None
    runner_up: str | None
    runner_up_behind: float | None
    """By how much the runner-up is dearer, as the policy compares; None: there was no other candidate."""
    emptiest: str
    in_the_running: int
    """Workers that could have been chosen, those included that are not shown."""
    candidates: tuple[ExplainedCandidate, ...]
    """The policy's order, filtered ones last. In large fleets the cheapest, the emptiest and those that hold most."""
    filtered: Mapping[FilterReason, int]
    """How many of those shown could not be chosen, and why."""
    approximations: tuple[str, ...]
    """What of the figures is not exact, as sentences."""
    answers: tuple[Answer, ...]
    flip: Flip | None
    """The smallest of ``flips`` by relative size; None: no single change of these kinds flips it."""
    flips: tuple[Flip, ...]
    """One per kind that can flip it, smallest first."""
    no_flip: str
    """Why there is none; empty where there is."""
