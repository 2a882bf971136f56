"""The vLLM texts are recordings of a real one; SGLang's are written by hand with its documented names."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_cluster import parse_worker_metrics
from kvaware_cluster.parse.worker_metrics import KEPT_CHARACTERS, MAX_LINE_CHARACTERS, MAX_LINES, _series
from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import ReportSource, WorkerCounters, WorkerReport
from kvaware_testing.fake_worker import FakeWorker, Load
from kvaware_testing.repository import REPOSITORY

RECORDED = REPOSITORY / "tests" / "fixtures" / "vllm-0.32"
IDLE = (RECORDED / "metrics.txt").read_text()
BUSY = (RECORDED / "metrics-busy.txt").read_text()


def reports(text: str) -> tuple[WorkerReport, ...]:
    return parse_worker_metrics(
        text, pod=ObjectKey("ml", "llama-0"), model=ObjectKey("ml", "llama"), incarnation="u-1/t", observed_at_s=12.5
    )


def report(*lines: str) -> WorkerReport:
    (only,) = reports("\n".join(lines))
    return only


def test_a_busy_vllm_is_read_as_it_was_recorded():
    (busy,) = reports(BUSY)
    assert (busy.worker, busy.model, busy.incarnation) == ("ml:llama-0:0", ObjectKey("ml", "llama"), "u-1/t")
    assert (busy.source, busy.observed_at_s, busy.seq) == (ReportSource.SCRAPE, 12.5, None)
    assert (busy.waiting, busy.running, busy.asleep) == (8, 1, False)
    assert busy.kv_usage_ratio == pytest.approx(35 / 79)
    assert (busy.kv_blocks_total, busy.block_size_tokens) == (79, 32)  # of 80 blocks one is the null block
    counters = busy.counters
    assert counters is not None
    assert (counters.prompt_tokens, counters.generation_tokens) == (7940, 1879)
    assert (counters.finished_requests, counters.preemptions) == (21, 0)
    assert (counters.prefix_queried_tokens, counters.prefix_hit_tokens) == (7940, 768)
    assert counters.ttft is not None
    assert counters.ttft.bounds_s[:3] == (0.001, 0.005, 0.01)
    assert counters.ttft.bounds_s[-1] == math.inf
    assert counters.ttft.counts[:8] == (0, 0, 4, 18, 20, 21, 24, 24)
    assert counters.ttft.sum_s == pytest.approx(0.53216505)
    assert counters.tpot is not None
    assert (counters.tpot.counts[-1], len(counters.tpot.counts)) == (1855, 20)


def test_an_idle_vllm_says_zero_which_is_not_unknown():
    (idle,) = reports(IDLE)
    assert (idle.waiting, idle.running, idle.kv_usage_ratio) == (0, 0, 0.0)
    assert idle.counters is not None
    assert idle.counters.finished_requests == 19


def test_what_nobody_tells_is_unknown():
    assert report('vllm:num_requests_waiting{engine="0"} 3').counters == WorkerCounters()
    told = report('vllm:num_requests_waiting{engine="0"} 3')
    assert (told.running, told.kv_usage_ratio, told.kv_blocks_total, told.block_size_tokens, told.asleep) == (None,) * 5


@pytest.mark.parametrize(
    ("older", "current"),
    [
        pytest.param("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", id="KV usage"),
        pytest.param("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", id="prefix hits"),
        pytest.param(
            "vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds", id="time per output token"
        ),
    ],
)
def test_the_names_of_older_vllms_are_read_too(older: str, current: str):
    text = "\n".join(line for line in BUSY.split("\n") if not line.startswith("vllm:request_time_per_output_token"))
    assert reports(text.replace(current, older)) == reports(BUSY)


def test_a_server_that_tells_nothing_of_ranks_is_rank_0():
    """Before 0.9 vLLM had no label ``engine``."""
    assert report('vllm:num_requests_running{model_name="m"} 2').worker == "ml:llama-0:0"
    assert report("vllm:num_requests_running 2").running == 2


def test_each_data_parallel_rank_is_a_worker_of_its_own():
    told = reports('vllm:num_requests_running{engine="1"} 5\nvllm:num_requests_running{engine="0"} 2')
    assert [(each.worker, each.running) for each in told] == [("ml:llama-0:0", 2), ("ml:llama-0:1", 5)]


def test_a_pod_may_hold_a_later_rank_only():
    """With an external load balancer each pod runs one rank and says which."""
    assert report('vllm:num_requests_running{engine="3"} 5').worker == "ml:llama-0:3"


def test_a_sleeping_server_says_so():
    """vllm-project/aibrix#2287: it holds no blocks and is no candidate."""
    asleep = BUSY.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0').replace(
        'sleep_state="weights_offloaded"} 0.0', 'sleep_state="weights_offloaded"} 1.0'
    )
    assert [each.asleep for each in reports(asleep)] == [True]


