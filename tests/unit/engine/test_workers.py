"""What is believed of a worker: which report holds, what an incarnation keeps, what a cache is worth."""

from math import inf

import pytest

from kvaware_engine import ObjectKey, ReportVerdict, Workers, WorkerSettings, WorkerView
from kvaware_testing.worker_builders import MODEL, WORKER, counted, hardware, heartbeat, place, scrape

TAKEN, OLDER, UNKNOWN = ReportVerdict.TAKEN, ReportVerdict.OLDER, ReportVerdict.UNKNOWN_WORKER


def one_worker() -> Workers:
    """The usual worker is expected. Reports are due every 10 s and count for 40 s."""
    workers = Workers(WorkerSettings(report_interval_s=10, report_timeout_intervals=4, rate_window_s=60))
    workers.expect(WORKER, place())
    return workers


def view(workers: Workers, *, now_s: float) -> WorkerView:
    """The only worker."""
    (only,) = workers.views(now_s=now_s)
    return only


def test_of_two_sources_for_one_figure_the_later_observation_holds_whatever_arrives_last():
    """ai-dynamo/dynamo#7753: worker and routers wrote one number, and the last writer won."""
    workers = one_worker()
    assert workers.observe(heartbeat(seq=7, at_s=1.0, kv_blocks_free=100, kv_blocks_total=1000), now_s=1.0) is TAKEN
    assert workers.observe(scrape(at_s=0.5, kv_usage_ratio=0.2), now_s=1.2) is TAKEN  # 800 free, but earlier
    believed = view(workers, now_s=1.2)
    assert (believed.kv_blocks_free, believed.kv_usage_ratio) == (100, pytest.approx(0.9))  # 1 - 100/1000


def test_a_later_share_replaces_an_earlier_count_of_free_blocks():
    """The other way round: they are one figure in two forms."""
    workers = one_worker()
    workers.observe(heartbeat(seq=7, at_s=1.0, kv_blocks_free=100, kv_blocks_total=1000), now_s=1.0)
    workers.observe(scrape(at_s=2.0, kv_usage_ratio=0.2), now_s=2.0)
    believed = view(workers, now_s=2.0)
    assert (believed.kv_blocks_free, believed.kv_usage_ratio) == (800, 0.2)  # 1000 * (1 - 0.2)


def test_a_heartbeat_with_a_lower_number_is_an_old_message():
    """ai-dynamo/dynamo#7753: it arrives last and changes nothing, nor does the same one again."""
    workers = one_worker()
    workers.observe(heartbeat(seq=7, at_s=1.0, waiting=5), now_s=1.0)
    assert workers.observe(heartbeat(seq=6, at_s=2.0, waiting=0), now_s=2.0) is OLDER
    assert workers.observe(heartbeat(seq=7, at_s=3.0, waiting=0), now_s=3.0) is OLDER
    assert view(workers, now_s=3.0).waiting == 5


def test_a_number_that_goes_back_after_the_time_out_is_a_new_process():
    """A server that restarts inside its container counts from 0 again; it must not stay outdated for ever."""
    workers = one_worker()
    workers.observe(heartbeat(seq=700, at_s=0, waiting=5, kv_blocks_total=9), now_s=0)
    assert workers.observe(heartbeat(seq=0, at_s=40, waiting=1), now_s=40) is OLDER
    assert workers.observe(heartbeat(seq=1, at_s=41, waiting=1), now_s=41) is TAKEN
    assert (view(workers, now_s=41).waiting, view(workers, now_s=41).kv_blocks_total) == (1, None)


def test_a_worker_that_is_not_ready_for_a_moment_keeps_what_runs_there():
    """ai-dynamo/dynamo#13513: its bookings were deleted, and back again it looked idle."""
    workers = one_worker()
    workers.observe(heartbeat(seq=1, at_s=0, running=20), now_s=0)
    workers.expect(WORKER, place(ready=False))
    workers.expect(WORKER, place())
    assert workers.observe(heartbeat(seq=2, at_s=1, waiting=0), now_s=1) is TAKEN
    assert view(workers, now_s=1).running == 20


