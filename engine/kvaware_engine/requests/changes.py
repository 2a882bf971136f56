"""What could have been otherwise at a decision: each kind of change, how far it goes, what it does to the columns.

Changes go in whole steps, so that "a little less" is one step less. Every function takes its figures from a snapshot
and gives new candidates; the snapshot's arrays stay as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.explain_words import Change, ChangeKind
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.hardware_classes import decode_figures
from kvaware_engine.requests.snapshot import Snapshot

__all__ = ["KINDS", "Kind", "NoChange", "changed", "prefill_slot"]

QUEUE_STEP_MS: Final = 0.1
QUEUE_MAX_MS: Final = 600_000.0
"""Ten minutes more are no small change any more."""
OUTPUT_MAX_TOKENS: Final = 1 << 17
BATCH_MAX: Final = 1 << 10
LINKS_FASTER_MAX_PERCENT: Final = 10_000


class NoChange(ValueError):  # noqa: N818 - a caller's mistake, in the words of this module
    """The change cannot be made: there is no runner-up, or less is there than is to be taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of change."""

    unit: str
    """``ms``, ``tokens``, ``%`` or ``sequences``."""
    text: str
    """With ``{chosen}``, ``{runner_up}``, ``{prefill}``, ``{number}`` and ``{unit}``."""
    most: Callable[[Snapshot], int]
    """The most steps that there can be; 0: none."""
    apply: Callable[[Snapshot, float], Candidates]
    """From the snapshot and an amount in ``unit``."""
    share_of: Callable[[Snapshot, float], float]
    """What the amount is a share of, from the snapshot and the chosen option's total; above 0."""
    step: float = 1.0
    """In ``unit``."""

    @property
    def unit_of_one(self) -> str:
        """``1 token``, but ``1 ms``."""
        return self.unit if self.unit == "ms" else self.unit.removesuffix("s")

    def amount(self, steps: int) -> float:
        """Steps in ``unit``."""
        return round(steps * self.step, 6)  # 3 steps of 0.1 are 0.3, not 0.30000000000000004


def changed(snapshot: Snapshot, change: Change) -> Candidates:
    """What the decision would have seen.

    Raises: NoChange where the change cannot be made.
    """
    kind = KINDS[change.kind]
    most = kind.most(snapshot)
    if not 1 <= change.steps <= most:
        raise NoChange(f"{change.kind}: expected 1 to {most} steps, got {change.steps}")
    return kind.apply(snapshot, kind.amount(change.steps))


def _runner_up(snapshot: Snapshot) -> int:
    if snapshot.runner_up is None:
        raise NoChange("expected a runner-up, there was no other candidate")
    return snapshot.runner_up


def prefill_slot(snapshot: Snapshot) -> int | None:
    """With split roles, where the prompt is computed; None: where it is decoded."""
    return None if snapshot.split is None else snapshot.split.chosen


def _prefill(snapshot: Snapshot) -> int:
    if (slot := prefill_slot(snapshot)) is None:
        raise NoChange("expected a prefill worker, roles are not split")
    return slot


def _wait_ms(candidates: Candidates, slot: int) -> float:
    """What waits there ahead of this demand."""
    if candidates.waits_ahead_ms is not None:
        return float(candidates.waits_ahead_ms[slot])
    return max(0.0, float(candidates.figures[Figure.FREE_AT_S, slot]) - candidates.now_s) * 1000


def _queue_changed(candidates: Candidates, slot: int, change_ms: float) -> Candidates:
    """The prompts that wait there take longer, or less long. Told in two ways, of which a policy reads either."""
    figures = candidates.figures.copy()
    begins_at_s = max(float(figures[Figure.FREE_AT_S, slot]), candidates.now_s)
    figures[Figure.FREE_AT_S, slot] = max(begins_at_s + change_ms / 1000, candidates.now_s)
    waits = candidates.waits_ahead_ms
    if waits is not None:
        waits = waits.copy()
        waits[slot] = max(0.0, waits[slot] + change_ms)
    return replace(candidates, figures=figures, waits_ahead_ms=waits)


