"""YAML as kubectl reads it → the raw objects in it, each with the place where it stands."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_cluster.source import RawObject
from kvaware_crds.errors import ConfigError

__all__ = ["objects_in", "objects_of", "yaml_files"]

MAX_FILE_BYTES: Final = 64 * 2**20


class _Loader(yaml.CSafeLoader):
    """A timestamp stays text, as in the JSON that Kubernetes makes of YAML."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def yaml_files(folder: Path) -> list[Path]:
    """The ``*.yaml`` and ``*.yml`` of a folder, in the order of their names.

    Raises: ConfigError when it is no folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder of YAML files")
    return sorted(each for each in folder.iterdir() if each.suffix in {".yaml", ".yml"} and each.is_file())


def objects_of(path: Path, *, name: str | None = None) -> Iterator[tuple[str, RawObject]]:
    """``objects_in`` of a file; places name it without its folder, unless told otherwise.

    Raises: ConfigError also when it cannot be read or is too long.
    """
    name = name or path.name
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{name}: expected at most {MAX_FILE_BYTES} bytes, got {size}")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: expected a file that can be read: {error.strerror}") from error
    yield from objects_in(content, name=name)


def objects_in(content: bytes, *, name: str) -> Iterator[tuple[str, RawObject]]:
    """Each object with its place, ``file.yaml, document 2, item 1``; lists are opened, empty documents passed over.

    Raises: ConfigError that names the place, for what is no YAML or no Kubernetes object.
    """
    number = 0
    try:
        for number, document in enumerate(yaml.load_all(content, Loader=_Loader), start=1):
            if document is not None:
                yield from _opened(document, f"{name}, document {number}")
    except (yaml.YAMLError, UnicodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        told = getattr(error, "problem", None) or type(error).__name__
        raise ConfigError(f"{name}, document {number + 1}{line}: expected YAML: {told}") from error


def _opened(document: Any, place: str) -> Iterator[tuple[str, RawObject]]:
    """``List`` is what kubectl makes of many objects, ``PodList`` what the API server sends: its items have no kind."""
    if type(document) is not dict:
        raise ConfigError(f"{place}: expected a Kubernetes object, got {type(document).__name__}")
    kind = document.get("kind")
    if type(kind) is not str or not kind:
        raise ConfigError(f"{place}: expected a Kubernetes object with apiVersion and kind, got kind {kind!r}")
    if kind != "List" and not (kind.endswith("List") and "items" in document):
        yield place, document
        return
    items = document.get("items")
    if type(items) is not list or not all(type(item) is dict for item in items):
        raise ConfigError(f"{place}: expected a list of objects under items")
    of_list = {} if kind == "List" else {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
    for index, item in enumerate(items, start=1):
        yield from _opened({**of_list, **item}, f"{place}, item {index}")