def test_a_worker_that_leaves_the_view_for_a_moment_keeps_what_runs_there():
    """ai-dynamo/dynamo#13513 through the list of pods: the same incarnation comes back within absence_kept_s, 60 s."""
    workers = one_worker()
    workers.observe(heartbeat(seq=1, at_s=0, running=20), now_s=0)
    workers.expect(WORKER, None)
    assert workers.views(now_s=1) == []
    assert workers.observe(heartbeat(seq=2, at_s=2, running=1), now_s=2) is UNKNOWN
    workers.expect(WORKER, place())
    assert view(workers, now_s=3).running == 20


def test_a_worker_that_is_gone_for_long_is_forgotten():
    """Memory is bounded by the workers that exist."""
    workers = one_worker()
    workers.observe(heartbeat(seq=1, at_s=0, running=20), now_s=0)
    workers.expect(WORKER, None)
    workers.tick(1)
    workers.tick(62)  # 61 s later
    workers.expect(WORKER, place())
    assert view(workers, now_s=62).running is None


def test_a_new_incarnation_starts_over():
    """ai-dynamo/dynamo#13513: after a restart of the container nothing runs there and its numbers begin at 0."""
    workers = one_worker()
    workers.observe(heartbeat(seq=9, at_s=0, running=20, kv_blocks_total=1000), now_s=0)
    workers.expect(WORKER, place(incarnation="uid-1/start-2"))
    assert view(workers, now_s=1).running is None
    assert workers.observe(heartbeat(seq=0, at_s=1, incarnation="uid-1/start-2", running=0), now_s=1) is TAKEN
    assert view(workers, now_s=1).running == 0


def test_a_report_of_the_incarnation_before_is_old():
    """A scrape that began before the restart must not fill the new one."""
    workers = one_worker()
    workers.expect(WORKER, place(incarnation="uid-1/start-2"))
    assert workers.observe(scrape(at_s=5, running=20), now_s=5) is OLDER
    assert view(workers, now_s=5).running is None


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(scrape("ml:other-0:0"), id="nobody expects it"),
        pytest.param(scrape(model=ObjectKey("ml", "other")), id="it says that it serves another model"),
    ],
)
def test_reports_of_unknown_workers_are_dropped(report):
    """Whoever is not in the API server's view cannot make up load."""
    workers = one_worker()
    before = workers.version
    assert workers.observe(report, now_s=0) is UNKNOWN
    assert workers.version == before


def test_a_report_from_the_future_counts_as_of_now():
    """A clock that is ahead must not shut out all later reports."""
    workers = one_worker()
    workers.observe(scrape(at_s=1000, waiting=5), now_s=10)
    assert workers.observe(scrape(at_s=20, waiting=0), now_s=20) is TAKEN
    assert view(workers, now_s=20).waiting == 0


def test_what_a_report_leaves_out_stays_known():
    """Unknown is not 0."""
    workers = one_worker()
    workers.observe(scrape(at_s=0, waiting=3, running=1), now_s=0)
    workers.observe(scrape(at_s=5, running=2), now_s=5)
    believed = view(workers, now_s=5)
    assert (believed.waiting, believed.running) == (3, 2)


def test_a_figure_older_than_the_time_out_is_unknown_though_others_are_young():
    """Heartbeats ended, scrapes go on: the queue that only heartbeats told is unknown now, the pool's size is not."""
    workers = one_worker()
    workers.observe(heartbeat(seq=1, at_s=0, queued_tokens=900, kv_blocks_total=10), now_s=0)
    workers.observe(scrape(at_s=41, running=2), now_s=41)
    believed = view(workers, now_s=41)
    assert (believed.queued_tokens, believed.running, believed.kv_blocks_total) == (None, 2, 10)