SGLANG = """
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 7.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:token_usage{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 0.28
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 2.0
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 800.0
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 200.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 90.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 300.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100.0
sglang:num_requests_total{is_streaming="true",model_name="m"} 11.0
sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="0.1",model_name="m"} 4.0
sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="+Inf",model_name="m"} 11.0
sglang:time_to_first_token_seconds_bucket{is_streaming="false",le="0.1",model_name="m"} 1.0
sglang:time_to_first_token_seconds_bucket{is_streaming="false",le="+Inf",model_name="m"} 2.0
sglang:time_to_first_token_seconds_sum{is_streaming="true",model_name="m"} 5.0
sglang:time_to_first_token_seconds_sum{is_streaming="false",model_name="m"} 1.5
"""


@pytest.mark.parametrize(
    "cache",
    [
        pytest.param('sglang:cache_config_info{page_size="64",num_pages="1000"} 1.0', id="labels, up to 0.5.10"),
        pytest.param('sglang:page_size{tp_rank="0"} 64.0\nsglang:num_pages{tp_rank="0"} 1000.0', id="gauges, after"),
    ],
)
def test_an_sglang_is_read_by_its_own_names(cache: str):
    (told,) = reports(SGLANG + cache)
    assert (told.worker, told.waiting, told.running, told.kv_usage_ratio) == ("ml:llama-0:0", 3, 7, 0.28)
    assert (told.block_size_tokens, told.kv_blocks_total, told.asleep) == (64, 1000, None)
    counters = told.counters
    assert counters is not None
    assert (counters.prompt_tokens, counters.generation_tokens, counters.finished_requests) == (1000, 90, 11)
    assert (counters.prefix_queried_tokens, counters.prefix_hit_tokens, counters.preemptions) == (1000, 400, 2)
    assert counters.ttft is not None
    assert (counters.ttft.counts, counters.ttft.sum_s) == ((5.0, 13.0), 6.5)
    assert counters.tpot is None


def test_a_total_is_not_added_to_its_own_parts():
    """With priorities SGLang tells the total under an empty priority, and each priority's part beside it."""
    told = report(
        'sglang:num_queue_reqs{priority="",tp_rank="0"} 5',
        'sglang:num_queue_reqs{priority="1",tp_rank="0"} 3',
        'sglang:num_queue_reqs{priority="2",tp_rank="0"} 2',
    )
    assert told.waiting == 5


def test_tensor_ranks_that_all_tell_the_same_are_not_added_up():
    """SGLang with ``--enable-metrics-for-all-schedulers``."""
    told = reports(
        "\n".join(
            f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {dp + 1}' for dp in (0, 1) for tp in (0, 1)
        )
    )
    assert [(each.worker, each.running) for each in told] == [("ml:llama-0:0", 1), ("ml:llama-0:1", 2)]


