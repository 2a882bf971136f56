"""The status of an InferenceModel: facts, plans and findings → what is written. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kvaware_crds.v1alpha1.inference_model import InferenceModelStatus, RoleStatus
from kvaware_engine import ScalingPlan
from kvaware_operator.conditions import Finding, settle
from kvaware_operator.model_facts import ModelFacts, RoleFacts, ready_replicas

__all__ = ["model_status", "refused_status"]

MAX_MESSAGE_CHARACTERS: Final = 1024


def refused_status(
    before: Mapping[str, Any], findings: Sequence[Finding], *, generation: int, now: datetime
) -> dict[str, Any]:
    """Of an object whose spec cannot be used: its figures stay as they were, the conditions say why."""
    return {**before, "conditions": _conditions(before, findings, generation=generation, now=now)}


def model_status(
    facts: ModelFacts,
    plans: Mapping[str, ScalingPlan],
    findings: Sequence[Finding],
    *,
    before: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    """The whole status.

    Args:
        facts: The model.
        plans: By role, for those that are scaled.
        findings: About it.
        before: The present status, as the API server has it.
        now: For conditions whose status changes.
    """
    listed = before.get("roles")
    old = {each.get("name"): each for each in listed if isinstance(each, dict)} if isinstance(listed, list) else {}
    roles = tuple(_role(role, plans.get(role.role.name), old.get(role.role.name, {})) for role in facts.roles)
    status = InferenceModelStatus(
        replicas=sum(role.replicas for role in roles),
        ready_replicas=sum(role.ready_replicas for role in roles),
        desired_replicas=_desired(facts, roles),
        roles=roles,
    ).to_raw()
    generation = facts.resource.generation
    return {**status, "conditions": _conditions(before, findings, generation=generation, now=now)}


def _role(facts: RoleFacts, plan: ScalingPlan | None, before: Mapping[str, Any]) -> RoleStatus:
    reason = None if plan is None else plan.reason.value
    desired = None if plan is None else plan.desired
    same = reason is not None and (before.get("reason"), before.get("desiredReplicas")) == (reason, desired)
    message = before.get("message") if same else None
    if plan is not None and not isinstance(message, str):
        message = plan.message  # its figures change with every poll: told once, when reason or number changed
    return RoleStatus(
        name=facts.role.name,
        replicas=facts.existing_replicas,
        ready_replicas=ready_replicas(facts.pods, pods_per_replica=facts.role.footprint.pods_per_replica),
        desired_replicas=desired,
        reason=reason,
        message=None if message is None else message[:MAX_MESSAGE_CHARACTERS],
    )


def _desired(facts: ModelFacts, roles: Sequence[RoleStatus]) -> int | None:
    scaled = {role.role.name for role in facts.roles if role.target is not None}
    if not scaled or any(role.desired_replicas is None for role in roles if role.name in scaled):
        return None
    return sum(role.replicas if role.desired_replicas is None else role.desired_replicas for role in roles)


def _conditions(
    before: Mapping[str, Any], findings: Sequence[Finding], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    listed = before.get("conditions")
    return settle(listed if isinstance(listed, list) else [], findings, generation=generation, now=now)
