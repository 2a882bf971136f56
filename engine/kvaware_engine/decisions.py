"""What the engine answers: verdicts, decisions, cost terms and explanations, as frozen values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from kvaware_engine.observations import GpuClass, ObjectKey, Reservation
from kvaware_engine.reasons import CODE_OF_REASON, PASSING, REFUSAL_TEXTS, Reason

__all__ = [
    "CandidateView",
    "CostTerms",
    "Explanation",
    "FilterVerdict",
    "GpuView",
    "NodeView",
    "PodDecision",
    "PodDemand",
    "PoolView",
    "Refusal",
    "TenantView",
    "VictimOffer",
    "VictimsVerdict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDemand:
    """What one pod needs, after its model and tenant were looked up."""

    uid: str
    namespace: str
    name: str
    tenant: str
    """The quota's tenant; ``default`` where no TenantQuota names the namespace."""
    model: ObjectKey | None
    model_id: str
    """``spec.modelId`` of the model; empty without one."""
    role: str | None
    resource: str | None
    """None: the pod asks for no GPU."""
    gpus: int
    hbm_per_gpu_bytes: int | None
    """None: whole GPUs."""
    priority: int
    problem: Reason | None = None
    """Set: refused on every node for this reason."""
    nominated_node: str | None = None
    """Where kube-scheduler makes room for it by preemption."""
    group: ObjectKey | None = None
    """The group of pods that is placed all or none."""


