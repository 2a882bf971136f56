"""What a newcomer without Go sees: one line that says what to install; and what CI sees: a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvaware_testing.controlplane.versions import REPOSITORY


def run_e2e(home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run e2e where nothing is installed and nothing can be: the home is empty, PATH too, pip has no index."""
    environ = {"HOME": str(home), "PATH": str(home), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_controlplane.py"]
    return subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_without_the_programs_e2e_is_skipped_with_one_line(tmp_path: Path) -> None:
    done = run_e2e(tmp_path)
    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "install Go" in line
    assert "KUBEBUILDER_ASSETS" in line


@pytest.mark.parametrize(
    "assets", [pytest.param({}, id="nothing"), pytest.param({"KUBEBUILDER_ASSETS": "/nowhere"}, id="wrong folder")]
)
def test_ci_takes_a_missing_control_plane_for_a_failure(tmp_path: Path, assets: dict[str, str]) -> None:
    done = run_e2e(tmp_path, REQUIRE_E2E="1", **assets)
    assert done.returncode == 1, done.stdout
    assert "install Go" in done.stdout
    assert "passed" not in done.stdout
