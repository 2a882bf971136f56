"""What every type of the API shares: how fields are named and read, and the rules across fields.

A type is a frozen pydantic model. Its attributes are snake_case, the YAML is camelCase, and the docstring under a field
is its ``kubectl explain`` text. Bounds stand on the field. What bounds cannot say is a :func:`rule`: one CEL expression
for the API server with its Python twin beside it, so that a folder of YAML is held to what a cluster is held to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from kvaware_crds.errors import WireError

__all__ = ["CEL_RULES", "ApiModel", "Rule", "StatusModel", "immutable", "read", "rule"]

CEL_RULES: Final = "x-kubernetes-validations"

_SHOWN_CHARACTERS: Final = 64
_SHOWN_ERRORS: Final = 5

M = TypeVar("M", bound="ApiModel")


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold between the fields of one type."""

    cel: str
    """The expression over ``self``. Its estimated cost must stay inside the API server's budget, so every list, map and
    string that it walks is bounded."""
    message: str
    """What the user reads when it does not hold: what is expected."""
    holds: Callable[[Any], bool]
    """The Python twin: the value to whether the rule holds."""
    came: Callable[[Any], str] | None = None
    """The value to what came, in few words; None: the message is enough. The API server's message goes without."""

    def broken_by(self, value: Any) -> str:
        """The message, with what came."""
        return self.message if self.came is None else f"{self.message}, got {self.came(value)}"


def rule(
    cel: str, message: str, *, came: Callable[[Any], str] | None = None
) -> Callable[[Callable[[M], bool]], Callable[[M], bool]]:
    """Mark a method as the Python twin of a :class:`Rule`: it says whether the rule holds."""

    def mark(method: Callable[[M], bool]) -> Callable[[M], bool]:
        method.__dict__["kvaware_rule"] = Rule(cel, message, method, came)
        return method

    return mark


def immutable(message: str) -> dict[str, Any]:
    """Schema extras of a required field that never changes; only the API server, knowing the old object, holds it."""
    return {CEL_RULES: [{"rule": "self == oldSelf", "message": message}]}


class ApiModel(BaseModel):
    """A part of a spec: unknown fields are errors, as typing mistakes that would change nothing silently."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,  # for our own code; `read` takes outside bytes by their YAML names alone
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """All of the type's rules; a type may list some itself, its marked methods are added."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        own = (getattr(member, "kvaware_rule", None) for member in vars(cls).values())
        cls.rules = (*cls.rules, *(stated for stated in own if stated is not None))

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        for stated in self.rules:
            if not stated.holds(self):
                raise ValueError(stated.broken_by(self))
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        json_schema = handler(schema)
        if cls.rules:
            handler.resolve_ref_schema(json_schema)[CEL_RULES] = [
                {"rule": stated.cel, "message": stated.message} for stated in cls.rules
            ]
        return json_schema

    def to_raw(self) -> dict[str, Any]:
        """As YAML and JSON have it: camelCase, quantities and durations as text, what is not set left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """A part of a status, or of metadata: fields that a newer version wrote are passed over."""

    model_config = ConfigDict(extra="ignore")


def read(model: type[M], raw: Any) -> M:
    """Read what came from outside.

    A null counts as left out, as the API server drops it (``labels:`` with nothing behind it).
    Raises: WireError that names the object, and for each of its first faults the field, what was expected and what
    came.
    """
    try:
        return model.model_validate(_without_nulls(raw), by_alias=True, by_name=False)
    except ValidationError as error:
        faults = _telling(error.errors(include_url=False))
        told = "; ".join(_fault(fault) for fault in faults[:_SHOWN_ERRORS])
        more = f"; and {len(faults) - _SHOWN_ERRORS} more" if len(faults) > _SHOWN_ERRORS else ""
        raise WireError(f"{_named(model, raw)}: {told}{more}") from error


def _without_nulls(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        return {key: _without_nulls(value) for key, value in raw.items() if value is not None}
    return [_without_nulls(item) for item in raw] if isinstance(raw, list) else raw


def _named(model: type[BaseModel], raw: Any) -> str:
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    if not isinstance(metadata, Mapping):
        return model.__name__
    path = "/".join(str(metadata[part])[:253] for part in ("namespace", "name") if part in metadata)
    return f"{model.__name__} {path}".rstrip()


def _telling(faults: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out that a list is too short where that is only because one of its items is wrong."""
    return [
        fault
        for fault in faults
        if fault["type"] != "too_short"
        or not any(other["loc"][: len(fault["loc"])] == fault["loc"] != other["loc"] for other in faults)
    ]


def _fault(fault: ErrorDetails) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
    value, context = fault["input"], fault.get("ctx", {})
    match fault["type"]:
        case "missing":
            told = "required, and missing"
        case "extra_forbidden":
            told = "unknown field"
        case "too_short":
            told = f"expected at least {context['min_length']} items, got {len(value)}"
        case "too_long":
            told = f"expected at most {context['max_length']} items, got {len(value)}"
        case "value_error":
            told = fault["msg"].removeprefix("Value error, ")
            if ", got " not in told and (isinstance(value, str) or not isinstance(value, Mapping | Sequence)):
                told = f"{told}, got {_shown(value)}"
        case _:
            told = f"{fault['msg']}, got {_shown(value)}"
    return f"{path}: {told}" if path else told


def _shown(value: Any) -> str:
    """Enough of a wrong value to find it; long text could be a prompt, which no message may hold."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN_CHARACTERS else f"{len(value)} characters"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:_SHOWN_CHARACTERS]
    return type(value).__name__
