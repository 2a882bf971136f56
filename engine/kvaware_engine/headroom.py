"""Would more replicas of a role fit now, and where: pods that do not exist are placed one after another, then undone.

The rules are those of real decisions: HBM, GPU count, quota, guarantees and other pods' intents, and the same cost says
where. What only kube-scheduler knows (taints, affinity, CPU, volumes) is not simulated: "fits" means that kvaware would
not stand in the way.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import Fleet
from kvaware_engine.judge import Judge, Judged
from kvaware_engine.observations import ModelObservation, ObjectKey, PodObservation, RoleFootprint
from kvaware_engine.reasons import REASON_OF_CODE, REFUSAL_TEXTS, Reason, main_reason
from kvaware_engine.reports import RoleHeadroom
from kvaware_engine.tenants import Tenants
from kvaware_engine.what_if import Placed, WhatIf

__all__ = ["MOST_PODS", "MOST_REPLICAS", "MoreReplicas", "Steps"]

MOST_REPLICAS: Final = 64
"""That one question may ask for: more than is added in one step, and a bound on the work."""
MOST_PODS: Final = 512
"""Placed for one question, but for a single replica that has more: some 3 s of work at 5,000 nodes."""

Steps = Generator[None, None, RoleHeadroom]
"""One step per pod. Between two steps the engine stands as if nobody had asked; the answer is what it returns."""


@dataclass(slots=True)
class _Trial:
    """The pods of one question on one GPU resource."""

    resource: str | None
    placed: list[Placed] = field(default_factory=list)
    first_cost_ms: float = float("inf")
    """Of the first pod, where it found a place."""
    everywhere: Reason | None = None
    """The reason of the pod's own (quota) that ended it, and holds on every node."""
    refusals: Counter[Reason] = field(default_factory=Counter)
    """Else how many nodes refused the pod that ended it, by reason."""

    def fits(self, pods_per_replica: int) -> int:
        """Whole replicas that found a place."""
        return len(self.placed) // pods_per_replica


class MoreReplicas:
    """Tries whether more replicas of a role would fit. Between two steps nobody can tell that it does.

    Args:
        fleet: The nodes.
        tenants: Who pays for a model's namespace.
        models: All InferenceModels.
        pods: All pods by UID, as the API server shows them.
        judge: Filter's rules and prioritize's costs.
        what_if: Where pods that do not exist are imagined.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        tenants: Tenants,
        models: Mapping[ObjectKey, ModelObservation],
        pods: Mapping[str, PodObservation],
        judge: Judge,
        what_if: WhatIf,
    ) -> None:
        self._fleet = fleet
        self._tenants = tenants
        self._models = models
        self._pods = pods
        self._judge = judge
        self._what_if = what_if

    def steps(self, key: ObjectKey, role: str, *, replicas: int) -> Steps:
        """Place so many replicas (1 to ``MOST_REPLICAS``) of one of the model's roles, as things are booked now."""
        model = self._models.get(key)
        if model is None:
            return _nothing(role, replicas=replicas, reason=Reason.MODEL_NOT_FOUND)
        footprint = next((each for each in model.roles if each.name == role), None)
        if footprint is None:
            return _nothing(role, replicas=replicas, reason=Reason.ROLE_NOT_FOUND)
        pods = (pod for pod in self._pods.values() if pod.model == key.name and pod.namespace == key.namespace)
        usual = _usual_resource(pods, model, role)  # 40,000 pods: some 3 ms
        resources = [usual] if usual is not None else sorted(self._fleet.offered())
        if not resources:
            return _nothing(role, replicas=replicas, reason=Reason.NO_SUCH_GPU)
        return (
            yield from _steps(
                model,
                footprint,
                tenant=self._tenants.tenant_of(key.namespace),
                resources=resources,
                names=self._fleet.names(),
                replicas=replicas,
                judge=lambda demand, names: self._judge.judge(demand, names, cordoned=False),
                imagined=self._what_if.imagined,
            )
        )


