"""Preemption as a veto: nobody dies for a pod that HBM or quota would keep out, and what was agreed is kept."""

import pytest

from kvaware_engine import Engine, GpuClass, PodObservation, Reason, Reservation, VictimOffer, VictimsVerdict
from kvaware_engine.victims import MOST_TRIALS, Budget, Killable, more_victims
from kvaware_testing.builders import (
    EXACT_HBM,
    Cluster,
    bound,
    gpu_use,
    model,
    node,
    pod,
    pool,
    quota,
    shared_pool,
    use,
)

HIGH = 1000


def shared() -> Cluster:
    """One GPU of 80 GiB that eight pods may share."""
    return Cluster(node("n1", shared_pool(replicas=8)), settings=EXACT_HBM)


def exclusive(*names: str, devices: int = 1) -> Cluster:
    """Nodes with whole GPUs."""
    return Cluster(*(node(name, pool(devices=devices)) for name in names or ("n1",)), settings=EXACT_HBM)


def low(name: str, *, hbm_gib: float | None = None, on: str = "n1", **options: object) -> PodObservation:
    """A pod of no importance that runs."""
    gpu_class = GpuClass.EXCLUSIVE if hbm_gib is None else GpuClass.SHARED
    return bound(name, hbm_gib=hbm_gib, on=on, gpu_class=gpu_class, **options)  # type: ignore[arg-type]


def ask(cluster: Cluster, preemptor: PodObservation, **victims: list[str]) -> VictimsVerdict:
    """Preempt: node to the names of its victims."""
    offers = [
        VictimOffer(node=name, victims=tuple(f"uid-{victim}" for victim in names)) for name, names in victims.items()
    ]
    return cluster.engine.keep_victims(cluster.demand(preemptor), offers, now_s=cluster.now_s)


def victims_of(verdict: VictimsVerdict) -> dict[str, list[str]]:
    """Node to the names of those who are to die."""
    return {offer.node: [uid.removeprefix("uid-") for uid in offer.victims] for offer in verdict.kept}


def test_an_offer_that_makes_room_is_kept_as_it_is():
    cluster = exclusive().see(low("a"))
    verdict = ask(cluster, pod("p", priority=HIGH), n1=["a"])
    assert verdict.kept == (VictimOffer(node="n1", victims=("uid-a",)),)
    assert (verdict.added, verdict.reason) == (0, None)


def test_an_offer_whose_victims_leave_too_little_hbm_is_dropped():
    """The GPU count fits, the memory does not: the victim would have died in vain."""
    cluster = exclusive().see(low("a"))
    verdict = ask(cluster, pod("p", priority=HIGH, hbm_gib=90), n1=["a"])
    assert verdict == VictimsVerdict(kept=(), added=0, reason=Reason.HBM_SHORT)


def test_a_quota_refusal_kills_nobody():
    """One low-priority pod would die on node after node while the pod stays pending."""
    cluster = exclusive("n1", "n2", "n3").see(
        *(low(name, on=on, namespace="other") for name, on in (("a", "n1"), ("b", "n2"), ("c", "n3"))), quota(gpus=0)
    )
    verdict = ask(cluster, pod("p", priority=HIGH), n1=["a"], n2=["b"], n3=["c"])
    assert verdict == VictimsVerdict(kept=(), added=0, reason=Reason.TENANT_GPU_LIMIT)


def test_a_victim_of_ones_own_tenant_frees_its_quota():
    """The tenant is at its limit, by pods that matter less to it."""
    cluster = exclusive().see(low("a"), quota(gpus=1))
    assert victims_of(ask(cluster, pod("p", priority=HIGH), n1=["a"])) == {"n1": ["a"]}
    assert ask(cluster, pod("q", priority=HIGH, gpus=2), n1=["a"]).reason is Reason.TENANT_GPU_LIMIT


def test_what_is_guaranteed_to_another_tenant_is_not_taken_by_preemption():
    """A pod within its tenant's guarantee leaves room that is promised to that tenant, whatever the priorities."""
    cluster = exclusive(devices=2).see(
        low("theirs", namespace="team"),
        low("nobodys", namespace="free"),
        quota("team", namespaces=["team"], guaranteed_gpus=1),
    )
    preemptor = pod("p", namespace="free", priority=HIGH)
    assert ask(cluster, preemptor, n1=["theirs"]).reason is Reason.GUARANTEED_TO_OTHERS
    assert victims_of(ask(cluster, preemptor, n1=["nobodys"])) == {"n1": ["nobodys"]}


