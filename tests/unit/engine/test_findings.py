"""Verdicts on pods from scrapes: above the reservation, or where nobody sees what others use; none of them flaps."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvaware_engine import FindingSettings, GpuClass, PodFindings
from kvaware_testing.builders import EXACT_HBM, Cluster, bound, gpu_use, node, pod, pool, shared_pool, use

EVERY_S = 15.0
"""Between two scrapes."""
SETTINGS = replace(EXACT_HBM, findings=FindingSettings(overrun_tolerance_bytes=2**30, hold_scrapes=3, hold_s=60))


class Watch:
    """A cluster whose clock goes on with every scrape, and all that was found so far."""

    def __init__(self, *nodes) -> None:
        self.cluster = Cluster(*nodes, settings=SETTINGS)
        self.news: list[tuple[str, PodFindings]] = []

    def see(self, *things: object) -> "Watch":
        self.cluster.see(*things)
        return self

    def pass_s(self, seconds: float) -> "Watch":
        self.cluster.now_s += seconds
        self.cluster.engine.tick(self.cluster.now_s)
        self.news += self.cluster.engine.findings().items()
        return self

    def scrape(self, *gpus, on: str = "n1", times: int = 1) -> "Watch":
        for _ in range(times):
            self.see(use(on, *gpus, at_s=self.cluster.now_s)).pass_s(EVERY_S)
        return self

    def said(self, name: str = "p1") -> PodFindings:
        """The last word on a pod."""
        return next((found for uid, found in reversed(self.news) if uid == f"uid-{name}"), PodFindings())


def seen(used_gib: float, index: int = 0, by: str | None = "p1"):
    """A GPU of 80 GiB that the exporter says is one pod's."""
    return gpu_use(index, used_gib=used_gib, free_gib=80 - used_gib, pod_key=("ml", by) if by else None)


def test_a_pod_above_its_reservation_is_told_after_three_scrapes_and_let_off_after_three():
    """40 GiB reserved, 1 GiB tolerated: a single figure is a swing, not a verdict."""
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40))
    assert watch.scrape(seen(50), times=2).said().hbm_overrun is None
    assert watch.scrape(seen(50)).said().hbm_overrun is True
    assert watch.scrape(seen(41), times=2).said().hbm_overrun is True
    assert watch.scrape(seen(50)).scrape(seen(41), times=2).said().hbm_overrun is True
    assert watch.scrape(seen(41)).said().hbm_overrun is False


def test_the_same_scrape_told_twice_counts_once():
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40))
    for _ in range(5):
        watch.see(use("n1", seen(50), at_s=100))
    assert watch.pass_s(0).said().hbm_overrun is None


def test_nobody_is_blamed_for_what_may_be_anothers():
    """A GPU that the exporter names no pod for, or several: somebody is above, and nobody knows who."""
    watch = Watch(node("n1", shared_pool())).see(bound("p1", hbm_gib=20), bound("p2", hbm_gib=20))
    watch.scrape(seen(70, by=None), times=5)
    assert watch.said("p1").hbm_overrun is None
    assert watch.said("p2").hbm_overrun is None


def test_a_whole_gpu_is_the_pods_own():
    """A server that takes 90 % of the GPU that it got alone harms nobody, whatever less it asked for."""
    watch = Watch(node("n1", pool(devices=1))).see(bound(hbm_gib=40, gpu_class=GpuClass.EXCLUSIVE))
    assert watch.scrape(seen(72), times=5).said().hbm_overrun is None


def test_each_device_is_held_against_its_share():
    """Two GPUs with 20 GiB each: 30 + 5 is above on the first although the sum is not."""
    watch = Watch(node("n1", shared_pool(devices=2))).see(bound(hbm_gib=20, gpus=2))
    assert watch.scrape(seen(30), seen(5, 1), times=3).said().hbm_overrun is True
    # Both replicas may be of one GPU; then it may use 40 there.
    watch = Watch(node("n1", shared_pool(devices=2))).see(bound(hbm_gib=20, gpus=2))
    assert watch.scrape(seen(30), seen(0, 1, by=None), times=3).said().hbm_overrun is False


