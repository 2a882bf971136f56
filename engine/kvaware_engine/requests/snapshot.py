"""What one decision saw, kept so that it can be explained and replayed later, when the live columns have moved on.

Taken on the path of every request: one copy of the figures, and references to what was made for the one decision or is
never changed but only replaced (facts, profiles, demand, settings). 2 µs and 14 KB at 64 workers, some 30 µs and 16 KB
at 7,000. ``take`` and ``take_pair`` have the candidates for good: they are not to be used as live ones afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.candidates import Candidates, WorkerFacts
from kvaware_engine.requests.choose import Choice
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.rows import BARRED
from kvaware_engine.requests.split import PairChoice
from kvaware_engine.requests.words import FloatArray, IntArray, RequestDemand

__all__ = ["WHOLE_COLUMNS_MAX", "Snapshot", "SplitParts", "emptiest", "take", "take_pair"]

WHOLE_COLUMNS_MAX: Final = 256
"""Up to so many slots all columns are kept: 52 KB. Beyond, those that an explanation shows."""
CHEAPEST_KEPT: Final = 16
_GROUP: Final = 8
"""Workers of which the cheapest stands for all when the cheapest are looked for; 256 of them make 32 groups."""
HOLDERS_KEPT: Final = 64
"""Of the longest matches: more than the sources that are priced, and enough to tell whether a copy is the only one."""
_REQUESTS_FIRST: Final = 1e9
"""One request more weighs more than any cost, 10^9 ms, so that one argmin orders by requests, then by cost."""
_OBJECTS_BYTES: Final = 1_000
"""Of the snapshot, its candidates and the three arrays' headers, measured with ``sys.getsizeof``."""


@dataclass(slots=True, kw_only=True)
class SplitParts:
    """With split roles, what the parts beside the decoding saw. All see the same figures; slots are the snapshot's."""

    prefill_demand: RequestDemand
    prefill_barred: FloatArray
    """Shape (slots,)."""
    whole_demand: RequestDemand | None
    """None: no worker does both parts."""
    whole_barred: FloatArray | None
    chosen: int | None
    """Where the prompt is computed; None: where it is decoded."""

    def prefill(self, decode: Candidates) -> Candidates:
        """The first part, of the same columns as the second."""
        return replace(decode, demand=self.prefill_demand, barred=self.prefill_barred)

    def whole(self, decode: Candidates) -> Candidates | None:
        """The undivided demand, for workers that do both."""
        if self.whole_demand is None or self.whole_barred is None:
            return None
        return replace(decode, demand=self.whole_demand, barred=self.whole_barred)


@dataclass(slots=True)
class Snapshot:
    """One decision's input. Its slots are its own: a worker's column here is not its column in the fleet."""

    policy: Policy
    candidates: Candidates
    """Nothing in it changes any more; the policy, ``choose`` and the costs run on it as on the live one."""
    chosen: int
    """Slot here."""
    runner_up: int | None
    """Slot here; None: there was no other candidate."""
    costs: FloatArray
    """The policy's, as the decision compared them, infinite for who could not be chosen. Shape (slots,), of its own."""
    slots: int
    """Columns that the decision saw; more than there are here where only the telling ones were kept."""
    split: SplitParts | None = None
    """With split roles: then ``candidates``, ``chosen`` and ``runner_up`` are of the decoding, and ``costs`` those of
    pairs."""

    @property
    def whole(self) -> bool:
        """Whether every column that the decision saw is here."""
        return len(self.candidates.facts) == self.slots

    @property
    def size_bytes(self) -> int:
        """Memory that it holds for itself: arrays, and the references to facts and profiles."""
        seen = self.candidates
        waits = 0 if seen.waits_ahead_ms is None else seen.waits_ahead_ms.nbytes
        arrays = seen.figures.nbytes + seen.barred.nbytes + seen.matched_tokens.nbytes + self.costs.nbytes + waits
        if self.split is not None:
            arrays += 2 * seen.barred.nbytes
        return arrays + 8 * (len(seen.facts) + len(seen.classes)) + _OBJECTS_BYTES

    def slot_of(self, worker: str) -> int | None:
        """Where a worker is here; None: it was not there, or is not kept."""
        for slot, facts in enumerate(self.candidates.facts):
            if facts is not None and facts.worker == worker:
                return slot
        return None

    def facts(self, slot: int) -> WorkerFacts:
        """What the worker of a slot was.

        Raises: ValueError where the slot has no worker.
        """
        if (facts := self.candidates.facts[slot]) is None:
            raise ValueError(f"slot {slot}: expected a worker, there was none")
        return facts


