"""The pages about installing and about conditions name what there is."""

import re
from typing import Any

import pytest
import yaml

from kvaware_crds import InferenceModel, KVCacheBlockGroup, TenantQuota, names
from kvaware_crds.names import ConditionType
from kvaware_operator import scales
from kvaware_testing.chart import CHART
from kvaware_testing.controlplane.versions import HELM, KUBERNETES
from kvaware_testing.repository import REPOSITORY

KINDS = {model.__name__ for model in (InferenceModel, KVCacheBlockGroup, TenantQuota)}


def rows() -> dict[str, list[str]]:
    """The cells after the first of every row that begins with a condition."""
    text = (REPOSITORY / "docs" / "conditions.md").read_text("utf-8")
    found = re.findall(r"^\| `([\w./]+)` \| (.*) \|$", text, re.MULTILINE)
    assert len(found) == len(dict(found)), "a condition stands in two rows"
    return {name: rest.split(" | ") for name, rest in found}


def test_every_condition_is_explained_and_no_other() -> None:
    on_pods = {value for name, value in vars(names).items() if name.startswith("CONDITION_")}
    assert set(rows()) == {*ConditionType, *on_pods}


def test_every_row_says_where_what_and_what_to_do() -> None:
    for condition, cells in rows().items():
        where, *said = cells
        assert len(said) == 2, condition
        assert all(cell.strip() for cell in said), condition
        on_pods = "/" in condition
        assert ("pods" in where) is on_pods, condition
        assert on_pods or any(kind in where for kind in KINDS), condition


def test_every_reason_why_a_role_is_not_scaled_is_explained_and_no_other() -> None:
    """As the operator's code has them: each is said on the object, and stands alone for whoever reads it there."""
    sources = "".join(path.read_text("utf-8") for path in (REPOSITORY / "operator").rglob("*.py"))
    written = re.findall(r"ScaleProblem\(\s*reason=(\"\w+\"|\w+)", sources)
    values = {each.strip('"') if each.startswith('"') else getattr(scales, each) for each in written}
    assert len(values) >= 5
    *_, said = rows()["Scalable"]
    assert set(re.findall(r"`([A-Z]\w+)`[,:]", said)) == values


def page(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text("utf-8")


def anchors(name: str) -> set[str]:
    """Headings as links name them."""
    return {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall("(?m)^#+ (.*)$", page(name))
    }


@pytest.mark.parametrize("name", ["install.md", "upgrade.md", "conditions.md", "why-is-my-pod-pending.md"])
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page(name)):
        target, _, anchor = link.partition("#")
        assert (REPOSITORY / "docs" / target).exists(), link
        if anchor and not target.startswith("../"):
            assert anchor in anchors(target or name), link


def test_values_that_are_named_exist() -> None:
    """In the table of those that people set, and where troubles are told."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    tables = "\n".join(line for line in page("install.md").splitlines() if line.startswith("|"))
    named = {name for name in re.findall(r"`([a-z]\w+(?:\.\w+)+)(?:: \w+)?`", tables) if name.split(".")[0] in values}
    assert len(named) > 10
    for name in named:
        found: Any = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def test_the_oldest_kubernetes_is_the_charts() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    oldest = chart["kubeVersion"].removeprefix(">=").removesuffix(".0-0")
    assert f"**Kubernetes {oldest} or newer.**" in page("install.md")
    assert f"Kubernetes {oldest} or newer" in (REPOSITORY / "README.md").read_text("utf-8")


def test_what_was_tested_is_what_the_control_plane_is() -> None:
    assert f"Tested: {KUBERNETES}, with Helm {HELM}." in page("install.md")


def test_the_crds_to_delete_are_all_of_them() -> None:
    [line] = re.findall(r"kubectl delete crd (.*)", page("upgrade.md"))
    assert set(line.split()) == {model.resource.crd_name for model in (InferenceModel, KVCacheBlockGroup, TenantQuota)}