def test_where_hbm_is_short_on_a_shared_gpu_victims_are_added():
    """kube-scheduler found one victim for its CPU and cannot know that 70 of 80 GiB are taken by another."""
    cluster = shared().see(low("cpu", hbm_gib=1), low("hbm", hbm_gib=70))
    verdict = ask(cluster, pod("p", priority=HIGH, hbm_gib=60), n1=["cpu"])
    assert victims_of(verdict) == {"n1": ["cpu", "hbm"]}
    assert verdict.added == 1
    assert verdict.kept[0].pdb_violations == 1, "PodDisruptionBudgets are not seen, so each added death counts as one"


@pytest.mark.parametrize(
    ("there", "died"),
    [
        pytest.param({"a": (30, 0), "b": (30, 0), "c": (60, 5)}, ["c"], id="one dear pod instead of two cheap ones"),
        pytest.param({"a": (60, 3), "b": (60, 2)}, ["b"], id="of two that would do the one of lower priority"),
        pytest.param({"a": (60, 0), "b": (70, 0)}, ["a"], id="of equals the smaller one"),
        pytest.param({"a": (60, 0), "b": (10, 0)}, ["a"], id="nobody who need not"),
        pytest.param({"a": (20, 0), "b": (20, 1), "c": (20, 2), "d": (20, 3)}, ["c", "b", "a"], id="three of four"),
    ],
)
def test_the_fewest_and_cheapest_are_added(there, died):
    """60 of 80 GiB must be free."""
    capacity = sum(gib for gib, _ in there.values())
    cluster = Cluster(node("n1", shared_pool(replicas=8, hbm_gib=max(80, capacity))), settings=EXACT_HBM)
    cluster.see(*(low(name, hbm_gib=gib, priority=priority) for name, (gib, priority) in there.items()))
    free = max(80, capacity) - capacity
    verdict = ask(cluster, pod("p", priority=HIGH, hbm_gib=60 if free < 60 else 80), n1=[])
    assert victims_of(verdict) == {"n1": died}


@pytest.mark.parametrize(
    "spared",
    [
        pytest.param(low("a", hbm_gib=70, priority=HIGH), id="equal priority"),
        pytest.param(low("a", hbm_gib=70, priority=HIGH + 1), id="higher priority"),
        pytest.param(low("a", hbm_gib=70, group="gang"), id="a pod of a group: the others would be left behind"),
    ],
)
def test_nobody_of_equal_rank_is_added(spared):
    """kube-scheduler deletes whom we name without another look."""
    cluster = shared().see(spared)
    assert ask(cluster, pod("p", priority=HIGH, hbm_gib=60), n1=[]).reason is Reason.HBM_SHORT


def test_a_pod_that_terminates_already_is_named_before_one_that_lives():
    """To wait for it kills nobody, so it is no violation either."""
    cluster = shared().see(low("living", hbm_gib=35), low("dying", hbm_gib=35, terminating=True, priority=9))
    verdict = ask(cluster, pod("p", priority=HIGH, hbm_gib=40), n1=[])
    assert victims_of(verdict) == {"n1": ["dying"]}
    assert verdict.kept[0].pdb_violations == 0


def test_an_empty_list_is_filled_or_dropped():
    """kubernetes#139270, #135486: an empty list is an error to kube-scheduler 1.37.2, and legal later."""
    full = shared().see(low("a", hbm_gib=70))
    assert victims_of(ask(full, pod("p", priority=HIGH, hbm_gib=60), n1=[])) == {"n1": ["a"]}
    roomy = shared()
    assert ask(roomy, pod("p", priority=HIGH, hbm_gib=60), n1=[]) == VictimsVerdict(kept=(), added=0, reason=None)


def test_victims_are_added_for_hbm_alone():
    """More deaths would not give another tenant's quota back, nor make the worst whole GPU larger."""
    cluster = exclusive(devices=2).see(low("a"), low("b"))
    cluster.see(use("n1", gpu_use(0, used_gib=60, free_gib=20), gpu_use(1, used_gib=60, free_gib=20)))
    assert ask(cluster, pod("p", priority=HIGH, hbm_gib=90), n1=["a"]).kept == ()
    assert ask(shared().see(*(low(f"p{i}", hbm_gib=1) for i in range(8))), pod("p", priority=HIGH), n1=[]).kept == ()


