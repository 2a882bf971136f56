"""``make kind-up`` with stand-ins for docker, kind, kubectl and helm: what it calls, and what it says without them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kvaware_testing.repository import REPOSITORY

PROGRAMS = ("docker", "kind", "kubectl", "helm")
STAND_IN = """#!/bin/bash
echo "{name} $*" >> "$CALLS"
case "{name} $*" in
  "kubectl"*" get nodes "*) printf 'node/w1\\nnode/w2\\n' ;;
  "docker info") exit "${{DOCKER_INFO:-0}}" ;;
esac
"""


class KindUp:
    """A PATH with nothing but the stand-ins and what the recipe takes from the system."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._calls = folder / "calls"
        for name in PROGRAMS:
            self._write(name)
        grep = shutil.which("grep")
        assert grep is not None
        (self.bin / "grep").symlink_to(grep)

    def _write(self, name: str) -> None:
        path = self.bin / name
        path.write_text(STAND_IN.format(name=name), "utf-8")
        path.chmod(0o755)

    def run(self, **environ: str) -> subprocess.CompletedProcess[str]:
        make = shutil.which("make")
        assert make is not None
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(
            [make, "kind-up"],
            cwd=REPOSITORY,
            env={**clean, "PATH": str(self.bin), "CALLS": str(self._calls), **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text("utf-8").splitlines() if self._calls.exists() else []


@pytest.fixture
def kind_up(tmp_path: Path) -> KindUp:
    return KindUp(tmp_path)


def test_it_builds_loads_and_installs_one_image(kind_up: KindUp) -> None:
    done = kind_up.run()
    assert not done.returncode, done.stderr
    verbs = [" ".join(call.split()[:2]) for call in kind_up.calls]
    assert (
        verbs.index("docker build")
        < verbs.index("kind create")
        < verbs.index("kind load")
        < verbs.index("helm upgrade")
    )
    assert "docker build --tag kvaware:kind ." in kind_up.calls
    assert "kind load docker-image kvaware:kind --name kvaware" in kind_up.calls
    (helm,) = [call for call in kind_up.calls if call.startswith("helm")]
    assert "--set image.repository=kvaware --set image.tag=kind" in helm
    patched = [call for call in kind_up.calls if " patch node/w" in call]
    assert len(patched) == 2
    assert all("--subresource=status" in call for call in patched)


def test_the_context_is_that_of_the_configured_cluster(kind_up: KindUp) -> None:
    """Never the user's current one."""
    kind_up.run()
    name = yaml.safe_load((REPOSITORY / "kind-config.yaml").read_text("utf-8"))["name"]
    spoke = [call for call in kind_up.calls if call.startswith(("kubectl", "helm"))]
    assert spoke
    assert all(f"context kind-{name}" in call for call in spoke)


@pytest.mark.parametrize("missing", PROGRAMS)
def test_what_is_missing_is_named_and_nothing_is_begun(kind_up: KindUp, missing: str) -> None:
    (kind_up.bin / missing).unlink()
    done = kind_up.run()
    assert done.returncode
    assert f"make kind-up needs {missing} on PATH" in done.stderr
    assert not kind_up.calls


def test_a_docker_without_a_daemon_is_told(kind_up: KindUp) -> None:
    done = kind_up.run(DOCKER_INFO="1")
    assert done.returncode
    assert "needs a Docker daemon" in done.stderr
    assert kind_up.calls == ["docker info"]
