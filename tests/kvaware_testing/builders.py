"""Builders of what the engine is told. Every argument has a harmless default: a test names only what it is about."""

from collections.abc import Iterable

from kvaware_engine import (
    Amounts,
    BlockGroupObservation,
    CopyObservation,
    CopyState,
    Engine,
    EngineSettings,
    GpuClass,
    GpuPool,
    GpuUse,
    HbmSettings,
    ModelObservation,
    NodeObservation,
    NodeSelector,
    NodeUse,
    ObjectKey,
    PodDemand,
    PodObservation,
    Reservation,
    RoleFootprint,
    TenantQuotaObservation,
    Tier,
)
from kvaware_engine.reasons import Reason

GIB = 2**30
GPU = "nvidia.com/gpu"
EXACT_HBM = EngineSettings(
    hbm=HbmSettings(label_margin_ratio=0, unknown_foreign_use_margin_ratio=0, age_margin_ratio_per_minute=0)
)
"""Settings without margins, so that the arithmetic of a test is on its page."""


def gib(value: float | None) -> int | None:
    """Bytes."""
    return None if value is None else int(value * GIB)


def pool(
    *,
    resource: str = GPU,
    gpu_class: GpuClass = GpuClass.EXCLUSIVE,
    devices: int = 8,
    replicas: int = 1,
    allocatable: int | None = None,
    hbm_gib: float | None = 80,
) -> GpuPool:
    """Eight GPUs of 80 GiB, all for whole pods."""
    return GpuPool(
        resource=resource,
        gpu_class=gpu_class,
        devices=devices,
        replicas=replicas,
        allocatable=devices * replicas if allocatable is None else allocatable,
        hbm_bytes=gib(hbm_gib),
        product="TEST-GPU",
    )


def shared_pool(*, devices: int = 1, replicas: int = 4, hbm_gib: float | None = 80, resource: str = GPU) -> GpuPool:
    """One time-sliced GPU for four pods."""
    return pool(resource=resource, gpu_class=GpuClass.SHARED, devices=devices, replicas=replicas, hbm_gib=hbm_gib)


def node(
    name: str = "n1",
    *pools: GpuPool,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    clique: str | None = None,
    rack: str | None = None,
    zone: str | None = None,
    weights: Iterable[str] = (),
    problems: Iterable[str] = (),
) -> NodeObservation:
    """A healthy node; without pools it has eight GPUs."""
    return NodeObservation(
        name=name,
        uid=f"uid-{name}",
        pools=pools or (pool(),),
        ready=ready,
        labels=labels or {},
        clique=clique,
        rack=rack,
        zone=zone,
        weights=tuple(weights),
        problems=tuple(problems),
    )


def pod(
    name: str = "p1",
    *,
    namespace: str = "ml",
    uid: str | None = None,
    on: str | None = None,
    gpus: int = 1,
    resource: str = GPU,
    requests: tuple[tuple[str, int], ...] | None = None,
    hbm_gib: float | None = None,
    model: str | None = None,
    role: str | None = None,
    ready: bool = False,
    finished: bool = False,
    terminating: bool = False,
    reservation: Reservation | None = None,
    problem: Reason | None = None,
    scheduler_name: str = "kvaware-scheduler",
    priority: int = 0,
    nominated: str | None = None,
    group: str | None = None,
) -> PodObservation:
    """A pending pod that wants one GPU."""
    return PodObservation(
        uid=uid or f"uid-{name}",
        namespace=namespace,
        name=name,
        node=on,
        finished=finished,
        terminating=terminating,
        ready=ready,
        scheduler_name=scheduler_name,
        model=model,
        role=role,
        gpu_requests=requests if requests is not None else ((resource, gpus),) if gpus else (),
        hbm_per_gpu_bytes=gib(hbm_gib),
        problem=problem,
        reservation=reservation,
        priority=priority,
        nominated_node=nominated,
        group=group,
    )


def bound(
    name: str = "p1",
    *,
    on: str = "n1",
    hbm_gib: float | None = None,
    gpus: int = 1,
    resource: str = GPU,
    namespace: str = "ml",
    ready: bool = True,
    gpu_class: GpuClass = GpuClass.SHARED,
    devices: tuple[int, ...] = (),
    model: str | None = None,
    terminating: bool = False,
    priority: int = 0,
    group: str | None = None,
) -> PodObservation:
    """A pod that we bound: its reservation is its own."""
    uid = f"uid-{name}"
    return pod(
        name,
        namespace=namespace,
        on=on,
        gpus=gpus,
        resource=resource,
        ready=ready,
        model=model,
        terminating=terminating,
        priority=priority,
        group=group,
        reservation=Reservation(
            model=model,
            tenant="default",
            resource=resource,
            gpus=gpus,
            hbm_per_gpu_bytes=gib(hbm_gib),
            gpu_class=gpu_class,
            devices=devices,
            decision_id=f"{uid}-1",
        ),
    )


def use(node_name: str, *gpus: GpuUse, at_s: float = 0.0) -> NodeUse:
    """One scrape."""
    return NodeUse(node=node_name, gpus=gpus, observed_at_s=at_s)


def gpu_use(
    index: int = 0,
    *,
    used_gib: float | None = 0,
    free_gib: float | None = 80,
    pod_key: tuple[str, str] | None = None,
    mig_profile: str | None = None,
) -> GpuUse:
    """An idle GPU of 80 GiB as the exporter shows it."""
    return GpuUse(
        index=index,
        uuid=f"GPU-{index}",
        used_bytes=gib(used_gib),
        free_bytes=gib(free_gib),
        mig_profile=mig_profile,
        pod=ObjectKey(*pod_key) if pod_key else None,
    )


