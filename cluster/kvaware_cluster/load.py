"""Settings from a YAML file with camelCase keys, overridden by ``KVAWARE_*`` variables; unknown names are errors."""

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from kvaware_crds.errors import ConfigError

__all__ = ["load_settings"]

PREFIX: Final = "KVAWARE_"
NOT_SETTINGS: Final = frozenset({"KVAWARE_CONFIG", "KVAWARE_SERVER"})
"""Variables of the command line, not of a service."""
SERVICE_LINK: Final = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)?$")
"""What the kubelet puts into every pod beside a Service whose name begins with ``kvaware``."""
SERVICE_URL: Final = re.compile(r"^(tcp|udp|sctp)://")
SNAKE: Final = re.compile(r"\b[a-z]+(_[a-z0-9]+)+\b")


T = TypeVar("T")


def load_settings(group: type[T], path: Path | None, environ: Mapping[str, str]) -> T:
    """Read the settings of one service. Reads a file: not for the event loop.

    Args:
        group: The dataclass of all its settings; fields that are dataclasses are groups.
        path: The YAML file; None: only variables.
        environ: The process's environment.
    Raises: ConfigError that names the file or variable, the key, what was expected and what came.
    """
    tree: dict[str, Any] = {} if path is None else _from_file(group, path)
    for variable, text in sorted(environ.items()):
        if variable.startswith(PREFIX) and variable not in NOT_SETTINGS:
            _override(group, tree, variable, text)
    try:
        return TypeAdapter(group).validate_python(tree)
    except ValidationError as e:
        raise ConfigError(_told(e)) from e


def _told(error: ValidationError) -> str:
    """The first fault, with the names that people write."""
    first = error.errors()[0]
    where = ".".join(to_camel(str(part)) for part in first["loc"])
    if first["type"] == "value_error" and isinstance(first["input"], dict):
        # A rule of a group: it names its settings itself, and what came.
        rule = SNAKE.sub(lambda name: to_camel(name[0]), first["msg"].removeprefix("Value error, "))
        return f"setting {where}.{rule}" if where else f"settings: {rule}"
    told = first["msg"].replace("a valid tuple", "a list")  # Python's word for it
    return f"setting {where}: {told}, got {first['input']!r}"


def _from_file(group: type, path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"settings file {path}: cannot be read: {e}") from e
    if content is None:
        return {}
    return _snake(group, content, where=f"settings file {path}", prefix="")


def _snake(group: type, content: Any, *, where: str, prefix: str) -> dict[str, Any]:
    """The same tree with our field names; every key must be known."""
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: {prefix.rstrip('.') or 'the file'}: expected keys and values, got {content!r}")
    fields = {to_camel(name): (name, kind) for name, kind in _fields(group)}
    tree: dict[str, Any] = {}
    for key, value in content.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {prefix}{key}{_nearest(str(key), fields, prefix=prefix)}")
        name, kind = fields[key]
        nested = dataclasses.is_dataclass(kind)
        tree[name] = _snake(kind, value, where=where, prefix=f"{prefix}{key}.") if nested else value
    return tree


def _override(group: type, tree: dict[str, Any], variable: str, text: str) -> None:
    known = dict(_variables(group))
    if variable not in known or SERVICE_URL.match(text):
        if SERVICE_LINK.search(variable):
            return
        raise ConfigError(f"unknown variable {variable}{_nearest(variable, known, prefix='')}")
    *groups, name = known[variable]
    for inner in groups:
        tree = tree.setdefault(inner, {})
    # A list, a mapping or text in quotes is YAML; everything else is left as text, so that "off" is not False.
    try:
        tree[name] = yaml.safe_load(text) if text.lstrip().startswith(("[", "{", '"')) else text
    except yaml.YAMLError as e:
        raise ConfigError(f"variable {variable}: not readable as YAML: {text!r}") from e


def _variables(group: type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, kind in _fields(group):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _variables(kind, (*path, name))
        else:
            yield PREFIX + "__".join((*path, name)).upper(), (*path, name)


def _fields(group: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(group)
    return [(f.name, hints[f.name]) for f in dataclasses.fields(group)]


def _nearest(key: str, known: Mapping[str, Any], *, prefix: str) -> str:
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5) or sorted(known)[:3]
    return f" (nearest known: {', '.join(prefix + name for name in near)})"
