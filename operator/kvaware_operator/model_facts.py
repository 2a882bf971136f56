"""One InferenceModel as it stands: what all plans about it are made from. Nothing here asks anybody anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvaware_cluster.belonging import role_of
from kvaware_cluster.workloads import CustomResource, Scale, ScaleTarget, WorkerPod
from kvaware_crds import InferenceModel
from kvaware_crds.v1alpha1.inference_model import InferenceModelSpec, Role, ScalingMode
from kvaware_engine import RoleLoad
from kvaware_engine.observations import ObjectKey, PodObservation
from kvaware_operator.scales import ScaleProblem

__all__ = [
    "GROUP_LABEL",
    "ModelFacts",
    "RoleFacts",
    "ready_replicas",
    "refused_target",
    "scale_target",
    "scaling_mode",
    "split_by_role",
]

GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
"""On pods of a LeaderWorkerSet: which of its replicas they form."""
COUNT_PODS: Final = frozenset(
    {("apps", "Deployment"), ("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController")}
)
"""Group and kind of workloads whose ``spec.replicas`` is a number of pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """One role of it."""

    role: Role
    pods: Sequence[WorkerPod] = ()
    """Its pods that are not finished."""
    target: ScaleTarget | None = None
    """Of a role that is to be scaled: it names a workload and bounds, and the mode is not Off."""
    scale: Scale | ScaleProblem | None = None
    """Of the target; None: not asked."""
    load: RoleLoad | None = None
    """None: unknown."""
    autoscalers: Sequence[str] = ()
    """Names of the HorizontalPodAutoscalers that scale the same target."""
    target_owner: ObjectKey | None = None
    """An older model that scales the same target."""

    @property
    def existing_replicas(self) -> int:
        """As the workload says, else as many as there are pods for."""
        if isinstance(self.scale, Scale):
            return self.scale.current_replicas
        return -(-len(self.pods) // self.role.footprint.pods_per_replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """All of it."""

    resource: CustomResource
    spec: InferenceModelSpec
    roles: Sequence[RoleFacts]
    strangers: Sequence[WorkerPod] = ()
    """Pods of the model that are in none of its roles."""
    observations: Mapping[ObjectKey, PodObservation] = field(default_factory=dict)
    """What the model's pods ask for."""
    names_owned: Mapping[str, ObjectKey] = field(default_factory=dict)
    """Its served names that an older model of the namespace owns."""
    autoscalers_known: bool = True

    @property
    def mode(self) -> ScalingMode:
        """What is done about the number of replicas."""
        return scaling_mode(self.spec)

    @property
    def pods(self) -> list[WorkerPod]:
        """Of all roles and of none."""
        return [*(pod for role in self.roles for pod in role.pods), *self.strangers]


def scaling_mode(spec: InferenceModelSpec) -> ScalingMode:
    """Without ``scaling`` the mode is Off."""
    return ScalingMode.OFF if spec.scaling is None else spec.scaling.mode


def scale_target(resource: CustomResource, role: Role) -> ScaleTarget | None:
    """What a role's replicas are set on; None where the role is not scaled."""
    model = resource.resource
    reference = role.scale_target_ref
    if not isinstance(model, InferenceModel) or scaling_mode(model.spec) is ScalingMode.OFF:
        return None
    if reference is None or role.replicas is None:
        return None
    return ScaleTarget(reference.api_version, reference.kind, resource.key.namespace, reference.name)


def refused_target(role: Role, target: ScaleTarget) -> ScaleProblem | None:
    """Why a role's replicas must not be set on a workload although it has a scale; None: they may."""
    several = role.footprint.pods_per_replica
    group = target.api_version.rpartition("/")[0]
    if several == 1 or (group, target.kind) not in COUNT_PODS:
        return None
    return ScaleProblem(
        reason="ReplicasCountPods",
        message=f"{target.kind} {target.name} ({target.api_version}): role {role.name} has podsPerReplica {several}, "
        "so expected a LeaderWorkerSet or another workload whose replicas are groups of pods; the replicas of a "
        f"{target.kind} are single pods, and it is not scaled",
    )


def split_by_role(
    roles: Sequence[Role], pods: Sequence[WorkerPod]
) -> tuple[Mapping[str, list[WorkerPod]], list[WorkerPod]]:
    """Pods by the role that their label names; without a label, by the only role. And those that are in none."""
    of: dict[str, list[WorkerPod]] = {role.name: [] for role in roles}
    strangers: list[WorkerPod] = []
    for pod in pods:
        name = role_of(list(of), pod.role)
        (strangers if name is None else of[name]).append(pod)
    return of, strangers


def ready_replicas(pods: Sequence[WorkerPod], *, pods_per_replica: int) -> int:
    """Replicas whose pods are all Ready.

    A replica of several pods is a group of a LeaderWorkerSet where the pods say so; else any so many pods are one.
    """
    ready = [pod for pod in pods if pod.ready and not pod.terminating]
    if pods_per_replica == 1:
        return len(ready)
    groups: dict[str, int] = {}
    loose = 0
    for pod in ready:
        group = pod.labels.get(GROUP_LABEL)
        if group is None:
            loose += 1
        else:
            groups[group] = groups.get(group, 0) + 1
    return sum(count >= pods_per_replica for count in groups.values()) + loose // pods_per_replica
