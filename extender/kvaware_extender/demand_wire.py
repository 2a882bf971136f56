"""Bodies of ``/v1/placements`` as they come in: demands and events, typed and bounded, and what is said of wrong ones.

``msgspec`` decodes and checks in one pass: 3 µs for a demand of 24 block hashes. What it cannot say (one kind of
prompt, figures that agree) is checked where a demand is made of it (``prompts.py``).
"""

import re
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from kvaware_crds.errors import WireError
from kvaware_engine.requests.words import EventType, Phase

__all__ = [
    "MOST_ITEMS",
    "MOST_TOKENS",
    "Batch",
    "Demand",
    "Event",
    "Frame",
    "LongDemand",
    "Message",
    "RawBatch",
    "RawFrame",
    "StreamEvent",
    "TokenId",
    "read",
    "schemas",
]

MOST_TOKENS: Final = 10_000_000
"""Of a prompt or an answer; the longest contexts that models offer are a tenth of it."""
MOST_ITEMS: Final = 1000
"""Demands, and events, that may come at once."""
MOST_MS: Final = 86_400_000
"""A day: no time of a request is longer."""
MOST_HASHES: Final = 262_144
"""4 million tokens at 16 per block; read in 35 ms."""
MOST_SHOWN: Final = 64 * 1024
"""Bytes of a body that is looked into again for what came where something else was expected."""

