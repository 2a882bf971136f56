"""Which of the nodes that can take a pod is chosen, and what is said about it."""

from dataclasses import replace

import pytest

from kvaware_engine import CopyState, EngineSettings, GpuClass, PodCostSettings, Reason, Tier, emptiest
from kvaware_testing.builders import (
    EXACT_HBM,
    GIB,
    Cluster,
    block_group,
    bound,
    gpu_use,
    model,
    node,
    pod,
    pool,
    shared_pool,
    use,
)


def cost(cluster: Cluster, one, node_name: str):
    """The cost terms of one candidate."""
    explanation = cluster.engine.explain(cluster.demand(one), now_s=cluster.now_s)
    return next(candidate for candidate in explanation.candidates if candidate.node == node_name).cost


def test_the_node_with_the_weights_is_chosen_over_the_emptiest():
    """Fetching 20 GiB at 1.25 GB/s costs 17 s; a fuller node that has them is ready sooner."""
    cluster = Cluster(node("a-empty"), node("b-warm", weights=["acme/m@main"])).see(
        model(), *(pod(f"x{i}", on="b-warm") for i in range(6))
    )
    decision = cluster.engine.choose_node(cluster.demand(pod(model="m")), ["a-empty", "b-warm"], now_s=1)
    assert decision.chosen is not None
    assert (decision.chosen.node, decision.reason) == ("b-warm", Reason.WEIGHTS_ON_NODE)
    assert decision.runner_up is not None
    assert decision.runner_up.cost is not None
    assert decision.runner_up.cost.network == pytest.approx(20 * GIB / 1.25e9 * 1000)
    assert decision.scores[1] == 10
    assert decision.scores[0] <= 9


def test_weights_near_are_cheaper_than_weights_far():
    """The same clique, the same rack, the same zone, elsewhere: the faster link first."""
    cluster = Cluster(
        node("source", pool(devices=1), weights=["acme/m"], clique="c", rack="r", zone="z"),
        node("clique", clique="c", rack="r2", zone="z"),
        node("rack", rack="r", zone="z"),
        node("zone", zone="z"),
        node("far", zone="other"),
        settings=EngineSettings(pod_costs=PodCostSettings(clique_gain_ms=0, rack_gain_ms=0)),
    ).see(model(), pod("x", on="source"))
    networks = [cost(cluster, pod(model="m"), name).network for name in ("clique", "rack", "zone", "far")]
    weight = 20 * GIB * 1000
    assert networks == pytest.approx([weight / 50e9, weight / 12.5e9, weight / 3.125e9, weight / 1.25e9])


def test_a_rack_name_of_another_zone_is_another_rack():
    """Rack labels are often unique inside a zone only."""
    cluster = Cluster(node("a", zone="z1", rack="1", weights=["acme/m"]), node("b", zone="z2", rack="1")).see(model())
    assert cost(cluster, pod(model="m"), "b").network == pytest.approx(20 * GIB / 1.25e9 * 1000)


def test_a_node_that_ran_the_model_lately_still_has_its_weights():
    """Until the time to live is up."""
    ran = bound("old", on="n2", gpu_class=GpuClass.EXCLUSIVE, model="m")
    cluster = Cluster(node("n1"), node("n2")).see(model(), ran)
    cluster.gone(ran)
    assert cluster.choose(pod("new", model="m")) == "n2"
    cluster.now_s += 3601
    cluster.engine.tick(cluster.now_s)
    assert cluster.choose(pod("new", model="m")) == "n1"


def test_another_revision_needs_other_weights():
    """A revision in the annotation speaks for that revision alone."""
    cluster = Cluster(node("n1"), node("n2", weights=["acme/m@v1"])).see(model(revision="v2"))
    assert cost(cluster, pod(model="m"), "n2").network > 0


def test_block_groups_on_the_node_are_loaded_elsewhere_copied_or_recomputed():
    """1 GiB: 43 ms from the node's CPU memory, 86 over the rack; elsewhere prefill (819) beats the copy (859)."""
    holder = bound("w", on="holder", gpu_class=GpuClass.EXCLUSIVE)
    cluster = Cluster(node("holder", rack="r", zone="z"), node("near", rack="r", zone="z"), node("far", zone="y")).see(
        model(weights_gib=0), holder, block_group(copies=[("ml:w:0", Tier.CPU, 1)])
    )
    wanting = pod(model="m")
    assert cost(cluster, wanting, "holder").cache_access == pytest.approx(GIB / 25e9 * 1000)
    assert cost(cluster, wanting, "near").migration == pytest.approx(GIB / 12.5e9 * 1000)
    # 1 GiB / 128 KiB = 8,192 tokens at 10,000 a second = 819 ms, cheaper than 859 ms over the far link
    assert cost(cluster, wanting, "far").cache_access == pytest.approx(819.2)
    assert cost(cluster, wanting, "far").migration == 0
    views = {c.node: c for c in cluster.engine.explain(cluster.demand(wanting), now_s=1).candidates}
    assert [views[name].cache_location for name in ("holder", "near", "far")] == ["node", "near", "far"]
    assert views["holder"].kv_bytes_on_node == GIB