def take(policy: Policy, candidates: Candidates, choice: Choice) -> Snapshot:
    """Keep what a decision saw. Call it before the choice is reserved: a reservation changes the figures."""
    slots = candidates.figures.shape[1]
    if slots <= WHOLE_COLUMNS_MAX:
        return Snapshot(policy, _whole(candidates), choice.chosen, choice.runner_up, choice.costs, slots)
    at = _telling(candidates, choice.costs, choice.chosen, choice.runner_up)
    here = {slot: place for place, slot in enumerate(at.tolist())}
    return Snapshot(
        policy=policy,
        candidates=_part(candidates, at, here),
        chosen=here[choice.chosen],
        runner_up=None if choice.runner_up is None else here[choice.runner_up],
        costs=choice.costs.take(at),
        slots=slots,
    )


def take_pair(
    policy: Policy, choice: PairChoice, *, prefill: Candidates, decode: Candidates, whole: Candidates | None = None
) -> Snapshot:
    """The same where roles are split.

    Args:
        policy: The model's.
        choice: As ``choose_pair`` made it.
        prefill: The demand's first part.
        decode: Its second part, over the same figures.
        whole: The undivided demand; None: no worker does both.
    """
    slots = decode.figures.shape[1]
    pairs = [pair for pair in (choice.chosen, choice.runner_up) if pair is not None]
    if slots <= WHOLE_COLUMNS_MAX:
        at = np.arange(slots, dtype=np.int64)
        here = {slot: slot for slot in range(slots)}
        seen = _whole(decode)
    else:
        named = [slot for pair in pairs for slot in (pair.slot, pair.prefill)]
        # Priced once more: nothing else tells which prefills were cheap. Split roles and hundreds of workers only.
        firsts = _telling(prefill, policy.costs_ms(prefill), *named)
        at = np.union1d(firsts, _telling(decode, choice.costs, *named))
        here = {slot: place for place, slot in enumerate(at.tolist())}
        seen = _part(decode, at, here)
    first = choice.chosen.prefill
    return Snapshot(
        policy=policy,
        candidates=seen,
        chosen=here[choice.chosen.slot],
        runner_up=None if choice.runner_up is None else here[choice.runner_up.slot],
        costs=choice.costs.take(at),
        slots=slots,
        split=SplitParts(
            prefill_demand=prefill.demand,
            prefill_barred=prefill.barred.take(at),
            whole_demand=None if whole is None else whole.demand,
            whole_barred=None if whole is None else whole.barred.take(at),
            chosen=None if first is None else here[first],
        ),
    )


def _whole(candidates: Candidates) -> Candidates:
    """Made for one decision, it is only detached from the fleet's columns: what is else in it is its own already."""
    live = candidates.figures
    candidates.figures, candidates.work = live.copy(), None
    if candidates.barred.base is not None:
        candidates.barred = candidates.figures[BARRED]
    return candidates


