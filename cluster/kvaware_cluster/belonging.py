"""Which pods belong to which InferenceModel, and to which of its roles. Pure; extender and operator both go by it.

A model without a selector has the pods that its name is on (label ``kvaware.io/model``); one with a selector has those
that it selects. Pods that several models claim are of the one that their label names, else of the first by name.
"""

from collections.abc import Iterable, Mapping, Sequence

from kvaware_crds.names import LABEL_MODEL
from kvaware_engine.observations import NodeSelector, ObjectKey
from kvaware_engine.tenants import selects

__all__ = ["claims", "owning_model", "role_of"]


def claims(model: ObjectKey, selector: NodeSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a model claims the pods of its namespace that carry these labels."""
    return labels.get(LABEL_MODEL) == model.name if selector is None else selects(selector, labels)


def owning_model(
    labels: Mapping[str, str],
    *,
    namespace: str,
    models: Mapping[ObjectKey, NodeSelector | None],
    selecting: Iterable[ObjectKey],
) -> ObjectKey | None:
    """The model that pods belong to; None: to none that exists.

    Args:
        labels: Of the pods.
        namespace: Of the pods.
        models: Every model that exists, with its selector.
        selecting: Of the namespace, those with a selector that claim the pods. Looked at only where the label does not
            decide, so it may be a generator.
    """
    named = ObjectKey(namespace, labels.get(LABEL_MODEL, ""))
    if named in models and claims(named, models[named], labels):
        return named
    return min(selecting, default=None)


def role_of(roles: Sequence[str], label: str | None) -> str | None:
    """The role that a pod's label ``kvaware.io/role`` names; without a label the only role. None: in none of them."""
    if label is None:
        return roles[0] if len(roles) == 1 else None
    return label if label in roles else None
