"""From pydantic's JSON schema to the structural schema that apiextensions.k8s.io/v1 wants.

The API server allows no ``$ref``, no ``anyOf`` for "or null", no ``additionalProperties`` beside ``properties``, no
``title``; it wants a type everywhere. Pydantic knows no formats for integers. Everything else passes through.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from kvaware_crds.base import CEL_RULES
from kvaware_crds.duration import format_duration

__all__ = ["structural_schema"]

_ORDER: Final = (
    "description",
    "type",
    "format",
    "x-kubernetes-int-or-string",
    "anyOf",
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "items",
    "maxProperties",
    "additionalProperties",
    "required",
    "properties",
    CEL_RULES,
)
"""All that a schema of ours may say, in the order in which it is written; anything else is a mistake in a type."""


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Translate one type.

    Raises: ValueError when the type says something that a structural schema cannot hold.
    """
    document = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    return _translate(document, document.get("$defs", {}), path=model.__name__)


class _Generator(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Write a default as it would stand in YAML; pydantic itself writes ISO 8601 (PT5M)."""
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def _translate(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, path: str) -> dict[str, Any]:
    flat = _flatten(schema, definitions)
    for dropped in ("$defs", "title"):
        flat.pop(dropped, None)
    if flat.get("default", 0) in (None, [], {}):  # what is unset in Python is unset in the object
        del flat["default"]
    if "const" in flat:
        flat["enum"] = [flat.pop("const")]
    if flat.get("type") == "integer":
        flat["format"] = "int64"
    if "properties" in flat:
        flat.pop("additionalProperties", None)  # unknown fields are pruned, and refused by kubectl's validation
        flat["properties"] = {
            name: _translate(part, definitions, path=f"{path}.{name}") for name, part in flat["properties"].items()
        }
    elif isinstance(flat.get("additionalProperties"), Mapping):
        flat["additionalProperties"] = _translate(flat["additionalProperties"], definitions, path=f"{path}.*")
    if "items" in flat:
        flat["items"] = _translate(flat["items"], definitions, path=f"{path}[]")
    if "description" in flat:
        flat["description"] = " ".join(flat["description"].split())
    if unknown := sorted(set(flat) - set(_ORDER)):
        raise ValueError(f"{path}: a structural schema must not have {', '.join(unknown)}")
    if "type" not in flat and "x-kubernetes-int-or-string" not in flat:
        raise ValueError(f"{path}: a structural schema must have a type, got {sorted(flat)}")
    return {key: flat[key] for key in _ORDER if key in flat}


def _flatten(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Put what is referred to in place, and see "or null" as optional. What stands beside wins, rules add up."""
    beside = dict(schema)
    if "$ref" in beside:
        within = definitions[beside.pop("$ref").removeprefix("#/$defs/")]
    elif (options := _without_null(beside)) is not None:
        del beside["anyOf"]
        within = options
    else:
        return beside
    merged = {**_flatten(within, definitions), **beside}
    rules = [*within.get(CEL_RULES, ()), *beside.get(CEL_RULES, ())]
    return {**merged, CEL_RULES: rules} if rules else merged


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return options[0] if len(options) == 1 else None
