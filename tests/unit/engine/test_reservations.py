"""The life of a reservation: intent, own booking, observed, gone."""

from dataclasses import replace

from kvaware_engine import GpuClass, Reason, Refusal, Reservation
from kvaware_testing.builders import Cluster, bound, gpu_use, node, pod, pool, quota, shared_pool, use


def one_gpu() -> Cluster:
    """A node with a single whole GPU."""
    return Cluster(node("n1", pool(devices=1)))


def test_of_two_pods_that_race_for_one_gpu_one_wins():
    """Bind is authoritative."""
    cluster = one_gpu()
    assert cluster.bind(pod("a")) is None
    assert cluster.bind(pod("b")) is Reason.GPU_COUNT


def test_of_two_pods_that_race_for_the_same_hbm_one_wins():
    """Both passed filter; the shared GPU holds only one of them."""
    cluster = Cluster(node("n1", shared_pool()))
    a, b = pod("a", hbm_gib=50), pod("b", hbm_gib=50)
    for one in (a, b):
        cluster.engine.filter_nodes(cluster.demand(one), ["n1"], now_s=cluster.now_s)
    assert [cluster.bind(a), cluster.bind(b)] == [None, Reason.HBM_SHORT]


def test_a_gpu_that_another_scheduler_took_is_refused_at_bind():
    """Filter saw it free; the store saw the foreign pod before we bound ours."""
    cluster = one_gpu()
    assert cluster.admitted(pod("a")) == ["n1"]
    cluster.see(pod("thief", on="n1", scheduler_name="default-scheduler"))
    assert cluster.bind(pod("a")) is Reason.GPU_COUNT


def test_asking_again_for_the_same_uid_and_node_gives_the_same_reservation():
    """Bind is idempotent and books once."""
    cluster = Cluster(node())
    demand = cluster.demand(pod("a"))
    first = cluster.engine.reserve(demand, "n1", now_s=1)
    assert cluster.engine.reserve(demand, "n1", now_s=2) == first
    assert cluster.engine.nodes(now_s=2)[0].pools[0].free == 7


def test_a_released_reservation_is_free_again():
    """The API server refused the binding."""
    cluster = one_gpu()
    cluster.engine.reserve(cluster.demand(pod("a")), "n1", now_s=1)
    cluster.engine.release("uid-a", "n1")
    cluster.engine.release("uid-a", "n1")
    assert cluster.bind(pod("b")) is None
    assert cluster.engine.holder("uid-a") == ()


def test_the_pod_seen_bound_takes_over_from_our_own_booking():
    """It holds its GPU once, before and after."""
    cluster = Cluster(node("n1", shared_pool()))
    reservation = cluster.engine.reserve(cluster.demand(pod("a", hbm_gib=30)), "n1", now_s=1)
    assert isinstance(reservation, Reservation)
    cluster.engine.settle("uid-a", "n1", now_s=1)
    before = cluster.engine.nodes(now_s=1)[0].pools
    cluster.see(pod("a", on="n1", hbm_gib=30, reservation=reservation))
    assert cluster.engine.nodes(now_s=1)[0].pools == before
    assert cluster.engine.holder("uid-a") == ("n1",)


def test_a_pending_sight_of_the_pod_does_not_undo_a_booking():
    """Own writes not yet seen: the store is a little old."""
    cluster = one_gpu()
    assert cluster.bind(pod("a")) is None
    cluster.see(pod("a"), pod("a", ready=True))
    assert cluster.bind(pod("b")) is Reason.GPU_COUNT


def test_a_bind_elsewhere_while_the_first_is_in_doubt_leaves_one_booking():
    """kubernetes/kubernetes#96579: whichever binding the API server accepted stays, once."""
    cluster = Cluster(node("n1"), node("n2"))
    demand = cluster.demand(pod("a"))
    cluster.engine.reserve(demand, "n1", now_s=1)
    cluster.engine.reserve(demand, "n2", now_s=2)
    assert cluster.engine.holder("uid-a") == ("n1", "n2")
    cluster.engine.settle("uid-a", "n2", now_s=3)
    assert cluster.engine.holder("uid-a") == ("n2",)


def test_a_pod_in_doubt_does_not_count_twice_against_its_own_limit():
    """It can only end on one node."""
    cluster = Cluster(node("n1"), node("n2")).see(quota(gpus=1))
    demand = cluster.demand(pod("a"))
    assert isinstance(cluster.engine.reserve(demand, "n1", now_s=1), Reservation)
    assert isinstance(cluster.engine.reserve(demand, "n2", now_s=2), Reservation)


