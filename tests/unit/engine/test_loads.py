"""A model's traffic from its workers' reports: sums, rates, percentiles, and what is unknown."""

from math import inf

import pytest

from kvaware_engine import LatencyHistogram, ObjectKey, RoleLoad, Workers, WorkerSettings
from kvaware_engine.counters import BucketGrowth, CounterWindow, quantile_s
from kvaware_testing.worker_builders import MODEL, counted, heartbeat, latencies, place, scrape


def workers_of(*names: str, role: str = "both") -> Workers:
    """Ready workers of one model."""
    workers = Workers(WorkerSettings(report_interval_s=10, report_timeout_intervals=4, rate_window_s=60))
    for name in names:
        workers.expect(name, place(name, role=role))
    return workers


def load(workers: Workers, *, now_s: float, role: str = "both") -> RoleLoad:
    """Of one role."""
    (only,) = workers.load(MODEL, [role], now_s=now_s).roles
    return only


def test_counters_that_stand_still_are_no_traffic():
    """ai-dynamo/dynamo#6985: traffic stopped, averages became 0/0, and seven replicas stayed for ever."""
    workers = workers_of(*[f"ml:w{number}:0" for number in range(7)])
    for at_s in range(0, 600, 10):
        for number in range(7):
            told = counted(prompt=5000, answer=900, requests=12, ttft=latencies(3, 9, 12, 12))
            workers.observe(scrape(f"ml:w{number}:0", at_s=at_s, waiting=0, counters=told), now_s=at_s)
    seen = load(workers, now_s=595)
    assert (seen.reporting, seen.waiting) == (7, 0)
    assert (seen.requests_per_s, seen.prompt_tokens_per_s, seen.generation_tokens_per_s) == (0, 0, 0)
    assert (seen.ttft_p99_ms, seen.prefix_hit_ratio) == (None, None)  # of no request nothing can be said


def test_no_answer_is_unknown():
    """ai-dynamo/dynamo#6985, the other half: silence is not 0."""
    workers = workers_of("ml:a:0")
    for at_s in (0, 10, 20):
        workers.observe(scrape("ml:a:0", at_s=at_s, waiting=4, counters=counted(prompt=at_s)), now_s=at_s)
    seen = load(workers, now_s=61)  # 41 s after the last report, beyond the time-out of 40 s
    assert (seen.workers, seen.reporting) == (1, 0)
    assert (seen.waiting, seen.prompt_tokens_per_s, seen.requests_per_s, seen.age_s) == (None, None, None, None)


def test_rates_are_of_the_window_and_need_two_reports():
    """100 tokens/s for a minute, then 200: after another minute only the latter is seen."""
    workers = workers_of("ml:a:0")
    total = 0.0
    for at_s in range(0, 130, 10):
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=counted(prompt=total)), now_s=at_s)
        if at_s == 0:
            assert load(workers, now_s=0).prompt_tokens_per_s is None
        if at_s == 60:
            assert load(workers, now_s=60).prompt_tokens_per_s == pytest.approx(100)
        total += 1000 if at_s < 60 else 2000
    assert load(workers, now_s=120).prompt_tokens_per_s == pytest.approx(200)


def test_a_counter_that_falls_was_started_again():
    """A restart that nobody announced: 1,000 → 100 grew by 100, not by -900. 600 + 100 tokens in 20 s."""
    workers = workers_of("ml:a:0")
    for at_s, prompt in [(0, 400), (10, 1000), (20, 100)]:
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=counted(prompt=prompt)), now_s=at_s)
    assert load(workers, now_s=20).prompt_tokens_per_s == pytest.approx(700 / 20)


def test_a_new_incarnation_has_no_rate_yet():
    """Its first report says nothing about how fast it counts."""
    workers = workers_of("ml:a:0")
    for at_s in (0, 10):
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=counted(prompt=100 * at_s)), now_s=at_s)
    workers.expect("ml:a:0", place("ml:a:0", incarnation="new"))
    workers.observe(scrape("ml:a:0", at_s=20, incarnation="new", counters=counted(prompt=5)), now_s=20)
    assert load(workers, now_s=20).prompt_tokens_per_s is None


