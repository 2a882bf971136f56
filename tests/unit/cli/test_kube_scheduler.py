"""The stand-in offers the nodes that kube-scheduler would, as far as it models it."""

from typing import Any

import pytest

from kvaware_cli.demo.kube_scheduler import offered_nodes


def node(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def test_cordoned_nodes_and_other_labels_are_kept_back() -> None:
    nodes = [node("a", labels={"gpu": "h100"}), node("b", labels={"gpu": "l40s"}), node("c", unschedulable=True)]
    assert offered_nodes(pod(), nodes) == ["a", "b"]
    assert offered_nodes(pod(nodeSelector={"gpu": "h100"}), nodes) == ["a"]


@pytest.mark.parametrize(
    ("toleration", "offered"),
    [
        pytest.param(None, [], id="none"),
        pytest.param({"key": "nvidia.com/gpu", "operator": "Exists"}, ["a"], id="exists, every effect"),
        pytest.param({"operator": "Exists"}, ["a"], id="exists, every key"),
        pytest.param({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, ["a"], id="equal"),
        pytest.param({"key": "nvidia.com/gpu", "value": "absent"}, [], id="another value"),
        pytest.param({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, [], id="another effect"),
    ],
)
def test_tolerations_follow_the_kubernetes_rule(toleration: dict[str, str] | None, offered: list[str]) -> None:
    spec = {"tolerations": [toleration]} if toleration else {}
    assert offered_nodes(pod(**spec), [node("a", taints=[GPU_TAINT])]) == offered


def test_a_preference_taint_keeps_nobody_back() -> None:
    assert offered_nodes(pod(), [node("a", taints=[GPU_TAINT | {"effect": "PreferNoSchedule"}])]) == ["a"]
