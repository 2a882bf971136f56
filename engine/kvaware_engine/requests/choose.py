"""The cheapest candidate and the best other one."""

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.rows import LAST_CHOSEN
from kvaware_engine.requests.words import FloatArray, IntArray

__all__ = ["TIE_MS", "Choice", "choose", "choose_by"]

TIE_MS: Final = 1e-6
"""Costs that differ by no more are equal: sums in another order differ by less."""


@dataclass(slots=True, kw_only=True)
class Choice:
    """Where a policy sends a demand. Never changed once made."""

    chosen: int
    """Slot."""
    runner_up: int | None
    """Slot of the best other worker; None: there was no other candidate."""
    costs: FloatArray
    """The policy's, infinite where barred. Shape (slots,)."""


def choose(policy: Policy, candidates: Candidates) -> Choice | None:
    """Take the candidate that costs least by a policy.

    Those that cost the same go by turns: who was chosen least recently, then the lower slot. Without turns an idle
    fleet sends everything to its first worker (AMD-AGI/Infera#103).

    Returns: None where nobody can be chosen.
    """
    return choose_by(policy.costs_ms(candidates), candidates.figures[LAST_CHOSEN])


def choose_by(costs: FloatArray, last_chosen: FloatArray) -> Choice | None:
    """Take the least of a column.

    Args:
        costs: Infinite where barred, never NaN. Shape (slots,).
        last_chosen: Number of the decision that chose each last. Shape (slots,).
    Returns: None where all are infinite, or there is none.
    """
    if not len(costs):
        return None
    # Three argmins, 0.3 µs each, tell whether any are equal at all; a comparison of the column would cost more.
    first = int(costs.argmin())
    least = costs.item(first)
    if least == inf:
        return None
    costs[first] = inf
    second = int(costs.argmin())
    next_least = costs.item(second)
    if next_least == inf:
        costs[first] = least
        return Choice(chosen=first, runner_up=None, costs=costs)
    if next_least - least > TIE_MS:
        costs[second] = inf
        third_least = costs.item(costs.argmin())
        costs[second] = next_least
        if third_least - next_least <= TIE_MS:
            second = int(_in_turn(costs, next_least, last_chosen)[0])
        costs[first] = least
        return Choice(chosen=first, runner_up=second, costs=costs)
    costs[first] = least
    equal = _in_turn(costs, least, last_chosen)
    first = int(equal[0])
    kept = costs.item(first)
    if kept != least or next_least == least:  # the least of the others is the same
        return Choice(chosen=first, runner_up=int(equal[1]), costs=costs)
    costs[first] = inf
    second = int(_in_turn(costs, next_least, last_chosen)[0])
    costs[first] = kept
    return Choice(chosen=first, runner_up=second, costs=costs)


def _in_turn(costs: FloatArray, least: float, last_chosen: FloatArray) -> IntArray:
    """The first two of those that cost the least: by who was chosen least recently, then by slot. Shape (2,)."""
    equal: IntArray = (costs <= np.array(least + TIE_MS)).nonzero()[0]  # an array: a Python number takes 0.4 µs more
    turns = last_chosen.take(equal)
    first = turns.argmin()
    turns[first] = inf
    return equal.take([first, turns.argmin()])
