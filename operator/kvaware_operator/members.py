"""Which pods are a model's, and which model a pod is: by the label ``kvaware.io/model``, or by the model's selector.

The rules are ``kvaware_cluster.belonging``; here every pod counts, also one that runs no worker yet.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvaware_cluster.belonging import claims, owning_model
from kvaware_cluster.workloads import WorkerPod
from kvaware_crds.names import FIELD_MANAGER_OPERATOR
from kvaware_engine.observations import NodeSelector, ObjectKey

__all__ = ["Members"]


@dataclass(slots=True)
class _Alike:
    """The pods of one namespace with the same labels, which they share in memory: they are of the same model."""

    labels: Mapping[str, str]
    labelled: ObjectKey | None
    """The model that the label names, whether it exists or not."""
    pods: dict[ObjectKey, WorkerPod] = field(default_factory=dict)
    claims: set[ObjectKey] = field(default_factory=set)
    """Models whose selector selects them."""
    owner: ObjectKey | None = None


class Members:
    """Pods by model, kept in step with every change. One owner.

    A look at one model costs as much as its own pods; a model with a selector costs, when it changes, one comparison
    with every different set of labels in its namespace.
    """

    def __init__(self) -> None:
        self._alike: dict[str, dict[int, _Alike]] = defaultdict(dict)
        """By namespace and identity of the labels."""
        self._labelled: dict[ObjectKey, dict[int, _Alike]] = defaultdict(dict)
        self._owned: dict[ObjectKey, dict[int, _Alike]] = defaultdict(dict)
        self._selectors: dict[str, dict[ObjectKey, NodeSelector]] = defaultdict(dict)
        """Of models that have one, by namespace."""
        self._models: dict[ObjectKey, NodeSelector | None] = {}
        """Those that exist, with their selectors."""

    def put_model(self, model: ObjectKey, selector: NodeSelector | None) -> set[ObjectKey]:
        """A model as it is now. None: its pods are those that its name is on. Returns: models with other pods now."""
        self._models[model] = selector
        return self._model_changed(model, selector)

    def remove_model(self, model: ObjectKey) -> set[ObjectKey]:
        """The model is gone. Returns: models with other pods now."""
        self._models.pop(model, None)
        return self._model_changed(model, None)

    def put_pod(self, key: ObjectKey, old: WorkerPod | None, new: WorkerPod | None) -> set[ObjectKey]:
        """A pod changed. Returns: the models that it was or is of; one that does not exist is among them."""
        touched: set[ObjectKey | None] = set()
        if old is not None:
            alike = self._alike[key.namespace].get(id(old.labels))
            if alike is not None and alike.pods.pop(key, None) is not None:
                touched.add(alike.owner)
                self._drop_empty(key.namespace, alike)
        if new is not None:
            alike = self._alike[key.namespace].get(id(new.labels)) or self._new_alike(key.namespace, new)
            alike.pods[key] = new
            touched.add(alike.owner)
        return {model for model in touched if model is not None}

    def pods_of(self, model: ObjectKey) -> list[WorkerPod]:
        """The model's pods that are not finished, by name."""
        found = (pod for alike in self._owned.get(model, {}).values() for pod in alike.pods.values())
        return sorted((pod for pod in found if not pod.finished), key=lambda pod: pod.key)

    def model_of(self, pod: WorkerPod) -> ObjectKey | None:
        """The model that a pod is of, whether it exists or not."""
        alike = self._alike[pod.key.namespace].get(id(pod.labels))
        return None if alike is None else alike.owner

    def orphans_priced_by_us(self, namespace: str) -> Mapping[ObjectKey, WorkerPod]:
        """Pods of a namespace that carry a deletion cost of ours and belong to no existing model."""
        return {
            key: pod
            for alike in self._alike.get(namespace, {}).values()
            if alike.owner not in self._models
            for key, pod in alike.pods.items()
            if pod.deletion_cost_by == FIELD_MANAGER_OPERATOR
        }

    def _model_changed(self, model: ObjectKey, selector: NodeSelector | None) -> set[ObjectKey]:
        selectors = self._selectors[model.namespace]
        before = selectors.pop(model, None)
        if selector is not None:
            selectors[model] = selector
        if before is None and selector is None:
            concerned = list(self._labelled.get(model, {}).values())
        else:
            concerned = list(self._alike[model.namespace].values())
        touched: set[ObjectKey | None] = set()
        for alike in concerned:
            if before != selector:
                alike.claims.discard(model)
                if selector is not None and claims(model, selector, alike.labels):
                    alike.claims.add(model)
            was = alike.owner
            self._settle(model.namespace, alike)
            if alike.owner != was:
                touched |= {was, alike.owner}
        return {each for each in touched if each is not None}

    def _new_alike(self, namespace: str, pod: WorkerPod) -> _Alike:
        alike = _Alike(pod.labels, None if pod.model is None else ObjectKey(namespace, pod.model))
        alike.claims = {model for model, each in self._selectors[namespace].items() if claims(model, each, pod.labels)}
        self._alike[namespace][id(alike.labels)] = alike
        if alike.labelled is not None:
            self._labelled[alike.labelled][id(alike.labels)] = alike
        self._settle(namespace, alike)
        return alike

    def _drop_empty(self, namespace: str, alike: _Alike) -> None:
        if alike.pods:
            return
        del self._alike[namespace][id(alike.labels)]
        for index, model in ((self._labelled, alike.labelled), (self._owned, alike.owner)):
            if model is not None:
                _remove(index, model, alike)

    def _settle(self, namespace: str, alike: _Alike) -> None:
        """The owner, where no model has the pods the one that their label names and that does not exist."""
        owner = owning_model(alike.labels, namespace=namespace, models=self._models, selecting=alike.claims)
        if owner is None and alike.labelled not in self._models:
            owner = alike.labelled
        if owner == alike.owner:
            return
        if alike.owner is not None:
            _remove(self._owned, alike.owner, alike)
        alike.owner = owner
        if owner is not None:
            self._owned[owner][id(alike.labels)] = alike


def _remove(index: dict[ObjectKey, dict[int, _Alike]], model: ObjectKey, alike: _Alike) -> None:
    index[model].pop(id(alike.labels), None)
    if not index[model]:
        del index[model]
