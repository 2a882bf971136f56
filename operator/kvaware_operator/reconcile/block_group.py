"""KVCacheBlockGroups: whether they can be used. Copies come with the data plane."""

from collections.abc import Callable
from datetime import datetime

from kvaware_cluster import Kind
from kvaware_cluster.workloads import CustomResource
from kvaware_crds import ConditionType, KVCacheBlockGroup
from kvaware_engine.observations import ObjectKey
from kvaware_operator.conditions import Finding, settle
from kvaware_operator.group_limits import GroupLimit
from kvaware_operator.not_enforced import not_enforced
from kvaware_operator.statuses import StatusWriter
from kvaware_operator.view import View

__all__ = ["BlockGroupReconciler", "block_group_findings"]


def block_group_findings(
    resource: CustomResource,
    *,
    models_known: bool,
    model_exists: bool,
    quotas_known: bool,
    beyond: GroupLimit | None,
) -> list[Finding]:
    """What there is to say.

    Args:
        resource: The object.
        models_known: Whether InferenceModels can be listed.
        model_exists: Whether its model is among them.
        quotas_known: Whether TenantQuotas can be listed.
        beyond: The limit of its tenant that older groups take up already; None: it is within.
    """
    type_ = ConditionType.ACCEPTED
    group = resource.resource
    if not isinstance(group, KVCacheBlockGroup):
        return [Finding.false(type_, "Invalid", resource.problem or "the spec cannot be read")]
    model = group.spec.model_ref.name
    if beyond is not None:
        accepted = Finding.false(
            type_,
            "LimitExceeded",
            f"limits.blockGroups of TenantQuota {beyond.quota} is {beyond.at_most}, and older KVCacheBlockGroups of "
            "the tenant take it up"
            if beyond.at_most
            else f"limits.blockGroups of TenantQuota {beyond.quota} is 0",
        )
    elif not quotas_known:
        accepted = Finding.unknown(type_, "QuotasUnknown", "TenantQuotas cannot be listed")
    elif model_exists:
        accepted = Finding.true(type_, "Valid")
    elif models_known:
        accepted = Finding.false(
            type_, "ModelNotFound", f"modelRef: there is no InferenceModel {model} in the namespace"
        )
    else:
        accepted = Finding.unknown(type_, "ModelsUnknown", "InferenceModels cannot be listed")
    return [accepted, not_enforced(group.spec)]


class BlockGroupReconciler:
    """Looks at one block group at a time."""

    def __init__(self, *, view: View, statuses: StatusWriter, wall: Callable[[], datetime]) -> None:
        self._view = view
        self._statuses = statuses
        self._wall = wall

    async def look(self, key: ObjectKey) -> float | None:
        """Bring one group's conditions up to date. Returns: seconds after which to look again, or None."""
        view, kind = self._view, Kind.KV_CACHE_BLOCK_GROUP
        if not view.known(kind):
            return None  # unknown is not gone: when the kind is listed again, every object of it is looked at
        resource = view.resource(kind, key)
        if resource is None:
            self._statuses.forget(kind, key)
            return None
        group = resource.resource
        name = group.spec.model_ref.name if isinstance(group, KVCacheBlockGroup) else ""
        findings = block_group_findings(
            resource,
            models_known=view.known(Kind.INFERENCE_MODEL),
            model_exists=view.resource(Kind.INFERENCE_MODEL, ObjectKey(key.namespace, name)) is not None,
            quotas_known=view.known(Kind.TENANT_QUOTA),
            beyond=view.group_limits.beyond(key),
        )
        before = self._statuses.present(resource)
        listed = before.get("conditions")
        conditions = settle(
            listed if isinstance(listed, list) else [], findings, generation=resource.generation, now=self._wall()
        )
        return await self._statuses.write(resource, {**before, "conditions": conditions})