def test_what_a_victim_uses_is_free_once_it_is_gone():
    """The exporter still shows the victim's 70 GiB; they are its reservation's, not a stranger's."""
    cluster = exclusive().see(low("a"), use("n1", gpu_use(used_gib=70, free_gib=10)))
    assert victims_of(ask(cluster, pod("p", priority=HIGH, hbm_gib=75), n1=["a"])) == {"n1": ["a"]}
    half = shared().see(low("a", hbm_gib=40), use("n1", gpu_use(used_gib=65, free_gib=15)))
    assert ask(half, pod("p", priority=HIGH, hbm_gib=70), n1=["a"]).reason is Reason.HBM_SHORT, (
        "25 GiB are a stranger's"
    )
    assert victims_of(ask(half, pod("p", priority=HIGH, hbm_gib=55), n1=["a"])) == {"n1": ["a"]}


def test_a_victim_that_we_do_not_know_frees_nothing():
    """A pod without GPUs, or one that our view has not yet: kube-scheduler may need its CPU all the same."""
    cluster = exclusive().see(low("a"))
    assert ask(cluster, pod("p", priority=HIGH), n1=["unknown"]).reason is Reason.GPU_COUNT
    assert victims_of(ask(cluster, pod("p", priority=HIGH), n1=["unknown", "a"])) == {"n1": ["unknown", "a"]}
    assert ask(cluster, pod("q", priority=HIGH), nowhere=["a"]).reason is Reason.NODE_UNKNOWN


def test_only_nodes_that_would_really_open_are_kept():
    """kube-scheduler then chooses among them by its own rules."""
    cluster = Cluster(
        node("n1", pool(devices=1)), node("n2", pool(devices=1, hbm_gib=40)), node("n3", pool(devices=1), ready=False)
    )
    cluster.see(*(low(f"v{i}", on=f"n{i}") for i in (1, 2, 3)))
    verdict = ask(cluster, pod("p", priority=HIGH, hbm_gib=60), n1=["v1"], n2=["v2"], n3=["v3"])
    assert victims_of(verdict) == {"n1": ["v1"]}


@pytest.mark.parametrize(
    ("preemptor", "reason"),
    [
        pytest.param(pod("p", priority=HIGH, model="nobody"), Reason.MODEL_NOT_FOUND, id="no such model"),
        pytest.param(
            pod("p", priority=HIGH, problem=Reason.INVALID_HBM_ANNOTATION),
            Reason.INVALID_HBM_ANNOTATION,
            id="annotation",
        ),
    ],
)
def test_nobody_dies_for_a_pod_that_fits_nowhere(preemptor, reason):
    assert ask(exclusive().see(low("a")), preemptor, n1=["a"]).reason is reason


def test_a_pod_without_gpus_may_preempt_for_its_cpu():
    cluster = exclusive().see(low("a"), model("m"))
    cpu_only = pod("p", gpus=0, model="m", role="both", priority=HIGH)
    assert victims_of(ask(cluster, cpu_only, n1=["x"])) == {"n1": ["x"]}


def test_asking_leaves_the_books_as_they_were():
    """Whether somebody is killed is kube-scheduler's decision: nothing is free before."""
    cluster = shared().see(
        low("a", hbm_gib=40), low("b", hbm_gib=30), quota(gpus=9), use("n1", gpu_use(used_gib=70, free_gib=10))
    )
    before = (cluster.engine.nodes(now_s=0), cluster.engine.tenants(), cluster.engine.version)
    ask(cluster, pod("p", priority=HIGH, hbm_gib=70, namespace="elsewhere", gpus=9), n1=[])
    assert (cluster.engine.nodes(now_s=0), cluster.engine.tenants(), cluster.engine.version) == before


# -- what was agreed is kept ------------------------------------------------------------------------------------------


