"""What holds after every sequence of operations: nothing over-booked, no limit passed, nothing leaked."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvaware_engine import Engine, GpuClass, NodeObservation, PodObservation, Reason, Refusal, Reservation
from kvaware_engine.verdict import ADMITTED, node_codes
from kvaware_testing.builders import EXACT_HBM, GIB, GPU, gpu_use, model, node, pod, pool, quota, shared_pool, use

NODES = {
    "whole": node("whole", pool(devices=2)),
    "shared": node("shared", shared_pool(devices=2, replicas=3)),
    "tiny": node("tiny", shared_pool(devices=1, replicas=2, hbm_gib=24)),
    "slices": node("slices", pool(gpu_class=GpuClass.PARTITION, devices=3, hbm_gib=10)),
}
QUOTAS = (
    quota("a", namespaces=["a"], gpus=3, hbm_gib=150),
    quota("b", namespaces=["b"], hbm_gib=60, guaranteed_gpus=1),
    quota("c", namespaces=["c"], guaranteed_hbm_gib=80, guaranteed_gpus=1),
)
LIMITS = {"a": (3, 150 * GIB), "b": (None, 60 * GIB)}
HBM_GIB = st.sampled_from([None, 1, 8, 10, 24, 40, 79, 80, 81, 2**33])


class Placement(RuleBasedStateMachine):
    """A cluster's API server as a dict, an engine that sees it late, and kube-scheduler calling in any order."""

    pods = Bundle("pods")

    @initialize()
    def start(self) -> None:
        self.now_s = 0.0
        self.serial = 0
        self.api: dict[str, PodObservation] = {}
        self.unseen: list[str] = []
        """UIDs whose last change the engine has not seen."""
        self.doubtful: set[tuple[str, str]] = set()
        self.engine = self.fresh()

    def fresh(self) -> Engine:
        """What a newly started process computes from a list."""
        engine = Engine(EXACT_HBM)
        for one in NODES.values():
            engine.observe_node(one.name, one)
        for one_quota in QUOTAS:
            engine.observe_quota(one_quota.name, one_quota)
        engine.observe_model(model(namespace="a").key, model(namespace="a"))
        for uid, one in self.api.items():
            engine.observe_pod(uid, one, now_s=self.now_s)
        return engine

    @rule(target=pods, namespace=st.sampled_from("abc"), gpus=st.integers(0, 3), hbm_gib=HBM_GIB, named=st.booleans())
    def create(self, namespace: str, gpus: int, hbm_gib: float | None, named: bool) -> PodObservation:  # noqa: FBT001
        self.serial += 1
        # Names come again with other UIDs, as a StatefulSet's do.
        one = pod(
            f"p{self.serial % 4}",
            uid=f"u{self.serial}",
            namespace=namespace,
            gpus=gpus,
            hbm_gib=hbm_gib,
            model="m" if named else None,
        )
        self.api[one.uid] = one
        self.unseen.append(one.uid)
        return one

    @rule(one=pods)
    def filter_and_choose(self, one: PodObservation) -> None:
        demand = self.engine.demand(one)
        verdict = self.engine.filter_nodes(demand, list(NODES), now_s=self.now_s)
        assert set(verdict.admitted) | set(verdict.refused) <= set(NODES)
        assert verdict.admitted or verdict.refused
        if len(verdict.admitted) > 1:
            decision = self.engine.choose_node(demand, verdict.admitted, now_s=self.now_s)
            assert decision.scores.count(10) == 1
            assert all(0 <= score <= 10 for score in decision.scores)

    @rule(one=pods, name=st.sampled_from(sorted(NODES)), outcome=st.sampled_from(["accepted", "refused", "doubt"]))
    def bind(self, one: PodObservation, name: str, outcome: str) -> None:
        demand = self.engine.demand(one)
        admitted = self.engine.would_admit(demand, now_s=self.now_s)
        answer = self.engine.reserve(demand, name, now_s=self.now_s)
        if isinstance(answer, Refusal):
            return
        current = self.api.get(one.uid)
        if current is None or current.finished or (current.node not in (None, name)):
            self.engine.release(one.uid, name)  # the API server says 404 or 409
            return
        if admitted is not None and current.node is None:
            # What bind admits may only differ from filter by other pods' intents.
            assert admitted in {
                Reason.GPU_COUNT,
                Reason.HBM_SHORT,
                Reason.TENANT_GPU_LIMIT,
                Reason.TENANT_HBM_LIMIT,
                Reason.GUARANTEED_TO_OTHERS,
                Reason.NO_SUCH_GPU,
                Reason.PARTITION_TOO_SMALL,
            }
        if outcome == "refused":
            self.engine.release(one.uid, name)
        elif outcome == "doubt":
            self.doubtful.add((one.uid, name))
        else:
            self.accept(one.uid, name, answer)

    def accept(self, uid: str, name: str, reservation: Reservation) -> None:
        current = self.api[uid]
        if current.node is None:
            self.api[uid] = replace(current, node=name, reservation=reservation)
            self.unseen.append(uid)
        self.engine.settle(uid, name, now_s=self.now_s)
        self.doubtful = {(u, n) for u, n in self.doubtful if u != uid}

    @rule(late=st.booleans())
    def doubt_ends(self, late: bool) -> None:  # noqa: FBT001
        for uid, name in sorted(self.doubtful):
            current = self.api.get(uid)
            answer = self.engine.reserve(self.engine.demand(current), name, now_s=self.now_s) if current else None
            if late and current is not None and current.node is None and isinstance(answer, Reservation):
                self.accept(uid, name, answer)
            else:
                self.engine.release(uid, name)
        self.doubtful.clear()

    @rule()
    def watch_delivers(self) -> None:
        for uid in self.unseen:
            self.engine.observe_pod(uid, self.api.get(uid), now_s=self.now_s)
        self.unseen.clear()

    @rule()
    def watch_replays_everything(self) -> None:
        for uid, one in self.api.items():
            self.engine.observe_pod(uid, one, now_s=self.now_s)

    @rule(one=pods)
    def becomes_ready(self, one: PodObservation) -> None:
        if one.uid in self.api and self.api[one.uid].node is not None:
            self.api[one.uid] = replace(self.api[one.uid], ready=True)
            self.unseen.append(one.uid)

    @rule(one=pods)
    def finishes(self, one: PodObservation) -> None:
        if one.uid in self.api and self.api[one.uid].node is not None:
            self.api[one.uid] = replace(self.api[one.uid], finished=True)
            self.unseen.append(one.uid)

    @rule(one=consumes(pods))
    def delete(self, one: PodObservation) -> None:
        if self.api.pop(one.uid, None) is not None:
            self.unseen.append(one.uid)

    @rule()
    def relist(self) -> None:
        self.now_s += 1
        known = dict(self.api)
        for uid in self.unseen:
            self.engine.observe_pod(uid, known.get(uid), now_s=self.now_s)
        self.unseen.clear()
        self.engine.forget_unseen(listed_at_s=self.now_s, uids=known.keys())

    @rule()
    def restart(self) -> None:
        self.unseen.clear()
        self.doubtful.clear()
        self.engine = self.fresh()

    @rule(step_s=st.sampled_from([0.5, 5.0, 11.0, 4000.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s
        self.engine.tick(self.now_s)

    @invariant()
    def no_gpu_is_over_booked(self) -> None:
        for view in self.engine.nodes(now_s=self.now_s):
            for one_pool in view.pools:
                for gpu in one_pool.gpus:
                    assert gpu.capacity_bytes is not None
                    assert gpu.reserved_bytes <= gpu.capacity_bytes, (view.name, gpu)

    @invariant()
    def no_tenant_is_over_its_limits(self) -> None:
        for tenant, (gpus, hbm) in LIMITS.items():
            view = next(view for view in self.engine.tenants() if view.tenant == tenant)
            assert gpus is None or view.used_gpus <= gpus, view
            assert view.used_hbm_bytes <= hbm, view

    @invariant()
    def what_is_guaranteed_stays_free(self) -> None:
        """Nobody takes, above its own guarantee, what another was promised and has not taken."""
        free = sum(
            one.free
            for view in self.engine.nodes(now_s=self.now_s)
            for one in view.pools
            if one.gpu_class is not GpuClass.PARTITION
        )
        promised = {view.tenant: (view.guaranteed_gpus or 0) - view.used_gpus for view in self.engine.tenants()}
        assert free >= sum(max(0, gpus) for gpus in promised.values()), (free, promised)

    def teardown(self) -> None:
        """Once everything was seen and time has passed, what is booked is what a fresh start computes."""
        self.doubt_ends(late=False)
        self.now_s += 100_000
        self.relist()
        self.engine.tick(self.now_s)
        fresh = self.fresh()
        assert self.engine.nodes(now_s=self.now_s) == fresh.nodes(now_s=self.now_s)
        assert self.engine.tenants() == fresh.tenants()
        for uid in self.api:
            assert self.engine.holder(uid) == fresh.holder(uid)


# derandomize: the same sequences on every run, so that a failure is a change's own.
Placement.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_placement_holds_its_invariants = Placement.TestCase


def scalar_verdict(engine: Engine, one: PodObservation, name: str) -> bool:
    """The rule of design.md §5 for one node without tenants, written again and slowly: whether the pod fits."""
    view = next(view for view in engine.nodes(now_s=0) if view.name == name)
    if not view.ready:
        return False
    resource, gpus = one.gpu_requests[0]
    pools = [candidate for candidate in view.pools if candidate.resource == resource]
    if not pools or pools[0].free < gpus:
        return False
    devices = pools[0].gpus
    if any(device.capacity_bytes is None for device in devices):
        return False
    capacities = [device.capacity_bytes for device in devices if device.capacity_bytes is not None]
    shared = pools[0].gpu_class is GpuClass.SHARED
    wanted = one.hbm_per_gpu_bytes if one.hbm_per_gpu_bytes is not None else int(min(capacities) * 0.9)
    needed = wanted * gpus if shared else wanted
    free = [
        (device.capacity_bytes or 0) - device.reserved_bytes - (device.foreign_bytes or 0)
        for device in devices
        if len(device.pods) < pools[0].replicas
    ]
    return all(max(0, value) >= needed for value in free)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeObservation], list[PodObservation], list[tuple[str, list[int | None]]]]:
    """Some nodes of any class, pods on them, and scrapes of some."""
    nodes, pods, uses = [], [], []
    for i in range(draw(st.integers(1, 4))):
        devices = draw(st.integers(1, 3))
        hbm = draw(st.sampled_from([None, 10, 24, 80]))
        klass = draw(st.sampled_from(list(GpuClass)))
        replicas = draw(st.integers(2, 3)) if klass is GpuClass.SHARED else 1
        one_pool = pool(gpu_class=klass, devices=devices, replicas=replicas, hbm_gib=hbm)
        nodes.append(node(f"n{i}", one_pool, ready=draw(st.booleans()) or draw(st.booleans())))
        booked = draw(st.integers(0, devices * replicas))
        pods.extend(pod(f"x{i}-{k}", on=f"n{i}", ready=draw(st.booleans())) for k in range(booked))
        if draw(st.booleans()) and klass is not GpuClass.PARTITION:
            uses.append((f"n{i}", [draw(st.sampled_from([None, 0, 5, 70])) for _ in range(devices)]))
    return nodes, pods, uses


@settings(max_examples=150, deadline=None)
@given(cluster=clusters(), gpus=st.integers(1, 3), hbm_gib=st.sampled_from([None, 0.001, 5, 10, 24, 70, 80, 2**40]))
def test_the_columns_say_what_the_rule_says_and_bind_says_what_filter_says(cluster, gpus, hbm_gib):
    """One verdict function serves filter (all rows) and bind (one row); here it is held against the rule itself."""
    nodes, pods, uses = cluster
    engine = Engine(EXACT_HBM)
    for one in nodes:
        engine.observe_node(one.name, one)
    for one in pods:
        engine.observe_pod(one.uid, one, now_s=0)
    for name, used in uses:
        gpus_used = [
            gpu_use(i, used_gib=value, free_gib=None if value is None else max(0, 80 - value))
            for i, value in enumerate(used)
        ]
        engine.observe_use(name, use(name, *gpus_used))
    wanting = pod("wanting", gpus=gpus, hbm_gib=hbm_gib)
    demand = engine.demand(wanting)
    names = [one.name for one in nodes]
    verdict = engine.filter_nodes(demand, names, now_s=0)
    engine.tick(20)  # no intent is left, the scrapes still count
    engine.observe_node("n0", replace(nodes[0], labels={"touched": "yes"}))
    for name in names:
        admitted = name in verdict.admitted
        answer = engine.reserve(demand, name, now_s=20)
        assert isinstance(answer, Reservation) is admitted, (name, answer)
        engine.release(demand.uid, name)
    if not uses:
        for name in names:
            assert scalar_verdict(engine, wanting, name) is (name in verdict.admitted), name


@given(seed=st.permutations([f"n{i}" for i in range(6)]))
def test_order_does_not_matter(seed):
    """Same state, same answer: neither the order of observation nor of the offer changes it."""
    answers = []
    for order in (sorted(seed), seed):
        engine = Engine(EXACT_HBM)
        for name in order:
            index = int(name[1:])
            engine.observe_node(name, node(name, pool(devices=1 + index % 3), rack=f"r{index % 2}", zone="z"))
        demand = engine.demand(pod(gpus=2))
        verdict = engine.filter_nodes(demand, order, now_s=0)
        decision = engine.choose_node(demand, verdict.admitted, now_s=0)
        assert decision.chosen is not None
        scored = dict(zip(decision.nodes, decision.scores, strict=True))
        answers.append((sorted(verdict.admitted), verdict.refused, decision.chosen.node, scored))
    assert answers[0] == answers[1]


def test_a_verdict_with_every_column_unknown_admits_nothing():
    """The row behind the last is what an unknown name reads."""
    engine = Engine(EXACT_HBM)
    engine.observe_node("n1", node())
    assert engine.version > 0
    codes = node_codes(
        engine._fleet.columns(GPU), engine.demand(pod()), headroom=None, tenant_code=0, whole_gpu_free_ratio=0.9
    )
    assert codes[-1] != ADMITTED
    assert (codes == ADMITTED).sum() == 1


@pytest.mark.parametrize("count", [63, 64, 65, 129])
def test_the_last_row_stays_free_while_the_columns_grow(count):
    """An unknown name must never read a real node."""
    engine = Engine(EXACT_HBM)
    for i in range(count):
        engine.observe_node(f"n{i}", node(f"n{i}"))
    verdict = engine.filter_nodes(engine.demand(pod()), ["ghost", f"n{count - 1}"], now_s=0)
    assert verdict.admitted == [f"n{count - 1}"]