@pytest.mark.parametrize(
    ("age_s", "confidence", "reporting"),
    [
        pytest.param(10, 1.0, True, id="one interval"),
        pytest.param(25, 0.5, True, id="half way from 10 s to the time-out of 40 s"),
        pytest.param(40, 0.0, True, id="at the time-out"),
        pytest.param(41, 0.0, False, id="beyond it"),
    ],
)
def test_confidence_falls_with_age(age_s, confidence, reporting):
    """llm-d/llm-d-router#2408: stale is not busy, and two missed reports are not the end."""
    workers = one_worker()
    workers.observe(scrape(at_s=0, waiting=0), now_s=0)
    believed = view(workers, now_s=age_s)
    assert (believed.confidence_ratio, believed.reporting, believed.age_s) == (confidence, reporting, age_s)


def test_a_worker_that_never_reported_has_no_age_and_no_confidence():
    """It is shown all the same: the API server knows it."""
    believed = view(one_worker(), now_s=100)
    assert (believed.age_s, believed.confidence_ratio, believed.reporting, believed.running) == (None, 0.0, False, None)


def test_one_report_after_a_silence_is_believed_at_once():
    """llm-d/llm-d-router#2408: served again at the first report."""
    workers = one_worker()
    workers.observe(scrape(at_s=0, waiting=9), now_s=0)
    workers.observe(scrape(at_s=500, waiting=1), now_s=500)
    believed = view(workers, now_s=500)
    assert (believed.reporting, believed.confidence_ratio, believed.waiting) == (True, 1.0, 1)


@pytest.mark.parametrize("intervals", [0, 0.5, 0.99])
def test_a_time_out_below_one_interval_is_refused(intervals):
    """Healthy workers would drop out between two reports."""
    with pytest.raises(ValueError, match="report_timeout_intervals: expected 1 or more"):
        WorkerSettings(report_timeout_intervals=intervals)


def test_views_are_of_one_model_or_of_all_in_the_order_of_ids():
    """As /v1/workers shows them; a worker that changes its model is with the new one alone."""
    workers = Workers()
    other = ObjectKey("ml", "qwen")
    for name, model in [("ml:b:0", MODEL), ("ml:a:0", MODEL), ("ml:c:0", other)]:
        workers.expect(name, place(name, model=model))
    workers.expect("ml:b:0", place("ml:b:0", model=other))
    assert [each.worker for each in workers.views(now_s=0)] == ["ml:a:0", "ml:b:0", "ml:c:0"]
    assert [each.worker for each in workers.views(other, now_s=0)] == ["ml:b:0", "ml:c:0"]
    assert [each.worker for each in workers.views(MODEL, now_s=0)] == ["ml:a:0"]


def valued(**told: object) -> Workers:
    """A worker on hardware of 0.5 ms per prompt token, with 1,000 blocks of 16 tokens."""
    workers = Workers(profiles={"test": hardware()})
    workers.expect(WORKER, place(product="test", model_id="seven-7b"))
    pool = {"kv_blocks_total": 1000, "block_size_tokens": 16, "kv_usage_ratio": 0.0, "running": 0}
    workers.observe(scrape(at_s=0, **(pool | told)), now_s=0)
    return workers


def test_a_cache_is_worth_its_prefill_times_the_chance_of_reuse():
    """Idle: 8,000 prompt tokens less 2,000 hits were computed, 0.5 ms each, and one in four is hit: 750 ms."""
    workers = valued(counters=counted(prompt=8000, prefix_queried_tokens=8000, prefix_hit_tokens=2000))
    assert view(workers, now_s=0).cache_value_ms == pytest.approx(6000 * 0.5 * 0.25)


def test_a_pool_holds_no_more_than_its_size():
    """A million tokens went through a pool of 16,000: 16,000 * 0.5 ms * 0.5."""
    workers = valued(counters=counted(prompt=1e6, prefix_queried_tokens=100, prefix_hit_tokens=50))
    assert view(workers, now_s=0).cache_value_ms == pytest.approx(16000 * 0.5 * 0.5, rel=1e-3)


def test_running_requests_are_needed_for_certain():
    """Half the pool runs: 8,000 tokens at 0.5 ms; half of the mean answer of 100 tokens is lost, 50 steps of 20 ms."""
    told = counted(prompt=1000, answer=1000, requests=10, prefix_queried_tokens=1000, prefix_hit_tokens=0)
    workers = valued(kv_usage_ratio=0.5, running=4, counters=told)
    assert view(workers, now_s=0).cache_value_ms == pytest.approx(8000 * 0.5 + 50 * 20)