@pytest.mark.parametrize("state", [CopyState.LOADING, CopyState.EVICTING, CopyState.EVICTED, CopyState.LOST])
def test_a_copy_that_does_not_serve_is_nowhere(state):
    """Only Resident and Migrating copies serve."""
    cluster = Cluster(node("n1")).see(
        model(), bound("w", gpu_class=GpuClass.EXCLUSIVE), block_group(copies=[("ml:w:0", Tier.HBM, 1)], state=state)
    )
    assert cluster.engine.explain(cluster.demand(pod(model="m")), now_s=1).candidates[0].cache_location == "none"


def test_a_worker_that_is_bound_after_its_copy_was_announced_is_found():
    """Kinds are listed in any order."""
    cluster = Cluster(node("n1"), node("n2")).see(model(), block_group(copies=[("ml:w:0", Tier.CPU, 1)]))
    before = cost(cluster, pod(model="m"), "n2").cache_access
    cluster.see(bound("w", on="n2", gpu_class=GpuClass.EXCLUSIVE))
    assert cost(cluster, pod(model="m"), "n2").cache_access > before


def test_whole_nodes_are_left_for_large_models():
    """One GPU goes where the fewest stay free; an empty node stays whole."""
    cluster = Cluster(node("a-empty"), node("b-half")).see(*(pod(f"x{i}", on="b-half") for i in range(5)))
    decision = cluster.engine.choose_node(cluster.demand(pod()), ["a-empty", "b-half"], now_s=1)
    assert decision.chosen is not None
    assert decision.chosen.node == "b-half"
    assert decision.reason is Reason.LEAST_FRAGMENTATION


def test_large_hbm_is_left_for_large_models():
    """A 20 GiB pod goes to the 24 GiB GPU although both are free."""
    cluster = Cluster(node("a-h100", pool(devices=1)), node("b-l4", pool(devices=1, hbm_gib=24)))
    assert cluster.choose(pod(hbm_gib=20)) == "b-l4"


def test_shared_gpus_are_packed():
    """The GPU with the tighter rest is chosen."""
    cluster = Cluster(node("a", shared_pool()), node("b", shared_pool())).see(bound("x", on="b", hbm_gib=30))
    assert cluster.choose(pod(hbm_gib=40)) == "b"


def test_replicas_of_a_hot_model_do_not_crowd_on_one_node():
    """Three seconds for each pod of the model that is there already."""
    settings = EngineSettings(
        hbm=EXACT_HBM.hbm, pod_costs=PodCostSettings(clique_gain_ms=0, rack_gain_ms=0, fragmentation_ms=0)
    )
    cluster = Cluster(node("a", weights=["acme/m"]), node("b", weights=["acme/m"]), settings=settings).see(
        model(), bound("r1", on="a", gpu_class=GpuClass.EXCLUSIVE, model="m")
    )
    assert cost(cluster, pod(model="m"), "a").compute_wait == 3000
    assert cluster.choose(pod(model="m")) == "b"


def test_a_node_near_the_models_other_pods_is_preferred():
    """The clique before the rack before elsewhere, all else equal."""
    cluster = Cluster(
        node("peer", pool(devices=1), clique="c", rack="r", zone="z"),
        node("a-far", zone="y"),
        node("b-rack", rack="r", zone="z"),
        node("c-clique", clique="c", zone="z"),
    ).see(model(weights_gib=0), bound("r1", on="peer", gpu_class=GpuClass.EXCLUSIVE, model="m"))
    gains = [cost(cluster, pod(model="m"), name).locality_gain for name in ("a-far", "b-rack", "c-clique")]
    assert gains == [0, 500, 1000]
    assert cluster.choose(pod(model="m")) == "c-clique"


def test_a_node_whose_state_is_known_is_preferred_to_one_without_an_exporter():
    """Doubt has a price: 10 s times what is not believed."""
    cluster = Cluster(node("a-dark", pool(devices=1)), node("b-seen", pool(devices=1)))
    cluster.see(use("b-seen", gpu_use(), at_s=cluster.now_s))
    assert cost(cluster, pod(), "a-dark").risk == pytest.approx(3000)
    assert cost(cluster, pod(), "b-seen").risk == pytest.approx(0)
    assert cluster.choose(pod()) == "b-seen"