def model(
    name: str = "m",
    *,
    namespace: str = "ml",
    model_id: str = "acme/m",
    revision: str = "main",
    roles: Iterable[RoleFootprint] | None = None,
    hbm_gib: float | None = 40,
    gpus: int = 1,
    weights_gib: float | None = 20,
    kv_bytes_per_token: int | None = 131072,
    served_names: Iterable[str] | None = None,
    created_at: str = "2026-01-01T00:00:00Z",
    policy: str = "cost",
    max_context_tokens: int | None = None,
) -> ModelObservation:
    """A model whose pods take 40 GiB on one GPU."""
    return ModelObservation(
        key=ObjectKey(namespace, name),
        uid=f"uid-model-{name}",
        model_id=model_id,
        revision=revision,
        roles=tuple(roles)
        if roles is not None
        else (RoleFootprint(name="both", gpus_per_pod=gpus, hbm_per_gpu_bytes=gib(hbm_gib)),),
        weights_bytes=gib(weights_gib),
        kv_bytes_per_token=kv_bytes_per_token,
        created_at=created_at,
        served_names=(model_id,) if served_names is None else tuple(served_names),
        policy=policy,
        max_context_tokens=max_context_tokens,
    )


def quota(
    name: str = "q",
    *,
    tenant: str | None = None,
    namespaces: Iterable[str] = ("ml",),
    gpus: int | None = None,
    hbm_gib: float | None = None,
    guaranteed_gpus: int | None = None,
    guaranteed_hbm_gib: float | None = None,
    pool_labels: dict[str, str] | None = None,
    created_at: str = "2026-01-01T00:00:00Z",
    priority_default: int | None = None,
    priority_max: int | None = None,
    **limits: int | None,
) -> TenantQuotaObservation:
    """A quota that limits nothing; further keyword arguments are limits, named as in ``Amounts``."""
    return TenantQuotaObservation(
        name=name,
        uid=f"uid-quota-{name}",
        created_at=created_at,
        tenant=tenant or name,
        namespaces=tuple(namespaces),
        limits=Amounts(gpus=gpus, hbm_bytes=gib(hbm_gib), **limits),
        guaranteed=Amounts(gpus=guaranteed_gpus, hbm_bytes=gib(guaranteed_hbm_gib)),
        priority_default=priority_default,
        priority_max=priority_max,
        reserved_pool=NodeSelector(match_labels=tuple(pool_labels.items())) if pool_labels else None,
    )


def block_group(
    name: str = "g",
    *,
    namespace: str = "ml",
    of: str = "m",
    copies: Iterable[tuple[str, Tier, float]] = (),
    state: CopyState = CopyState.RESIDENT,
) -> BlockGroupObservation:
    """A block group; copies are (worker, tier, GiB)."""
    return BlockGroupObservation(
        key=ObjectKey(namespace, name),
        model=ObjectKey(namespace, of),
        pinned=True,
        copies=tuple(
            CopyObservation(worker=worker, tier=tier, size_bytes=int(size * GIB), state=state)
            for worker, tier, size in copies
        ),
    )


class Cluster:
    """An engine with a clock that stands still unless moved, and short words for what tests do all the time."""

    def __init__(self, *nodes: NodeObservation, settings: EngineSettings = EXACT_HBM) -> None:
        self.engine = Engine(settings)
        self.now_s = 100.0
        for one in nodes:
            self.engine.observe_node(one.name, one)

    def see(self, *things: object) -> "Cluster":
        """Show the engine nodes, pods, models, quotas, block groups and scrapes."""
        for thing in things:
            match thing:
                case NodeObservation():
                    self.engine.observe_node(thing.name, thing)
                case PodObservation():
                    self.engine.observe_pod(thing.uid, thing, now_s=self.now_s)
                case ModelObservation():
                    self.engine.observe_model(thing.key, thing)
                case TenantQuotaObservation():
                    self.engine.observe_quota(thing.name, thing)
                case BlockGroupObservation():
                    self.engine.observe_block_group(thing.key, thing)
                case NodeUse():
                    self.engine.observe_use(thing.node, thing)
                case _:
                    raise TypeError(f"expected an observation, got {type(thing).__name__}")
        return self

    def gone(self, one: PodObservation) -> "Cluster":
        """Show the engine that a pod was deleted."""
        self.engine.observe_pod(one.uid, None, now_s=self.now_s)
        return self

    def demand(self, one: PodObservation) -> PodDemand:
        """What the pod needs."""
        return self.engine.demand(one)

    def names(self) -> list[str]:
        """All nodes."""
        return [view.name for view in self.engine.nodes(now_s=self.now_s)]

    def admitted(self, one: PodObservation) -> list[str]:
        """Nodes that filter lets through."""
        return self.engine.filter_nodes(self.demand(one), self.names(), now_s=self.now_s).admitted

    def why_not(self, one: PodObservation, node_name: str = "n1") -> Reason | None:
        """Filter's reason on one node, None where admitted."""
        verdict = self.engine.filter_nodes(self.demand(one), [node_name], now_s=self.now_s)
        return verdict.reason or next(iter(verdict.counts), None)

    def bind(self, one: PodObservation, node_name: str = "n1") -> Reason | None:
        """Reserve and settle; the reason where refused."""
        answer = self.engine.reserve(self.demand(one), node_name, now_s=self.now_s)
        if isinstance(answer, Reservation):
            self.engine.settle(one.uid, node_name, now_s=self.now_s)
            return None
        return answer.reason

    def choose(self, one: PodObservation) -> str | None:
        """The node that prioritize prefers."""
        decision = self.engine.choose_node(self.demand(one), self.names(), now_s=self.now_s)
        return decision.chosen.node if decision.chosen is not None else None