def _steps(
    model: ModelObservation,
    footprint: RoleFootprint,
    *,
    tenant: str,
    resources: Sequence[str],
    names: Sequence[str],
    replicas: int,
    judge: Callable[[PodDemand, Sequence[str]], Judged],
    imagined: Callable[[Sequence[Placed]], AbstractContextManager[None]],
) -> Steps:
    """Place replicas one after another on each resource until one resource takes all that were asked for.

    Args:
        model: Whose replicas they are.
        footprint: What each pod of the role needs.
        tenant: Of the model's namespace.
        resources: The GPU resources to try; the one on which the first pod is cheapest comes first.
        names: The nodes that can be chosen.
        replicas: Asked for, >= 1.
        judge: Verdicts and costs of nodes for a pod, as things are now.
        imagined: While it is entered, these pods are where they are said to be.
    Returns: What fits; of several resources that cannot take all, the one that takes most.
    """
    replicas = min(replicas, max(1, MOST_PODS // footprint.pods_per_replica))
    pods = replicas * footprint.pods_per_replica
    trials = [_Trial(resource) for resource in resources]
    for trial in trials:
        if pods > len(trial.placed):
            _place_next(trial, _demand(model, footprint, tenant, trial, 0), names, judge=judge, imagined=imagined)
            yield
    trials.sort(key=lambda trial: (trial.first_cost_ms, trial.resource or ""))
    for trial in trials:
        while 0 < len(trial.placed) < pods and trial.everywhere is None and not trial.refusals:
            number = len(trial.placed)
            _place_next(trial, _demand(model, footprint, tenant, trial, number), names, judge=judge, imagined=imagined)
            yield
        if len(trial.placed) == pods:
            return _answer(footprint, trial, replicas, reason=None)
    return _best(footprint, trials, replicas)


def _nothing(role: str, *, replicas: int, reason: Reason) -> RoleHeadroom:
    """Nothing fits, for a reason that no node has a say in."""
    return RoleHeadroom(
        role=role, asked_replicas=replicas, fits_replicas=0, nodes=(), reason=reason, text=REFUSAL_TEXTS[reason]
    )


def _usual_resource(pods: Iterable[PodObservation], model: ModelObservation, role: str) -> str | None:
    """The GPU resource that most pods of the role ask for, ties by name; None where no pod tells."""
    only = len(model.roles) == 1
    counts = Counter(
        pod.gpu_requests[0][0]
        for pod in pods
        if len(pod.gpu_requests) == 1 and (pod.role == role or (pod.role is None and only))
    )
    return min(counts, key=lambda resource: (-counts[resource], resource), default=None)


def _demand(model: ModelObservation, footprint: RoleFootprint, tenant: str, trial: _Trial, number: int) -> PodDemand:
    """What the next pod needs. Its UID holds a slash, as no real one does."""
    namespace, name = model.key
    return PodDemand(
        uid=f"headroom/{namespace}/{name}/{footprint.name}/{number}",
        namespace=namespace,
        name=f"{name}-{footprint.name}-headroom-{number}",
        tenant=tenant,
        model=model.key,
        model_id=model.model_id,
        role=footprint.name,
        resource=trial.resource if footprint.gpus_per_pod else None,
        gpus=footprint.gpus_per_pod,
        hbm_per_gpu_bytes=footprint.hbm_per_gpu_bytes,
        priority=0,
    )


def _place_next(
    trial: _Trial,
    demand: PodDemand,
    names: Sequence[str],
    *,
    judge: Callable[[PodDemand, Sequence[str]], Judged],
    imagined: Callable[[Sequence[Placed]], AbstractContextManager[None]],
) -> None:
    """One more pod, those before it imagined where they were placed."""
    with imagined(trial.placed):
        judged = judge(demand, names)
    cheapest = judged.cheapest(1)
    if not cheapest or judged.costs is None:
        trial.everywhere = judged.everywhere
        counts = np.bincount(judged.codes, minlength=len(REASON_OF_CODE)).tolist() if judged.everywhere is None else []
        trial.refusals = Counter(
            {reason: count for reason, count in zip(REASON_OF_CODE, counts, strict=False) if reason and count}
        )
        return
    if not trial.placed:
        trial.first_cost_ms = float(judged.costs.total[cheapest[0]])
    trial.placed.append((demand, judged.nodes[int(judged.admitted[cheapest[0]])]))


def _best(footprint: RoleFootprint, trials: Sequence[_Trial], replicas: int) -> RoleHeadroom:
    """Of trials that all ended early, the one that went furthest; where none began, what most nodes say."""
    best = max(trials, key=lambda trial: trial.fits(footprint.pods_per_replica))  # of equals the cheapest
    refusals = best.refusals
    if not best.placed:
        refusals = sum((trial.refusals for trial in trials), Counter())
    return _answer(footprint, best, replicas, reason=best.everywhere or main_reason(refusals))


def _answer(footprint: RoleFootprint, trial: _Trial, replicas: int, *, reason: Reason | None) -> RoleHeadroom:
    fits = trial.fits(footprint.pods_per_replica)
    return RoleHeadroom(
        role=footprint.name,
        asked_replicas=replicas,
        fits_replicas=fits,
        nodes=tuple(node for _, node in trial.placed[: fits * footprint.pods_per_replica]),
        reason=reason,
        text=REFUSAL_TEXTS[reason] if reason is not None else "",
    )