def test_of_equal_nodes_the_first_name_is_chosen_and_alone_has_ten():
    """Ties are settled, whatever the order offered."""
    cluster = Cluster(node("a"), node("b"), node("c"))
    for order in (["a", "b", "c"], ["c", "b", "a"]):
        decision = cluster.engine.choose_node(cluster.demand(pod()), order, now_s=1)
        assert dict(zip(order, decision.scores, strict=True)) == {"a": 10, "b": 9, "c": 9}
        assert decision.chosen is not None
        assert decision.runner_up is not None
        assert (decision.chosen.node, decision.runner_up.node) == ("a", "b")


def test_a_node_that_cannot_take_the_pod_scores_zero_and_is_never_chosen():
    """Prioritize may be asked about nodes that changed since filter."""
    cluster = Cluster(node("full", pool(devices=1)), node("free")).see(pod("x", on="full"))
    decision = cluster.engine.choose_node(cluster.demand(pod()), ["full", "free", "unknown"], now_s=1)
    assert decision.scores == [0, 10, 0]
    assert decision.reason is Reason.ONLY_CANDIDATE
    nothing = cluster.engine.choose_node(cluster.demand(pod("y")), ["full"], now_s=1)
    assert (nothing.chosen, nothing.scores, nothing.reason) == (None, [0], Reason.GPU_COUNT)


def test_the_six_questions_are_answered():
    """design.md §9: every decision can answer them, refused or not."""
    foreign = [gpu_use(i) for i in range(7)] + [gpu_use(7, used_gib=70, free_gib=10)]
    cluster = Cluster(node("a-empty", clique="c"), node("b-warm", weights=["acme/m"])).see(
        model(), use("a-empty", *foreign), pod("x", on="b-warm")
    )
    explanation = cluster.engine.explain(cluster.demand(pod(model="m")), now_s=cluster.now_s)
    assert len(explanation.answers) == 6
    assert all(answer.endswith(".") for answer in explanation.answers.values())
    assert explanation.answers["Where should it go?"].startswith("b-warm")
    assert "a-empty has 8 GPUs free and cannot take it" in explanation.answers["Why not the emptiest GPU?"]
    assert "40.0 GiB per GPU" in explanation.answers["Could this blow up HBM?"]
    refused = cluster.engine.explain(cluster.demand(pod("y", gpus=9)), now_s=cluster.now_s)
    assert refused.verdict == "refused"
    assert len(refused.answers) == 6
    assert "not enough free GPUs" in refused.answers["Where should it go?"]


def test_the_emptiest_node_is_found_without_looking_at_anything_else():
    """What this product exists to beat."""
    cluster = Cluster(node("a"), node("b", weights=["acme/m"])).see(model(), pod("x", on="b"))
    explanation = cluster.engine.explain(cluster.demand(pod(model="m")), now_s=1)
    empty = emptiest(explanation.candidates)
    assert empty is not None
    assert empty.node == "a"
    assert explanation.chosen == "b"


def test_a_node_that_cannot_take_the_pod_is_never_the_emptiest():
    """It has no cost to compare with; that it only looks emptier is said beside it."""
    cluster = Cluster(node("a"), node("b", ready=False, clique="c")).see(pod("x", on="a", gpus=4))
    explanation = cluster.engine.explain(cluster.demand(pod()), now_s=1)
    assert explanation.emptiest == "a"
    assert "b has 8 GPUs free and cannot take it" in explanation.answers["Why not the emptiest GPU?"]


def test_an_explanation_of_a_bound_pod_shows_its_reservation():
    """What it holds, from its annotation."""
    one = bound("a", hbm_gib=30)
    cluster = Cluster(node("n1", shared_pool())).see(one)
    explanation = cluster.engine.explain(cluster.demand(one), now_s=1)
    assert explanation.reservation == one.reservation


def test_a_nodes_view_shows_what_each_gpu_holds():
    """For /v1/nodes."""
    cluster = Cluster(node("n1", shared_pool(devices=2), problems=["nvidia.com/gpu.memory: expected MiB, got 'x'"]))
    cluster.see(bound("a", hbm_gib=30, devices=(1,)), use("n1", gpu_use(0), gpu_use(1, used_gib=50, free_gib=30)))
    view = cluster.engine.nodes(now_s=cluster.now_s)[0]
    second = view.pools[0].gpus[1]
    assert (second.reserved_bytes, second.foreign_bytes) == (30 * GIB, 20 * GIB)  # 50 used, 30 explained
    assert [key.name for key in second.pods] == ["a"]
    assert view.problems == ("nvidia.com/gpu.memory: expected MiB, got 'x'",)
    assert view.use_age_s == 100


