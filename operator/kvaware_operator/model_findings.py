"""What there is to say about an InferenceModel: facts and scaling plans → findings. Pure."""

from collections.abc import Mapping, Sequence

from kvaware_cluster.workloads import CustomResource, Scale, WorkerPod
from kvaware_crds import ConditionType, format_quantity
from kvaware_crds.v1alpha1.inference_model import Role, ScalingMode
from kvaware_engine import ScalingPlan, ScalingReason
from kvaware_engine.observations import PodObservation
from kvaware_operator.conditions import Finding, named
from kvaware_operator.model_facts import ModelFacts, RoleFacts, ready_replicas
from kvaware_operator.not_enforced import not_enforced
from kvaware_operator.scales import ScaleProblem

__all__ = ["accepted", "conflict_of", "model_findings"]

Plans = Mapping[str, ScalingPlan]
"""By role, for those that are scaled."""


def accepted(resource: CustomResource) -> Finding:
    """Whether the spec can be used."""
    if resource.resource is None:
        return Finding.false(ConditionType.ACCEPTED, "Invalid", resource.problem or "the spec cannot be read")
    return Finding.true(ConditionType.ACCEPTED, "Valid")


def model_findings(facts: ModelFacts, plans: Plans, *, load_missing: bool = False) -> list[Finding]:
    """Everything, for a model whose spec can be used.

    Args:
        facts: The model.
        plans: By role, for those that are scaled.
        load_missing: Whether the load has been unknown for longer than is borne.
    """
    findings = [
        accepted(facts.resource),
        _ready(facts, plans, load_missing=load_missing),
        _name_conflict(facts),
        _footprint_mismatch(facts),
        not_enforced(facts.spec),
        _hbm_constrained(plans),
        _scaling_conflict(facts),
        _scale_to_zero_not_yet(facts),
        _over_pods(
            facts, ConditionType.HBM_OVERRUN, "PodsUseMoreThanReserved", "more HBM in use than reserved: pods {}"
        ),
        _over_pods(
            facts,
            ConditionType.FOREIGN_USE_UNKNOWN,
            "NoExporter",
            "nobody tells how much HBM other programs use on the nodes of pods {}",
        ),
    ]
    scalable = _scalable(facts)
    return findings if scalable is None else [*findings, scalable]


def conflict_of(role: RoleFacts) -> str | None:
    """Why a role is only recommended for, although it may be scaled: who else scales its workload. None: nobody."""
    if role.target is None:
        return None
    what = f"{role.target.kind} {role.target.name} (role {role.role.name})"
    if role.autoscalers:
        return f"{what} is scaled by HorizontalPodAutoscaler {named(role.autoscalers)}"
    if role.target_owner is not None:
        return f"{what} is scaled for the older InferenceModel {role.target_owner.name}"
    return None


def _ready(facts: ModelFacts, plans: Plans, *, load_missing: bool) -> Finding:
    """Whether every role has the Ready replicas that it should have now."""
    type_ = ConditionType.READY
    missing = []
    for role in facts.roles:
        wanted, ready = _wanted(role, plans.get(role.role.name), facts.mode), _ready_of(role)
        if ready < wanted:
            missing.append(f"role {role.role.name}: {ready} of {wanted} Ready")
    if missing:
        return Finding.false(type_, "ReplicasMissing", "; ".join(missing))
    if load_missing:
        return Finding.unknown(
            type_, ScalingReason.LOAD_UNKNOWN.value, "whether the replicas are enough is unknown; their number stays"
        )
    return Finding.true(type_, "ReplicasReady")


def _wanted(role: RoleFacts, plan: ScalingPlan | None, mode: ScalingMode) -> int:
    """Ready replicas that the spec asks for now: what Auto aims at, else what the workload was told, at least one."""
    told = role.scale.replicas if isinstance(role.scale, Scale) else max(1, role.existing_replicas)
    aim = told
    if mode is ScalingMode.AUTO and plan is not None and plan.desired is not None and conflict_of(role) is None:
        aim = plan.desired
    least = 0 if role.role.replicas is None else max(1, role.role.replicas.min)
    return max(aim, least)


def _ready_of(role: RoleFacts) -> int:
    return ready_replicas(role.pods, pods_per_replica=role.role.footprint.pods_per_replica)


def _name_conflict(facts: ModelFacts) -> Finding:
    type_ = ConditionType.NAME_CONFLICT
    if not facts.names_owned:
        return Finding.false(type_, "NamesAreItsOwn")
    owned = named([f"{name} (InferenceModel {owner.name})" for name, owner in facts.names_owned.items()])
    return Finding.true(type_, "OwnedByOlder", f"served names that an older one owns: {owned}")


