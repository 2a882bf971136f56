"""Which workers have to be looked at again, on which nodes they are, and for which tenants those are reserved."""

from collections.abc import Iterator

from kvaware_engine.observations import NodeObservation, ObjectKey, TenantQuotaObservation
from kvaware_engine.tenants import Tenants
from kvaware_engine.workers import Workers

__all__ = ["WorkerPlaces"]


class WorkerPlaces:
    """Follows ``Workers`` and nodes. It only notes what changed: the fleets look when a decision is due."""

    __slots__ = ("_changed", "_node_of", "_nodes", "_on_node", "_quotas", "_tenants", "_workers", "model_of")

    def __init__(self, workers: Workers) -> None:
        self.model_of: dict[str, ObjectKey] = {}
        """Worker to the model in whose fleet it is."""
        self._workers = workers
        self._changed: dict[str, None] = {}
        """In the order of the changes."""
        self._nodes: dict[str, NodeObservation] = {}
        self._node_of: dict[str, str] = {}
        """Worker to its node, as last asked for; and the other way round:"""
        self._on_node: dict[str, set[str]] = {}
        self._tenants = Tenants()
        self._quotas: dict[str, TenantQuotaObservation] = {}
        workers.subscribe(self._note)

    def _note(self, worker: str) -> None:
        self._changed[worker] = None

    def observe_node(self, name: str, node: NodeObservation | None) -> None:
        """A node came, changed, or (None) went."""
        if self._nodes.get(name) == node:
            return
        if node is None:
            del self._nodes[name]
        else:
            self._nodes[name] = node
        self._changed.update(dict.fromkeys(sorted(self._on_node.get(name, ()))))

    def observe_quota(self, name: str, quota: TenantQuotaObservation | None) -> None:
        """A TenantQuota came, changed, or (None) went: nodes may be reserved for others."""
        before = self._quotas.pop(name, None)
        if quota is not None:
            self._quotas[name] = quota
        self._tenants.observe(name, quota)
        if (before and before.reserved_pool) or (quota and quota.reserved_pool):
            self._changed.update(dict.fromkeys(self.model_of))

    def look_again(self, *, model: ObjectKey) -> None:
        """A model came: its workers may have been known before."""
        for worker in self._workers.of_model(model):
            self._changed[worker] = None

    def changed(self) -> Iterator[str]:
        """The workers that changed since they were given; nothing of them is kept."""
        while self._changed:
            worker = next(iter(self._changed))
            del self._changed[worker]
            yield worker

    @property
    def any_changed(self) -> bool:
        """Whether ``changed`` would give any."""
        return bool(self._changed)

    def node_of(self, worker: str) -> NodeObservation | None:
        """Where a worker is; None: unknown. From now on it is looked at again when that node changes."""
        place = self._workers.place(worker)
        node = None if place is None else place.node
        if self._node_of.get(worker) != node:
            self._leave_node(worker)
            if node is not None:
                self._node_of[worker] = node
                self._on_node.setdefault(node, set()).add(worker)
        return None if node is None else self._nodes.get(node)

    def forget(self, worker: str) -> None:
        """It is in no fleet any more."""
        self.model_of.pop(worker, None)
        self._leave_node(worker)

    def _leave_node(self, worker: str) -> None:
        node = self._node_of.pop(worker, None)
        if node is not None:
            self._on_node[node].discard(worker)
            if not self._on_node[node]:
                del self._on_node[node]

    def reserved_for(self, node: NodeObservation | None) -> frozenset[str] | None:
        """The tenants that alone may use a node's workers; None: anybody."""
        owner = None if node is None else self._tenants.owner_of_node(node.labels)
        return None if owner is None else frozenset({owner})