def _matched(candidates: Candidates, slot: int, change_tokens: float) -> Candidates:
    """More or fewer of the prompt's tokens are held there; what lies only in lower tiers is taken away last."""
    matched = candidates.matched_tokens.copy()
    was_deepest = matched[slot] >= candidates.deepest_tokens
    matched[slot] = tokens = max(0.0, matched[slot] + change_tokens)
    lower = dict(candidates.lower_tokens)
    if slot in lower:
        cpu_tokens, ssd_tokens = lower[slot]
        cpu_tokens = min(cpu_tokens, tokens)
        lower[slot] = (cpu_tokens, min(ssd_tokens, tokens - cpu_tokens))
    deepest = float(matched.max()) if was_deepest else max(candidates.deepest_tokens, float(tokens))
    return replace(candidates, matched_tokens=matched, lower_tokens=lower, deepest_tokens=deepest)


def _output(candidates: Candidates, change_tokens: float) -> Candidates:
    return replace(candidates, expected_output_tokens=candidates.expected_output_tokens + change_tokens)


def _links(candidates: Candidates, factor: float) -> Candidates:
    """All links between nodes, and inside an NVLink clique."""
    links = candidates.settings.links
    links = replace(
        links,
        clique_bytes_per_s=links.clique_bytes_per_s * factor,
        rack_bytes_per_s=links.rack_bytes_per_s * factor,
        zone_bytes_per_s=links.zone_bytes_per_s * factor,
        far_bytes_per_s=links.far_bytes_per_s * factor,
    )
    return replace(candidates, settings=replace(candidates.settings, links=links))


def _batch(candidates: Candidates, slot: int, change: float) -> Candidates:
    """More or fewer sequences decode there; the steps follow by its profile. What they hold of the KV pool stays."""
    figures = candidates.figures.copy()
    profile = candidates.classes[int(figures[Figure.HARDWARE_CLASS, slot])]
    before = int(figures[Figure.BATCH, slot])
    after = max(0, before + int(change))
    # By the difference, so that a change of nothing changes nothing, however the figures came about.
    half_before, token_before = decode_figures(profile, before)
    half_after, token_after = decode_figures(profile, after)
    figures[Figure.HALF_STEP_MS, slot] = max(0.0, figures[Figure.HALF_STEP_MS, slot] + half_after - half_before)
    figures[Figure.DECODE_MS_PER_TOKEN, slot] += token_after - token_before
    figures[Figure.BATCH, slot] = after
    figures[Figure.REQUESTS, slot] = max(0.0, figures[Figure.REQUESTS, slot] + change)
    return replace(candidates, figures=figures)


def _queue_steps(snapshot: Snapshot) -> int:
    return (
        int(_wait_ms(snapshot.candidates, snapshot.runner_up) / QUEUE_STEP_MS) if snapshot.runner_up is not None else 0
    )


def _matched_at(snapshot: Snapshot, slot: int | None) -> int:
    return 0 if slot is None else int(snapshot.candidates.matched_tokens[slot])


def _unmatched_at(snapshot: Snapshot, slot: int | None) -> int:
    """Tokens that could be held there and are not; the last of a prompt is always computed."""
    return 0 if slot is None else snapshot.candidates.demand.reusable_tokens - _matched_at(snapshot, slot)


def _batch_at(snapshot: Snapshot, slot: int | None) -> int:
    return 0 if slot is None else int(snapshot.candidates.figures[Figure.BATCH, slot])


def _of_total(_: Snapshot, total_ms: float) -> float:
    return max(abs(total_ms), 1.0)


def _of_prompt(snapshot: Snapshot, _: float) -> float:
    return float(snapshot.candidates.demand.input_tokens)


def _of_output(snapshot: Snapshot, _: float) -> float:
    return max(snapshot.candidates.expected_output_tokens, 1.0)


def _of_hundred(_: Snapshot, __: float) -> float:
    return 100.0


