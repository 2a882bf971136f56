"""Which nodes can take a pod at all, and how filter says no."""

from kvaware_engine import REFUSAL_TEXTS, Reason
from kvaware_testing.builders import Cluster, model, node, pod, pool, quota


def test_an_unhealthy_or_unknown_node_is_refused():
    """Health first: what is wrong with a sick node's HBM does not matter."""
    cluster = Cluster(node("sick", ready=False))
    assert cluster.why_not(pod(), "sick") is Reason.NODE_UNHEALTHY
    assert cluster.why_not(pod(), "never-seen") is Reason.NODE_UNKNOWN


def test_a_removed_node_is_unknown_and_its_row_is_used_again():
    """Nodes come and go; the columns must not mix them up."""
    cluster = Cluster(node("a", pool(devices=1)), node("b"))
    cluster.engine.observe_node("a", None)
    assert cluster.why_not(pod(), "a") is Reason.NODE_UNKNOWN
    cluster.see(node("c", pool(devices=2)))
    assert cluster.why_not(pod(gpus=2), "c") is None
    assert cluster.why_not(pod(gpus=3), "c") is Reason.GPU_COUNT
    assert cluster.why_not(pod(gpus=8), "b") is None


def test_many_nodes_outgrow_the_first_columns():
    """The columns start small and double."""
    cluster = Cluster(*(node(f"n{i:03}", pool(devices=1 + i % 8)) for i in range(300)))
    assert cluster.admitted(pod(gpus=8)) == [f"n{i:03}" for i in range(300) if i % 8 == 7]


def test_a_pod_without_gpus_only_needs_a_healthy_node():
    """A model's CPU-only pod is ours, and takes no HBM."""
    cluster = Cluster(node("a", pool(hbm_gib=None)), node("b", ready=False)).see(model())
    assert cluster.admitted(pod(gpus=0, model="m")) == ["a"]


def test_admitted_nodes_keep_the_order_offered_and_the_rest_has_a_text_each():
    """kube-scheduler treats a node that is left out as unresolvable; we still say why for each."""
    cluster = Cluster(node("a"), node("b", pool(devices=1)), node("c"))
    verdict = cluster.engine.filter_nodes(cluster.demand(pod(gpus=4)), ["c", "b", "a"], now_s=1)
    assert verdict.admitted == ["c", "a"]
    assert verdict.refused == {"b": REFUSAL_TEXTS[Reason.GPU_COUNT]}
    assert verdict.counts == {Reason.GPU_COUNT: 1}


def test_a_pod_level_refusal_names_one_node_whatever_the_order_offered():
    """Same state, byte-identical maps: kube-scheduler offers nodes in any order."""
    cluster = Cluster(node("a"), node("b"))
    demand = cluster.demand(pod(model="missing"))
    maps = {
        tuple(cluster.engine.filter_nodes(demand, order, now_s=1).refused.items()) for order in (["a", "b"], ["b", "a"])
    }
    assert maps == {(("a", REFUSAL_TEXTS[Reason.MODEL_NOT_FOUND]),)}


def test_no_refusal_text_holds_a_figure():
    """A text that differs per call makes kube-scheduler try again at once, for ever."""
    assert set(REFUSAL_TEXTS) >= {Reason.STALE_VIEW, Reason.HBM_SHORT, Reason.TENANT_GPU_LIMIT}
    for text in REFUSAL_TEXTS.values():
        assert text.startswith("kvaware: ")
        assert not any(character.isdigit() or character in "{}%" for character in text), text


def test_no_nodes_offered_is_no_nodes_admitted():
    """An empty offer is answered, not an error."""
    cluster = Cluster(node())
    assert cluster.engine.filter_nodes(cluster.demand(pod()), [], now_s=1).admitted == []
    assert cluster.engine.filter_nodes(cluster.demand(pod(model="missing")), [], now_s=1).refused == {}


def test_a_pod_that_appears_when_its_model_does():
    """Refused while the model is missing, admitted once it exists, by its footprint."""
    cluster = Cluster(node())
    wanting = pod(model="m")
    assert cluster.why_not(wanting) is Reason.MODEL_NOT_FOUND
    cluster.see(model(hbm_gib=81))
    assert cluster.why_not(wanting) is Reason.HBM_SHORT
    cluster.see(model(hbm_gib=40))
    assert cluster.why_not(wanting) is None


def test_the_pods_own_annotation_goes_before_the_footprint():
    """A pod whose request differs from the footprint counts by its request."""
    cluster = Cluster(node()).see(model(hbm_gib=81))
    assert cluster.why_not(pod(model="m", hbm_gib=10)) is None


def test_a_role_that_the_model_lacks_is_refused():
    """A typing error in a label must not fall back to whole GPUs."""
    cluster = Cluster(node()).see(model())
    assert cluster.why_not(pod(model="m", role="decoder")) is Reason.ROLE_NOT_FOUND
    assert cluster.why_not(pod(model="m", role="both")) is None


def test_two_kinds_of_gpu_in_one_pod_are_refused():
    """Nobody can say which of them the HBM figure means."""
    requests = (("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 1))
    assert Cluster(node()).why_not(pod(requests=requests)) is Reason.INVALID_GPU_REQUEST


def test_a_reserved_pool_takes_only_its_tenants_pods():
    """`reservedPool` keeps others off; its owner may still use other nodes."""
    cluster = Cluster(node("open"), node("kept", labels={"pool": "a"})).see(
        quota("a", namespaces=["team-a"], pool_labels={"pool": "a"})
    )
    assert cluster.admitted(pod("x", namespace="team-a")) == ["kept", "open"]
    assert cluster.admitted(pod("y", namespace="team-b")) == ["open"]
    assert cluster.why_not(pod("y", namespace="team-b"), "kept") is Reason.NODE_RESERVED


def test_the_version_stands_still_when_nothing_changed():
    """A repeated filter is answered from the last verdict while the version stands."""
    cluster = Cluster(node()).see(pod("a", on="n1", ready=True))
    before = cluster.engine.version
    cluster.see(node(), pod("a", on="n1", ready=True))
    cluster.why_not(pod("refused", gpus=9))
    cluster.engine.explain(cluster.demand(pod("b")), now_s=cluster.now_s)
    cluster.engine.tick(cluster.now_s + 1)
    assert cluster.engine.version == before
    cluster.see(pod("b", on="n1"))
    assert cluster.engine.version > before
