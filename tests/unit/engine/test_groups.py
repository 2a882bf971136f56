"""Groups of pods that are placed all or none: a half-bound group cannot arise through us."""

import pytest

from kvaware_engine import Engine, PodObservation, Reason, Reservation
from kvaware_engine.groups import MOST_PASSES, Groups
from kvaware_engine.observations import ObjectKey
from kvaware_testing.builders import EXACT_HBM, Cluster, bound, gpu_use, node, pod, pool, quota, shared_pool, use

KEY = ObjectKey("ml", "gang")


def member(name: str, **options: object) -> PodObservation:
    """A pod of the group that wants one GPU."""
    return pod(name, group="gang", **options)  # type: ignore[arg-type]


def cluster_of(*gpus: int) -> Cluster:
    """Nodes n1, n2, … with so many GPUs."""
    return Cluster(*(node(f"n{i}", pool(devices=count)) for i, count in enumerate(gpus, start=1)), settings=EXACT_HBM)


def place(cluster: Cluster, one: PodObservation) -> str | None:
    """The one node that filter gives the member."""
    admitted = cluster.admitted(one)
    assert len(admitted) <= 1, "kube-scheduler must not have a choice that we do not know"
    return admitted[0] if admitted else None


def test_filter_gives_a_member_one_node_only():
    """Its place must be known before any other member is bound; kube-scheduler may choose among what it is given."""
    cluster = cluster_of(1, 1)
    verdict = cluster.engine.filter_nodes(cluster.demand(member("a")), ["n1", "n2"], now_s=cluster.now_s)
    assert len(verdict.admitted) == 1
    assert verdict.counts == {Reason.GROUP_ELSEWHERE: 1}
    assert cluster.admitted(pod("alone")) == [{"n1": "n2", "n2": "n1"}[verdict.admitted[0]]]


def test_the_first_bind_keeps_the_places_of_all_members():
    """Between two binds anything may come: another scheduler's pod, a late bind, time."""
    cluster = cluster_of(1, 1, 1)
    members = [member(name) for name in "abc"]
    places = [place(cluster, one) for one in members]
    assert set(places) == {"n1", "n2", "n3"}
    assert cluster.bind(members[0], str(places[0])) is None
    cluster.now_s += 300  # the others wait for their volumes: longer than any intent stands
    cluster.engine.tick(cluster.now_s)
    assert cluster.admitted(pod("x")) == []
    assert cluster.bind(pod("y"), str(places[1])) is Reason.GPU_COUNT
    assert [cluster.bind(one, str(at)) for one, at in zip(members[1:], places[1:], strict=True)] == [None, None]


def test_a_member_is_never_refused_once_another_is_bound():
    """Short of node loss: quota that shrinks, and memory that a stranger takes, come too late."""
    cluster = cluster_of(1, 1).see(quota(gpus=2))
    a, b = member("a", hbm_gib=60), member("b", hbm_gib=60)
    at_a, at_b = place(cluster, a), place(cluster, b)
    assert cluster.bind(a, str(at_a)) is None
    cluster.see(quota(gpus=0), use(str(at_b), gpu_use(used_gib=70, free_gib=10)))
    assert cluster.bind(b, str(at_b)) is None


def test_a_member_whose_node_is_gone_is_refused():
    cluster = cluster_of(1, 1)
    a, b = member("a"), member("b")
    at_a, at_b = place(cluster, a), place(cluster, b)
    cluster.bind(a, str(at_a))
    cluster.engine.observe_node(str(at_b), None)
    assert cluster.bind(b, str(at_b)) is Reason.NODE_UNKNOWN


