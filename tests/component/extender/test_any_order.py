"""Whatever happens in whatever order, no GPU is given twice, and in the end the books are those of a fresh process."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvaware_cluster import (
    ClusterApiError,
    ConflictError,
    DirectorySource,
    Kind,
    NotFoundError,
    parse_pod,
    parse_reservation,
)
from kvaware_cluster.source import EventType
from kvaware_crds.errors import UpstreamError
from kvaware_engine.observations import ObjectKey
from kvaware_extender import Extender
from kvaware_extender.wire import BindArgs
from kvaware_testing.extender_harness import MemoryCluster, offer, quiet_settings, shared_node
from kvaware_testing.fake_api import raw_node, raw_pod
from kvaware_testing.store_harness import FakeClock

WHOLE = {"n1": 1}
"""Nodes that give whole GPUs, and how many."""
SHARED_GIB = {"s1": (80,)}
"""Nodes with time-sliced GPUs, and the HBM of each."""
FOREIGN = "elsewhere"
"""Where another scheduler binds; it has room for everybody and is never offered to us."""
OURS = (*WHOLE, *SHARED_GIB)
PODS = tuple(f"p{i}" for i in range(5))
HBM = "kvaware.io/hbm-per-gpu"
RESERVATION = "kvaware.io/reservation"
LIMIT_S = 60.0
"""A request that the API server has not carried out by then never will be (``in_doubt_s``)."""

Sent = tuple[float, str, str, str, dict[str, str]]
"""When, and: pod, UID, node, annotations."""


class Wire(MemoryCluster):
    """An API server whose answers to binds are chosen by the test, per pod."""

    def __init__(self, clock: FakeClock) -> None:
        nodes = [raw_node(name, gpus=gpus) for name, gpus in WHOLE.items()]
        nodes += [shared_node(name, gpus=len(sizes)) for name, sizes in SHARED_GIB.items()]
        super().__init__(*nodes, raw_node(FOREIGN, gpus=100))
        self.clock = clock
        self.fates: dict[str, list[str]] = {}
        """Pod to what becomes of the next requests to bind it."""
        self.on_their_way: list[Sent] = []
        """Requests whose sender has given up, and which may still be carried out."""

    async def bind(self, *, namespace: str, name: str, uid: str, node: str, annotations: Any) -> None:
        await asyncio.sleep(0)  # other calls come between
        match self.fates[name].pop(0):
            case "accepted":
                await self._carry_out(name, uid, node, annotations)
            case "answer lost":
                await self._carry_out(name, uid, node, annotations)
                raise UpstreamError("connection reset")
            case "late":
                self.on_their_way.append((self.clock(), name, uid, node, dict(annotations)))
                raise UpstreamError("connection reset")
            case "no answer":
                self.on_their_way.append((self.clock(), name, uid, node, dict(annotations)))
                raise TimeoutError  # as the attempt's own time limit does
            case "server error":
                raise ClusterApiError("broken", status=500, reason="InternalError")
            case "throttled":
                raise ClusterApiError("too many", status=429, reason="TooManyRequests")
            case "forbidden":
                raise ClusterApiError("no", status=403, reason="Forbidden")

    async def land(self, index: int) -> None:
        """A request that nobody waits for any more is carried out, if it still can be."""
        sent_s, name, uid, node, annotations = self.on_their_way.pop(index)
        if self.clock() - sent_s <= LIMIT_S:
            with suppress(ConflictError, NotFoundError):  # bound, another one of its name, or gone
                await self._carry_out(name, uid, node, annotations)

    async def _carry_out(self, name: str, uid: str, node: str, annotations: Any) -> None:
        await DirectorySource.bind(self, namespace="ml", name=name, uid=uid, node=node, annotations=annotations)

    def names(self) -> list[str]:
        return [key.name for key in self._objects[Kind.POD]]

    def logged(self, after: int) -> list[Any]:
        """Events of pods later than this version."""
        return [logged for logged in self._events[Kind.POD] if logged.version > after]

    @property
    def version(self) -> int:
        return self._version


SIZES = st.sampled_from([None, 30, 50])
"""GiB of HBM; None: a whole GPU."""
FATES = st.sampled_from(
    ["accepted", "accepted", "answer lost", "late", "late", "no answer", "server error", "throttled", "forbidden"]
)


class AnyOrder(RuleBasedStateMachine):
    """Filter, bind with every outcome, deletions, late events, doubts looked into, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.cluster = Wire(self.clock)
        self.naps: list[asyncio.Future[None]] = []
        self.runner.run(self._start())

    # -- the process ------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self.extender = self._process()
        self._list()

    def _process(self) -> Extender:
        extender = Extender(quiet_settings(in_doubt_s=LIMIT_S), self.cluster, clock=self.clock)
        extender.freshness.stale = lambda: False  # type: ignore[method-assign] # the store is driven by hand
        extender.binder.doubts.sleep = self._nap
        for key, raw in self.cluster._objects[Kind.NODE].items():
            extender.store._tables[Kind.NODE].put(key, raw)
        return extender

    def _list(self, extender: Extender | None = None) -> None:
        """A complete list of pods, begun after all that was answered: a real clock shows that."""
        self.clock.now_s += 0.001
        store = (extender or self.extender).store
        table = store._tables[Kind.POD]
        table.begin_list()
        for key, raw in self.cluster._objects[Kind.POD].items():
            table.see(key, raw)
        table.end_list()
        store._tell_listed(Kind.POD, self.clock())
        self.seen = self.cluster.version

    def _deliver(self, count: int) -> None:
        table = self.extender.store._tables[Kind.POD]
        for logged in self.cluster.logged(self.seen)[:count]:
            self.seen = logged.version
            metadata = logged.event.object["metadata"]
            key = ObjectKey(metadata["namespace"], metadata["name"])
            if logged.event.type is EventType.DELETED:
                table.remove(key, metadata["uid"])
            else:
                table.put(key, logged.event.object)

    async def _nap(self, _seconds: float) -> None:
        nap = asyncio.get_running_loop().create_future()
        self.naps.append(nap)
        await nap

    async def _look_into_doubts(self) -> None:
        await asyncio.sleep(0)  # errands that were just begun lie down
        naps, self.naps = self.naps, []
        for nap in naps:
            if not nap.done():
                nap.set_result(None)
        for _ in range(20):  # turns of the loop: far more than reading a pod in memory takes
            await asyncio.sleep(0)

    # -- what happens -----------------------------------------------------------------------------------------------

    def _pending(self) -> list[str]:
        return [name for name in self.cluster.names() if self.cluster.node_of(name) is None]

    def _absent(self) -> list[str]:
        return [name for name in PODS if name not in self.cluster.names()]

    @initialize(sizes=st.lists(SIZES, min_size=3, max_size=3))
    def some_pods_wait(self, sizes: list[int | None]) -> None:
        for name, hbm_gib in zip(PODS, sizes, strict=False):
            self._create(name, hbm_gib)

    @precondition(lambda self: self._absent())
    @rule(hbm_gib=SIZES)
    def a_pod_is_created(self, hbm_gib: int | None) -> None:
        self._create(self._absent()[0], hbm_gib)

    def _create(self, name: str, hbm_gib: int | None) -> None:
        self.cluster.add_pod(raw_pod(name, annotations={HBM: f"{hbm_gib}Gi"} if hbm_gib else {}))

    @precondition(lambda self: len(self.cluster.names()) > 2)
    @rule(data=st.data())
    def a_pod_is_deleted(self, data: st.DataObject) -> None:
        self.cluster.delete_pod("ml", data.draw(st.sampled_from(self.cluster.names())))

    @precondition(lambda self: self._pending())
    @rule(data=st.data(), nodes=st.lists(st.sampled_from(OURS), min_size=1, unique=True))
    def kube_scheduler_filters(self, data: st.DataObject, nodes: list[str]) -> None:
        name = data.draw(st.sampled_from(self._pending()))
        body = offer(self.cluster.raw_pod(name), nodes)
        admitted = orjson.loads(self.extender.verbs.filter(orjson.dumps(body)))["NodeNames"]
        if len(admitted) > 1:
            self.extender.verbs.prioritize(orjson.dumps({**body, "NodeNames": admitted}))

    @precondition(lambda self: self.cluster.names())
    @rule(data=st.data(), count=st.integers(1, 5))
    def kube_scheduler_binds(self, data: st.DataObject, count: int) -> None:
        """Several at once, whatever filter has said about them; often a node that was tried before."""
        args: list[BindArgs] = []
        self.cluster.fates = fates = {}
        for _ in range(count):
            name = data.draw(st.sampled_from(self._pending() or self.cluster.names()))
            uid = self.cluster.raw_pod(name)["metadata"]["uid"]
            tried = self.extender.engine.holder(uid)
            node = data.draw(st.sampled_from((*tried, *OURS)))
            fates.setdefault(name, []).append(data.draw(FATES))
            args.append(BindArgs("ml", name, uid, node))

        async def bind() -> None:
            await asyncio.gather(*map(self.extender.binder.bind, args))

        self.runner.run(bind())

    @precondition(lambda self: self.cluster.on_their_way)
    @rule(data=st.data())
    def a_request_lands_late(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.cluster.on_their_way) - 1))
        self.runner.run(self.cluster.land(index))

    @rule(count=st.integers(1, 4))
    def events_arrive(self, count: int) -> None:
        self._deliver(count)

    @rule()
    def doubts_are_looked_into(self) -> None:
        self.runner.run(self._look_into_doubts())

    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["a list", "time", "much time", "another scheduler", "a restart", "a restart after a crash"]
        ),
    )
    def something_rarer_happens(self, data: st.DataObject, what: str) -> None:
        match what:
            case "a list":
                self._list()
            case "time" | "much time":
                self.clock.now_s += 11.0 if what == "time" else LIMIT_S + 1
                self.extender.engine.tick(self.clock())
            case "another scheduler" if self._pending():
                self.runner.run(self.cluster.bind_unasked(data.draw(st.sampled_from(self._pending())), FOREIGN))
            case _:
                self.runner.run(self._start_again(lost=what == "a restart after a crash"))

    async def _start_again(self, *, lost: bool) -> None:
        """What the old process has left on its way is decided before the new one lists: it cannot know of it."""
        await self.extender.tasks.close(grace_s=0)
        if lost:
            self.cluster.on_their_way.clear()
        while self.cluster.on_their_way:
            await self.cluster.land(0)
        self.naps.clear()
        await self._start()

    # -- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        """By the API server's own word, not by ours."""
        whole: Counter[str] = Counter()
        shared: Counter[tuple[str, int]] = Counter()
        for raw in self.cluster._objects[Kind.POD].values():
            node = raw["spec"].get("nodeName")
            if node in WHOLE:
                whole[node] += parse_pod(raw).gpu_requests[0][1]
            elif node in SHARED_GIB:
                reservation = parse_reservation(raw["metadata"]["annotations"][RESERVATION])
                assert len(reservation.devices) == reservation.gpus
                for device in reservation.devices:
                    shared[node, device] += reservation.hbm_per_gpu_bytes or SHARED_GIB[node][device] * 2**30
        assert all(gpus <= WHOLE[node] for node, gpus in whole.items()), whole
        assert all(used <= SHARED_GIB[node][device] * 2**30 for (node, device), used in shared.items()), shared

    def teardown(self) -> None:
        """When everything has arrived, the books are those that a fresh process makes from the list."""
        try:
            self.runner.run(self._end())
        finally:
            self.runner.close()

    async def _end(self) -> None:
        while self.cluster.on_their_way:
            await self.cluster.land(0)
        self.clock.now_s += LIMIT_S + 1
        for _ in range(3):  # the nap that runs, and one after a read that came too early to tell
            await self._look_into_doubts()
        self._deliver(10_000)
        self.extender.engine.tick(self.clock())
        assert not self.extender.binder.doubts
        await self.extender.tasks.close(grace_s=0)
        fresh = self._process()
        self._list(fresh)
        now_s = self.clock()
        assert self.extender.engine.nodes(now_s=now_s) == fresh.engine.nodes(now_s=now_s)
        held = {raw["metadata"]["uid"] for raw in self.cluster._objects[Kind.POD].values()}
        for uid in held:
            assert self.extender.engine.holder(uid) == fresh.engine.holder(uid)


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