def _footprint_mismatch(facts: ModelFacts) -> Finding:
    type_ = ConditionType.FOOTPRINT_MISMATCH
    told = [
        f"{pod.key.name} {difference}"
        for role in facts.roles
        for pod in role.pods
        if (difference := _difference(role.role, facts.observations.get(pod.key))) is not None
    ]
    told += [f"{pod.key.name} names the role {pod.role or 'none'}" for pod in facts.strangers]
    if not told:
        return Finding.false(type_, "PodsMatch")
    return Finding.true(type_, "PodsDiffer", f"pods count by what they ask for: {named(told)}")


def _difference(role: Role, pod: PodObservation | None) -> str | None:
    """What a pod asks for other than its role's footprint; None: nothing, or not known."""
    if pod is None:
        return None
    if pod.problem is not None:
        return "cannot be read"
    gpus = sum(amount for _, amount in pod.gpu_requests)
    footprint = role.footprint
    if gpus != footprint.gpus_per_pod:
        return f"asks for {gpus} GPUs instead of {footprint.gpus_per_pod}"
    hbm = pod.hbm_per_gpu_bytes
    if hbm is not None and hbm != footprint.hbm_per_gpu:
        usual = "whole GPUs" if footprint.hbm_per_gpu is None else format_quantity(footprint.hbm_per_gpu)
        return f"asks for {format_quantity(hbm)} per GPU instead of {usual}"
    return None


def _hbm_constrained(plans: Plans) -> Finding:
    type_ = ConditionType.HBM_CONSTRAINED
    held = {name: plan for name, plan in plans.items() if plan.hbm_constrained}
    if not held:
        return Finding.false(type_, "RoomForReplicas")
    told = "; ".join(
        f"role {name}: more replicas are wanted than fit{f': {plan.lacking}' if plan.lacking else ''}"
        for name, plan in held.items()
    )
    return Finding.true(type_, ScalingReason.HBM_CONSTRAINED.value, told)  # figures are in status.roles, told once


def _scaling_conflict(facts: ModelFacts) -> Finding:
    type_ = ConditionType.SCALING_CONFLICT
    conflicts = [told for role in facts.roles if (told := conflict_of(role)) is not None]
    if conflicts:
        reason = "Autoscaler" if any(role.autoscalers for role in facts.roles) else "OlderModel"
        return Finding.true(type_, reason, f"{'; '.join(conflicts)}: kvaware only recommends")
    if not facts.autoscalers_known and any(role.target is not None for role in facts.roles):
        return Finding.unknown(
            type_,
            "AutoscalersUnknown",
            "HorizontalPodAutoscalers cannot be listed, so one may scale the same workload: kvaware only recommends",
        )
    return Finding.false(type_, "NoConflict")


def _scale_to_zero_not_yet(facts: ModelFacts) -> Finding:
    type_ = ConditionType.SCALE_TO_ZERO_NOT_YET
    roles = [role.role.name for role in facts.roles if role.role.replicas is not None and role.role.replicas.min == 0]
    if not roles or facts.mode is ScalingMode.OFF:
        return Finding.false(type_, "NotAskedFor")
    return Finding.true(
        type_,
        "RequestsPassBy",
        f"replicas.min is 0 for role {named(roles)}; requests for a model without workers are refused and not kept, "
        "so none could wake it: one replica is kept",
    )


def _over_pods(facts: ModelFacts, type_: ConditionType, reason: str, sentence: str) -> Finding:
    """A condition that the extender writes on pods, rolled up."""
    of: dict[ConditionType, list[WorkerPod]] = {
        ConditionType.HBM_OVERRUN: [pod for pod in facts.pods if pod.hbm_overrun],
        ConditionType.FOREIGN_USE_UNKNOWN: [pod for pod in facts.pods if pod.foreign_use_unknown],
    }
    names = [pod.key.name for pod in of[type_]]
    if not names:
        return Finding.false(type_, "NoSuchPods")
    return Finding.true(type_, reason, sentence.format(named(names)))


def _scalable(facts: ModelFacts) -> Finding | None:
    """Whether the workloads can be read and written; None where no role is scaled."""
    type_ = ConditionType.SCALABLE
    scaled: Sequence[RoleFacts] = [role for role in facts.roles if role.target is not None]
    if not scaled:
        return None
    problems = [role.scale for role in scaled if isinstance(role.scale, ScaleProblem)]
    sure = [problem for problem in problems if not problem.unknown]
    if problems:
        told = "; ".join(problem.message for problem in problems)
        kind = Finding.false if sure else Finding.unknown
        return kind(type_, (sure or problems)[0].reason, told)
    return Finding.true(type_, "TargetsFound")