def test_sums_are_over_those_that_tell():
    """Of three workers one is silent and one does not tell its queue."""
    workers = workers_of("ml:a:0", "ml:b:0", "ml:c:0")
    load(workers, now_s=-100)  # the third has been silent for long
    workers.observe(scrape("ml:a:0", at_s=2, waiting=3, running=4, kv_usage_ratio=0.2), now_s=2)
    workers.observe(scrape("ml:b:0", at_s=1, running=6, kv_usage_ratio=0.6), now_s=2)
    seen = load(workers, now_s=5)
    assert (seen.workers, seen.reporting, seen.waiting, seen.running) == (3, 2, 3, 10)
    assert seen.kv_usage_ratio == pytest.approx(0.4)
    assert seen.age_s == 4  # of the oldest that counts


def fleet_after(tellers: int, silent: int, *, until_s: int = 80) -> Workers:
    """So many workers that tell everything, and so many whose heartbeats say nothing but that they live."""
    loud, quiet = [f"ml:t{number}:0" for number in range(tellers)], [f"ml:q{number}:0" for number in range(silent)]
    workers = workers_of(*loud, *quiet)
    for at_s in range(0, until_s + 1, 10):
        queried = {"prefix_queried_tokens": 100.0 * at_s, "prefix_hit_tokens": 30.0 * at_s}
        told = counted(
            prompt=100.0 * at_s, answer=20.0 * at_s, requests=at_s, ttft=latencies(at_s, at_s, at_s, at_s), **queried
        )
        for name in loud:
            report = scrape(name, at_s=at_s, waiting=4, running=8, kv_usage_ratio=0.5, counters=told)
            workers.observe(report, now_s=at_s)
        for name in quiet:
            workers.observe(heartbeat(name, seq=at_s, at_s=at_s), now_s=at_s)
    return workers


def test_what_fewer_than_half_tell_is_unknown():
    """Three of four live by heartbeats alone: the rates of one would look like an idle role, and scale it down."""
    seen = load(fleet_after(1, 3), now_s=80)
    assert (seen.workers, seen.reporting) == (4, 4)
    assert (seen.waiting, seen.running, seen.kv_usage_ratio) == (None, None, None)
    assert (seen.requests_per_s, seen.prompt_tokens_per_s, seen.generation_tokens_per_s) == (None, None, None)
    assert (seen.prefix_hit_ratio, seen.ttft_p99_ms) == (None, None)


def test_sums_that_half_tell_are_stretched_over_those_that_report():
    """What two of four count is half of the traffic, not all of it."""
    seen = load(fleet_after(2, 2), now_s=80)
    assert (seen.waiting, seen.running, seen.kv_usage_ratio) == (16, 32, 0.5)
    assert seen.prompt_tokens_per_s == pytest.approx(400)
    assert seen.prefix_hit_ratio == pytest.approx(0.3)


def test_a_worker_seen_once_neither_tells_a_rate_nor_doubles_it():
    """It has hardly had requests; with three of them beside one that counts, how much comes is not known."""
    workers = fleet_after(1, 0)
    workers.expect("ml:n0:0", place("ml:n0:0"))
    workers.observe(scrape("ml:n0:0", at_s=80, running=0, counters=counted(prompt=0)), now_s=80)
    assert load(workers, now_s=80).prompt_tokens_per_s == pytest.approx(100)
    for number in (1, 2):
        workers.expect(f"ml:n{number}:0", place(f"ml:n{number}:0"))
        workers.observe(scrape(f"ml:n{number}:0", at_s=80, running=0, counters=counted(prompt=0)), now_s=80)
    seen = load(workers, now_s=80)
    assert (seen.running, seen.prompt_tokens_per_s) == (8, None)
    for number in range(3):
        workers.observe(scrape(f"ml:n{number}:0", at_s=85, running=0, counters=counted(prompt=0)), now_s=85)
    assert load(workers, now_s=85).prompt_tokens_per_s == pytest.approx(100), "told twice that it stands still: 0"


def test_a_hit_ratio_is_of_those_that_tell_both_of_its_figures():
    """Hits of one over the queries of two would be half of the truth."""
    workers = workers_of("ml:a:0", "ml:b:0")
    for at_s in (0, 10):
        both = counted(prefix_queried_tokens=100.0 * at_s, prefix_hit_tokens=60.0 * at_s)
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=both), now_s=at_s)
        workers.observe(scrape("ml:b:0", at_s=at_s, counters=counted(prefix_queried_tokens=100.0 * at_s)), now_s=at_s)
    assert load(workers, now_s=10).prefix_hit_ratio == pytest.approx(0.6)


