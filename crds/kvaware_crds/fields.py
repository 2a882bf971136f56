"""The kinds of values that fields hold: names, amounts, quantities, durations, lists whose items are unique.

Each says the same thing twice, for the API server (schema and CEL) and for Python, and keeps the two side by side.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Strict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from kvaware_crds.base import CEL_RULES
from kvaware_crds.duration import DURATION_PATTERN, format_duration, parse_duration
from kvaware_crds.errors import WireError
from kvaware_crds.quantity import QUANTITY_PATTERN, format_quantity, parse_quantity

__all__ = [
    "Amount",
    "Bytes",
    "Count",
    "DnsLabel",
    "DnsSubdomain",
    "DurationBounds",
    "Flag",
    "Integer",
    "LabelValue",
    "PositiveBytes",
    "QuantityBounds",
    "UniqueItems",
]

MAX_BYTES: Final = 2**60
"""1Ei: more than any cluster holds, and small enough that sums of several stay inside 64 bits."""

MAX_DURATION_CHARACTERS: Final = 32
MAX_QUANTITY_CHARACTERS: Final = 40

Integer = Annotated[int, Strict()]
"""``"8"``, ``8.0`` and ``true`` are no integers, here as in the API server."""
Flag = Annotated[bool, Strict()]
Count = Annotated[Integer, Field(ge=0, le=1_000_000)]
"""A number of things: GPUs, pods, groups, requests in flight."""
Amount = Annotated[Integer, Field(ge=0, le=1_000_000_000_000)]
"""A number per second."""

DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
DnsSubdomain = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityBounds:
    """``Annotated[int, QuantityBounds(…)]``: integer or text in YAML, whole units in Python."""

    at_least: int
    """0 or 1. Between them lies ``500m``, which is above 0 and rounds up to 1."""
    at_most: int = MAX_BYTES

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read text or integer, write the shortest exact text."""
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(format_quantity, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Int-or-string, with both bounds in CEL since a schema cannot compare text."""
        low = f"self {self._low_sign} 0"
        low_text = "isGreaterThan(quantity('0'))" if self.at_least else "compareTo(quantity('0')) >= 0"
        most = format_quantity(self.at_most)
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": MAX_QUANTITY_CHARACTERS,
            "pattern": QUANTITY_PATTERN,
            CEL_RULES: [
                {
                    "rule": f"type(self) == int ? {low} : (isQuantity(self) && quantity(self).{low_text})",
                    "message": self._low_message,
                },
                {
                    "rule": f"type(self) == int ? self <= {self.at_most} : "
                    f"(isQuantity(self) && quantity(self).compareTo(quantity('{most}')) <= 0)",
                    "message": self._high_message,
                },
            ],
        }

    @property
    def _low_sign(self) -> str:
        return ">" if self.at_least else ">="

    @property
    def _low_message(self) -> str:
        return "must be a quantity greater than 0" if self.at_least else "must be a quantity of at least 0"

    @property
    def _high_message(self) -> str:
        return f"must be a quantity of at most {format_quantity(self.at_most)}"

    def _read(self, value: Any) -> int:
        try:
            units = parse_quantity(value)
        except WireError as error:
            raise ValueError(str(error)) from error
        if isinstance(value, str) and len(value) > MAX_QUANTITY_CHARACTERS:
            raise ValueError(f"must be a quantity of at most {MAX_QUANTITY_CHARACTERS} characters")
        if units < self.at_least:
            raise ValueError(self._low_message)
        if units > self.at_most:
            raise ValueError(self._high_message)
        return units


Bytes = Annotated[int, QuantityBounds(at_least=0)]
PositiveBytes = Annotated[int, QuantityBounds(at_least=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationBounds:
    """``Annotated[timedelta, DurationBounds(…)]``: a duration as text in YAML, a timedelta in Python."""

    above_zero: bool
    at_most: str
    """A duration, as the message shows it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read text (or a timedelta, from our own code), write text."""
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(format_duration, when_used="json"),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """A string, for CEL a duration; the pattern keeps out what ``format`` adds to Go's spelling (``1 day``)."""
        rules = [{"rule": f"self <= duration('{self.at_most}')", "message": self._high_message}]
        if self.above_zero:
            rules.insert(0, {"rule": "self > duration('0s')", "message": self._low_message})
        return {
            "type": "string",
            "format": "duration",
            "maxLength": MAX_DURATION_CHARACTERS,
            "pattern": DURATION_PATTERN,
            CEL_RULES: rules,
        }

    @property
    def _low_message(self) -> str:
        return "must be a duration longer than 0s"

    @property
    def _high_message(self) -> str:
        return f"must be a duration of at most {self.at_most}"

    def _read(self, value: Any) -> timedelta:
        try:
            duration = value if isinstance(value, timedelta) else parse_duration(value)
        except WireError as error:
            raise ValueError(str(error)) from error
        if isinstance(value, str) and (value[0] in "+-" or len(value) > MAX_DURATION_CHARACTERS):
            raise ValueError(f"must be a duration without a sign, of at most {MAX_DURATION_CHARACTERS} characters")
        if duration < timedelta() or (self.above_zero and not duration):
            raise ValueError(self._low_message)
        if duration > parse_duration(self.at_most):
            raise ValueError(self._high_message)
        return duration


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """A list in which nothing comes twice: a set of scalars, or with ``keys`` a map of objects. Both merge on apply."""

    keys: tuple[str, ...] = ()
    """Fields that together identify an item; each is required, and the same word in YAML and Python."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the items were read."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The API server holds uniqueness itself, given the list's type."""
        json_schema = handler(schema)
        if self.keys:
            return {**json_schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.keys)}
        return {**json_schema, "x-kubernetes-list-type": "set"}

    def _check(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        seen: set[Hashable] = set()
        for item in items:
            identity = tuple(getattr(item, key) for key in self.keys) if self.keys else item
            if identity in seen:
                raise ValueError(f"must not hold a duplicate, got {self._shown(identity)} twice")
            seen.add(identity)
        return items

    def _shown(self, identity: Any) -> str:
        if not self.keys:
            return repr(str(identity))
        return ", ".join(f"{key} {str(part)!r}" for key, part in zip(self.keys, identity, strict=True))
