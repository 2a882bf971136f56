"""The engine: observations in, decisions out. One object with one owner; no I/O, no clock, no randomness.

Production feeds it from the cluster with the loop's clock, the simulator from modelled workers with virtual time. Every
method is synchronous: in one loop that is what makes check-and-take atomic.
"""

from collections.abc import Collection, Mapping, Sequence

from kvaware_engine.admission import Admission
from kvaware_engine.bookings import node_held
from kvaware_engine.choice import candidates, choose
from kvaware_engine.decisions import (
    Explanation,
    FilterVerdict,
    NodeView,
    PodDecision,
    PodDemand,
    Refusal,
    TenantView,
    VictimOffer,
    VictimsVerdict,
)
from kvaware_engine.demands import demand_of, is_ours
from kvaware_engine.explain import explain_pod
from kvaware_engine.findings import Findings, PodFindings
from kvaware_engine.fleet import Fleet
from kvaware_engine.group_places import GroupPlaces
from kvaware_engine.groups import Groups
from kvaware_engine.headroom import MOST_REPLICAS, MoreReplicas, Steps
from kvaware_engine.judge import Judge, only_there
from kvaware_engine.ledger import Ledger
from kvaware_engine.nodes import Nodes
from kvaware_engine.observations import (
    BlockGroupObservation,
    ModelObservation,
    NodeObservation,
    NodeUse,
    ObjectKey,
    PodObservation,
    Reservation,
    TenantQuotaObservation,
)
from kvaware_engine.places import Places
from kvaware_engine.preemption import Preemption
from kvaware_engine.reasons import Reason
from kvaware_engine.reports import RoleHeadroom
from kvaware_engine.reservations import Reservations
from kvaware_engine.settings import EngineSettings
from kvaware_engine.tenants import Tenants
from kvaware_engine.use_age import UseAges
from kvaware_engine.what_if import Version, WhatIf

__all__ = ["Engine"]