@pytest.mark.parametrize(
    "told", [pytest.param({"draining": True}, id="draining"), pytest.param({"asleep": True}, id="asleep")]
)
def test_who_takes_no_requests_is_no_capacity(told):
    """Neither counts as a worker that could do more."""
    workers = workers_of("ml:a:0", "ml:b:0")
    workers.observe(scrape("ml:a:0", at_s=0, waiting=0, running=1), now_s=0)
    workers.observe(scrape("ml:b:0", at_s=0, waiting=0, running=8, **told), now_s=0)
    seen = load(workers, now_s=0)
    assert (seen.workers, seen.reporting, seen.running) == (1, 1, 1)


def test_a_worker_that_wakes_up_counts_again():
    """The state holds until told otherwise."""
    workers = workers_of("ml:a:0")
    workers.observe(scrape("ml:a:0", at_s=0, asleep=True), now_s=0)
    workers.observe(scrape("ml:a:0", at_s=10, running=0), now_s=10)
    assert load(workers, now_s=10).workers == 0
    workers.observe(scrape("ml:a:0", at_s=20, asleep=False), now_s=20)
    assert load(workers, now_s=20).workers == 1


def test_workers_that_are_not_ready_are_not_expected_to_report():
    """They get no requests either."""
    workers = workers_of("ml:a:0")
    workers.expect("ml:b:0", place("ml:b:0", ready=False))
    assert load(workers, now_s=0).workers == 1


def test_roles_come_in_the_order_asked_for_and_unknown_ones_are_empty():
    """One entry for each of the spec's roles, whoever runs."""
    workers = workers_of("ml:p:0", role="prefill")
    answer = workers.load(MODEL, ["decode", "prefill"], now_s=0)
    assert [(role.role, role.workers) for role in answer.roles] == [("decode", 0), ("prefill", 1)]
    assert [role.workers for role in workers.load(ObjectKey("ml", "no"), ["both"], now_s=0).roles] == [0]


def test_a_worker_that_has_just_come_is_not_taken_for_a_loaded_one():
    """Sums are stretched over silent workers. Over one that became Ready a second ago the load would double."""
    workers = workers_of("ml:a:0")
    workers.observe(scrape("ml:a:0", at_s=100, waiting=8), now_s=100)
    workers.expect("ml:b:0", place("ml:b:0"))
    assert [load(workers, now_s=at_s).workers for at_s in (101, 110, 139)] == [1, 1, 1]
    workers.observe(scrape("ml:a:0", at_s=142, waiting=8), now_s=142)
    silent = load(workers, now_s=142)
    assert (silent.workers, silent.reporting) == (2, 1), "heard of nothing for longer than the time-out: silent"
    workers.observe(scrape("ml:b:0", at_s=143, waiting=0), now_s=143)
    assert load(workers, now_s=143).reporting == 2


def test_the_product_is_what_most_workers_run_on():
    """The operator watches no nodes, and the hardware profile goes by it."""
    workers = workers_of("ml:a:0")
    assert load(workers, now_s=0).product is None
    for name, product in [("b", "NVIDIA-L4"), ("c", "NVIDIA-H100-80GB-HBM3"), ("d", "NVIDIA-H100-80GB-HBM3")]:
        workers.expect(f"ml:{name}:0", place(f"ml:{name}:0", product=product))
    assert load(workers, now_s=0).product == "NVIDIA-H100-80GB-HBM3"


def test_the_hit_ratio_is_of_the_window():
    """300 of 1,000 tokens since the first report; what was before does not count."""
    workers = workers_of("ml:a:0")
    for at_s, queried, hit in [(0, 5000, 5000), (10, 6000, 5300)]:
        told = counted(prefix_queried_tokens=queried, prefix_hit_tokens=hit)
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=told), now_s=at_s)
    assert load(workers, now_s=10).prefix_hit_ratio == pytest.approx(0.3)


def test_a_percentile_is_of_the_windows_requests_on_all_workers():
    """100 new requests: 90 in 0.1 s, 10 between 0.5 and 1 s. The 99th is 9/10 into that bucket: 0.95 s."""
    workers = workers_of("ml:a:0", "ml:b:0")
    before = latencies(0, 0, 700, 700)  # 700 slow ones, long ago
    for name in ("ml:a:0", "ml:b:0"):
        workers.observe(scrape(name, at_s=0, counters=counted(ttft=before)), now_s=0)
        now = latencies(45, 45, 750, 750)
        workers.observe(scrape(name, at_s=10, counters=counted(ttft=now)), now_s=10)
    assert load(workers, now_s=10).ttft_p99_ms == pytest.approx(950)


