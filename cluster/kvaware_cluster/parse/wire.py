"""Reading raw JSON objects: what is absent is empty, what has the wrong type is a WireError that says so."""

from sys import intern
from typing import Any

from kvaware_crds.errors import WireError
from kvaware_engine.observations import ObjectKey

__all__ = ["entries", "intern_or_none", "mapping", "metadata_of", "object_key", "string", "uid_of"]


def mapping(parent: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """The object under a key; empty when absent or null."""
    value = parent.get(key)
    if value is None:
        return {}
    if type(value) is not dict:
        raise WireError(f"{where}.{key}: expected an object, got {type(value).__name__}")
    return value


def entries(parent: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list of objects under a key; empty when absent or null."""
    value = parent.get(key)
    if value is None:
        return []
    if type(value) is not list:
        raise WireError(f"{where}.{key}: expected a list, got {type(value).__name__}")
    for item in value:
        if type(item) is not dict:
            raise WireError(f"{where}.{key}: expected a list of objects, got {type(item).__name__} in it")
    return value


def string(parent: dict[str, Any], key: str, where: str) -> str:
    """The text under a key; empty when absent or null."""
    value = parent.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise WireError(f"{where}.{key}: expected a string, got {type(value).__name__}")
    return value


def intern_or_none(text: str) -> str | None:
    """One shared copy of a text that many objects repeat; None for an empty one."""
    return intern(text) if text else None


def metadata_of(raw: object, kind: str) -> dict[str, Any]:
    """``metadata`` of an object that must be one and must have a name."""
    if type(raw) is not dict:
        raise WireError(f"{kind}: expected an object, got {type(raw).__name__}")
    metadata = mapping(raw, "metadata", kind)
    if not string(metadata, "name", f"{kind}.metadata"):
        raise WireError(f"{kind}.metadata.name: expected a name, got none")
    return metadata


def object_key(raw: object, kind: str) -> ObjectKey:
    """Namespace and name."""
    metadata = metadata_of(raw, kind)
    return ObjectKey(intern(string(metadata, "namespace", f"{kind}.metadata")), metadata["name"])


def uid_of(metadata: dict[str, Any], kind: str) -> str:
    """``metadata.uid``, which every stored object has."""
    uid = string(metadata, "uid", f"{kind}.metadata")
    if not uid:
        raise WireError(f"{kind}.metadata.uid: expected a UID, got none")
    return uid
