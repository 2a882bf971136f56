"""Places that are kept, in any order of events: nothing leaks, nothing is overbooked, no group is bound in part."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvaware_engine import PodObservation, Refusal, Reservation, VictimOffer
from kvaware_testing.builders import EXACT_HBM, Cluster, node, pod, pool

NODES = {"n1": 1, "n2": 2, "n3": 2}
NAMES = [f"p{index}" for index in range(6)]
GANG = ["g0", "g1", "g2"]


class Holds(RuleBasedStateMachine):
    """kube-scheduler and the API server, with nothing but our engine between them."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(*(node(name, pool(devices=gpus)) for name, gpus in NODES.items()), settings=EXACT_HBM)
        self.shown: dict[str, PodObservation] = {}
        self.reserved: dict[str, str] = {}
        """Pods that we let bind and that are not gone, to their node."""
        self.gang_bound = False

    def show(self, name: str, **options: object) -> None:
        group = "gang" if name in GANG else None
        priority = 100 if name in NAMES[:3] else 1
        one = pod(name, group=group, priority=priority, on=self.reserved.get(name), **options)  # type: ignore[arg-type]
        self.shown[name] = one
        self.cluster.see(one)

    def ask(self, name: str) -> PodObservation:
        return self.shown.get(name) or pod(name, group="gang" if name in GANG else None)

    @rule(name=st.sampled_from(NAMES + GANG), nominated=st.sampled_from([None, *NODES]))
    def create_or_nominate(self, name: str, nominated: str | None) -> None:
        if name not in self.reserved:
            self.show(name, nominated=nominated)

    @rule(name=st.sampled_from(NAMES))
    def place_one(self, name: str) -> None:
        if name in self.reserved or name not in self.shown:
            return
        chosen = self.cluster.choose(self.ask(name))
        if chosen is not None:
            self.bind(name, chosen, settled=True)

    @rule(name=st.sampled_from(NAMES), victim=st.sampled_from(NAMES), at=st.sampled_from(list(NODES)))
    def preempt(self, name: str, victim: str, at: str) -> None:
        if name in self.shown and name not in self.reserved:
            offer = VictimOffer(node=at, victims=(f"uid-{victim}",))
            demand = self.cluster.demand(self.ask(name))
            self.cluster.engine.keep_victims(demand, [offer], now_s=self.cluster.now_s)

    @rule(order=st.permutations(GANG), bind_order=st.permutations(GANG), settled=st.booleans(), thief=st.booleans())
    def place_gang(self, order: list[str], bind_order: list[str], *, settled: bool, thief: bool) -> None:
        """One pass of kube-scheduler over the group, then all binds."""
        waiting = [name for name in order if name not in self.reserved]
        for name in waiting:
            self.show(name)
        begun = any(name in self.reserved for name in GANG)
        at = {name: self.cluster.admitted(self.ask(name)) for name in waiting}
        if not all(len(nodes) == 1 for nodes in at.values()):
            return  # all must run, so kube-scheduler binds none
        if thief and "thief" not in self.shown:
            self.shown["thief"] = stranger = pod("thief", on="n1", scheduler_name="default-scheduler")
            self.cluster.see(stranger)
        results = [self.bind(name, at[name][0], settled=settled) for name in bind_order if name in at]
        assert begun or len(set(results)) <= 1, "all or none"
        if begun:
            assert all(results), "nobody is refused once another is bound"

    def bind(self, name: str, at: str, *, settled: bool) -> bool:
        engine = self.cluster.engine
        answer = engine.reserve(self.cluster.demand(self.ask(name)), at, now_s=self.cluster.now_s)
        if isinstance(answer, Refusal):
            return False
        assert isinstance(answer, Reservation)
        if settled:
            engine.settle(f"uid-{name}", at, now_s=self.cluster.now_s)
        self.reserved[name] = at
        return True

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def see_bound(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.reserved)))
        self.show(name, terminating=data.draw(st.booleans()) and name not in GANG)

    @precondition(lambda self: self.shown)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.shown)))
        self.cluster.gone(self.shown.pop(name))
        self.reserved.pop(name, None)

    @rule(seconds=st.sampled_from([0.5, 11, 70, 700]))
    def wait(self, seconds: float) -> None:
        self.cluster.now_s += seconds
        self.cluster.engine.tick(self.cluster.now_s)

    @invariant()
    def nothing_is_overbooked(self) -> None:
        """Each GPU has one holder, but for the stranger's, which nobody asked us about."""
        for name, gpus in NODES.items():
            ours = [one for one, at in self.reserved.items() if at == name]
            row = self.cluster.engine._fleet.row(name)
            booked = {uid for uid, held in row.bookings.items() if held and held[0].kind < 2}
            assert {f"uid-{one}" for one in ours} <= booked
            assert len(booked - {"uid-thief"}) <= gpus

    def teardown(self) -> None:
        """When all pods are gone every node is as it was in the beginning."""
        for one in list(self.shown.values()):
            self.cluster.gone(one)
        for name in list(self.reserved):
            self.cluster.gone(pod(name))
        self.cluster.now_s += 1000
        self.cluster.engine.tick(self.cluster.now_s)
        fresh = Cluster(*(node(name, pool(devices=gpus)) for name, gpus in NODES.items()), settings=EXACT_HBM)
        assert self.cluster.engine.nodes(now_s=self.cluster.now_s) == fresh.engine.nodes(now_s=fresh.now_s)
        assert not self.cluster.engine._ledger.holds()
        assert all(not row.bookings for row in self.cluster.engine._fleet)
        assert self.cluster.engine._tenants._charges == {}


TestHolds = Holds.TestCase
TestHolds.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
