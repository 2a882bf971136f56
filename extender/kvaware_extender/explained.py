"""The explanation of a decision that was made, from what was kept of it: the choice, the runner-up and the emptiest.

For a pod that is bound, figures of now would mislead: it holds itself what they no longer show as free.
"""

from dataclasses import replace

from kvaware_engine import Explanation, PodObservation, explain_pod
from kvaware_extender.memory import Decided

__all__ = ["recorded"]


def recorded(decided: Decided, pod: PodObservation) -> Explanation:
    """What was decided for this pod, which is bound, with the figures of then."""
    decision = decided.decision
    kept = (decision.chosen, decision.runner_up, decision.emptiest)
    candidates = {view.node: view for view in kept if view is not None}
    explanation = explain_pod(
        decision.demand,
        list(candidates.values()),
        refusal=decision.reason,
        reservation=pod.reservation,
    )
    at = decided.at.strftime("%Y-%m-%dT%H:%M:%SZ")
    answers = {question: f"At {at}: {answer}" for question, answer in explanation.answers.items()}
    return replace(explanation, answers=answers)
