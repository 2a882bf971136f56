from typing import Any

import pytest

from kvaware_cluster import parse_heartbeat
from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import ReportSource, WorkerReport

WHOLE: dict[str, Any] = {
    "seq": 17,
    "model": "ml/llama-70b",
    "role": "both",
    "address": "10.0.0.7:8000",
    "block_size": 16,
    "kv_blocks_total": 1000,
    "kv_blocks_free": 400,
    "waiting": 3,
    "running": 8,
    "queued_tokens": 9000,
    "batch_size": 8,
    "gpu_utilization_ratio": 0.6,
    "hbm_used_bytes": 70 * 2**30,
    "capabilities": ["tiers"],
    "draining": False,
    "adapters": ["sql"],
    "cpu_tier_free_bytes": 2**38,
    "ssd_tier_free_bytes": 2**41,
    "transfer_domain": "tp4-nixl-0.3",
}
MODEL = ObjectKey("ml", "llama-70b")


def report(body: dict[str, Any], model: ObjectKey | None = MODEL) -> WorkerReport:
    return parse_heartbeat(body, worker="ml:llama-70b-0:0", model=model, incarnation="u-1/t", observed_at_s=12.5)


def test_every_field_of_a_heartbeat_arrives():
    assert report(WHOLE) == WorkerReport(
        worker="ml:llama-70b-0:0",
        model=MODEL,
        incarnation="u-1/t",
        source=ReportSource.HEARTBEAT,
        observed_at_s=12.5,
        seq=17,
        role="both",
        address="10.0.0.7:8000",
        waiting=3,
        running=8,
        queued_tokens=9000,
        batch_size=8,
        kv_blocks_total=1000,
        kv_blocks_free=400,
        block_size_tokens=16,
        gpu_utilization_ratio=0.6,
        hbm_used_bytes=70 * 2**30,
        capabilities=("tiers",),
        draining=False,
        adapters=("sql",),
        cpu_tier_free_bytes=2**38,
        ssd_tier_free_bytes=2**41,
        transfer_domain="tp4-nixl-0.3",
    )


def test_what_is_left_out_or_null_is_unknown():
    told = report({"model": "ml/llama-70b", "waiting": None})
    assert (told.waiting, told.running, told.seq, told.capabilities, told.draining) == (None,) * 5


def test_an_integer_is_a_ratio_too():
    assert report({"model": "ml/llama-70b", "gpu_utilization_ratio": 1}).gpu_utilization_ratio == 1.0


def test_the_model_may_be_left_to_the_caller_to_hold():
    assert report({"model": "ml/other"}, model=None).model == ObjectKey("ml", "other")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"model": "ml/other"}, r"model: expected 'ml/llama-70b'.*got 'ml/other'", id="another model"),
        pytest.param({"model": "other/llama-70b"}, "got 'other/llama-70b'", id="another namespace's model"),
        pytest.param({"model": "llama-70b"}, "model: .*'llama-70b'", id="no namespace"),
        pytest.param({"model": "a/b/c"}, "model: ", id="too many parts"),
        pytest.param({"model": None}, "model: required, and missing", id="no model"),
        pytest.param({"wating": 3}, "wating: unknown field", id="a typing mistake"),
        pytest.param({"waiting": -1}, "waiting: .*got -1", id="negative"),
        pytest.param({"waiting": True}, "waiting: .*got True", id="a boolean"),
        pytest.param({"waiting": 3.0}, "waiting: .*got 3.0", id="a float"),
        pytest.param({"waiting": "3"}, "waiting: .*got '3'", id="text"),
        pytest.param({"waiting": 10**10}, "waiting: .*got 10000000000", id="absurd"),
        pytest.param({"seq": -1}, "seq: ", id="negative seq"),
        pytest.param({"seq": 2**63}, "seq: ", id="a seq beyond 64 bits"),
        pytest.param({"kv_blocks_free": 1001}, "expected kv_blocks_free to be at most kv_blocks_total", id="more free"),
        pytest.param({"gpu_utilization_ratio": 60}, "gpu_utilization_ratio: .*got 60", id="percent"),
        pytest.param({"gpu_utilization_ratio": float("nan")}, "gpu_utilization_ratio: .*got nan", id="NaN"),
        pytest.param({"gpu_utilization_ratio": True}, "gpu_utilization_ratio: .*got True", id="a boolean ratio"),
        pytest.param({"hbm_used_bytes": 2**60}, "hbm_used_bytes: ", id="an exabyte of HBM"),
        pytest.param({"block_size": 0}, "block_size: .*got 0", id="blocks of nothing"),
        pytest.param({"role": "encode"}, "role: .*'both', 'prefill' or 'decode'.*got 'encode'", id="no such role"),
        pytest.param({"capabilities": ["fly"]}, r"capabilities\[0\]: .*got 'fly'", id="no such capability"),
        pytest.param({"capabilities": "tiers"}, "capabilities: ", id="no list"),
        pytest.param({"draining": 0}, "draining: .*got 0", id="a number as flag"),
        pytest.param({"address": "10.0.0.7"}, "address: ", id="no port"),
        pytest.param({"address": "http://10.0.0.7:80/x"}, "address: ", id="a URL"),
        pytest.param({"adapters": "sql"}, "adapters: ", id="no list of adapters"),
        pytest.param({"adapters": ["sql", ""]}, r"adapters\[1\]: ", id="an adapter without a name"),
        pytest.param({"cpu_tier_free_bytes": -1}, "cpu_tier_free_bytes: .*got -1", id="less than nothing free"),
        pytest.param({"ssd_tier_free_bytes": 2**51}, "ssd_tier_free_bytes: ", id="two petabytes of SSD"),
        pytest.param({"transfer_domain": ""}, "transfer_domain: ", id="an empty transfer domain"),
    ],
)
def test_a_lie_is_refused_by_its_name(change: dict[str, Any], expected: str):
    """The message goes back to whoever sent it: the field, what was expected, what came."""
    with pytest.raises(WireError, match=expected):
        report(WHOLE | change)


@pytest.mark.parametrize("body", [[], "x", 3, None])
def test_a_body_that_is_no_object_is_a_wire_error(body: Any):
    with pytest.raises(WireError, match="Heartbeat"):
        report(body)


def test_a_long_text_is_not_repeated():
    """It could be a prompt."""
    with pytest.raises(WireError) as raised:
        report(WHOLE | {"role": "secret " * 1000})
    assert "secret" not in str(raised.value)
