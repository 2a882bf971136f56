"""``kvaware top``: headroom and use at a glance."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kvaware_testing.command_line import Kvaware
from kvaware_testing.extender_answers import model_load, node, pool, role_load, tenant, worker
from kvaware_testing.fake_extender import FakeExtender


def test_nodes_show_headroom_and_what_keeps_pods_off(kvaware: Kvaware, server: FakeExtender) -> None:
    """A node that looks free to kube-scheduler shows the foreign HBM beside it."""
    nodes = [node("busy", pools=[pool(foreign_gib=70)]), node("down", ready=False), node("cpu-only", pools=[])]
    server.answers["GET /v1/nodes"] = (200, {"items": nodes})
    # when
    result = kvaware("top", server=server)
    # then
    lines = {line.split()[0]: line for line in reversed(result.out.splitlines()) if line}
    assert "560.0" in lines["busy"]  # 8 GPUs x 70 GiB
    assert "down       not Ready" in result.out.splitlines()
    assert "none" in lines["cpu-only"]


def test_unknown_foreign_use_is_not_shown_as_zero(kvaware: Kvaware, server: FakeExtender) -> None:
    server.answers["GET /v1/nodes"] = (200, {"items": [node("blind", pools=[pool(foreign_gib=None)])]})
    result = kvaware("top", "nodes", server=server)
    [line] = [line for line in result.out.splitlines() if line.startswith("blind")]
    assert line.split()[-1] == "?"


def test_tenants_show_what_is_left_of_their_limits_of_requests(kvaware: Kvaware, server: FakeExtender) -> None:
    """Debt is nothing left; who has no such limit and nothing in flight is not listed."""
    limits = [
        {"limit": "concurrentRequests", "quota": "q", "at_most": 5, "left": 2.0},
        {"limit": "tokensPerSecond", "quota": "q", "at_most": 10_000, "left": -300.5},
    ]
    busy = {**tenant("busy"), "requests": {"concurrent_requests": 3, "concurrent_migrations": 0, "limits": limits}}
    idle = {**tenant("idle"), "requests": {"concurrent_requests": 0, "concurrent_migrations": 0, "limits": []}}
    server.answers["GET /v1/tenants"] = (200, {"items": [idle, busy]})
    told = kvaware("top", "tenants", server=server).out.partition("\nRequests\n")[2]
    assert " ".join(told.split()) == (
        "busy 3 in flight, concurrentRequests: 2 of 5 left, tokensPerSecond: 0 of 10,000 left"
    )


def test_tenants_show_use_against_limits_and_a_limit_of_zero_is_a_limit(kvaware: Kvaware, server: FakeExtender) -> None:
    """HAMi#2312: a limit of 0 was read as "no limit"; here unset is a dash and 0 is 0, and reached."""
    tenants = [tenant("free", used_gpus=3), tenant("blocked", limit_gpus=0), tenant("full", used_gpus=4, limit_gpus=4)]
    server.answers["GET /v1/tenants"] = (200, {"items": tenants})
    # when
    result = kvaware("top", "tenants", server=server)
    # then
    lines = {line.split()[0]: line for line in result.out.splitlines() if line}
    assert "3/-" in lines["free"]
    assert "0/0" in lines["blocked"]
    assert "At a limit: 2 tenants (blocked, full)." in result.out


def test_namespace_conflicts_are_shown(kvaware: Kvaware, server: FakeExtender) -> None:
    server.answers["GET /v1/tenants"] = (200, {"items": [tenant("late", conflicts=["ml: early"])]})
    told = "NamespaceConflict at tenant late: namespace ml already belongs to quota early; this entry is ignored"
    assert told in kvaware("top", "tenants", server=server).out


@pytest.mark.parametrize(
    ("output", "parse"), [pytest.param("json", json.loads, id="json"), pytest.param("yaml", yaml.safe_load, id="yaml")]
)
@pytest.mark.parametrize("subject", ["nodes", "tenants", "workers", "models"])
def test_machine_formats_carry_the_whole_answer(
    kvaware: Kvaware, server: FakeExtender, subject: str, output: str, parse: Callable[[str], Any]
) -> None:
    body = {"items": [{"name": "n" * 300, "a_field_of_tomorrow": [1]}]}
    server.answers[f"GET /v1/{subject}"] = (200, body)
    assert parse(kvaware("top", subject, "-o", output, server=server).out) == body


