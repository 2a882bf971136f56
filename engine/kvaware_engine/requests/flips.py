"""The smallest change that would have flipped a decision, found by replaying it.

Each kind of change goes in whole steps, so "a little less" is one step less. The first flip is looked for at 1, 2, 4, …
steps and then by bisection; that is the least there is where the costs move one way with the change, and in any case
one step less does not flip. Every trial runs the policy itself on the changed columns: some 25 to 100 µs at 64 workers,
and 200 to 300 trials per explanation.
"""

from dataclasses import replace

from kvaware_engine.requests.changes import KINDS, changed, prefill_slot
from kvaware_engine.requests.choose import Choice, choose
from kvaware_engine.requests.explain_words import Change, ChangeKind, Flip
from kvaware_engine.requests.reach import Reach
from kvaware_engine.requests.snapshot import Snapshot
from kvaware_engine.requests.split import Pair, PairChoice, choose_pair

__all__ = ["find_flips", "replay"]


def replay(snapshot: Snapshot, change: Change | None = None) -> Choice | PairChoice | None:
    """Decide again what a snapshot saw, with one thing changed.

    Args:
        snapshot: What the decision saw.
        change: None: as it was.
    Returns: The choice, by slots of the snapshot, a pair with split roles; None where nobody could be chosen any more.
    Raises: NoChange where the change cannot be made.
    """
    seen = snapshot.candidates if change is None else changed(snapshot, change)
    if snapshot.split is None:
        return choose(snapshot.policy, seen)
    prefill, whole = snapshot.split.prefill(seen), snapshot.split.whole(seen)
    return choose_pair(snapshot.policy, prefill=prefill, decode=seen, whole=whole)


def find_flips(snapshot: Snapshot, *, total_ms: float) -> tuple[tuple[Flip, ...], str]:
    """Try every kind of change.

    Args:
        snapshot: What the decision saw.
        total_ms: What the chosen option costs: a longer or shorter queue is compared with it.
    Returns: One flip per kind that can flip the decision, the relatively smallest first; and why there is none, empty
        where there is one.
    """
    if snapshot.runner_up is None and snapshot.split is None:
        return (), "There was no other candidate, so no change of load, cache or links could have flipped it."
    seen = snapshot.candidates
    if seen.reach is None:  # else each trial would make it
        snapshot = replace(snapshot, candidates=replace(seen, reach=Reach(seen.facts)))
    if _pair(replay(snapshot)) != _decided(snapshot):
        return (), "The columns that were kept do not lead to the same choice again, so what flips it cannot be told."
    found = [flip for kind in ChangeKind if (flip := _smallest(snapshot, kind, total_ms=total_ms)) is not None]
    if not found:
        stays = f"{snapshot.policy.name} stays with it"
        return (), f"No single change of queues, matched tokens, output, links or batches flips it: {stays}."
    return tuple(sorted(found, key=lambda flip: flip.relative)), ""


def _decided(snapshot: Snapshot) -> Pair:
    return Pair(slot=snapshot.chosen, prefill=prefill_slot(snapshot))


def _pair(choice: Choice | PairChoice | None) -> Pair | None:
    match choice:
        case None:
            return None
        case Choice():
            return Pair(slot=choice.chosen, prefill=None)
        case PairChoice():
            return choice.chosen


def _smallest(snapshot: Snapshot, kind: ChangeKind, *, total_ms: float) -> Flip | None:
    """The fewest steps of one kind that flip the decision; None: none do."""
    most = KINDS[kind].most(snapshot)
    before = _decided(snapshot)

    def flipped(steps: int) -> Pair | None:
        """Where it goes instead; None: nowhere else."""
        other = _pair(replay(snapshot, Change(kind=kind, steps=steps)))
        return None if other == before else other

    if most < 1:
        return None
    low, high = 0, 1  # low does not flip
    while (other := flipped(high)) is None:
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if (at_middle := flipped(middle)) is not None:
            high, other = middle, at_middle
        else:
            low = middle
    return _flip(snapshot, Change(kind=kind, steps=high), other, total_ms=total_ms)


def _flip(snapshot: Snapshot, change: Change, other: Pair, *, total_ms: float) -> Flip:
    kind = KINDS[change.kind]
    amount = kind.amount(change.steps)
    what = kind.text.format(
        chosen=_name(snapshot, snapshot.chosen),
        runner_up=_name(snapshot, snapshot.runner_up),
        prefill=_name(snapshot, prefill_slot(snapshot)),
        number=f"{amount:,.1f}" if kind.unit == "ms" else f"{amount:,.0f}",
        unit=kind.unit_of_one if amount == 1 else kind.unit,
    )
    if other.slot != snapshot.chosen:
        winner = _name(snapshot, other.slot)
        then = f"{winner} would have been chosen"
    else:
        winner = _name(snapshot, other.slot if other.prefill is None else other.prefill)
        then = f"{winner} would have computed the prompt"
    return Flip(
        change=change,
        amount=amount,
        unit=kind.unit,
        relative=amount / kind.share_of(snapshot, total_ms),
        worker=winner,
        text=f"{what}, {then}.",
    )


def _name(snapshot: Snapshot, slot: int | None) -> str:
    return "" if slot is None else snapshot.facts(slot).worker
