"""The tables of docs/conditions.md name what there is."""

import re

from kvaware_crds import InferenceModel, KVCacheBlockGroup, TenantQuota, names
from kvaware_crds.names import ConditionType
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
