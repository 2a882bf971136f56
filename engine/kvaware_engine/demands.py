"""From a pod to what it needs: its model's footprint, its own annotation, its tenant."""

from collections.abc import Mapping

from kvaware_engine.decisions import PodDemand
from kvaware_engine.observations import ModelObservation, ObjectKey, PodObservation, RoleFootprint
from kvaware_engine.reasons import Reason

__all__ = ["demand_of", "is_ours"]


def is_ours(pod: PodObservation, scheduler_name: str) -> bool:
    """Whether kvaware decides for this pod: it names a model, or asks for a GPU under our scheduler's name."""
    return pod.model is not None or (
        pod.scheduler_name == scheduler_name and (bool(pod.gpu_requests) or pod.problem is not None)
    )


def _role_of(pod: PodObservation, model: ModelObservation) -> RoleFootprint | None:
    """The role that the label names; without a label the only role."""
    if pod.role is None:
        return model.roles[0] if len(model.roles) == 1 else None
    return next((role for role in model.roles if role.name == pod.role), None)


def demand_of(pod: PodObservation, *, models: Mapping[ObjectKey, ModelObservation], tenant: str) -> PodDemand:
    """Look up what a pod needs.

    The number of GPUs is what the pod requests, also where the model's footprint says otherwise. HBM per GPU is the
    annotation ``kvaware.io/hbm-per-gpu``, else the role's footprint, else whole GPUs.

    Args:
        pod: As observed, or as kube-scheduler posted it.
        models: All InferenceModels.
        tenant: Of its namespace.
    Returns: The demand; ``problem`` is set when no node could ever take the pod as it is. That includes a pod of a
        model with several roles that says neither its role nor its HBM.
    """
    model_key = ObjectKey(pod.namespace, pod.model) if pod.model is not None else None
    model = models.get(model_key) if model_key is not None else None
    role = _role_of(pod, model) if model is not None else None
    problem = pod.problem
    if problem is None and model_key is not None and model is None:
        problem = Reason.MODEL_NOT_FOUND
    says_nothing = pod.role is None and pod.hbm_per_gpu_bytes is not None  # its annotation is all there is to know
    if problem is None and model is not None and role is None and not says_nothing:
        problem = Reason.ROLE_NOT_FOUND
    if problem is None and len(pod.gpu_requests) > 1:
        problem = Reason.INVALID_GPU_REQUEST
    resource, gpus = pod.gpu_requests[0] if pod.gpu_requests else (None, 0)
    hbm_per_gpu_bytes = pod.hbm_per_gpu_bytes
    if hbm_per_gpu_bytes is None and role is not None:
        hbm_per_gpu_bytes = role.hbm_per_gpu_bytes
    return PodDemand(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        tenant=tenant,
        model=model_key,
        model_id=model.model_id if model is not None else "",
        role=role.name if role is not None else pod.role,
        resource=resource,
        gpus=gpus,
        hbm_per_gpu_bytes=hbm_per_gpu_bytes,
        priority=pod.priority,
        problem=problem,
        nominated_node=pod.nominated_node,
        group=ObjectKey(pod.namespace, pod.group) if pod.group is not None else None,
    )