def test_what_is_counted_for_all_ranks_together_stands_at_the_lowest():
    """Summed over the workers it is right; told for each of them it would count twice."""
    first, second = reports(
        'sglang:num_running_reqs{dp_rank="0"} 1\nsglang:num_running_reqs{dp_rank="1"} 2\n'
        'sglang:prompt_tokens_total{model_name="m"} 100'
    )
    assert first.counters is not None
    assert second.counters is not None
    assert (first.counters.prompt_tokens, second.counters.prompt_tokens) == (100, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_an_odd_value_is_unknown_and_the_others_stay(value: str):
    told = report(f'vllm:num_requests_waiting{{engine="0"}} {value}', 'vllm:num_requests_running{engine="0"} 4')
    assert (told.waiting, told.running) == (None, 4)


def test_a_counter_that_no_server_can_reach_is_unknown():
    """Rates are made of it, and of 1e298 tokens a second nothing follows."""
    told = report("vllm:prompt_tokens_total 1e298", "vllm:generation_tokens_total 9e15")
    assert told.counters is not None
    assert (told.counters.prompt_tokens, told.counters.generation_tokens) == (None, 9e15)


def test_long_lines_are_not_kept():
    """What names a series is remembered; 8,192 lines of 4 MB, of somebody else's program, would be all memory."""
    _series.cache_clear()
    assert report(f'vllm:num_requests_running{{model_name="{"m" * KEPT_CHARACTERS}"}} 4').running == 4
    assert _series.cache_info().currsize == 0
    assert report('vllm:num_requests_running{model_name="m"} 4').running == 4
    assert _series.cache_info().currsize == 1


@pytest.mark.parametrize(("value", "ratio"), [("1.0004", 1.0), ("1", 1.0), ("44.3", None), ("-0.1", None)])
def test_a_share_is_between_0_and_1(value: str, ratio: float | None):
    """The name says percent and means a ratio; a server that means percent is not believed."""
    assert report(f'vllm:kv_cache_usage_perc{{engine="0"}} {value}').kv_usage_ratio == ratio


@pytest.mark.parametrize(
    ("labels", "size", "total"),
    [
        ('block_size="16",num_gpu_blocks="None"', 16, None),  # before its pools are made
        ('block_size="None",num_gpu_blocks="80"', None, 79),
        ('hash_block_size="64",_block_size_resolved="True",num_gpu_blocks="80"', None, 79),  # labels match whole
        ('block_size="-16",num_gpu_blocks="1e9"', None, None),
        ('block_size="0",num_gpu_blocks="1"', None, None),
    ],
)
def test_sizes_that_are_none_are_unknown(labels: str, size: int | None, total: int | None):
    told = report(f"vllm:cache_config_info{{{labels}}} 1.0", "vllm:num_requests_running 1")
    assert (told.block_size_tokens, told.kv_blocks_total) == (size, total)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(['{le="0.1"} 5', '{le="+Inf"} 3'], id="fewer below the higher bound"),
        pytest.param(['{le="0.1"} 5', '{le="1"} 6'], id="no last bucket"),
        pytest.param(['{le="0.1"} NaN', '{le="+Inf"} 3'], id="no number"),
        pytest.param(['{le="+Inf"} 3'], id="one bucket tells nothing"),
        pytest.param(['{le="NaN"} 1', '{le="+Inf"} 3'], id="no bound"),
        pytest.param(['{le="-Inf"} 1', '{le="+Inf"} 3'], id="a time below 0"),
        pytest.param(['{le="1"} 1e17', '{le="+Inf"} 1e17'], id="more than can be counted"),
    ],
)
def test_a_histogram_that_contradicts_itself_is_unknown(lines: list[str]):
    name = "vllm:time_to_first_token_seconds"
    told = report(*(f"{name}_bucket{line}" for line in lines), f"{name}_sum 1.0", "vllm:num_requests_running 1")
    assert told.counters is not None
    assert told.counters.ttft is None
    assert told.running == 1


def test_a_histogram_without_its_sum_is_unknown():
    name = "vllm:time_to_first_token_seconds_bucket"
    told = report(f'{name}{{le="1"}} 1', f'{name}{{le="+Inf"}} 1')
    assert told.counters is not None
    assert told.counters.ttft is None