def preempting() -> tuple[Cluster, PodObservation]:
    """A pod for which the only GPU's pod is dying."""
    cluster = exclusive("n1", "n2").see(low("a"), low("b", on="n2"))
    waiting = pod("p", priority=HIGH)
    cluster.see(waiting)
    assert ask(cluster, waiting, n1=["a"]).kept
    nominated = pod("p", priority=HIGH, nominated="n1")
    cluster.see(nominated, low("a", terminating=True))
    return cluster, nominated


def test_the_nominated_node_is_kept_for_its_pod():
    """Whoever comes first when the victim is gone must not take what it died for."""
    cluster, nominated = preempting()
    cluster.gone(low("a"))
    assert cluster.why_not(pod("thief", priority=HIGH)) is Reason.GPU_COUNT
    assert cluster.admitted(nominated) == ["n1"]
    assert cluster.bind(nominated) is None


def test_the_nominated_pod_is_admitted_only_once_its_victims_are_gone():
    """Terminating pods hold their HBM until the end (kueue#10076); the reason tells kube-scheduler to wait."""
    cluster, nominated = preempting()
    verdict = cluster.engine.filter_nodes(cluster.demand(nominated), ["n1", "n2"], now_s=cluster.now_s)
    assert verdict.admitted == []
    assert verdict.passing == {
        "n1": "kvaware: the pods that make room for this pod on its nominated node are not gone yet"
    }
    assert verdict.refused == {"n2": "kvaware: not enough free GPUs"}
    assert cluster.engine.would_admit(cluster.demand(nominated), now_s=cluster.now_s) is Reason.GPU_COUNT
    cluster.gone(low("a"))
    assert cluster.engine.would_admit(cluster.demand(nominated), now_s=cluster.now_s) is None


def test_while_victims_leave_nobody_else_dies_for_the_pod():
    """The cascade: refused on its nominated node, the pod would have one pod after another killed."""
    cluster, nominated = preempting()
    assert ask(cluster, nominated, n2=["b"]) == VictimsVerdict(kept=(), added=0, reason=Reason.VICTIMS_LEAVING)
    cluster.gone(low("a"))
    assert cluster.admitted(nominated) == ["n1"], "the nomination stood through the veto"


def test_a_victim_that_is_not_seen_dying_yet_counts_as_leaving():
    """kube-scheduler deletes in the background; our view of it may be late."""
    cluster = exclusive("n1", "n2").see(low("a"), low("b", on="n2"))
    waiting = pod("p", priority=HIGH)
    ask(cluster, waiting, n1=["a"])
    assert ask(cluster, waiting, n2=["b"]).reason is Reason.VICTIMS_LEAVING


def test_a_tenant_at_its_limit_waits_for_its_own_victim():
    """Its quota is what the victim still holds."""
    cluster = exclusive("n1", "n2", devices=2).see(low("a"), quota(gpus=1))
    ask(cluster, pod("p", priority=HIGH), n1=["a"])
    cluster.see(pod("p", priority=HIGH, nominated="n1"), low("a", terminating=True))
    verdict = cluster.engine.filter_nodes(cluster.demand(pod("p", priority=HIGH)), ["n1", "n2"], now_s=cluster.now_s)
    assert (list(verdict.passing), list(verdict.refused)) == (["n1"], ["n2"])
    assert verdict.counts == {Reason.VICTIMS_LEAVING: 1, Reason.TENANT_GPU_LIMIT: 1}


def test_figures_from_before_the_victims_end_do_not_set_off_another_preemption():
    """The exporter still counts the dead pod's memory for a scrape; kube-scheduler would look for more victims."""
    cluster = shared().see(low("a", hbm_gib=70), use("n1", gpu_use(used_gib=70, free_gib=10), at_s=100))
    cluster.now_s = 101
    ask(cluster, pod("p", priority=HIGH, hbm_gib=60), n1=[])
    nominated = pod("p", priority=HIGH, hbm_gib=60, nominated="n1")
    cluster.see(nominated)
    cluster.now_s = 105
    cluster.gone(low("a"))
    assert cluster.why_not(nominated) is Reason.VICTIMS_LEAVING
    assert ask(cluster, nominated, n1=["x"]).reason is Reason.VICTIMS_LEAVING
    cluster.see(use("n1", gpu_use(used_gib=0, free_gib=80), at_s=106))
    assert cluster.admitted(nominated) == ["n1"]