def test_an_unknown_chance_of_reuse_is_assumed_and_an_unknown_pool_is_unknown():
    """1,000 tokens * 0.5 ms * 0.3 (unknown_reuse_ratio); without the pool's size nothing can be said."""
    assert view(valued(counters=counted(prompt=1000)), now_s=0).cache_value_ms == pytest.approx(150)
    assert view(valued(kv_usage_ratio=None, counters=None), now_s=0).cache_value_ms is None
    assert view(one_worker(), now_s=0).cache_value_ms is None


def test_a_sleeping_worker_holds_nothing_of_value():
    """vllm-project/aibrix#2287: asleep, its cache is empty, whatever it computed before."""
    workers = valued(asleep=True, counters=counted(prompt=8000))
    assert view(workers, now_s=0).cache_value_ms == 0


def test_whoever_subscribed_is_told_of_each_change_of_a_worker():
    """Expected, reported, gone, forgotten; a report that says nothing new, or is of nobody, is no change."""
    workers = Workers(WorkerSettings(absence_kept_s=60))
    told: list[str] = []
    workers.subscribe(told.append)
    workers.expect(WORKER, place())
    workers.expect(WORKER, place())
    workers.observe(heartbeat(seq=1, at_s=1, waiting=1), now_s=1)
    workers.observe(heartbeat(seq=1, at_s=2, waiting=0), now_s=2)
    workers.observe(heartbeat("ml:nobody:0", seq=1, at_s=2), now_s=2)
    assert told == [WORKER] * 2
    workers.expect(WORKER, None)
    workers.tick(10)
    assert (told, workers.place(WORKER), workers.view(WORKER, 10)) == ([WORKER] * 3, place(), None)
    workers.tick(71)
    assert (told, workers.place(WORKER), workers.times(WORKER, 71)) == ([WORKER] * 4, None, None)


def test_one_view_is_what_all_views_show():
    """And nobody is seen who is not expected."""
    workers = one_worker()
    workers.observe(heartbeat(seq=1, at_s=0, running=20, adapters=("sql",), transfer_domain="tp4"), now_s=0)
    seen = workers.view(WORKER, 1)
    assert seen == view(workers, now_s=1)
    assert seen is not None
    assert (seen.adapters, seen.transfer_domain, seen.cpu_tier_free_bytes) == (("sql",), "tp4", None)
    assert workers.view("ml:nobody:0", 1) is None


def test_each_figure_has_the_time_of_its_own_observation():
    """What was reserved between two of them is in the one and not in the other."""
    workers = one_worker()
    workers.observe(scrape(at_s=1, waiting=2, running=3, kv_usage_ratio=0.5), now_s=1)
    workers.observe(heartbeat(seq=1, at_s=4, waiting=1, queued_tokens=50), now_s=4)
    times = workers.times(WORKER, 5)
    assert times is not None
    assert (times.load_at_s, times.waiting_at_s, times.queued_tokens_at_s) == (1, 4, 4)
    assert (times.kv_at_s, times.any_at_s) == (1, 4)
    outlived = workers.times(WORKER, 42)  # beyond the time-out of 40 s: running and the pool are not known any more
    assert outlived is not None
    assert (outlived.load_at_s, outlived.kv_at_s) == (4, -inf)


def test_a_process_that_starts_again_in_its_container_is_another_incarnation():
    """Only its heartbeats' numbers tell; what was reserved on it is gone with its KV pool."""
    workers = one_worker()
    workers.observe(heartbeat(seq=700, at_s=0), now_s=0)
    before = view(workers, now_s=0).incarnation
    workers.observe(heartbeat(seq=1, at_s=41), now_s=41)
    assert (before, view(workers, now_s=41).incarnation) == ("uid-1/start-1", "uid-1/start-1#1")
    workers.expect(WORKER, place(incarnation="uid-1/start-2"))
    assert view(workers, now_s=42).incarnation == "uid-1/start-2"