Count = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Milliseconds = Annotated[float, Meta(ge=0, le=MOST_MS)]
PRINTABLE: Final = {"pattern": "^[ -~]*$"}
Key = Annotated[str, Meta(min_length=1, max_length=256, extra_json_schema=PRINTABLE)]
"""Printable ASCII, checked in ``prompts.py``: a pattern here costs 0.5 µs."""
Name = Annotated[str, Meta(min_length=1, max_length=512)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Message(Struct, kw_only=True, gc=False):
    """One message of a chat, as in the OpenAI API; what is not named here is not looked at."""

    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


class _Demand(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Everything but token ids."""

    request_id: Key
    """Your key of the request, printable ASCII. The same one with the same demand gets the same placement."""
    model: Name
    """By one of its served names, or as namespace/name."""
    prompt: Annotated[str, Meta(min_length=1)] | None = None
    """The text, where there are no token ids: the match is approximate."""
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    """A chat, where there are no token ids: the match is approximate."""
    block_hashes: Annotated[list[int | str], Meta(min_length=1, max_length=MOST_HASHES)] | None = None
    """Hashes of your own, one per whole block of the model's block size from the prompt's beginning; 64-bit numbers, or
    the same as strings of decimal digits for those whose JSON has no such numbers. The match is approximate."""
    input_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None = None
    """Length of the prompt. Left out: the token ids are counted; of text, a token for each 4 characters is assumed; of
    block hashes, that no token comes after them. Alone, without a prompt in any form, nothing matches."""
    expected_output_tokens: Count | None = None
    """Length of the answer. Left out: what this tenant's requests to the model had lately."""
    priority: Annotated[int, Meta(ge=-1_000_000_000, le=1_000_000_000)] | None = None
    """Higher goes first. Left out: the tenant's default, else 0."""
    session: Key | None = None
    deadline_ms: Annotated[float, Meta(gt=0, le=MOST_MS)] | None = None
    """From now to the first token. A request that cannot make it is refused."""
    phase: Phase | None = None
    """Left out: both."""
    adapter: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    """As the model server is given it: only requests of the same salt share blocks."""
    current_worker: Name | None = None
    """Id or address of the worker where the request waits now."""
    candidates: Annotated[list[Name], Meta(min_length=1, max_length=10_000)] | None = None
    """Ids or addresses of the only workers that may be chosen. Left out: all of the model's."""


class Demand(_Demand, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One request to be placed. Its prompt in one form at most: token_ids, prompt, messages or block_hashes."""

    token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=MOST_TOKENS)] | None = None
    """The prompt as the model server will see it: the match is precise where the worker tells its blocks."""


class LongDemand(_Demand, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The same, its token ids unread: 2 million take 0.15 s, in which nobody else would be answered."""

    token_ids: msgspec.Raw = msgspec.Raw(b"null")


class Event(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What became of a placed request. What is left out is unknown."""

    type: EventType
    worker: Name | None = None
    """Where it is. Left out: where it was placed. ``started`` elsewhere moves the reservation there. A ``refused`` that
    names it may come twice: without, the second is taken for the next worker's."""
    output_tokens: Count | None = None
    """So far."""
    cached_tokens: Count | None = None
    """Tokens of the prompt that the server found in its cache."""
    queue_wait_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    reason: Annotated[str, Meta(max_length=1024)] | None = None
    """Of a refusal, in the worker's words."""


class StreamEvent(Event, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The same in a frame."""

    placement_id: Name


class Batch(Struct, kw_only=True, forbid_unknown_fields=True):
    """Demands that are placed one after another; each succeeds or fails alone."""

    demands: Annotated[list[Demand], Meta(min_length=1, max_length=MOST_ITEMS)]


class RawBatch(Struct, kw_only=True, forbid_unknown_fields=True):
    """The same, each demand unread: one that is wrong fails alone."""

    demands: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MOST_ITEMS)]


class Frame(Struct, kw_only=True, forbid_unknown_fields=True):
    """One frame of a stream to kvaware: demands and events; the events come first."""

    demands: Annotated[list[Demand], Meta(max_length=MOST_ITEMS)] = []
    events: Annotated[list[StreamEvent], Meta(max_length=MOST_ITEMS)] = []


class RawFrame(Struct, kw_only=True, forbid_unknown_fields=True):
    """The same, unread."""

    demands: Annotated[list[msgspec.Raw], Meta(max_length=MOST_ITEMS)] = []
    events: Annotated[list[msgspec.Raw], Meta(max_length=MOST_ITEMS)] = []


T = TypeVar("T")


def read(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """Decode one body. Raises: WireError that says where, what was expected and what came.

    Halves of surrogate pairs, left where somebody cut a text in the middle of an emoji, are read as U+FFFD, as encoders
    of UTF-8 write them: in a batch one of them would make all the others unreadable.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as e:
        raise WireError(_told(str(e), bytes(body), sorted(_fields(decoder.type)))) from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        sent = bytes(body)
        if not sent:
            raise WireError("expected a JSON object, got an empty body") from e
        mended = HALF_A_PAIR.sub(rb"\\ufffd", sent)
        if mended != sent:
            return read(decoder, mended)
        raise WireError(f"expected a JSON object in UTF-8: {str(e)[:MOST_TEXT]}") from e
    except RecursionError as e:
        raise WireError("expected a JSON object, got one that is nested too deeply") from e


HALF_A_PAIR: Final = re.compile(
    rb"\\u[dD](?<!\\\\u[dD])"
    rb"(?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
"""The escape of a surrogate without its other half, unless a backslash stands before it."""
MOST_TEXT: Final = 300
"""Characters of a message."""
STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
BLOCK_HASH: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "string", "pattern": "^[0-9]{1,20}$", "description": "The same in decimal digits."},
    ]
}
UNKNOWN: Final = "Object contains unknown field `"
MISSING: Final = "Object missing required field `"
ENUM: Final = "Invalid enum value "
ENUMS: Final = {"type": tuple(EventType), "phase": tuple(Phase)}
SECRET: Final = ("token_ids", "block_hashes", "messages")
"""Of these no number is repeated to anybody, and of texts only their lengths are told."""


def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(kind.__struct_encode_fields__) if isinstance(kind, type) and issubclass(kind, Struct) else ()


def _told(text: str, body: bytes, fields: list[str]) -> str:
    """``Expected `int` >= 1 - at `$.input_tokens``` → ``input_tokens: expected int >= 1, got 0``."""
    said, _, path = text.rpartition(" - at `") if text.endswith("`") and " - at `$" in text else (text, "", "")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    if said.startswith(ENUM):
        known = " or ".join(repr(str(value)) for value in ENUMS.get(path.rpartition(".")[2], ()))
        said, came = f"expected {known}", f", got {said.removeprefix(ENUM)[:64]}"
        return f"{path}: {said}{came}"
    if said.startswith(UNKNOWN):
        name = said.removeprefix(UNKNOWN).rstrip("`")[:64]
        expected = f"; expected {', '.join(fields)}" if fields and not path else ""
        return f"{_at(path, name)}: unknown field{expected}"
    if said.startswith(MISSING):
        return f"{_at(path, said.removeprefix(MISSING).rstrip('`'))}: expected it, got nothing"
    said = said.replace("`", "")
    said = said[:1].lower() + said[1:MOST_TEXT]
    came = "" if ", got " in said else _came(path, body)
    return f"{path}: {said}{came}" if path else f"{said}{came}"


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _came(path: str, body: bytes) -> str:
    """What stands there, where it is no secret and easily found."""
    if len(body) > MOST_SHOWN:
        return ""
    try:
        value = msgspec.json.decode(body)
        for name, index in STEP.findall(f".{path}"):
            value = value[int(index)] if index else value[name]
    except (msgspec.MsgspecError, RecursionError, KeyError, IndexError, TypeError, ValueError):
        return ""
    match value:
        case str():
            return f", got {len(value)} characters"
        case list():
            return f", got {len(value)}"
        case bool() | None:
            return ""
        case int() | float() if not any(name in path for name in SECRET):
            return f", got {str(value)[:40]}"
        case _:
            return ""


def schemas() -> dict[str, Any]:
    """JSON schemas of everything here that is described in ``/openapi.json``, by name."""
    _, found = msgspec.json.schema_components([Batch, Event, Frame], ref_template="#/components/schemas/{name}")
    found["Demand"]["properties"]["block_hashes"]["anyOf"][0]["items"] = BLOCK_HASH
    return found