def test_figures_from_after_the_victims_end_are_believed():
    """A stranger took the memory: that nomination will never come true, and another one may be agreed."""
    cluster = Cluster(node("n1", shared_pool()), node("n2", shared_pool()), settings=EXACT_HBM)
    cluster.see(low("a", hbm_gib=70), low("b", hbm_gib=70, on="n2"))
    ask(cluster, pod("p", priority=HIGH, hbm_gib=60), n1=[])
    nominated = pod("p", priority=HIGH, hbm_gib=60, nominated="n1")
    cluster.see(nominated).gone(low("a"))
    cluster.see(use("n1", gpu_use(used_gib=70, free_gib=10), at_s=101))
    assert cluster.why_not(nominated) is Reason.HBM_SHORT
    assert victims_of(ask(cluster, nominated, n2=[])) == {"n2": ["b"]}


def test_a_nomination_is_learned_from_the_pod_after_a_restart():
    """The new process reads it from the pod's status, whatever the order of the kinds."""
    nominated = pod("p", priority=HIGH, nominated="n1", model="m", role="both")
    fresh = Cluster(settings=EXACT_HBM).see(low("a", terminating=True), nominated)
    fresh.see(node("n1", pool(devices=1)), model("m"))
    fresh.gone(low("a"))
    assert fresh.why_not(pod("thief")) is Reason.GPU_COUNT
    assert fresh.admitted(nominated) == ["n1"]


def test_of_several_agreed_nodes_the_one_is_kept_that_kube_scheduler_took():
    """The others are free for whoever comes."""
    cluster = exclusive("n1", "n2").see(low("a"), low("b", on="n2"))
    waiting = pod("p", priority=HIGH)
    assert len(ask(cluster, waiting, n1=["a"], n2=["b"]).kept) == 2
    cluster.gone(low("a")).gone(low("b"))
    assert cluster.admitted(pod("x")) == ["n1", "n2"], "not known yet"
    cluster.now_s += 20
    cluster.see(pod("p", priority=HIGH, nominated="n2"))
    assert cluster.admitted(pod("y")) == ["n1"]


def test_filter_hears_of_the_nomination_before_our_view_does():
    """kube-scheduler posts the pod with its status; the watch may be late."""
    cluster = exclusive("n1", "n2").see(low("a"), low("b", on="n2"))
    ask(cluster, pod("p", priority=HIGH), n1=["a"], n2=["b"])
    cluster.see(low("a", terminating=True))
    assert cluster.why_not(pod("p", priority=HIGH, nominated="n1")) is Reason.VICTIMS_LEAVING
    cluster.gone(low("a"))
    assert cluster.why_not(pod("thief")) is Reason.GPU_COUNT


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda c, p: c.see(pod("p", priority=HIGH)), id="taken back"),
        pytest.param(lambda c, p: c.see(pod("p", priority=HIGH, nominated="n2")), id="nominated elsewhere"),
        pytest.param(lambda c, p: c.gone(p), id="deleted"),
        pytest.param(lambda c, p: c.see(pod("p", priority=HIGH, nominated="n1", terminating=True)), id="terminating"),
        pytest.param(lambda c, p: c.see(pod("p", priority=HIGH, on="n2", ready=True)), id="bound elsewhere"),
    ],
)
def test_a_node_is_kept_no_longer_than_its_pod_is_nominated(end):
    cluster, nominated = preempting()
    cluster.gone(low("a"))
    end(cluster, nominated)
    assert cluster.why_not(pod("x")) is None


def test_a_nomination_ends_some_time_after_the_last_victim_left():
    """A pod that kube-scheduler does not bring back must not hold a GPU for ever."""
    cluster, _ = preempting()
    cluster.now_s += 1000
    cluster.engine.tick(cluster.now_s)
    assert cluster.why_not(pod("x")) is Reason.GPU_COUNT, "the victim has a long grace period"
    cluster.gone(low("a"))
    cluster.now_s += 59
    assert cluster.why_not(pod("x")) is Reason.GPU_COUNT
    cluster.now_s += 2
    assert cluster.why_not(pod("x")) is None


def test_an_agreement_that_kube_scheduler_does_not_act_upon_is_soon_forgotten():
    cluster = exclusive().see(low("a"))
    ask(cluster, pod("p", priority=HIGH), n1=["a"])
    cluster.gone(low("a"))
    assert cluster.why_not(pod("x")) is Reason.GPU_COUNT
    cluster.now_s += 11
    assert cluster.why_not(pod("x")) is None


