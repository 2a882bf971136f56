"""The explanation of a decision that was made, from what was kept of it: the choice and the runner-up of that moment.

For a pod that is bound, figures of now would mislead: it holds itself what they no longer show as free.
"""

from dataclasses import replace
from typing import Final

from kvaware_engine import Explanation, PodObservation
from kvaware_engine.explain import explain_pod
from kvaware_extender.memory import Decided

__all__ = ["recorded"]

EMPTIEST: Final = "Why not the emptiest GPU?"


def recorded(decided: Decided, pod: PodObservation) -> Explanation:
    """What was decided for this pod, with the figures of then."""
    decision = decided.decision
    candidates = [view for view in (decision.chosen, decision.runner_up) if view is not None]
    explanation = explain_pod(
        decision.demand, candidates, refusal=decision.reason, reservation=pod.reservation if pod.node else None
    )
    answers = dict(explanation.answers)
    at = decided.at.strftime("%Y-%m-%dT%H:%M:%SZ")
    answers[EMPTIEST] = f"Of the two cheapest at {at}: {answers[EMPTIEST]} What the others had free was not kept."
    return replace(explanation, answers=answers)