def test_without_an_exporter_the_use_by_others_is_unknown_after_a_minute():
    """The exporters of a cluster that was just read are heard within that time."""
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40))
    assert watch.pass_s(59).said().foreign_use_unknown is None
    assert watch.pass_s(1).said().foreign_use_unknown is True
    assert watch.see(bound("p2", hbm_gib=20)).pass_s(0).said("p2").foreign_use_unknown is True


def test_an_exporter_that_comes_and_goes_changes_nothing():
    """A condition that follows it would be a write to every pod of the node, again and again."""
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40)).scrape(seen(10), times=5)
    assert watch.said().foreign_use_unknown is False
    before = len(watch.news)
    for _ in range(10):
        watch.cluster.engine.observe_use("n1", None)
        watch.pass_s(45).scrape(seen(10))
    assert len(watch.news) == before
    watch.cluster.engine.observe_use("n1", None)
    assert watch.pass_s(60).said().foreign_use_unknown is True
    assert watch.scrape(seen(10), times=4).said().foreign_use_unknown is False


def test_figures_that_became_too_old_are_no_figures():
    """Nobody says that the exporter is gone; its last scrape is 5 minutes old."""
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40)).scrape(seen(10), times=5)
    watch.pass_s(301).pass_s(60)
    assert watch.said().foreign_use_unknown is True


def test_an_exporter_that_shows_no_memory_shows_nothing():
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40))
    watch.scrape(gpu_use(used_gib=None, free_gib=None), times=5)
    assert watch.said().foreign_use_unknown is True


def test_only_pods_that_kvaware_checked_are_told():
    """Whole GPUs are nobody else's; what others bound, or wrote into an annotation, was never checked by us."""
    copied = replace(bound("copied", hbm_gib=10), uid="uid-other")
    watch = Watch(node("n1", shared_pool())).see(
        bound("whole", gpu_class=GpuClass.EXCLUSIVE), pod("foreign", on="n1"), copied, pod("pending")
    )
    watch.pass_s(61)
    assert watch.news == []


def test_a_pod_that_ends_is_not_told_anything_any_more():
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40))
    watch.see(replace(bound(hbm_gib=40), terminating=True)).pass_s(61)
    assert watch.news == []
    one = bound("p2", hbm_gib=40)
    watch.see(one).cluster.gone(one)
    assert watch.pass_s(61).news == []


def test_findings_are_nothing_that_a_decision_depends_on():
    """A verdict must not make kube-scheduler's answers be computed again."""
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40)).scrape(seen(50), times=2)
    version = watch.cluster.engine.version
    assert watch.scrape(seen(50)).said().hbm_overrun is True
    assert watch.cluster.engine.version == version


@given(
    figures=st.lists(st.sampled_from([None, 10.0, 50.0]), min_size=1, max_size=40),
    churn=st.lists(st.integers(0, 39), max_size=4),
)
def test_verdicts_change_no_faster_than_they_may(figures, churn):
    """Whatever the exporter does: an overrun at most every third scrape, the exporter's loss at most once a minute."""
    watch = Watch(node("n1", shared_pool())).see(bound(hbm_gib=40))
    told: list[tuple[float, PodFindings]] = []
    for turn, used_gib in enumerate(figures):
        if turn in churn:
            watch.see(bound("other", hbm_gib=1)).cluster.gone(bound("other", hbm_gib=1))
        if used_gib is None:
            watch.cluster.engine.observe_use("n1", None)
        else:
            watch.see(use("n1", seen(used_gib), at_s=watch.cluster.now_s))
        before = len(watch.news)
        watch.pass_s(EVERY_S)
        told += [(watch.cluster.now_s, found) for uid, found in watch.news[before:] if uid == "uid-p1"]
    for field, least_s in (("hbm_overrun", 3 * EVERY_S), ("foreign_use_unknown", 60)):
        changed_at_s = [at_s for (_, old), (at_s, new) in pairwise(told) if getattr(old, field) != getattr(new, field)]
        assert all(later - earlier >= least_s for earlier, later in pairwise(changed_at_s))
    assert set(watch.cluster.engine._findings._nodes) == {"n1"}
