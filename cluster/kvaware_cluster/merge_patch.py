"""JSON merge patches (RFC 7396): objects merge, null removes, everything else replaces, lists as a whole."""

from collections.abc import Mapping
from typing import Any

__all__ = ["leftovers", "merge_patch", "without_nulls"]


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What makes ``new`` of ``old``, and of anything else that has no further fields; ``new`` holds no null.

    All of ``new`` is in it, not only the difference: what was seen may be old.
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        patch[key] = (
            merge_patch(before if isinstance(before, Mapping) else {}, value) if isinstance(value, Mapping) else value
        )
    return patch


def leftovers(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The patch that removes what is stored and not wanted; empty where there is nothing."""
    patch: dict[str, Any] = {}
    for key, value in stored.items():
        if key not in wanted:
            patch[key] = None
        elif isinstance(value, Mapping) and isinstance(wanted[key], Mapping):
            below = leftovers(value, wanted[key])
            if below:
                patch[key] = below
    return patch


def without_nulls(value: Any) -> Any:
    """The value with every field left out that is None, inside lists too: a merge patch cannot set null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