def test_a_pod_bound_elsewhere_is_refused():
    """The store knows it already."""
    cluster = Cluster(node("n1"), node("n2")).see(pod("a", on="n2"))
    answer = cluster.engine.reserve(cluster.demand(pod("a")), "n1", now_s=1)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.ALREADY_BOUND
    assert isinstance(cluster.engine.reserve(cluster.demand(pod("a")), "n2", now_s=1), Reservation)
    assert cluster.engine.nodes(now_s=1)[1].pools[0].free == 7


def test_a_deletion_that_the_watch_missed_is_made_up_for_by_the_next_list():
    """Project-HAMi/HAMi#2923: bound, never seen, deleted while the watch was cut, a new pod of the same name."""
    cluster = one_gpu()
    cluster.now_s = 10
    assert cluster.bind(pod("p-0", uid="old")) is None
    cluster.engine.forget_unseen(listed_at_s=9, uids={"new"})  # began before the bind: says nothing about it
    assert cluster.why_not(pod("x")) is Reason.GPU_COUNT
    cluster.engine.forget_unseen(listed_at_s=11, uids={"new"})
    assert cluster.bind(pod("p-0", uid="new")) is None


def test_a_binding_in_doubt_is_not_forgotten_by_a_list():
    """Its request may still be on its way."""
    cluster = one_gpu()
    cluster.engine.reserve(cluster.demand(pod("a")), "n1", now_s=1)
    cluster.engine.forget_unseen(listed_at_s=50, uids=set())
    assert cluster.engine.holder("uid-a") == ("n1",)


def test_a_pod_deleted_before_it_was_seen_bound_gives_everything_back():
    """Deletion ends own bookings and intents."""
    cluster = one_gpu()
    cluster.see(pod("a"))
    assert cluster.bind(pod("a")) is None
    cluster.gone(pod("a"))
    assert cluster.bind(pod("b")) is None


def test_an_intent_holds_its_place_for_others_filters_until_its_time_is_up():
    """The guess that saves retries ends after 10 s."""
    cluster = one_gpu()
    assert cluster.choose(pod("a")) == "n1"
    assert cluster.why_not(pod("b")) is Reason.GPU_COUNT
    cluster.now_s += 9.9
    assert cluster.why_not(pod("b")) is Reason.GPU_COUNT
    cluster.now_s += 0.1
    assert cluster.why_not(pod("b")) is None


def test_the_next_filter_of_the_same_pod_replaces_its_intent():
    """A pod is not in its own way."""
    cluster = one_gpu()
    assert cluster.choose(pod("a")) == "n1"
    assert cluster.admitted(pod("a")) == ["n1"]
    assert cluster.choose(pod("a")) == "n1"


def test_one_admitted_node_carries_the_intent_at_once():
    """kube-scheduler asks for no priorities when one node is left."""
    cluster = Cluster(node("n1", pool(devices=1)), node("n2", pool(devices=2)))
    cluster.see(pod("x", on="n2", gpus=2))
    assert cluster.admitted(pod("a")) == ["n1"]
    assert cluster.admitted(pod("b")) == []


def test_a_question_leaves_no_trace():
    """Neither explain nor would_admit moves an intent or the version."""
    cluster = one_gpu()
    assert cluster.choose(pod("a")) == "n1"
    before = cluster.engine.version
    assert cluster.engine.explain(cluster.demand(pod("a")), now_s=cluster.now_s).chosen == "n1"
    assert cluster.engine.explain(cluster.demand(pod("b")), now_s=cluster.now_s).chosen is None
    assert cluster.engine.would_admit(cluster.demand(pod("b")), now_s=cluster.now_s) is Reason.GPU_COUNT
    assert cluster.engine.version == before
    assert cluster.why_not(pod("b")) is Reason.GPU_COUNT


def test_would_admit_says_why_not():
    """What wakes a refused pod: the answer turns to None when its reason goes."""
    cluster = Cluster(node()).see(quota(gpus=0))
    demand = cluster.demand(pod("a"))
    assert cluster.engine.would_admit(demand, now_s=1) is Reason.TENANT_GPU_LIMIT
    cluster.see(quota(gpus=1))
    assert cluster.engine.would_admit(demand, now_s=1) is None
    cluster.engine.observe_node("n1", None)
    assert cluster.engine.would_admit(demand, now_s=1) is Reason.NODE_UNKNOWN