def test_a_bound_pod_is_not_in_its_own_way_when_it_is_explained():
    """It fills the node, and its use is its own, not somebody else's."""
    one = bound("a", gpu_class=GpuClass.EXCLUSIVE, gpus=8)
    scrape = use("n1", *(gpu_use(i, used_gib=70, free_gib=10, pod_key=("ml", "a")) for i in range(8)))
    cluster = Cluster(node("n1")).see(one, scrape)
    before = cluster.engine.version, cluster.engine.nodes(now_s=1)
    explanation = cluster.engine.explain(cluster.demand(one), now_s=1)
    assert explanation.chosen == "n1"
    assert explanation.candidates[0].foreign_bytes == 0
    assert explanation.candidates[0].free_gpus == 8
    assert (cluster.engine.version, cluster.engine.nodes(now_s=1)) == before


def test_the_reason_given_is_one_that_concerns_the_pod():
    """Five nodes without the resource say less than the one whose slice is too small."""
    mig = "nvidia.com/mig-1g.10gb"
    cluster = Cluster(
        *(node(f"n{i}") for i in range(5)),
        node("mig", pool(resource=mig, gpu_class=GpuClass.PARTITION, hbm_gib=10)),
    )
    wanting = cluster.demand(pod(resource=mig, hbm_gib=20))
    assert cluster.engine.would_admit(wanting, now_s=1) is Reason.PARTITION_TOO_SMALL
    assert cluster.engine.explain(wanting, now_s=1).reason is Reason.PARTITION_TOO_SMALL


def test_a_decision_keeps_the_emptiest_node_for_its_explanation():
    """Most HBM to give, then most free GPUs, then the first name: here not what was chosen."""
    cluster = Cluster(node("a", pool(devices=4)), node("b"), node("c", weights=["acme/m"])).see(
        model(), pod("x", on="c")
    )
    decision = cluster.engine.choose_node(cluster.demand(pod(model="m")), ["a", "b", "c"], now_s=1)
    assert decision.chosen is not None
    assert decision.emptiest is not None
    assert (decision.chosen.node, decision.emptiest.node) == ("c", "b")


def test_a_bound_pod_does_not_crowd_with_itself_nor_keep_itself_company():
    """After a restart its explanation is of now; the weights that it loaded are there all the same."""
    one = bound("r1", on="b", gpu_class=GpuClass.EXCLUSIVE, model="m")
    cluster = Cluster(node("a"), node("b")).see(model(), one)
    explanation = cluster.engine.explain(cluster.demand(one), now_s=1)
    there = next(candidate for candidate in explanation.candidates if candidate.node == "b")
    assert there.cost is not None
    assert (there.cost.compute_wait, there.cost.locality_gain, there.weights_location) == (0, 0, "node")
    assert explanation.chosen == "b"
    assert cost(cluster, pod("next", model="m"), "b").compute_wait == 3000


def test_a_cordoned_node_is_not_said_to_be_open():
    """kube-scheduler does not offer it; where it does (a toleration), kvaware has nothing against it."""
    cluster = Cluster(replace(node("n1"), unschedulable=True))
    demand = cluster.demand(pod())
    assert cluster.engine.explain(demand, now_s=1).reason is Reason.NODE_CORDONED
    assert cluster.engine.would_admit(demand, now_s=1) is Reason.NODE_CORDONED
    assert cluster.engine.filter_nodes(demand, ["n1"], now_s=1).admitted == ["n1"]


def test_another_machine_of_the_same_name_does_not_have_the_weights():
    """They were on the disk of the one that went."""
    ran = bound("old", on="n2", gpu_class=GpuClass.EXCLUSIVE, model="m")
    cluster = Cluster(node("n1"), node("n2")).see(model(), ran)
    cluster.gone(ran)
    cluster.engine.observe_node("n2", None)
    cluster.see(node("n2"))
    assert cost(cluster, pod("new", model="m"), "n2").network > 0


def test_made_up_model_names_leave_nothing_behind():
    """llm-d/llm-d-router#1625's cousin: whoever asks with new names must not fill the memory."""
    cluster = Cluster(node()).see(model())
    for i in range(50):
        cluster.engine.explain(cluster.demand(pod(f"p{i}", model=f"made-up-{i}")), now_s=1)
    assert len(cluster.engine._places._cache) <= 2
    assert not cluster.engine._places._pod_columns
