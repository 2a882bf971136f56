"""A small deterministic stand-in for kube-scheduler: which nodes it offers, and what it does with the answers.

Of the scheduler's own filters only those are done that decide the example: cordoned nodes, taints, nodeSelector. CPU,
memory, affinity and spread constraints are not. Of several nodes with the top score the first by name is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaware_cli.client import SchedulerVerbs
from kvaware_cli.errors import ServerError

__all__ = ["Attempt", "offered_nodes", "schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one scheduling attempt."""

    node: str | None
    """Where the pod was bound; None: it stays pending."""
    kept_back: tuple[str, ...]
    """Nodes that kube-scheduler itself would not have offered."""
    bind_error: str = ""


def schedule(verbs: SchedulerVerbs, pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> Attempt:
    """Filter, prioritize and bind, as kube-scheduler calls them: with one node left there is no prioritize."""
    offered = offered_nodes(pod, nodes)
    kept_back = tuple(sorted(_name(node) for node in nodes if _name(node) not in offered))
    if not offered:
        return Attempt(node=None, kept_back=kept_back)
    answer = verbs.filter(pod, offered)
    if answer.get("Error"):
        raise ServerError(f"filter failed: {answer['Error']}")
    admitted: list[str] = answer.get("NodeNames") or []
    if not admitted:
        return Attempt(node=None, kept_back=kept_back)
    node = admitted[0]
    if len(admitted) > 1:
        scores = verbs.prioritize(pod, admitted)
        node = min(scores, key=lambda score: (-score["Score"], score["Host"]))["Host"]
    error = verbs.bind(pod, node).get("Error", "")
    return Attempt(node=None if error else node, kept_back=kept_back, bind_error=error)


def offered_nodes(pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that kube-scheduler's own filters leave, sorted."""
    return sorted(_name(node) for node in nodes if _selected(pod, node) and _tolerated(pod, node))


def _name(node: Mapping[str, Any]) -> str:
    name: str = node["metadata"]["name"]
    return name


def _selected(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    labels = node["metadata"].get("labels") or {}
    selector = (pod.get("spec") or {}).get("nodeSelector") or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _tolerated(pod: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    taints = [t for t in spec.get("taints") or () if t.get("effect") in {"NoSchedule", "NoExecute"}]
    if spec.get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """The rule of the Kubernetes API: an empty key with Exists tolerates everything, an empty effect every effect."""
    if toleration.get("effect") not in {None, "", taint.get("effect")}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", taint.get("key")}
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")