def _part(candidates: Candidates, at: IntArray, here: Mapping[int, int]) -> Candidates:
    """The columns of some slots; ``here``: slot to its place among them."""
    waits, facts, lower = candidates.waits_ahead_ms, candidates.facts, candidates.lower_tokens
    return _kept(
        candidates,
        figures=candidates.figures.take(at, axis=1),
        facts=tuple([facts[slot] for slot in here]),
        barred=candidates.barred.take(at),
        matched_tokens=candidates.matched_tokens.take(at),
        lower_tokens=lower and {here[slot]: tokens for slot, tokens in lower.items() if slot in here},
        waits_ahead_ms=waits if waits is None else waits.take(at),
        reach=None,  # that of all workers names other columns; made anew where it is needed
    )


def _telling(candidates: Candidates, costs: FloatArray, *named: int | None) -> IntArray:
    """Slots of the cheapest, the emptiest, the deepest holders, and those named.

    Ascending: ties go to the lower slot here as there.
    """
    kept = {slot for slot in named if slot is not None}
    kept.add(emptiest(candidates, costs))
    kept.update(_cheapest(costs).tolist())
    if candidates.deepest_tokens > 0:
        matched = candidates.matched_tokens
        # By the comparison first: flatnonzero of 7,000 floats takes 25 µs, of booleans 3.
        holders = (matched > 0).nonzero()[0]
        if len(holders) > HOLDERS_KEPT:
            expected = matched.take(holders) * candidates.figures[Figure.CONFIDENCE_RATIO].take(holders)
            holders = holders.take(expected.argpartition(-HOLDERS_KEPT)[-HOLDERS_KEPT:])
        kept.update(holders.tolist())
    return np.array(sorted(kept), dtype=np.int64)


def _cheapest(costs: FloatArray) -> IntArray:
    """Slots of the CHEAPEST_KEPT cheapest, and of a few more; of many that cost the same the lower slots.

    By the least of each of many groups: so many of them are at or below the limit that the cheapest are, too. 9 µs at
    7,000 workers, where argpartition over all takes 27 (16 instead of 10 where all cost the same).
    """
    groups = len(costs) // _GROUP
    least = costs[: groups * _GROUP].reshape(_GROUP, groups).min(axis=0)
    least.partition(CHEAPEST_KEPT - 1)
    limit = least.item(CHEAPEST_KEPT - 1)
    cheap: IntArray = (costs <= limit).nonzero()[0]
    if len(cheap) <= CHEAPEST_KEPT * _GROUP:
        return cheap
    return np.concatenate(((costs < limit).nonzero()[0], cheap[:CHEAPEST_KEPT]))


def emptiest(candidates: Candidates, costs: FloatArray) -> int:
    """What "send it to the emptiest GPU" would take: the fewest requests waiting or running, of several the cheapest.

    Args:
        candidates: At least one of them is in the running.
        costs: The policy's, infinite for those that cannot be chosen. Shape (slots,).
    """
    return int((candidates.figures[Figure.REQUESTS] * _REQUESTS_FIRST + costs).argmin())


def _kept(
    seen: Candidates,
    *,
    figures: FloatArray,
    facts: tuple[WorkerFacts | None, ...],
    barred: FloatArray,
    matched_tokens: FloatArray,
    lower_tokens: Mapping[int, tuple[float, float]],
    waits_ahead_ms: FloatArray | None,
    reach: Reach | None,
) -> Candidates:
    # All by name: dataclasses.replace takes 4 µs, this 1.
    return Candidates(
        demand=seen.demand,
        expected_output_tokens=seen.expected_output_tokens,
        now_s=seen.now_s,
        figures=figures,
        facts=facts,
        classes=tuple(seen.classes),
        barred=barred,
        matched_tokens=matched_tokens,
        lower_tokens=lower_tokens,
        deepest_tokens=seen.deepest_tokens,
        bytes_per_token=seen.bytes_per_token,
        congestion=seen.congestion,
        waits_ahead_ms=waits_ahead_ms,
        remote_bytes=seen.remote_bytes,
        migration_bytes=seen.migration_bytes,
        reuse_ratio=seen.reuse_ratio,
        reach=reach,
        settings=seen.settings,
    )