class Engine:
    """Decides where pods go.

    Bookings are keyed by (pod UID, node). A pod seen bound replaces the UID's own bookings, its deletion removes them.
    Time only enters as ``now_s``: monotonic seconds, never going back.
    """

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self._settings = settings if settings is not None else EngineSettings()
        self._now_s = 0.0
        ages = UseAges(self._settings)
        self._fleet = Fleet(margins=ages.margins)
        self._tenants = Tenants()
        self._places = Places(self._settings, self._fleet)
        self._models: dict[ObjectKey, ModelObservation] = {}
        self._pods: dict[str, PodObservation] = {}
        self._ledger = Ledger(self._fleet, self._tenants, pods=self._pods, intent_ttl_s=self._settings.intent_ttl_s)
        self._version = Version(self._ledger)
        self._what_if = WhatIf(fleet=self._fleet, ledger=self._ledger, places=self._places, version=self._version)
        self._findings = Findings(self._settings.findings)
        self._nodes = Nodes(
            fleet=self._fleet,
            ages=ages,
            tenants=self._tenants,
            places=self._places,
            findings=self._findings,
            ledger=self._ledger,
            version=self._version,
        )
        admission = Admission(
            fleet=self._fleet,
            ledger=self._ledger,
            tenants=self._tenants,
            whole_gpu_free_ratio=self._settings.hbm.whole_gpu_free_ratio,
        )
        self._preemption = Preemption(
            fleet=self._fleet,
            ledger=self._ledger,
            what_if=self._what_if,
            pods=self._pods,
            verdict=admission.verdict,
            nomination_ttl_s=self._settings.nomination_ttl_s,
            agreed_ttl_s=self._settings.intent_ttl_s,
        )
        self._judge = Judge(
            admission=admission,
            fleet=self._fleet,
            ledger=self._ledger,
            preemption=self._preemption,
            places=self._places,
            models=self._models,
            settings=self._settings,
        )
        self._groups = Groups(pass_s=self._settings.intent_ttl_s, forget_after_s=self._settings.group_hold_ttl_s)
        self._group_places = GroupPlaces(
            groups=self._groups,
            fleet=self._fleet,
            ledger=self._ledger,
            admission=admission,
            judge=self._judge,
            what_if=self._what_if,
            demand=self.demand,
            promise_ttl_s=self._settings.group_hold_ttl_s,
        )
        self._reservations = Reservations(
            admission=admission,
            group_places=self._group_places,
            fleet=self._fleet,
            ledger=self._ledger,
            pods=self._pods,
            version=self._version,
        )
        self._more_replicas = MoreReplicas(
            fleet=self._fleet,
            tenants=self._tenants,
            models=self._models,
            pods=self._pods,
            judge=self._judge,
            what_if=self._what_if,
        )

    # -- observations ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows whenever an answer could have changed."""
        return self._version.now()

    def observe_node(self, name: str, node: NodeObservation | None) -> None:
        """A node came, changed, or (None) went. What pods hold on it stays booked until they are gone."""
        self._nodes.observe(name, node, now_s=self._now_s)

    def observe_use(self, node: str, use: NodeUse | None) -> None:
        """An exporter's figures of one node; None: it is not heard any more. A node may be seen after its figures."""
        self._nodes.observe_use(node, use, now_s=self._now_s)

    def observe_pod(self, uid: str, pod: PodObservation | None, *, now_s: float) -> None:
        """A pod came, changed, or (None) went."""
        self._clock(now_s)
        before = self._pods.get(uid)
        if before == pod:
            if pod is None:
                self._ledger.end(uid)
            return
        if pod is None:
            del self._pods[uid]
        else:
            self._pods[uid] = pod
        self._ledger.observe(before, pod, uid)
        self._groups.observe(before, pod, uid)
        if self._preemption.observe(before, pod, uid) and pod is not None and self.is_ours(pod):
            self._preemption.nominated(self.demand(pod), now_s=now_s)
        self._findings.pod(uid, before, pod, now_s=now_s)
        held_on, holds_on = node_held(before), node_held(pod)
        if before is not None and held_on is not None:
            self._places.pod_gone(before, held_on, now_s=now_s)
            if holds_on is None:
                self._preemption.pod_left(held_on, now_s=now_s)
        if pod is not None and holds_on is not None:
            self._places.pod_bound(pod, holds_on)
        self._version.grow()

    def observe_model(self, key: ObjectKey, model: ModelObservation | None) -> None:
        """An InferenceModel came, changed, or (None) went."""
        if self._models.get(key) == model:
            return
        if model is None:
            del self._models[key]
        else:
            self._models[key] = model
        self._places.model(key, model)
        for pod in self._preemption.waiting(key):
            self._preemption.nominated(self.demand(pod), now_s=self._now_s)
        self._version.grow()

    def observe_quota(self, name: str, quota: TenantQuotaObservation | None) -> None:
        """A TenantQuota came, changed, or (None) went."""
        if not self._tenants.observe(name, quota):
            return
        self._nodes.quotas_changed()
        self._version.grow()

    def observe_block_group(self, key: ObjectKey, group: BlockGroupObservation | None) -> None:
        """A KVCacheBlockGroup came, changed, or (None) went."""
        self._places.group(key, group)
        self._version.grow()

    def forget_unseen(self, *, listed_at_s: float, uids: Collection[str]) -> None:
        """Drop own settled bookings whose pod a later complete list does not hold.

        Args:
            listed_at_s: When that list began.
            uids: Of all pods in it.
        """
        self._ledger.forget_unseen(listed_at_s=listed_at_s, uids=uids)

    def tick(self, now_s: float) -> None:
        """Let time pass: intents end, exporter figures age in whole minutes, weights are forgotten."""
        self._clock(now_s)
        self._nodes.tick(now_s)
        if self._places.expire(now_s):
            self._version.grow()
        self._preemption.tick(now_s)
        self._groups.expire(now_s)
        self._findings.tick(now_s)

    # -- questions ---------------------------------------------------------------------------------------------------

    def is_ours(self, pod: PodObservation) -> bool:
        """Whether kvaware decides for this pod: it names a model, or asks for a GPU under our scheduler's name."""
        return is_ours(pod, self._settings.scheduler_name)

    def demand(self, pod: PodObservation) -> PodDemand:
        """What the pod needs; a problem with it is part of the demand, not an error."""
        return demand_of(pod, models=self._models, tenant=self._tenants.tenant_of(pod.namespace))

    def filter_nodes(self, demand: PodDemand, nodes: Sequence[str], *, now_s: float) -> FilterVerdict:
        """Tell which of the offered nodes can take the pod, other pods' intents counted.

        A pod whose binding is in doubt, or not seen yet, can go nowhere else: its node alone is admitted.

        Ends the pod's earlier intent. With exactly one node admitted the intent stands there at once, because
        kube-scheduler then asks nothing more before it binds. A pod of a group is given one node only, so that its
        place is known before any pod of the group is bound.

        The node that victims leave for this very pod says so: it is not unresolvable (``FilterVerdict.passing``).
        """
        self._clock(now_s)
        self._ledger.end_intent(demand.uid)
        if demand.nominated_node is not None:
            self._preemption.offered(demand, now_s=now_s)
        with self._what_if.aside((demand.uid,)):
            verdict = self._judge.filter(demand, nodes)
            place = self._group_places.choose(demand, verdict) if demand.group is not None else verdict.only_admitted
        node = nodes[place] if place is not None else None
        if demand.group is not None:
            self._group_places.give(demand.group, demand, node, now_s=now_s)
        elif node is not None:
            self._ledger.intend(demand, node, now_s=now_s)
        return only_there(verdict, place) if place is not None else verdict

    def would_admit(self, demand: PodDemand, nodes: Sequence[str] | None = None, *, now_s: float) -> Reason | None:
        """Ask filter's question over the given (default: all) nodes without leaving a trace.

        Returns: None when one of them can take the pod now, else why not (of several reasons ``main_reason``).
        """
        self._clock(now_s)
        if demand.group is not None:
            return self._group_places.would_admit(demand.group, demand, nodes, now_s=now_s)
        if self._ledger.intended_node(demand.uid) is not None:  # a pod with an intent was just admitted
            return None
        with self._what_if.aside((demand.uid,)):
            return self._judge.would_admit(demand, nodes)

    def choose_node(self, demand: PodDemand, nodes: Sequence[str], *, now_s: float) -> PodDecision:
        """Price the offered nodes and choose. The pod's intent then stands on the first choice.

        Of equal costs the first name wins. Nodes that cannot take the pod score 0 and are never chosen.
        """
        self._clock(now_s)
        self._ledger.end_intent(demand.uid)
        decision_id = f"{demand.uid}-{self.version}"
        with self._what_if.aside((demand.uid,)):
            judged = self._judge.judge(demand, nodes)
        scale_ms = self._settings.pod_costs.score_scale_ms
        decision = choose(judged, decision_id=decision_id, fleet=self._fleet, scale_ms=scale_ms)
        if decision.chosen is not None:
            self._ledger.intend(demand, decision.chosen.node, now_s=now_s)
        return decision

    def explain(self, demand: PodDemand, nodes: Sequence[str] | None = None, *, now_s: float) -> Explanation:
        """Say everything about one pod on the given (default: all) nodes as things are now; leaves no trace.

        What the pod itself holds or is meant to get is set aside: a bound pod is not in its own way.
        """
        self._clock(now_s)
        with self._what_if.without(demand):
            names = list(nodes) if nodes is not None else self._fleet.names()
            judged = self._judge.judge(demand, names, cordoned=nodes is not None)
            offered = candidates(judged, fleet=self._fleet, scale_ms=self._settings.pod_costs.score_scale_ms)
            pod = self._pods.get(demand.uid)
            reservation = pod.reservation if pod is not None and pod.node is not None else None
            return explain_pod(demand, offered, refusal=judged.main_refusal(), reservation=reservation)

    def headroom(self, model: ObjectKey, role: str, *, replicas: int, now_s: float) -> RoleHeadroom:
        """Would so many more replicas of the role fit now; see ``headroom_steps``, whose steps are made at once."""
        steps = self.headroom_steps(model, role, replicas=replicas, now_s=now_s)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer: RoleHeadroom = end.value
                return answer

    def headroom_steps(self, model: ObjectKey, role: str, *, replicas: int, now_s: float) -> Steps:
        """Place more replicas of a role one after another, by filter's rules and prioritize's costs; leave no trace.

        Each pod is of the role's footprint, on the GPU resource that the role's pods ask for; where there are none,
        on one resource of the fleet for all of them. Quota, guarantees and other pods' intents count; cordoned nodes,
        and those that are not Ready, do not. kube-scheduler's own filters (taints, affinity, CPU) are not simulated.

        A step is one pod, some 6 ms at 5,000 nodes; between two steps everything stands as before, so that other
        questions and observations may come between.

        Args:
            model: Its InferenceModel.
            role: One of its roles.
            replicas: 1 to ``MOST_REPLICAS``; of a role with many pods per replica fewer are tried (``MOST_PODS``).
            now_s: See the class.
        Raises: ValueError when ``replicas`` is out of bounds.
        """
        if not 1 <= replicas <= MOST_REPLICAS:
            raise ValueError(f"replicas: expected 1 to {MOST_REPLICAS}, got {replicas}")
        self._clock(now_s)
        self._ledger.flush()
        return (yield from self._more_replicas.steps(model, role, replicas=replicas))

    def node_names(self) -> list[str]:
        """All nodes that the API server shows, sorted."""
        return self._fleet.names()

    def nodes(self, names: Sequence[str] | None = None, *, now_s: float) -> list[NodeView]:
        """The named (default: all) nodes with what each GPU holds, some 0.05 ms each; unknown names are left out."""
        self._clock(now_s)
        return self._nodes.views(names, now_s=now_s)

    def tenants(self) -> list[TenantView]:
        """All tenants that a TenantQuota names, by name."""
        self._ledger.flush()
        return self._tenants.views()

    def findings(self) -> Mapping[str, PodFindings]:
        """Pod UID to what scrapes say about it, of the pods of which something else is said than at the last call.

        It is no decision's input, so the version does not know of it.
        """
        return self._findings.take()

    def pod_key(self, uid: str) -> ObjectKey | None:
        """Namespace and name of a pod that the API server shows."""
        pod = self._pods.get(uid)
        return ObjectKey(pod.namespace, pod.name) if pod is not None else None

    # -- reservations ------------------------------------------------------------------------------------------------

    def reserve(self, demand: PodDemand, node: str, *, now_s: float, decision_id: str = "") -> Reservation | Refusal:
        """Check GPU count, HBM and quota on one node and take it, in one step. Intents are guesses and do not count.

        Asking again for the same UID and node gives the reservation that stands.

        Args:
            demand: What the pod needs.
            node: Where it shall go.
            now_s: See the class.
            decision_id: Of the decision that chose the node; made here where there is none. Another UID's is ignored.
        """
        self._clock(now_s)
        return self._reservations.reserve(demand, node, now_s=now_s, decision_id=decision_id)

    def begin_group(self, group: ObjectKey, *, now_s: float) -> Reason | None:
        """A pod that is not ours is bound as one of a group: settle the places of its pods that are.

        Returns: None when it may be bound.
        """
        self._clock(now_s)
        return self._group_places.begin(group, now_s=now_s)

    def keep_victims(self, demand: PodDemand, offers: Sequence[VictimOffer], *, now_s: float) -> VictimsVerdict:
        """Tell which of kube-scheduler's offers to preempt would really make room for the pod.

        An offer is kept when HBM and quota admit the pod once its victims are gone; where only HBM is short on a shared
        GPU, victims are added. Nobody dies for a pod that quota refuses, or whose victims of an earlier offer are still
        leaving. What was agreed is kept for the pod, as a nomination.
        """
        self._clock(now_s)
        self._ledger.end_intent(demand.uid)
        return self._preemption.keep_victims(demand, offers, now_s=now_s)

    def settle(self, uid: str, node: str, *, now_s: float) -> None:
        """The binding was accepted: what stands on this node is real, what the UID held elsewhere in doubt is not."""
        self._ledger.settle(uid, node, now_s=now_s)

    def release(self, uid: str, node: str) -> None:
        """The binding was refused or never happened: give back what stands on this node."""
        self._ledger.release(uid, node)

    def holder(self, uid: str) -> tuple[str, ...]:
        """The nodes on which the UID holds something, observed or own, sorted."""
        return self._ledger.holder(uid)

    # -- the inside --------------------------------------------------------------------------------------------------

    def _clock(self, now_s: float) -> None:
        self._now_s = now_s
        self._ledger.expire(now_s)
        self._preemption.expire(now_s)