def test_where_one_place_is_lost_before_the_first_bind_no_member_is_bound():
    """A pod of another scheduler came between filter and bind: all or none."""
    cluster = cluster_of(1, 1, 1)
    members = [member(name) for name in "abc"]
    places = [str(place(cluster, one)) for one in members]
    cluster.see(pod("thief", on=places[2], scheduler_name="default-scheduler"))
    reasons = [cluster.bind(one, at) for one, at in zip(members, places, strict=True)]
    assert reasons == [Reason.GROUP_INCOMPLETE] * 3
    assert cluster.admitted(pod("x")) == places[:2], "nothing is held"
    # and filter then says what is the matter
    assert place(cluster, members[0]) is not None
    assert place(cluster, members[1]) is not None
    assert place(cluster, members[2]) is None


def test_the_member_that_lost_its_own_place_says_why():
    cluster = cluster_of(1, 1)
    a, b = member("a"), member("b")
    at_a, at_b = str(place(cluster, a)), str(place(cluster, b))
    cluster.see(pod("thief", on=at_a, scheduler_name="default-scheduler"))
    assert cluster.bind(a, at_a) is Reason.GPU_COUNT
    assert cluster.bind(b, at_b) is Reason.GROUP_INCOMPLETE


def test_after_a_refusal_no_member_is_bound_without_the_others():
    """kube-scheduler takes its binds back one by one: the first that it tries again counts on those still assumed."""
    cluster = cluster_of(1, 1, 1)
    members = [member(name) for name in "abc"]
    cluster.see(*members)
    places = [str(place(cluster, one)) for one in members]
    thief = pod("thief", on=places[2], scheduler_name="default-scheduler")
    cluster.see(thief)
    assert cluster.bind(members[0], places[0]) is Reason.GROUP_INCOMPLETE
    again = str(place(cluster, members[0]))
    assert cluster.bind(members[0], again) is Reason.GROUP_INCOMPLETE
    assert [cluster.bind(one, at) for one, at in zip(members[1:], places[1:], strict=True)] == [
        Reason.GROUP_INCOMPLETE
    ] * 2
    # and when all are tried together they are bound, with fewer members too when one is given up
    cluster.gone(thief).gone(members[2])
    at_a, at_b = str(place(cluster, members[0])), str(place(cluster, members[1]))
    assert (cluster.bind(members[0], at_a), cluster.bind(members[1], at_b)) == (None, None)


def test_quota_is_checked_for_all_members_before_any_is_bound():
    """A limit lowered between filter and bind must not cut a group in two."""
    cluster = cluster_of(1, 1, 1).see(quota(gpus=3))
    members = [member(name) for name in "abc"]
    places = [str(place(cluster, one)) for one in members]
    cluster.see(quota(gpus=2))
    assert [cluster.bind(one, at) for one, at in zip(members, places, strict=True)] == [Reason.GROUP_INCOMPLETE] * 3
    assert cluster.engine.tenants()[0].used_gpus == 0


def test_a_group_that_was_not_answered_for_is_not_begun():
    """After a restart filter's answers are gone; kube-scheduler tries the whole group again."""
    fresh = cluster_of(1, 1).see(member("a"), member("b"))
    assert fresh.bind(member("a"), "n1") is Reason.GROUP_INCOMPLETE
    at_a, at_b = str(place(fresh, member("a"))), str(place(fresh, member("b")))
    assert (fresh.bind(member("a"), at_a), fresh.bind(member("b"), at_b)) == (None, None)


def test_after_a_restart_a_begun_group_is_finished():
    """One member is bound; the others are bound wherever there is room."""
    fresh = cluster_of(1, 1).see(bound("a", on="n1", group="gang"), member("b"))
    assert fresh.bind(member("b"), "n2") is None


def test_a_late_member_of_a_begun_group_has_its_place_kept_from_filter_on():
    """More pods than the group needs to start: they come later, one by one, and must not be refused at bind either."""
    cluster = cluster_of(1, 1).see(bound("a", on="n1", group="gang"))
    late = member("late")
    assert place(cluster, late) == "n2"
    cluster.now_s += 60
    assert cluster.admitted(pod("x")) == []
    assert cluster.bind(pod("y"), "n2") is Reason.GPU_COUNT
    assert cluster.bind(late, "n2") is None