KINDS: Final[dict[ChangeKind, Kind]] = {
    ChangeKind.CHOSEN_QUEUE_LONGER: Kind(
        unit="ms",
        step=QUEUE_STEP_MS,
        text="With {number} {unit} more to wait at {chosen}",
        most=lambda _: int(QUEUE_MAX_MS / QUEUE_STEP_MS),
        apply=lambda seen, ms: _queue_changed(seen.candidates, seen.chosen, ms),
        share_of=_of_total,
    ),
    ChangeKind.RUNNER_UP_QUEUE_SHORTER: Kind(
        unit="ms",
        step=QUEUE_STEP_MS,
        text="With {number} {unit} less to wait at {runner_up}",
        most=_queue_steps,
        apply=lambda seen, ms: _queue_changed(seen.candidates, _runner_up(seen), -ms),
        share_of=_of_total,
    ),
    ChangeKind.CHOSEN_MATCH_SHORTER: Kind(
        unit="tokens",
        text="With {number} fewer {unit} of the prompt held at {chosen}",
        most=lambda seen: _matched_at(seen, seen.chosen),
        apply=lambda seen, tokens: _matched(seen.candidates, seen.chosen, -tokens),
        share_of=_of_prompt,
    ),
    ChangeKind.RUNNER_UP_MATCH_LONGER: Kind(
        unit="tokens",
        text="With {number} more {unit} of the prompt held at {runner_up}",
        most=lambda seen: _unmatched_at(seen, seen.runner_up),
        apply=lambda seen, tokens: _matched(seen.candidates, _runner_up(seen), tokens),
        share_of=_of_prompt,
    ),
    ChangeKind.OUTPUT_LONGER: Kind(
        unit="tokens",
        text="With {number} more {unit} of output expected",
        most=lambda _: OUTPUT_MAX_TOKENS,
        apply=lambda seen, tokens: _output(seen.candidates, tokens),
        share_of=_of_output,
    ),
    ChangeKind.OUTPUT_SHORTER: Kind(
        unit="tokens",
        text="With {number} fewer {unit} of output expected",
        most=lambda seen: int(seen.candidates.expected_output_tokens),
        apply=lambda seen, tokens: _output(seen.candidates, -tokens),
        share_of=_of_output,
    ),
    ChangeKind.LINKS_SLOWER: Kind(
        unit="%",
        text="With links between workers {number} {unit} slower",
        most=lambda _: 99,
        apply=lambda seen, percent: _links(seen.candidates, 1 - percent / 100),
        share_of=_of_hundred,
    ),
    ChangeKind.LINKS_FASTER: Kind(
        unit="%",
        text="With links between workers {number} {unit} faster",
        most=lambda _: LINKS_FASTER_MAX_PERCENT,
        apply=lambda seen, percent: _links(seen.candidates, 1 + percent / 100),
        share_of=_of_hundred,
    ),
    ChangeKind.CHOSEN_BATCH_LARGER: Kind(
        unit="sequences",
        text="With {number} more {unit} in the batch at {chosen}",
        most=lambda _: BATCH_MAX,
        apply=lambda seen, sequences: _batch(seen.candidates, seen.chosen, sequences),
        share_of=lambda seen, _: _batch_at(seen, seen.chosen) + 1.0,
    ),
    ChangeKind.RUNNER_UP_BATCH_SMALLER: Kind(
        unit="sequences",
        text="With {number} fewer {unit} in the batch at {runner_up}",
        most=lambda seen: _batch_at(seen, seen.runner_up),
        apply=lambda seen, sequences: _batch(seen.candidates, _runner_up(seen), -sequences),
        share_of=lambda seen, _: _batch_at(seen, seen.runner_up) + 1.0,
    ),
    ChangeKind.PREFILL_QUEUE_LONGER: Kind(
        unit="ms",
        step=QUEUE_STEP_MS,
        text="With {number} {unit} more to wait at {prefill}",
        most=lambda seen: 0 if prefill_slot(seen) is None else int(QUEUE_MAX_MS / QUEUE_STEP_MS),
        apply=lambda seen, ms: _queue_changed(seen.candidates, _prefill(seen), ms),
        share_of=_of_total,
    ),
    ChangeKind.PREFILL_MATCH_SHORTER: Kind(
        unit="tokens",
        text="With {number} fewer {unit} of the prompt held at {prefill}",
        most=lambda seen: _matched_at(seen, prefill_slot(seen)),
        apply=lambda seen, tokens: _matched(seen.candidates, _prefill(seen), -tokens),
        share_of=_of_prompt,
    ),
}
"""A queue is compared with what the chosen option costs, tokens with the prompt or the expected output, links with
themselves, a batch with itself and this request: rough, but enough to say which change would have been the smallest."""
