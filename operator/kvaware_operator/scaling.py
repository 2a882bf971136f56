"""From facts about a role to what the engine is asked, and from its plan to what is done. Pure."""

from dataclasses import dataclass
from datetime import timedelta

from kvaware_cluster.workloads import Scale
from kvaware_crds.v1alpha1.inference_model import InferenceModelSpec, ScalingMode
from kvaware_engine import RoleHeadroom, ScalingPlan, ScalingRequest, ScalingRules
from kvaware_operator.model_facts import ModelFacts, RoleFacts, ready_replicas
from kvaware_operator.model_findings import conflict_of

__all__ = ["Step", "rules_of", "scaling_request", "step_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One role's workload is set to another number of replicas."""

    role: str
    replicas: int
    before: int

    @property
    def down(self) -> bool:
        """Whether replicas go."""
        return self.replicas < self.before


def rules_of(spec: InferenceModelSpec) -> ScalingRules:
    """How the model's replicas follow its load; what is unset has the engine's defaults, which are the CRD's."""
    given: dict[str, float | int] = {}
    scaling, objectives = spec.scaling, spec.objectives
    if scaling is not None and scaling.windows is not None:
        given |= {
            "up_window_s": scaling.windows.scale_up.total_seconds(),
            "down_window_s": scaling.windows.scale_down.total_seconds(),
        }
    if scaling is not None and scaling.step_limit is not None:
        given |= {"up_step": scaling.step_limit.scale_up, "down_step": scaling.step_limit.scale_down}
    if objectives is not None:
        given |= {
            name: latency / timedelta(milliseconds=1)
            for name, latency in (("ttft_ms", objectives.ttft), ("tpot_ms", objectives.tpot))
            if latency is not None
        }
    return ScalingRules(**given)  # type: ignore[arg-type]  # the names above are its fields


def scaling_request(facts: ModelFacts, role: RoleFacts, headroom: RoleHeadroom | None = None) -> ScalingRequest | None:
    """What the engine is asked about one role; None where it is not scaled or its workload cannot be read."""
    if role.target is None or role.role.replicas is None or not isinstance(role.scale, Scale):
        return None
    footprint = role.role.footprint
    return ScalingRequest(
        model=facts.resource.key,
        role=role.role.name,
        # 0 is not to be had before requests are placed by kvaware: nobody could wake the model
        min_replicas=max(1, role.role.replicas.min),
        max_replicas=role.role.replicas.max,
        pods_per_replica=footprint.pods_per_replica,
        rules=rules_of(facts.spec),
        replicas=role.scale.replicas,
        ready_replicas=ready_replicas(role.pods, pods_per_replica=footprint.pods_per_replica),
        unschedulable_pods=sum(pod.unschedulable and not pod.terminating for pod in role.pods),
        load=role.load,
        headroom=headroom,
        product=None if role.load is None else role.load.product,
        model_id=facts.spec.model_id,
        gpus_per_pod=footprint.gpus_per_pod,
    )


def step_of(facts: ModelFacts, role: RoleFacts, plan: ScalingPlan) -> Step | None:
    """What is done about a role now; None: nothing, or it is only recommended."""
    if facts.mode is not ScalingMode.AUTO or not isinstance(role.scale, Scale) or not facts.autoscalers_known:
        return None
    if conflict_of(role) is not None or facts.resource.terminating or plan.target == role.scale.replicas:
        return None
    return Step(role=role.role.name, replicas=plan.target, before=role.scale.replicas)
