"""What the Dockerfile does, as far as it can be done without Docker."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kvaware_testing.repository import REPOSITORY


def allowed_in_context() -> Iterator[str]:
    """What ``.dockerignore`` lets in: it ignores everything and names exceptions."""
    lines = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    yield from (rule.removeprefix("!") for rule in rules if rule.startswith("!"))


def test_the_build_context_makes_a_wheel_that_runs(tmp_path: Path) -> None:
    """Nothing that the wheel needs is ignored; it finds its own files where it is installed."""
    # given
    context, wheels, installed = tmp_path / "context", tmp_path / "wheels", tmp_path / "installed"
    for name in allowed_in_context():
        source, target = REPOSITORY / name, context / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    dockerfile = (REPOSITORY / "Dockerfile").read_text("utf-8")
    [build] = re.findall(r"/opt/tools/bin/(pip wheel .*?) --wheel-dir", dockerfile)
    # when
    run([*build.split(), "--wheel-dir", str(wheels), "."], cwd=context)
    (wheel,) = wheels.glob("kvaware-*.whl")
    run(["pip", "install", "--no-deps", "--no-compile", "--target", str(installed), str(wheel)], cwd=tmp_path)
    # then
    assert run(["kvaware_cli", "--help"], cwd=installed).startswith("Usage: ")
    assert run(["kvaware_cli", "crds"], cwd=installed).count("kind: CustomResourceDefinition") == 3
    where = run(["kvaware_cli", "demo", "--plain"], cwd=installed)
    assert "kvaware_cli/examples/cluster: 11 nodes" in where


def run(module: list[str], *, cwd: Path) -> str:
    """``python -m`` in a folder, whose packages come before the editable ones."""
    done = subprocess.run(
        [sys.executable, "-m", *module], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert not done.returncode, done.stderr
    return done.stdout