def test_timestamps_and_braces_in_labels_are_no_trouble():
    told = report('vllm:num_requests_running{model_name="a}b\\"{c"} 4 1700000000000')
    assert told.running == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "got 0 characters of others", id="nothing"),
        pytest.param("<html>404</html>", "expected vllm: or sglang: metrics", id="a page"),
        pytest.param('tgi_queue_size{a="b"} 3\n', "expected vllm: or sglang: metrics", id="another server"),
        pytest.param('vllm:num_requests_running{engine="0"} lots', "could not be read", id="a word as value"),
        pytest.param('vllm:num_requests_running{engine="0"}', "could not be read", id="no value"),
        pytest.param('vllm:num_requests_running{engine="0" 3', "could not be read", id="no end of labels"),
        pytest.param("vllm:num_requests_running{engine=0} 3", "could not be read", id="no quotes"),
        pytest.param("vllm:time_to_first_token_seconds_bucket 3", "could not be read", id="a bucket without bound"),
        pytest.param(
            "\n".join(f'vllm:num_requests_running{{model_name="m{n}"}} 1' for n in range(MAX_LINES + 1)),
            f"at most {MAX_LINES} lines",
            id="too many lines",
        ),
        pytest.param(
            f'vllm:num_requests_running{{model_name="{"m" * MAX_LINE_CHARACTERS}"}} 1',
            f"lines of at most {MAX_LINE_CHARACTERS} characters, got 41",
            id="a line without end",
        ),
        pytest.param(
            "\n".join(f'vllm:num_requests_running{{engine="{n}"}} 1' for n in range(65)),
            "at most 64 data-parallel ranks, got 65",
            id="too many ranks",
        ),
    ],
)
def test_what_is_no_model_servers_text_is_a_wire_error_that_names_the_pod(text: str, expected: str):
    with pytest.raises(WireError, match=expected) as raised:
        reports(text)
    assert "ml/llama-0" in str(raised.value)


@given(st.text(alphabet=st.sampled_from('vllm:num_requests_running{}=",\\ \n0.5eNa'), max_size=80))
def test_no_text_is_more_than_a_wire_error(noise: str):
    """Whoever may label a pod says what is read here."""
    text = f"vllm:num_requests_running{noise}\nvllm:num_requests_waiting 1\n"
    try:
        told = reports(text)
    except WireError:
        return
    assert all(each.waiting is None or each.waiting >= 0 for each in told)


@pytest.mark.parametrize("server", ["vLLM", "SGLang"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fake_server_of_other_tests_speaks_as_the_real_ones(server: str, ranks: int):
    """Its sums over ranks follow from its load: 10 s at 2 requests, 50 prompt and 100 output tokens a second each."""
    now_s = 0.0
    fake = FakeWorker(
        server=server,
        ranks=ranks,
        clock=lambda: now_s,
        load=Load(
            waiting=3, running=2, requests_per_s=2, prompt_tokens_per_s=50, generation_tokens_per_s=100, ttft_s=0.3
        ),
    )
    now_s = 10.0
    told = reports(fake.text())
    assert [each.worker for each in told] == [f"ml:llama-0:{rank}" for rank in range(ranks)]
    assert {(each.waiting, each.running) for each in told} == {(3, 2)}
    counters = [each.counters for each in told if each.counters is not None]
    assert sum(each.finished_requests or 0 for each in counters) == 20 * ranks
    assert sum(each.prompt_tokens or 0 for each in counters) == 500 * ranks
    ttfts = [each.ttft for each in counters if each.ttft is not None]
    assert sum(each.counts[-1] for each in ttfts) == 20 * ranks
    assert sum(each.sum_s for each in ttfts) == pytest.approx(6 * ranks)
    assert sum(each.tpot.counts[-1] for each in counters if each.tpot is not None) == 1000 * ranks