def test_a_histogram_that_starts_again_counts_from_zero():
    """4 requests since the restart, all below 0.1 s: the 99th is at 99 % of the first bucket."""
    workers = workers_of("ml:a:0")
    for at_s, told in [(0, latencies(0, 0, 50, 50)), (10, latencies(4, 4, 4, 4))]:
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=counted(tpot=told)), now_s=at_s)
    assert load(workers, now_s=10).tpot_p99_ms == pytest.approx(99)


def test_other_bounds_start_a_histogram_over():
    """A new version of the server: old and new buckets cannot be subtracted."""
    workers = workers_of("ml:a:0")
    other = LatencyHistogram(bounds_s=(0.2, inf), counts=(9, 9), sum_s=1)
    for at_s, told in [(0, latencies(1, 1, 1, 1)), (10, latencies(2, 2, 2, 2)), (20, other)]:
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=counted(ttft=told)), now_s=at_s)
    assert load(workers, now_s=20).ttft_p99_ms is None


@pytest.mark.parametrize(
    ("growths", "share", "seconds"),
    [
        pytest.param([((1.0, inf), (10, 10))], 0.5, 0.5, id="half way into the first bucket"),
        pytest.param([((1.0, 2.0, inf), (0, 10, 10))], 0.5, 1.5, id="empty buckets are passed over"),
        pytest.param([((1.0, inf), (0, 10))], 0.99, 1.0, id="beyond the last bound: at least that bound"),
        pytest.param([((1.0, inf), (5, 10))], 0.99, 1.0, id="rank in the infinite bucket"),
        pytest.param([((1.0, inf), (0, 0))], 0.99, None, id="no request"),
        pytest.param([((inf,), (10,))], 0.99, None, id="only the infinite bucket says nothing"),
        pytest.param([], 0.99, None, id="nobody tells"),
        pytest.param(
            [((1.0, inf), (10, 10)), ((2.0, inf), (10, 10))], 0.75, 1.0, id="other bounds: 15 of 20 below 1 s"
        ),
    ],
)
def test_quantiles_are_linear_inside_their_bucket(growths, share, seconds):
    """As Prometheus' histogram_quantile, joined over all bounds."""
    answer = quantile_s([BucketGrowth(bounds, counts) for bounds, counts in growths], share)
    assert answer == (None if seconds is None else pytest.approx(seconds))


def test_only_the_most_used_bounds_are_joined():
    """Bounds are a worker's own word: joining 400 sets of 128 took a minute in the extender's loop."""
    usual = [BucketGrowth((1 + kind / 1000, inf), (100, 100)) for kind in range(8)]
    odd = BucketGrowth((50.0, inf), (1, 1))
    assert quantile_s([odd, *usual], 1.0) == pytest.approx(1.007)
    assert quantile_s([odd, *usual[:7]], 1.0) == pytest.approx(50)


def test_equal_bounds_add_up():
    """Of nine workers with the same bounds none is left out: 10 of 90 are above 1 s."""
    alike = [BucketGrowth((1.0, 3.0, inf), (10, 10, 10))] * 8 + [BucketGrowth((1.0, 3.0, inf), (0, 10, 10))]
    assert quantile_s(alike, 0.95) == pytest.approx(1 + 2 * (85.5 - 80) / 10)


def test_an_older_count_does_not_go_back():
    """Two scrapes overtake each other: 50 tokens/s from 0 to 20 s."""
    workers = workers_of("ml:a:0")
    for at_s, prompt in [(0, 0), (20, 1000), (10, 400)]:
        workers.observe(scrape("ml:a:0", at_s=at_s, counters=counted(prompt=prompt)), now_s=20)
    assert load(workers, now_s=20).prompt_tokens_per_s == pytest.approx(50)


def test_a_window_keeps_few_samples_however_often_somebody_reports():
    """A heartbeat every 100 ms for ten minutes: 6 parts of the window, one before it, the newest."""
    window = CounterWindow(60)
    for tick in range(6000):
        window.observe(tick, at_s=tick / 10)
    assert len(window._samples) <= 8
    assert window.rate_per_s() == pytest.approx(10)
