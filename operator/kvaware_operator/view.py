"""The operator's view of the cluster: the store, and indexes beside it so that a look at one object is cheap."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kvaware_cluster import Change, Kind, Store
from kvaware_cluster.parse.selectors import selector_of
from kvaware_cluster.workloads import Autoscaler, CustomResource, ScaleTarget, WorkerPod
from kvaware_crds import InferenceModel, KVCacheBlockGroup
from kvaware_engine.claims import Claims
from kvaware_engine.observations import NodeUse, ObjectKey, PodObservation, TenantQuotaObservation
from kvaware_operator.group_limits import GroupLimits
from kvaware_operator.members import Members
from kvaware_operator.model_facts import scale_target

__all__ = ["KINDS", "View", "versionless"]

KINDS: Final = frozenset(
    {Kind.POD, Kind.INFERENCE_MODEL, Kind.KV_CACHE_BLOCK_GROUP, Kind.TENANT_QUOTA, Kind.AUTOSCALER}
)
"""What the operator watches."""

NOTHING: Final[frozenset[str]] = frozenset()
NO_TARGETS: Final[frozenset[ScaleTarget]] = frozenset()


class View:
    """Kept in step by the store, in its loop; says which objects are to be looked at."""

    def __init__(
        self,
        store: Store,
        *,
        look: Callable[[Kind, ObjectKey], None],
        scaled: Callable[[ObjectKey, frozenset[ScaleTarget], frozenset[ScaleTarget]], None],
    ) -> None:
        """Subscribe to a store that does not run yet.

        Args:
            store: Of ``KINDS``, with details.
            look: Told of each object that a change may concern.
            scaled: Told when a model scales other workloads than before: what it did scale, what it scales now.
        """
        self._store = store
        self._look = look
        self._scaled = scaled
        self.members = Members()
        self.names: Claims[tuple[str, str]] = Claims()
        """Served names, with their namespace."""
        self.targets: Claims[ScaleTarget] = Claims()
        """Workloads that are scaled, each without the version of its API."""
        self.namespaces: Claims[str] = Claims()
        """Of TenantQuotas."""
        self.group_limits = GroupLimits()
        self._groups: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        """Block groups by their model."""
        self._autoscalers: dict[ScaleTarget, set[str]] = defaultdict(set)
        self._targets_of: dict[ObjectKey, frozenset[ScaleTarget]] = {}
        store.subscribe(self)
        store.on_worker_pod(self._pod_changed)
        store.on_resource(self._resource_changed)
        store.on_autoscaler(self._autoscaler_changed)

    # -- questions ---------------------------------------------------------------------------------------------------

    def known(self, kind: Kind) -> bool:
        """Whether the kind was listed and can be listed now. What is not known is not empty."""
        return self._store.ages().get(kind) is not None

    def fresh(self, kind: Kind, *, max_age_s: float) -> bool:
        """Whether the kind's view may be acted upon."""
        age_s = self._store.ages().get(kind)
        return age_s is not None and age_s <= max_age_s

    def resource(self, kind: Kind, key: ObjectKey) -> CustomResource | None:
        """One of our objects; None: there is none."""
        return self._store.resources(kind).get(key)

    def resources(self, kind: Kind) -> Mapping[ObjectKey, CustomResource]:
        """All of one kind of ours."""
        return self._store.resources(kind)

    def quota(self, name: str) -> TenantQuotaObservation | None:
        """A quota as far as it could be read."""
        quota: TenantQuotaObservation | None = self._store.objects(Kind.TENANT_QUOTA).get(ObjectKey("", name))
        return quota

    def pod(self, key: ObjectKey) -> PodObservation | None:
        """What a pod asks for."""
        return self._store.pod(key.namespace, key.name)

    def autoscalers_of(self, target: ScaleTarget) -> list[str]:
        """Names of the HorizontalPodAutoscalers that scale a workload, whatever version of its API they name."""
        return sorted(self._autoscalers.get(versionless(target), NOTHING))

    def target_owner(self, target: ScaleTarget) -> ObjectKey | None:
        """The oldest model that scales a workload."""
        return self.targets.owner(versionless(target))

    def scaled_models(self) -> Mapping[ObjectKey, frozenset[ScaleTarget]]:
        """Models with a role that is scaled, and the workloads."""
        return self._targets_of

    def scale_targets(self) -> set[ScaleTarget]:
        """Every workload that is scaled."""
        return {target for targets in self._targets_of.values() for target in targets}

    # -- what the store tells ----------------------------------------------------------------------------------------

    def changed(self, change: Change[Any]) -> None:
        """See ``Listener``: of observations only quotas' namespaces matter here."""
        if change.kind == Kind.TENANT_QUOTA:
            self._quota_changed(change)
        elif change.kind == Kind.POD and change.new is not None:  # what it asks for may differ
            pod = self._store.worker_pods.get(change.key)
            model = None if pod is None else self.members.model_of(pod)
            if model is not None:
                self._look(Kind.INFERENCE_MODEL, model)

    def listed(self, kind: Kind, *, began_at_s: float) -> None:  # noqa: ARG002  # the protocol's words
        """See ``Listener``: a kind is known now, or known again; what waited for it is looked at."""
        if kind in {Kind.TENANT_QUOTA, Kind.KV_CACHE_BLOCK_GROUP}:  # either counts for the other
            self._look_at_all(Kind.TENANT_QUOTA)
            self._look_at_all(Kind.KV_CACHE_BLOCK_GROUP)
            return
        self._look_at_all(Kind.INFERENCE_MODEL)
        if kind is Kind.INFERENCE_MODEL:
            self._look_at_all(Kind.KV_CACHE_BLOCK_GROUP)

    def used(self, node: str, use: NodeUse | None) -> None:
        """See ``Listener``: nobody is scraped here."""

    def target_changed(self, target: ScaleTarget) -> None:
        """A workload changed: those who scale it are looked at."""
        for key in self.targets.claimants(versionless(target)):
            self._look(Kind.INFERENCE_MODEL, key)

    def _tenant_of(self, namespace: str) -> str | None:
        owner = self.namespaces.owner(namespace)
        quota = None if owner is None else self.quota(owner.name)
        return None if quota is None else quota.tenant

    def _look_at_groups(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._look(Kind.KV_CACHE_BLOCK_GROUP, key)

    def _look_at_all(self, kind: Kind) -> None:
        for key in self._store.resources(kind):
            self._look(kind, key)

    def _pod_changed(self, change: Change[WorkerPod]) -> None:
        for key in self.members.put_pod(change.key, change.old, change.new):
            self._look(Kind.INFERENCE_MODEL, key)
        pod = change.new
        if pod is not None and pod.deletion_cost is not None and self.members.model_of(pod) is None:
            self._look(Kind.INFERENCE_MODEL, ObjectKey(change.key.namespace, ""))  # nobody's: see ``ModelReconciler``

    def _resource_changed(self, change: Change[CustomResource]) -> None:
        new, key = change.new, change.key
        kind = Kind(change.kind)
        if kind is Kind.INFERENCE_MODEL:
            self._model_changed(key, new)
        if kind is Kind.KV_CACHE_BLOCK_GROUP:
            for each in (change.old, new):
                if each is not None and isinstance(each.resource, KVCacheBlockGroup):
                    group = each.resource
                    model = ObjectKey(key.namespace, group.spec.model_ref.name)
                    (self._groups[model].add if each is new else self._groups[model].discard)(key)
            if change.old is None or new is None or change.old.created_at != new.created_at:
                self._look_at_groups(self.group_limits.put_group(key, None if new is None else new.created_at))
                for name in self.group_limits.quotas_for(key.namespace):
                    self._look(Kind.TENANT_QUOTA, ObjectKey("", name))
        self._look(kind, key)

    def _quota_changed(self, change: Change[TenantQuotaObservation]) -> None:
        old, new = change.old, change.new
        created_at, namespaces = ("", ()) if new is None else (new.created_at, new.namespaces)
        touched = self.namespaces.put(change.key, created_at, namespaces)
        if old is not None and (new is None or new.tenant != old.tenant):
            self._look_at_groups(self.group_limits.put_quota(old.name, old.tenant, None, gone=True))
        if new is not None:
            self._look_at_groups(self.group_limits.put_quota(new.name, new.tenant, new.limits.block_groups))
        claimed = {*namespaces, *(() if old is None else old.namespaces)}
        self._look_at_groups(self.group_limits.put_namespaces((each, self._tenant_of(each)) for each in claimed))
        for key in touched | {change.key}:
            self._look(Kind.TENANT_QUOTA, key)

    def _model_changed(self, key: ObjectKey, new: CustomResource | None) -> None:
        model = None if new is None else new.resource
        created_at = "" if new is None else new.created_at
        names: set[tuple[str, str]] = set()
        targets: set[ScaleTarget] = set()
        if isinstance(model, InferenceModel) and new is not None:
            spec = model.spec
            names = {(key.namespace, name) for name in spec.served_names or (spec.model_id,)}
            targets = {target for role in spec.roles if (target := scale_target(new, role)) is not None}
            selector = None if spec.workers is None or spec.workers.selector is None else spec.workers.selector
            touched = self.members.put_model(key, None if selector is None else selector_of(selector))
        elif new is not None:
            touched = self.members.put_model(key, None)
        else:
            touched = self.members.remove_model(key)
        touched |= self.names.put(key, created_at, names)
        touched |= self.targets.put(key, created_at, map(versionless, targets))
        before, now = self._targets_of.pop(key, NO_TARGETS), frozenset(targets)
        if now:
            self._targets_of[key] = now
        if before != now:
            self._scaled(key, before, now)
        for each in touched:
            self._look(Kind.INFERENCE_MODEL, each)
        for group in self._groups.get(key, ()):
            self._look(Kind.KV_CACHE_BLOCK_GROUP, group)

    def _autoscaler_changed(self, change: Change[Autoscaler]) -> None:
        for each in (change.old, change.new):
            if each is None:
                continue
            target = versionless(each.target)
            (self._autoscalers[target].add if each is change.new else self._autoscalers[target].discard)(each.key.name)
            if not self._autoscalers[target]:
                del self._autoscalers[target]
            self.target_changed(target)


def versionless(target: ScaleTarget) -> ScaleTarget:
    """The same workload through whatever version of its API: ``apps/v1`` and ``apps/v1beta1`` are one object."""
    return target._replace(api_version=target.api_version.rpartition("/")[0])
