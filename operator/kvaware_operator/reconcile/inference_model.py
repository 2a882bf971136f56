"""InferenceModels: replicas by their load, and a status that says what is and why.

::

    facts ──▶ plans (engine) ──more wanted──▶ headroom ──▶ plans ──▶ deletion costs ──seen back──▶ scale ──▶ status
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import structlog

from kvaware_cluster import ClusterApiError, ConflictError, Kind, NotFoundError
from kvaware_cluster.errors import ScaleTargetError
from kvaware_cluster.extender_client import ExtenderClient
from kvaware_cluster.worker_membership import split_worker
from kvaware_cluster.workloads import ClusterApi, CustomResource, Scale, WorkerPod
from kvaware_crds import InferenceModel
from kvaware_crds.errors import KvawareError, UpstreamError
from kvaware_crds.v1alpha1.inference_model import ScalingMode
from kvaware_engine import RoleHeadroom, Scaler, ScalingPlan, ScalingReason
from kvaware_engine.observations import ObjectKey
from kvaware_operator.conditions import Finding
from kvaware_operator.deletion_costs import CostPlan, CostsWritten, plan_costs
from kvaware_operator.loads import Loads
from kvaware_operator.metrics import Metrics
from kvaware_operator.model_facts import ModelFacts, RoleFacts, refused_target, scale_target, split_by_role
from kvaware_operator.model_findings import accepted, model_findings
from kvaware_operator.model_status import model_status, refused_status
from kvaware_operator.scales import ScaleProblem, Scales, problem_of
from kvaware_operator.scaling import Step, scaling_request, step_of
from kvaware_operator.statuses import StatusWriter
from kvaware_operator.troubles import Troubles
from kvaware_operator.view import View

__all__ = ["ModelReconciler"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_FOR_COSTS_S: Final = 0.5
"""Until deletion costs that were written are looked for in the store; its watch brings them within milliseconds."""
FORBIDDEN: Final = 403
HOLDING: Final = frozenset({ScalingReason.LOAD_UNKNOWN, ScalingReason.AFTER_RESTART})
"""Nothing is done about a role for lack of knowledge, not because its number is right."""


class ModelReconciler:
    """Looks at one model at a time; different models side by side."""

    def __init__(
        self,
        *,
        view: View,
        api: ClusterApi,
        extender: ExtenderClient,
        scaler: Scaler,
        scales: Scales,
        loads: Loads,
        statuses: StatusWriter,
        metrics: Metrics,
        max_view_age_s: float,
        first_loads_until_s: float,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        """Take the parts.

        Args:
            view: What is seen.
            api: Where scales, costs and statuses are written.
            extender: For headroom and workers.
            scaler: How many replicas there should be.
            scales: What the workloads are told.
            loads: The last load of each model.
            statuses: What was written when.
            metrics: What is counted.
            max_view_age_s: What is older is not acted upon.
            first_loads_until_s: Until then a model is looked at only once its load was asked for.
            clock: Monotonic seconds.
            wall: For the times of conditions.
        """
        self._view = view
        self._api = api
        self._extender = extender
        self._scaler = scaler
        self._scales = scales
        self._loads = loads
        self._statuses = statuses
        self._metrics = metrics
        self._max_view_age_s = max_view_age_s
        self._first_loads_until_s = first_loads_until_s
        self._costs_written = CostsWritten(clock)
        self._troubles = Troubles()
        self._clock = clock
        self._wall = wall

    async def look(self, key: ObjectKey) -> float | None:
        """Bring one model to its spec. Returns: seconds after which to look again, or None.

        Raises: UpstreamError when the API server refused or did not answer.
        """
        if not self._view.known(Kind.INFERENCE_MODEL) or not self._view.known(Kind.POD):
            return None  # unknown is not gone: when the kind is listed again, every object of it is looked at
        resource = self._view.resource(Kind.INFERENCE_MODEL, key)
        if resource is None:
            await self._gone(key)
            return None
        if not isinstance(resource.resource, InferenceModel):
            return await self._refused(resource)
        if self._clock() < self._first_loads_until_s and self._loads.awaited(key):
            return None  # at the start its first load is near: one look and one status instead of two
        facts = await self._facts(resource, resource.resource)
        plans = await self._plans(facts)
        again_s = [await self._act(facts, role, plans.get(role.role.name)) for role in facts.roles]
        facts = self._with_scales(facts)
        self._metrics.desired(key, {name: plan.desired for name, plan in plans.items()})
        unknown = any(plan.reason is ScalingReason.LOAD_UNKNOWN for plan in plans.values())
        findings = model_findings(facts, plans, load_missing=self._loads.missing(key, unknown=unknown))
        status = model_status(facts, plans, findings, before=self._statuses.present(resource), now=self._wall())
        again_s.append(await self._statuses.write(resource, status))
        return min((each for each in again_s if each is not None), default=None)

    async def _gone(self, key: ObjectKey) -> None:
        """What was kept about a model goes with it, and our costs on pods that are nobody's now."""
        self._scaler.forget(key)
        self._loads.forget(key)
        self._statuses.forget(Kind.INFERENCE_MODEL, key)
        self._metrics.forget_model(key)
        orphans = list(self._view.members.orphans_priced_by_us(key.namespace).values())
        await self._write_costs(orphans, plan_costs(orphans, leaving=0, choose=False, cache_value_ms={}))

    async def _refused(self, resource: CustomResource) -> float | None:
        """A spec that cannot be used: nothing is scaled, and the status says what is wrong with it."""
        self._metrics.forget_model(resource.key)
        pods = self._view.members.pods_of(resource.key)
        await self._write_costs(pods, plan_costs(pods, leaving=0, choose=False, cache_value_ms={}))
        findings: list[Finding] = [accepted(resource)]
        status = refused_status(
            self._statuses.present(resource), findings, generation=resource.generation, now=self._wall()
        )
        return await self._statuses.write(resource, status)

    async def _facts(self, resource: CustomResource, model: InferenceModel) -> ModelFacts:
        key, view = resource.key, self._view
        spec = model.spec
        pods, strangers = split_by_role(spec.roles, view.members.pods_of(key))
        load = self._loads.of(key)
        loads = {} if load is None else {each.role: each for each in load.roles}
        roles = []
        for role in spec.roles:
            target = scale_target(resource, role)
            owner = None if target is None else view.target_owner(target)
            roles.append(
                RoleFacts(
                    role=role,
                    pods=pods[role.name],
                    target=target,
                    scale=None if target is None else refused_target(role, target) or await self._scales.read(target),
                    load=loads.get(role.name),
                    autoscalers=() if target is None else view.autoscalers_of(target),
                    target_owner=None if owner == key else owner,
                )
            )
        owners = {name: view.names.owner((key.namespace, name)) for name in spec.served_names or (spec.model_id,)}
        observed = {pod.key: view.pod(pod.key) for each in (*pods.values(), strangers) for pod in each}
        return ModelFacts(
            resource=resource,
            spec=spec,
            roles=roles,
            strangers=strangers,
            observations={pod: seen for pod, seen in observed.items() if seen is not None},
            names_owned={name: owner for name, owner in owners.items() if owner is not None and owner != key},
            autoscalers_known=view.known(Kind.AUTOSCALER),
        )

    async def _plans(self, facts: ModelFacts) -> Mapping[str, ScalingPlan]:
        """Of every role that is scaled and whose workload can be read."""
        plans: dict[str, ScalingPlan] = {}
        for role in facts.roles:
            request = scaling_request(facts, role)
            if request is None:
                continue
            now_s = self._clock()
            plan = self._scaler.plan(request, now_s=now_s)
            if plan.ask_headroom > 0:
                headroom = await self._headroom(facts.resource.key, role.role.name, plan.ask_headroom)
                plan = self._scaler.plan(replace(request, headroom=headroom), now_s=now_s)
            plans[role.role.name] = plan
        return plans

    async def _headroom(self, key: ObjectKey, role: str, replicas: int) -> RoleHeadroom | None:
        """Whether so many more would fit; None: no answer, and then none are added."""
        try:
            headroom = await self._extender.headroom(key, replicas=replicas)
        except KvawareError as error:
            self._troubles.failed("asking for headroom", error, namespace=key.namespace, model=key.name)
            return None
        self._troubles.worked("asking for headroom")
        return next((each for each in headroom.roles if each.role == role), None)

    async def _act(self, facts: ModelFacts, role: RoleFacts, plan: ScalingPlan | None) -> float | None:
        """Carry out what is to be done about one role. Returns: seconds after which to go on, or None."""
        if not self._fresh(Kind.INFERENCE_MODEL, Kind.POD):
            return None
        step = None if plan is None else step_of(facts, role, plan)
        if not self._fresh(Kind.AUTOSCALER):
            step = None
        if step is None and plan is not None and plan.reason in HOLDING and facts.mode is ScalingMode.AUTO:
            return None  # what was begun before is not undone: a scale of our predecessor may still be on its way
        costs = await self._costs(facts, role, step)
        may = await self._write_costs(role.pods, costs)
        if step is None:
            return None
        if step.down and may and not costs.in_place:  # the ReplicaSet's controller must have them first: seen back here
            return max(LOOK_FOR_COSTS_S, self._costs_written.longest_s(costs.writes))
        if not self._still_so(facts, role):
            return None  # what changed while others were asked has asked for the next look
        return await self._scale(facts, role, step)

    def _still_so(self, facts: ModelFacts, role: RoleFacts) -> bool:
        """Whether what allows the step is as it was when the look began; its number has its own precondition."""
        seen, target = facts.resource, role.target
        now = self._view.resource(Kind.INFERENCE_MODEL, seen.key)
        if now is None or target is None or not self._fresh(Kind.INFERENCE_MODEL, Kind.POD, Kind.AUTOSCALER):
            return False
        same = (now.uid, now.generation, now.terminating) == (seen.uid, seen.generation, seen.terminating)
        owner = self._view.target_owner(target)
        return (
            same
            and owner == (role.target_owner or seen.key)
            and self._view.autoscalers_of(target) == list(role.autoscalers)
        )

    def _fresh(self, *kinds: Kind) -> bool:
        """Whether what is known is young enough to act by it."""
        return all(self._view.fresh(kind, max_age_s=self._max_view_age_s) for kind in kinds)

    async def _costs(self, facts: ModelFacts, role: RoleFacts, step: Step | None) -> CostPlan:
        """Deletion costs: chosen for a step down, kept while pods that were to go are there, else taken off."""
        alive = sum(not pod.terminating for pod in role.pods)
        down = step is not None and step.down
        values: Mapping[ObjectKey, float | None] = {}
        told = role.scale.replicas if isinstance(role.scale, Scale) else alive
        if step is not None and step.down:
            told = step.replicas
            values = await self._cache_values(facts.resource.key)
        return plan_costs(role.pods, leaving=max(0, alive - told), choose=down, cache_value_ms=values)

    async def _cache_values(self, key: ObjectKey) -> Mapping[ObjectKey, float | None]:
        """What each pod's KV cache is worth, over its workers; a pod with one unknown is unknown."""
        try:
            workers = await self._extender.workers(key)
        except KvawareError as error:
            self._troubles.failed("asking for workers", error, namespace=key.namespace, model=key.name)
            return {}
        self._troubles.worked("asking for workers")
        values: dict[ObjectKey, float | None] = {}
        for worker in workers:
            split = split_worker(worker.worker)
            if split is None:
                continue
            pod, _rank = split
            before = values.get(pod, 0.0)
            known = before is not None and worker.cache_value_ms is not None
            values[pod] = before + worker.cache_value_ms if known else None  # type: ignore[operator]  # both are known
        return values

    async def _write_costs(self, pods: Sequence[WorkerPod], plan: CostPlan) -> bool:
        """Write what is planned. Returns: whether we may; where not, replicas go in the ReplicaSet's own order."""
        for pod in pods:
            if pod.key not in plan.writes or not self._costs_written.due(pod, plan.writes[pod.key]):
                continue
            cost = plan.writes[pod.key]
            try:
                await self._api.write_deletion_cost(pod.key, uid=pod.uid, cost=cost)
            except (NotFoundError, ConflictError):
                continue  # the pod is gone, or another one has its name: nothing to say about it
            except ClusterApiError as error:
                if error.status != FORBIDDEN:
                    raise
                self._troubles.failed("writing deletion costs", error, namespace=pod.key.namespace, pod=pod.key.name)
                return False
            self._troubles.worked("writing deletion costs")
            self._costs_written.note(pod, cost)
            self._metrics.cost_written(removed=cost is None)
        return True

    async def _scale(self, facts: ModelFacts, role: RoleFacts, step: Step) -> float | None:
        key, target, seen = facts.resource.key, role.target, role.scale
        if target is None or not isinstance(seen, Scale):
            return None
        told = {"namespace": key.namespace, "model": key.name, "role": step.role, "replicas": step.replicas}
        try:
            self._scales.put(target, await self._api.write_scale(target, replicas=step.replicas, seen=seen))
        except ConflictError:
            self._metrics.scaled(down=step.down, result="conflict")
            self._scales.changed(target)
            return LOOK_FOR_COSTS_S  # somebody else changed it: look again
        except (UpstreamError, ScaleTargetError) as error:
            self._metrics.scaled(down=step.down, result="failed")
            log.warning("cannot scale", **told, before=step.before, error=str(error))
            self._scales.put(target, problem_of(target, error))
            return None
        self._metrics.scaled(down=step.down, result="done")
        log.info("scaled", **told, before=step.before)
        return None

    def _with_scales(self, facts: ModelFacts) -> ModelFacts:
        """The facts with what was written, or refused, meanwhile."""
        roles = []
        for role in facts.roles:
            now: Scale | ScaleProblem | None = None
            if role.target is not None and refused_target(role.role, role.target) is None:
                now = self._scales.last(role.target)
            roles.append(role if now is None else replace(role, scale=now))
        return replace(facts, roles=roles)
