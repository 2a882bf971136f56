"""``kvaware top``: headroom and use at a glance."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kvaware_testing.command_line import Kvaware
from kvaware_testing.extender_answers import node, pool, tenant
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
@pytest.mark.parametrize("subject", ["nodes", "tenants"])
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
    server.answers["GET /v1/nodes"] = server.answers["GET /v1/tenants"] = (200, {"items": []})
    assert "no nodes" in kvaware("top", server=server).out
    assert "every namespace is unlimited" in kvaware("top", "tenants", server=server).out
