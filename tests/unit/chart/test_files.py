"""Files beside the chart's templates say the same as what they are copied from or meant for; no program is needed."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kvaware_cluster import parse_node
from kvaware_crds.generate import main as generate
from kvaware_testing.chart import CHART
from kvaware_testing.repository import REPOSITORY

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
FREE = {"extender.config", "operator.config", "nodeSelector", "affinity", "podAnnotations", "podLabels"}
"""Mappings whose keys are the user's."""
FREE |= {f"{part}.resources" for part in ("scheduler", "extender", "operator")} | {"serviceMonitor.labels"}


def test_the_charts_crds_are_those_of_the_repository() -> None:
    """Top-level ``crds/`` is the truth; out of step: ``make generate``."""
    truth = {path.name: path.read_bytes() for path in (REPOSITORY / "crds").glob("*.yaml")}
    copies = {path.name: path.read_bytes() for path in (CHART / "crds").iterdir()}
    assert copies == truth
    assert generate(["--check", str(CHART / "crds")]) == 0


def test_the_chart_installs_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["appVersion"] == project["version"]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with what it refers to, properties of ``allOf`` joined."""
    if "$ref" in schema:
        return resolved(SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[-1]])
    parts = [resolved(part) for part in schema.get("allOf", ())]
    return {**schema, **{key: value for part in reversed(parts) for key, value in part.items()}}


def objects(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each mapping of the values whose keys the chart knows: path, the mapping, its schema."""
    yield path, values, schema
    for key, value in values.items():
        below = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict) and below not in FREE:
            yield from objects(value, resolved(schema["properties"][key]), below)


@pytest.mark.parametrize(
    ("path", "values", "schema"),
    [pytest.param(*one, id=one[0] or "at the top") for one in objects(VALUES, SCHEMA)],
)
def test_the_schema_knows_exactly_the_values(path: str, values: dict[str, Any], schema: dict[str, Any]) -> None:
    """A misspelt value is refused, none is missing from values.yaml, and none can be deleted by ``null``."""
    known = set(schema["properties"]) - {"global"}
    assert set(values) == known, path
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == known


def test_the_image_runs_as_the_user_that_the_chart_demands() -> None:
    """``runAsNonRoot`` refuses an image whose user is a name."""
    [user] = re.findall(r"^USER (\d+):(\d+)$", (REPOSITORY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    pods = (CHART / "templates" / "_pods.tpl").read_text("utf-8")
    assert user == (re.findall(r"runAsUser: (\d+)", pods)[0], re.findall(r"runAsGroup: (\d+)", pods)[0])


def test_the_image_is_made_of_what_the_lock_files_pin() -> None:
    text = (REPOSITORY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert len(installs) == 3
    assert all("--require-hashes" in words or "--no-deps" in words for words in installs)


def test_the_workers_of_kind_look_like_gpu_nodes() -> None:
    """With the resource that ``make kind-up`` adds to their status."""
    kind = yaml.safe_load((REPOSITORY / "kind-config.yaml").read_text("utf-8"))
    workers = [node for node in kind["nodes"] if node["role"] == "worker"]
    assert len(workers) == 2
    [added] = re.findall(r"-p '(\{\"status\".*\})'", (REPOSITORY / "Makefile").read_text("utf-8"))
    for worker in workers:
        raw = {"metadata": {"name": "w", "uid": "u", "labels": worker["labels"]}, **json.loads(added)}
        [pool] = parse_node(raw).pools
        assert (pool.resource, pool.devices) == ("nvidia.com/gpu", 8)
        assert pool.hbm_bytes == 81559 * 2**20