@dataclass(slots=True)
class CostTerms:
    """Milliseconds of delay to this pod or request and to those around it; the total is the sum less the gain.

    Never changed once made. Not frozen: it is built twice on the path of every request, 0.5 µs instead of 1.5.
    For a pod: compute_wait = crowding with the model's pods on the node; cache_access = loading weights into HBM, and
    recomputing KV groups that nobody supplies; migration = copying KV groups that are elsewhere; network = fetching
    weights over a link; memory_pressure = what the placement takes from large models (fragmentation); risk = doubt
    about the node's state; locality_gain = nearness to the model's other pods. For a request: ``requests/costs.py``.
    """

    compute_wait: float = 0.0
    cache_access: float = 0.0
    migration: float = 0.0
    memory_pressure: float = 0.0
    network: float = 0.0
    risk: float = 0.0
    locality_gain: float = 0.0

    @property
    def total(self) -> float:
        """Milliseconds."""
        return (
            self.compute_wait
            + self.cache_access
            + self.migration
            + self.memory_pressure
            + self.network
            + self.risk
            - self.locality_gain
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterVerdict:
    """Which of the offered nodes can take the pod."""

    nodes: Sequence[str]
    """As offered."""
    codes: npt.NDArray[np.int8]
    """Per node 0 for admitted, else the place of its reason in ``REASON_OF_CODE``. Shape (nodes,)."""
    reason: Reason | None
    """Set when the pod was refused on every node for one reason of its own (quota, model)."""
    counts: dict[Reason, int]
    """How many of the offered nodes were refused for which reason."""

    @property
    def admits(self) -> int:
        """How many nodes were admitted."""
        return len(self.nodes) - sum(self.counts.values())

    @property
    def only_admitted(self) -> int | None:
        """Position of the one node that was admitted; None where there are more, or none."""
        return int(np.flatnonzero(self.codes == 0)[0]) if self.admits == 1 else None

    @property
    def admitted(self) -> list[str]:
        """The nodes that can take the pod, in the order offered."""
        return list(compress(self.nodes, (self.codes == 0).tolist())) if self.admits else []

    @property
    def refused(self) -> dict[str, str]:
        """Node to constant text. A pod-level refusal names one node: the others count as unresolvable as well."""
        if self.reason is not None:
            return {min(self.nodes): REFUSAL_TEXTS[self.reason]} if self.nodes else {}
        texts: dict[str, str] = {}
        for reason in self.counts:
            if reason not in PASSING:
                texts.update(self._texts(reason))
        return texts

    @property
    def passing(self) -> dict[str, str]:
        """Nodes that time alone will open, to their constant text: no reason for kube-scheduler to preempt."""
        texts: dict[str, str] = {}
        for reason in PASSING & self.counts.keys():
            texts.update(self._texts(reason))
        return texts

    def _texts(self, reason: Reason) -> dict[str, str]:
        mask = (self.codes == CODE_OF_REASON[reason]).tolist()
        return dict.fromkeys(compress(self.nodes, mask), REFUSAL_TEXTS[reason])


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateView:
    """One node as a place for one pod, with everything a reader asks about it."""

    node: str
    refusal: Reason | None
    text: str
    """The refusal's constant text; empty for a node that can take the pod."""
    cost: CostTerms | None
    """None where refused."""
    score: int | None
    """The 0..10 of kube-scheduler's replies; None where refused."""
    gpu_class: GpuClass | None
    free_gpus: int
    """Free devices (SHARED: free replicas) of the requested resource."""
    hbm_free_bytes: int | None
    """The most that one more pod can be sure to get per GPU; None: unknown."""
    hbm_capacity_bytes: int | None
    """Usable HBM per GPU; None: unknown."""
    foreign_bytes: int | None
    """HBM in use by programs that hold no reservation, over the node's GPUs; None: no exporter."""
    cache_location: str
    """Where the model's KV block groups are, seen from this node: ``node``, ``near``, ``far``, or ``none`` known."""
    weights_location: str
    """``node``, ``near`` or ``far``."""
    kv_bytes_on_node: int
    confidence_ratio: float
    """0..1: how far the node's reported state is believed now."""
    problems: tuple[str, ...]
    """Labels of the node that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDecision:
    """The costs of one pod on the nodes that can take it, and the choice."""

    decision_id: str
    """Deterministic: from the pod's UID and the engine's version."""
    demand: PodDemand
    nodes: Sequence[str]
    """As offered."""
    scores: list[int]
    """0..10 per offered node; the first choice alone has 10, the others at most 9; refused nodes 0."""
    chosen: CandidateView | None
    runner_up: CandidateView | None
    emptiest: CandidateView | None
    """What "send it to the emptiest GPU" would have chosen among the nodes that can take the pod."""
    reason: Reason
    """Why the chosen one; for no choice, the refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Bind was refused; ``text`` is constant per reason."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimOffer:
    """One node, and the pods that are to die there so that another pod has room."""

    node: str
    victims: tuple[str, ...]
    """Their UIDs."""
    pdb_violations: int = 0
    """How many PodDisruptionBudgets their deaths would violate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimsVerdict:
    """Which offers would really make room for the pod."""

    kept: tuple[VictimOffer, ...]
    """In the order offered, with the victims that HBM needs on top."""
    added: int
    """How many victims were added, over all nodes."""
    reason: Reason | None
    """Why no offer was kept; None where one was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything about one pod on all nodes now, or about the decision that was made."""

    demand: PodDemand
    verdict: str
    """``admitted`` or ``refused``."""
    reason: Reason
    text: str
    candidates: list[CandidateView]
    """Cheapest first, refused ones last, ties by name."""
    chosen: str | None
    runner_up: str | None
    emptiest: str | None
    """What "send it to the emptiest GPU" would choose among the nodes that can take the pod."""
    answers: dict[str, str]
    """The six questions of design.md §9, question to answer in a sentence."""
    reservation: Reservation | None = None
    """What it holds, where it is bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """One device of a pool."""

    index: int
    capacity_bytes: int | None
    reserved_bytes: int
    foreign_bytes: int | None
    pods: tuple[ObjectKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One resource of a node."""

    resource: str
    gpu_class: GpuClass
    product: str
    devices: int
    replicas: int
    allocatable: int
    free: int
    """Devices (SHARED: replicas) that no pod holds; intended ones count as free here."""
    intended: int
    """How many of the free ones are meant for pods that are not bound yet."""
    hbm_free_bytes: int | None
    """The most that one more pod can be sure to get per GPU; None: unknown."""
    gpus: tuple[GpuView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node for ``/v1/nodes``."""

    name: str
    ready: bool
    reserved_for: str | None
    clique: str | None
    rack: str | None
    zone: str | None
    weights: tuple[str, ...]
    pools: tuple[PoolView, ...]
    confidence_ratio: float
    use_age_s: float | None
    """Age of the exporter's figures; None: no exporter."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """One tenant for ``/v1/tenants``. Limits and guarantees: None is not set."""

    tenant: str
    quotas: tuple[str, ...]
    namespaces: tuple[str, ...]
    used_gpus: int
    """Of bound and terminating pods; intended ones stand apart, they may come to nothing."""
    used_hbm_bytes: int
    intended_gpus: int
    """Of pods that were promised a node by filter or prioritize and are not bound yet."""
    intended_hbm_bytes: int
    limit_gpus: int | None
    limit_hbm_bytes: int | None
    guaranteed_gpus: int | None
    guaranteed_hbm_bytes: int | None
    conflicts: tuple[str, ...]
    """Namespaces that an older quota already owns, as ``namespace: owning quota``."""
