"""The rules of which pods belong to which model and role."""

import pytest

from kvaware_cluster.belonging import claims, owning_model, role_of
from kvaware_engine.observations import NodeSelector, ObjectKey

LLAMA, QWEN = ObjectKey("ml", "llama"), ObjectKey("ml", "qwen")
GPU = NodeSelector(match_labels=(("tier", "gpu"),))
APP = NodeSelector(match_labels=(("app", "llama"),))
NAMED, SELECTED = {"kvaware.io/model": "llama"}, {"tier": "gpu", "app": "llama"}


@pytest.mark.parametrize(
    ("labels", "models", "owner"),
    [
        pytest.param(NAMED, {}, None, id="a model that does not exist"),
        pytest.param(NAMED, {LLAMA: None, QWEN: None}, LLAMA, id="by its name"),
        pytest.param(NAMED, {LLAMA: GPU}, None, id="its name alone, where it has a selector"),
        pytest.param({**NAMED, **SELECTED}, {LLAMA: GPU, ObjectKey("ml", "a"): GPU}, LLAMA, id="name and selector"),
        pytest.param({**NAMED, **SELECTED}, {LLAMA: None, QWEN: GPU}, LLAMA, id="the name goes before a selector"),
        pytest.param({**NAMED, "tier": "gpu"}, {LLAMA: APP, QWEN: GPU}, QWEN, id="the named one does not select it"),
        pytest.param({**NAMED, **SELECTED}, {QWEN: GPU}, QWEN, id="the named one does not exist"),
        pytest.param(SELECTED, {QWEN: GPU, LLAMA: APP}, LLAMA, id="of two that select it the first by name"),
        pytest.param({}, {LLAMA: None, QWEN: GPU}, None, id="nobody's"),
        pytest.param(NAMED, {ObjectKey("other", "llama"): None}, None, id="of another namespace"),
        pytest.param({"kvaware.io/model": ""}, {LLAMA: None}, None, id="an empty label"),
    ],
)
def test_whose_pods_they_are(labels, models, owner):
    selecting = [key for key, each in models.items() if each is not None and claims(key, each, labels)]
    assert owning_model(labels, namespace="ml", models=models, selecting=selecting) == owner


def test_selectors_are_not_looked_at_where_the_label_decides():
    """A thousand models with selectors cost nothing for pods that name theirs."""

    def never():
        raise AssertionError("asked")
        yield LLAMA

    assert owning_model(NAMED, namespace="ml", models={LLAMA: None}, selecting=never()) == LLAMA


@pytest.mark.parametrize(
    ("roles", "label", "role"),
    [
        pytest.param(["both"], None, "both", id="the only role"),
        pytest.param(["prefill", "decode"], None, None, id="several, and no label"),
        pytest.param(["prefill", "decode"], "decode", "decode", id="by the label"),
        pytest.param(["both"], "decode", None, id="a role that there is not"),
        pytest.param(["both"], "", None, id="an empty label names no role"),
    ],
)
def test_which_role_a_pod_has(roles, label, role):
    assert role_of(roles, label) == role
