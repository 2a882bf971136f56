"""Preemption held to what happens afterwards: who was to die dies, and then the pod has room, by filter's own rules."""

from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine import PodObservation, Reason, VictimOffer
from kvaware_testing.builders import EXACT_HBM, Cluster, bound, node, pod, quota, shared_pool

PREEMPTOR = 5


@dataclass(frozen=True)
class Scene:
    """A shared GPU node, who is on it, and a pod that wants room there."""

    cluster: Cluster
    there: list[PodObservation]
    preemptor: PodObservation
    offered: list[str]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Up to seven pods on one or two GPUs for four pods each, in two tenants' namespaces."""
    devices = draw(st.integers(1, 2))
    cluster = Cluster(node("n1", shared_pool(devices=devices)), settings=EXACT_HBM)
    there = [
        bound(
            f"p{index}",
            hbm_gib=draw(st.sampled_from([5, 10, 20, 40, 70])),
            namespace=draw(st.sampled_from(["ml", "other"])),
            priority=draw(st.integers(0, PREEMPTOR + 1)),
            terminating=draw(st.booleans()),
            group=draw(st.sampled_from([None, None, None, "gang"])),
            devices=(draw(st.integers(0, devices - 1)),),
        )
        for index in range(draw(st.integers(1, min(7, 4 * devices))))
    ]
    cluster.see(*there)
    if draw(st.booleans()):
        cluster.see(quota(gpus=draw(st.integers(0, 4)), hbm_gib=draw(st.sampled_from([None, 40, 120]))))
    if draw(st.booleans()):
        cluster.see(quota("other", namespaces=["other"], guaranteed_gpus=draw(st.integers(1, 6))))
    preemptor = pod("vip", hbm_gib=draw(st.sampled_from([10, 30, 60, 79, 90])), priority=PREEMPTOR)
    offered = draw(st.lists(st.sampled_from(sorted(one.uid for one in there)), unique=True, max_size=2))
    return Scene(cluster, there, preemptor, offered)


def admitted_without(scene: Scene, gone: set[str]) -> bool:
    """Whether filter admits the pod in a cluster in which these pods never were."""
    fresh = Cluster(node("n1", *scene.cluster.engine._fleet.row("n1").node.pools), settings=EXACT_HBM)
    fresh.see(*scene.cluster.engine._tenants._quotas.values())
    fresh.see(*(one for one in scene.there if one.uid not in gone))
    return fresh.admitted(scene.preemptor) == ["n1"]


@settings(max_examples=150, deadline=None)
@given(scenes())
def test_whoever_is_to_die_makes_room_and_nobody_dies_who_need_not(scene: Scene) -> None:
    """Kept offers come true; added victims are of lower rank, in no group, and each of them is needed."""
    by_uid = {one.uid: one for one in scene.there}
    engine = scene.cluster.engine
    before = (engine.nodes(now_s=scene.cluster.now_s), engine.tenants())
    offer = VictimOffer(node="n1", victims=tuple(scene.offered))
    verdict = engine.keep_victims(scene.cluster.demand(scene.preemptor), [offer], now_s=scene.cluster.now_s)
    if not verdict.kept:
        assert (engine.nodes(now_s=scene.cluster.now_s), engine.tenants()) == before
        assert not admitted_without(scene, set(scene.offered)) or not scene.offered
        return
    (kept,) = verdict.kept
    added = set(kept.victims) - set(scene.offered)
    assert kept.victims
    assert set(scene.offered) <= set(kept.victims)
    assert verdict.added == len(added)
    assert admitted_without(scene, set(kept.victims))
    for uid in added:
        assert by_uid[uid].priority < PREEMPTOR
        assert by_uid[uid].group is None
        assert not admitted_without(scene, set(kept.victims) - {uid}) or not (set(kept.victims) - {uid})


@settings(max_examples=100, deadline=None)
@given(scenes())
def test_no_smaller_set_of_victims_would_do(scene: Scene) -> None:
    """Up to two living victims on top the fewest are found, whatever the order of the pods."""
    engine = scene.cluster.engine
    offer = VictimOffer(node="n1", victims=())
    verdict = engine.keep_victims(scene.cluster.demand(scene.preemptor), [offer], now_s=scene.cluster.now_s)
    candidates = [one for one in scene.there if one.priority < PREEMPTOR and one.group is None]
    dying = {one.uid for one in candidates if one.terminating}
    living = [one.uid for one in candidates if not one.terminating]
    if verdict.kept:
        cost = len(set(verdict.kept[0].victims) - dying)
        for size in range(min(cost, 3)):
            for some in combinations(living, size):
                assert not admitted_without(scene, dying | set(some)) or not (dying | set(some))
    elif verdict.reason is Reason.HBM_SHORT:
        assert not admitted_without(scene, {one.uid for one in candidates})