def test_a_pod_seen_before_its_node_is_booked_when_the_node_comes():
    """Kinds are listed side by side: order must not matter."""
    cluster = Cluster().see(bound("a", gpu_class=GpuClass.EXCLUSIVE, gpus=8), quota(gpus=9))
    assert cluster.engine.tenants()[0].used_gpus == 8
    cluster.see(node())
    assert cluster.why_not(pod("b")) is Reason.GPU_COUNT
    assert cluster.engine.tenants()[0].used_hbm_bytes == 8 * 80 * 2**30


def test_an_exporters_figures_may_come_before_their_node():
    """And an exporter that goes leaves nothing behind."""
    scrape = use("n1", *(gpu_use(i, used_gib=70, free_gib=10) for i in range(8)))
    cluster = Cluster().see(scrape, node())
    assert cluster.why_not(pod(hbm_gib=40)) is Reason.HBM_SHORT
    cluster.engine.observe_use("n1", None)
    assert cluster.why_not(pod(hbm_gib=40)) is None
    ghost = Cluster().see(scrape)
    ghost.engine.observe_use("n1", None)
    assert len(ghost.engine._fleet) == 0


def test_a_node_that_goes_and_comes_back_still_holds_its_pods():
    """A label change seen as a removal and an addition frees nothing."""
    cluster = Cluster(node("n1", pool(devices=1))).see(bound("a", gpu_class=GpuClass.EXCLUSIVE))
    cluster.engine.observe_node("n1", None)
    cluster.see(node("n1", pool(devices=1)))
    assert cluster.why_not(pod("b")) is Reason.GPU_COUNT


def test_a_restarted_engine_books_the_same_devices():
    """Assumed indexes travel in the annotation, so a fresh list gives the same state."""
    cluster = Cluster(node("n1", shared_pool(devices=2)))
    seen = []
    for name, hbm in (("a", 30), ("b", 20), ("c", 40)):
        one = pod(name, hbm_gib=hbm)
        reservation = cluster.engine.reserve(cluster.demand(one), "n1", now_s=1)
        assert isinstance(reservation, Reservation)
        cluster.engine.settle(one.uid, "n1", now_s=1)
        seen.append(replace(one, node="n1", reservation=reservation))
    fresh = Cluster(node("n1", shared_pool(devices=2))).see(*reversed(seen))
    assert fresh.engine.nodes(now_s=1) == cluster.engine.nodes(now_s=1)


def test_a_pod_whose_binding_is_in_doubt_is_admitted_to_its_node_alone():
    """kubernetes/kubernetes#96579: kube-scheduler filters again before it retries; elsewhere bind would refuse it."""
    cluster = Cluster(node("n1", pool(devices=1)), node("n2")).see(quota(gpus=1))
    demand = cluster.demand(pod("a"))
    cluster.engine.reserve(demand, "n1", now_s=1)
    verdict = cluster.engine.filter_nodes(demand, ["n1", "n2"], now_s=2)
    assert verdict.admitted == ["n1"]
    assert verdict.counts == {Reason.BINDING_UNDECIDED: 1}
    assert cluster.engine.would_admit(demand, ["n2"], now_s=2) is Reason.BINDING_UNDECIDED
    assert cluster.choose(pod("a")) == "n1"
    cluster.engine.release("uid-a", "n1")
    assert cluster.admitted(pod("a")) == ["n1", "n2"]


def test_a_decision_and_its_reservation_have_one_id():
    """Log and annotation join, whatever changed in between; somebody else's id is not taken over."""
    cluster = Cluster(node())
    decision = cluster.engine.choose_node(cluster.demand(pod("a")), ["n1"], now_s=1)
    cluster.see(pod("x", on="n1"))
    answer = cluster.engine.reserve(cluster.demand(pod("a")), "n1", now_s=2, decision_id=decision.decision_id)
    assert isinstance(answer, Reservation)
    assert answer.decision_id == decision.decision_id
    other = cluster.engine.reserve(cluster.demand(pod("b")), "n1", now_s=2, decision_id="uid-z-1")
    assert isinstance(other, Reservation)
    assert other.decision_id.startswith("uid-b-")


def test_of_two_scrapes_the_later_observation_holds():
    """ai-dynamo/dynamo#7753: whatever arrives last."""
    cluster = Cluster(node("n1", pool(devices=1)))
    cluster.see(use("n1", gpu_use(used_gib=70, free_gib=10), at_s=50), use("n1", gpu_use(), at_s=40))
    assert cluster.why_not(pod(hbm_gib=40)) is Reason.HBM_SHORT