def test_a_member_that_is_filtered_again_stays_at_its_place_where_it_can():
    """Its volume could not be made: kube-scheduler tries it again, among all nodes."""
    cluster = cluster_of(1, 1, 1)
    a, b = member("a"), member("b")
    at_a, at_b = str(place(cluster, a)), str(place(cluster, b))
    cluster.bind(a, at_a)
    assert place(cluster, b) == at_b
    other = next(name for name in ("n1", "n2", "n3") if name not in (at_a, at_b))
    assert cluster.engine.filter_nodes(cluster.demand(b), [other], now_s=cluster.now_s).admitted == [other]
    assert cluster.admitted(pod("x")) == [at_b], "its place is elsewhere now"
    assert cluster.bind(b, other) is None


def test_a_member_whose_binding_the_api_server_refuses_keeps_its_place():
    """The others are on their way already."""
    cluster = cluster_of(1, 1)
    a, b = member("a"), member("b")
    at_a, at_b = str(place(cluster, a)), str(place(cluster, b))
    assert isinstance(cluster.engine.reserve(cluster.demand(a), at_a, now_s=cluster.now_s), Reservation)
    assert cluster.bind(b, at_b) is None
    cluster.engine.release(a.uid, at_a)
    assert cluster.admitted(pod("x")) == []
    assert place(cluster, a) == at_a
    assert cluster.bind(a, at_a) is None


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda c, b: c.gone(b), id="deleted"),
        pytest.param(
            lambda c, b: c.engine.forget_unseen(listed_at_s=c.now_s + 1, uids=set()), id="missing from a list"
        ),
        pytest.param(lambda c, b: setattr(c, "now_s", c.now_s + 661), id="never bound"),
    ],
)
def test_a_place_is_not_kept_for_ever(end):
    cluster = cluster_of(1, 1)
    a, b = member("a"), member("b")
    cluster.see(a, b)
    at_a, at_b = str(place(cluster, a)), str(place(cluster, b))
    cluster.bind(a, at_a)
    end(cluster, b)
    assert at_b in cluster.admitted(pod("x"))


def test_kept_places_are_charged_once():
    """What is promised to members counts against their tenant as if they were bound, and not twice when they are."""
    cluster = cluster_of(1, 1).see(quota(gpus=2))
    a, b = member("a"), member("b")
    at_a, at_b = str(place(cluster, a)), str(place(cluster, b))
    cluster.bind(a, at_a)
    assert cluster.engine.tenants()[0].used_gpus == 2
    assert cluster.why_not(pod("x"), at_b) is Reason.TENANT_GPU_LIMIT
    cluster.bind(b, at_b)
    cluster.see(bound("a", on=at_a, group="gang"), bound("b", on=at_b, group="gang"))
    assert cluster.engine.tenants()[0].used_gpus == 2


def test_shared_gpus_have_room_for_a_whole_group_or_for_none_of_it():
    """Each of three members fits; all three do not."""
    cluster = Cluster(node("n1", shared_pool()), settings=EXACT_HBM)
    members = [member(name, hbm_gib=30) for name in "abc"]
    assert [place(cluster, one) for one in members] == ["n1", "n1", None]
    cluster.now_s += 11
    cluster.see(*members)
    for one in members:
        assert cluster.engine.would_admit(cluster.demand(one), now_s=cluster.now_s) is Reason.HBM_SHORT
    smaller = [member(name, hbm_gib=25) for name in "abc"]
    cluster.see(*smaller)
    assert cluster.engine.would_admit(cluster.demand(smaller[2]), now_s=cluster.now_s) is None