def test_somebody_of_higher_priority_may_preempt_on_a_nominated_node():
    """kube-scheduler then takes the lesser pod's nomination back."""
    cluster, _ = preempting()
    assert victims_of(ask(cluster, pod("king", priority=HIGH + 1), n1=["a"])) == {"n1": ["a"]}
    assert ask(cluster, pod("peer", priority=HIGH), n1=["a"]).reason is Reason.GPU_COUNT


def test_a_nominated_pod_that_finds_room_elsewhere_goes_there():
    """And when that binding fails its nominated node is still kept."""
    cluster, nominated = preempting()
    cluster.see(node("n3", pool(devices=1)))
    assert cluster.admitted(nominated) == ["n3"]
    answer = cluster.engine.reserve(cluster.demand(nominated), "n3", now_s=cluster.now_s)
    assert isinstance(answer, Reservation)
    cluster.gone(low("a"))
    assert cluster.why_not(pod("x")) is None, "it has n3"
    cluster.engine.release(nominated.uid, "n3")
    assert cluster.why_not(pod("y")) is Reason.GPU_COUNT


def test_an_explanation_says_that_victims_are_leaving():
    """People who read that GPUs are short would go and look for GPUs."""
    cluster, nominated = preempting()
    explanation = cluster.engine.explain(cluster.demand(nominated), now_s=cluster.now_s)
    assert {view.node: view.refusal for view in explanation.candidates} == {
        "n1": Reason.VICTIMS_LEAVING,
        "n2": Reason.GPU_COUNT,
    }


def test_an_explanation_of_a_nominated_pod_does_not_count_it_against_itself():
    cluster, nominated = preempting()
    cluster.gone(low("a"))
    before = cluster.engine.version
    assert cluster.engine.explain(cluster.demand(nominated), now_s=cluster.now_s).chosen == "n1"
    assert cluster.engine.version == before
    assert cluster.why_not(pod("thief")) is Reason.GPU_COUNT


def test_a_nominated_pod_asks_filter_again_without_changing_the_state():
    """Else each of its refusals would be a new state, and set off a look at all refused pods."""
    cluster, nominated = preempting()
    before = cluster.engine.version
    cluster.why_not(nominated)
    cluster.why_not(nominated)
    assert cluster.engine.version == before


def test_the_search_for_victims_is_bounded():
    """64 pods on each of 100 nodes must not hold up the loop."""
    tried = []
    staying = [Killable(uid=f"u{i:02}", priority=i, hbm_bytes=1, leaving=False) for i in range(64)]

    def refusal(gone: frozenset[str]) -> Reason | None:
        tried.append(gone)
        return None if len(gone) == 64 else Reason.HBM_SHORT

    assert more_victims(frozenset(), staying, refusal, Budget()) == staying, "found by giving back what is not needed"
    assert len(tried) <= MOST_TRIALS
    assert more_victims(frozenset(), staying, refusal, Budget(0)) is None


def test_who_is_not_needed_once_another_stays_does_not_die():
    """Room is no simple sum: on GPU 0 each pod that goes opens a replica, and then the worst GPU must have the room.

    GPU 0 has no replica left (70 + 3 x 5 GiB of 80, 4 pods), so with "small" gone from GPU 1 the pod can only go there.
    With "leaving" gone as well it might be given GPU 0, and "large" had to go, too.
    """
    cluster = Cluster(node("n1", shared_pool(devices=2)), settings=EXACT_HBM)
    cluster.see(bound("large", hbm_gib=70, devices=(0,)))
    cluster.see(*(bound(name, hbm_gib=5, devices=(0,)) for name in ("a", "b")))
    cluster.see(bound("leaving", hbm_gib=5, devices=(0,), terminating=True))
    cluster.see(bound("small", hbm_gib=20, devices=(1,)), bound("other", hbm_gib=40, devices=(1,)))
    verdict = ask(cluster, pod("p", priority=HIGH, hbm_gib=30), n1=[])
    assert victims_of(verdict) == {"n1": ["small"]}


def test_settings_of_nominations_are_times():
    assert Engine()._settings.nomination_ttl_s == 60