def test_a_long_name_is_whole_in_a_pipe_and_so_is_what_is_said_about_it(kvaware: Kvaware, server: FakeExtender) -> None:
    name = "gke-" + "n" * 296
    server.answers["GET /v1/nodes"] = (200, {"items": [node(name, ready=False)]})
    lines = kvaware("top", server=server).out.splitlines()
    assert lines[1].split() == [name, "8", "H100-80GB-HBM3", "exclusive", "8/8", "80.0/80.0", "0.0", "0.0"]
    assert lines[-1] == f"{name}  not Ready"


def test_an_empty_cluster_says_so(kvaware: Kvaware, server: FakeExtender) -> None:
    for subject in ("nodes", "tenants", "workers", "models"):
        server.answers[f"GET /v1/{subject}"] = (200, {"items": []})
    assert "no nodes" in kvaware("top", server=server).out
    assert "every namespace is unlimited" in kvaware("top", "tenants", server=server).out
    assert "no workers" in kvaware("top", "workers", server=server).out
    assert "no InferenceModels" in kvaware("top", "models", server=server).out


def row(out: str, name: str) -> list[str]:
    """The cells of the line that begins with a name."""
    [line] = [line for line in out.splitlines() if line.startswith(f"{name} ")]
    return line.split()


def test_workers_show_what_they_have_to_do_and_what_losing_them_would_cost(
    kvaware: Kvaware, server: FakeExtender
) -> None:
    busy = worker(
        "ml:busy:0", waiting=1200, running=0, kv_usage_ratio=0.984, gpu_utilization_ratio=1, prefix_hit_ratio=0.4,
        cache_value_ms=26_307.7,
    )  # fmt: skip
    server.answers["GET /v1/workers"] = (200, {"items": [busy, worker("ml:quiet:0")]})
    # when
    out = kvaware("top", "workers", server=server).out
    # then
    assert row(out, "ml:busy:0") == ["ml:busy:0", "llama", "both", "Ready", "1,200", "0", "98%", "100%", "40%", "26.3"]
    assert row(out, "ml:quiet:0")[4:] == ["?"] * 6, "unknown is not 0"


@pytest.mark.parametrize(
    ("figures", "state"),
    [
        ({}, "Ready"),
        ({"ready": False, "reporting": False}, "not Ready"),
        ({"asleep": True}, "asleep"),
        ({"draining": True}, "draining"),
        ({"reporting": False, "age_s": 90.0}, "silent"),
        ({"reporting": False, "age_s": None}, "not heard"),
    ],
)
def test_a_worker_that_takes_no_requests_says_why(
    kvaware: Kvaware, server: FakeExtender, figures: dict[str, Any], state: str
) -> None:
    server.answers["GET /v1/workers"] = (200, {"items": [worker("ml:w:0", **figures)]})
    cells = row(kvaware("top", "workers", server=server).out, "ml:w:0")
    assert " ".join(cells[3:-6]) == state


def test_models_show_their_load_by_role(kvaware: Kvaware, server: FakeExtender) -> None:
    """Of how many workers the figures are stands beside them: of none they are unknown."""
    prefill = role_load(
        "prefill", workers=3, waiting=4, running=8, kv_usage_ratio=0.25, requests_per_s=2.34,
        prompt_tokens_per_s=12_345.6, generation_tokens_per_s=0.0, prefix_hit_ratio=0.0, ttft_p99_ms=812.4,
        tpot_p99_ms=45.67,
    )  # fmt: skip
    decode = role_load("decode", workers=1, reporting=0)
    server.answers["GET /v1/models"] = (200, {"items": [model_load("llama", prefill, decode)]})
    # when
    lines = [line.split() for line in kvaware("top", "models", server=server).out.splitlines()]
    # then
    assert lines[1] == [
        "ml/llama", "prefill", "2/3", "4", "8", "25%", "2.3", "12,346", "0.0", "0%", "812", "46",
    ]  # fmt: skip
    assert lines[2] == ["ml/llama", "decode", "0/1", *["?"] * 9]
