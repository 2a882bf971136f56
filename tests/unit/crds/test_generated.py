"""The generated CRDs: in step with the types, described, bounded, and as Kubernetes' structural schemas want them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from kvaware_crds import KINDS, render_crds
from kvaware_crds.generate import main
from kvaware_crds.schema import structural_schema
from kvaware_testing.crd_cases import cases

CRDS = Path(__file__).parents[3] / "crds"
RENDERED = {name: yaml.safe_load(text) for name, text in render_crds().items()}
API_SERVER_OWNS = {"apiVersion", "kind", "metadata"}


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside, with its path; what the API server itself owns is left out."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        if "." in path or name not in API_SERVER_OWNS:
            yield from walk(part, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}.*")


SCHEMAS = [
    found
    for crd in RENDERED.values()
    for found in walk(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], crd["spec"]["names"]["shortNames"][0])
]


def is_bounded(schema: dict[str, Any]) -> bool:
    """Whether a value has a largest size; integers also have a smallest."""
    match schema.get("type", "int-or-string"):
        case "string":
            return "enum" in schema or "maxLength" in schema or schema.get("format") == "date-time"
        case "integer":
            return {"minimum", "maximum"} <= schema.keys()
        case "array":
            return "maxItems" in schema
        case "object":
            return "properties" in schema or "maxProperties" in schema
        case "int-or-string":
            bounds = schema["x-kubernetes-validations"]
            return {"maxLength", "pattern"} <= schema.keys() and len(bounds) == 2
        case other:
            return bool(other == "boolean")


def test_files_are_in_step_with_the_types() -> None:
    """`make generate` repairs this."""
    written = {path.name: path.read_text(encoding="utf-8") for path in CRDS.glob("*.yaml")}
    assert written == render_crds()


def test_every_field_has_a_description() -> None:
    """``kubectl explain`` is the reference that users have at hand."""
    fields = {path: schema for path, schema in SCHEMAS if not path.endswith(("[]", ".*"))}
    assert len(fields) > 100
    assert [path for path, schema in fields.items() if not schema.get("description", "").endswith(".")] == []


def test_there_is_no_float() -> None:
    """Kubernetes' API conventions: floats do not survive being read and written by different programs."""
    assert [path for path, schema in SCHEMAS if schema.get("type") == "number"] == []
    assert [path for path, schema in SCHEMAS if schema.get("format") in {"float", "double"}] == []


def test_everything_is_bounded() -> None:
    """An object stays small, and the estimated cost of its CEL rules stays inside the API server's budget."""
    assert [path for path, schema in SCHEMAS if not is_bounded(schema)] == []


def test_quantities_are_int_or_string() -> None:
    quantities = {path: schema for path, schema in SCHEMAS if "type" not in schema}
    assert {"im.spec.weights.size", "tq.spec.limits.hbm", "kvbg.status.copies[].bytes"} <= quantities.keys()
    for schema in quantities.values():
        assert schema["x-kubernetes-int-or-string"] is True
        assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]


def test_list_map_keys_are_required() -> None:
    """A key that may be missing makes the API server refuse the CRD."""
    maps = {path: schema for path, schema in SCHEMAS if schema.get("x-kubernetes-list-type") == "map"}
    assert {"im.spec.roles", "im.status.conditions", "kvbg.status.copies"} <= maps.keys()
    for schema in maps.values():
        assert set(schema["x-kubernetes-list-map-keys"]) <= set(schema["items"]["required"])


def test_every_rule_has_a_message() -> None:
    """Without one the user reads CEL."""
    rules = [rule for _, schema in SCHEMAS for rule in schema.get("x-kubernetes-validations", [])]
    assert len(rules) > 30
    assert [rule for rule in rules if not rule["message"] or rule["message"].endswith(".")] == []


def test_every_rule_and_immutable_field_has_a_refused_case() -> None:
    """A rule that nobody saw refuse anything may be one that never does."""
    stated = {rule["message"] for _, schema in SCHEMAS for rule in schema.get("x-kubernetes-validations", [])}
    refused = {case.expected for folder in ("bad", "updates", "status_bad") for case in cases(folder)}
    assert stated - refused == set()


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_names_scope_and_subresources(name: str) -> None:
    # given
    crd = RENDERED[name]
    kind = KINDS[crd["spec"]["names"]["kind"]]
    (version,) = crd["spec"]["versions"]
    # then
    assert name == f"{kind.group}_{kind.plural}.yaml"
    assert crd["metadata"]["name"] == kind.crd_name
    assert (crd["spec"]["group"], version["name"]) == (kind.group, kind.version)
    assert crd["spec"]["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
    assert crd["spec"]["names"]["categories"] == ["kvaware"]
    assert version["subresources"] == {"status": {}}
    assert version["additionalPrinterColumns"][-1]["name"] == "Age"
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert "conditions" in status
    assert "phase" not in status


def test_short_names() -> None:
    names = {crd["spec"]["names"]["kind"]: crd["spec"]["names"]["shortNames"] for crd in RENDERED.values()}
    assert names == {"InferenceModel": ["im"], "KVCacheBlockGroup": ["kvbg"], "TenantQuota": ["tq"]}


def test_generator_writes_checks_and_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given: an empty folder, which is out of step
    folder = tmp_path / "crds"
    assert main(["--check", str(folder)]) == 1
    assert "run make generate" in capsys.readouterr().err
    # when
    assert main([str(folder)]) == 0
    # then
    assert {path.name for path in folder.iterdir()} == set(render_crds())
    assert main(["--check", str(folder)]) == 0
    # and a changed file is found, named, and repaired
    changed = next(iter(folder.iterdir()))
    changed.write_text("edited by hand\n", encoding="utf-8")
    assert main(["--check", str(folder)]) == 1
    assert str(changed) in capsys.readouterr().err
    assert main([str(folder)]) == 0
    assert main(["--check", str(folder)]) == 0


def test_two_runs_give_the_same_bytes() -> None:
    assert render_crds() == render_crds()


def test_what_a_structural_schema_cannot_say_is_refused() -> None:
    """A type that would make the API server refuse the CRD fails here, with its path."""

    class Part(BaseModel):
        amount: int | str

    class Whole(BaseModel):
        part: Part

    with pytest.raises(ValueError, match=r"Whole\.part\.amount: a structural schema must have a type"):
        structural_schema(Whole)
