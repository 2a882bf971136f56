"""Manifests that the API server and our types must agree on: ``tests/e2e/crds_cases``, one object a file.

``good`` is accepted, ``bad`` refused. ``base`` is created, so that ``updates`` (refused), ``status_good`` and
``status_bad`` can replace it. A refused file's first line says which words its refusal must hold.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kvaware_crds import InferenceModel, KVCacheBlockGroup, Resource, TenantQuota

__all__ = ["CASES", "Case", "cases", "kind_of"]

CASES: Final = Path(__file__).parents[1] / "e2e" / "crds_cases"
_EXPECT: Final = "# expect: "
_KINDS: Final[dict[str, type[Resource]]] = {
    model.resource.kind: model for model in (InferenceModel, KVCacheBlockGroup, TenantQuota)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One file."""

    path: Path
    text: str
    expected: str | None
    """Words of the API server's refusal; None where it accepts."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The object."""
        manifest: dict[str, Any] = yaml.safe_load(self.text)
        return manifest


def cases(folder: str) -> list[Case]:
    """Read one folder, in the order of file names."""
    found = []
    for path in sorted((CASES / folder).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        first = text.partition("\n")[0]
        found.append(
            Case(path=path, text=text, expected=first.removeprefix(_EXPECT) if first.startswith(_EXPECT) else None)
        )
    return found


def kind_of(manifest: dict[str, Any]) -> type[Resource]:
    """Find the type of a manifest."""
    return _KINDS[manifest["kind"]]