def test_a_group_is_not_woken_for_a_part_of_it():
    """Each wake-up would be a whole pass of kube-scheduler over the group, for nothing."""
    cluster = cluster_of(1, 1).see(pod("x", on="n1"))
    members = [member("a"), member("b")]
    cluster.see(*members)
    assert [place(cluster, one) for one in members] == ["n2", None]
    before = (cluster.engine.version, cluster.engine.nodes(now_s=cluster.now_s))
    assert cluster.engine.would_admit(cluster.demand(members[1]), now_s=cluster.now_s) is Reason.GPU_COUNT
    assert (cluster.engine.version, cluster.engine.nodes(now_s=cluster.now_s)) == before, "a question leaves no trace"
    cluster.now_s += 11
    assert cluster.engine.would_admit(cluster.demand(members[1]), now_s=cluster.now_s) is Reason.GPU_COUNT
    cluster.gone(pod("x"))
    assert cluster.engine.would_admit(cluster.demand(members[1]), now_s=cluster.now_s) is None


def test_of_several_passes_the_one_counts_that_kube_scheduler_binds():
    """Placements by topology are tried one after another, and the best may be the first one tried."""
    cluster = cluster_of(2, 2)
    a, b = member("a"), member("b")
    for rack in (["n1"], ["n2"]):
        for one in (a, b):
            assert cluster.engine.filter_nodes(cluster.demand(one), rack, now_s=cluster.now_s).admitted == rack
    assert cluster.bind(a, "n1") is None
    assert cluster.admitted(pod("x", gpus=2)) == ["n2"]
    assert cluster.bind(b, "n1") is None


def test_two_groups_and_single_pods_do_not_mix():
    """A group's name is its namespace's; a LeaderWorkerSet without a PodGroup goes pod by pod."""
    cluster = cluster_of(1, 1, 1)
    a = member("a")
    other = pod("other", group="gang", namespace="elsewhere")
    at_a, at_other = str(place(cluster, a)), str(place(cluster, other))
    assert cluster.bind(a, at_a) is None
    cluster.now_s += 11
    assert at_other in cluster.admitted(pod("x")), "not kept by somebody else's bind"


def test_an_old_generation_that_terminates_does_not_begin_the_next():
    """A job is made again under the same name while its first pods still end."""
    cluster = cluster_of(1, 1).see(bound("old", on="n1", group="gang", terminating=True), member("a"))
    assert cluster.bind(member("a"), "n2") is Reason.GROUP_INCOMPLETE


def test_a_member_asked_about_twice_in_a_row_is_in_one_pass():
    """Its nominated node is offered alone at first, then all nodes."""
    groups = Groups(pass_s=10, forget_after_s=60)
    engine = Engine()
    a, b = engine.demand(member("a")), engine.demand(member("b"))
    groups.answer(KEY, a, "n1", now_s=1)
    groups.answer(KEY, b, None, now_s=1)
    groups.answer(KEY, b, "n2", now_s=1)
    assert [answer.node for answer in groups.places(KEY, a.uid, "n1")] == ["n1", "n2"]


def test_what_is_remembered_of_groups_is_bounded():
    """Passes by number, answers by time; an old attempt's answer is no part of a new one."""
    groups = Groups(pass_s=10, forget_after_s=60)
    engine = Engine()
    a, b = engine.demand(member("a")), engine.demand(member("b"))
    for second in range(2 * MOST_PASSES):
        groups.answer(KEY, a, f"n{second}", now_s=second)
        groups.answer(KEY, b, "n", now_s=second)
    assert groups.places(KEY, a.uid, "n0") == []
    assert len(groups.places(KEY, a.uid, f"n{2 * MOST_PASSES - 1}")) == 2
    groups.answer(KEY, a, "late", now_s=100)
    groups.answer(KEY, b, "later", now_s=111)
    assert [answer.node for answer in groups.places(KEY, a.uid, "late")] == ["late"]
    groups.expire(171)
    assert groups.places(KEY, b.uid, "later") == []
    assert not groups._passes
