"""The example demo's output, made once per test run: it takes some seconds."""

import functools
import subprocess
import sys

from kvaware_testing.repository import REPOSITORY

__all__ = ["demo_output"]


@functools.cache
def demo_output() -> str:
    """Run ``kvaware demo`` as a user in the checkout does, at 100 columns; the replay has tests of its own."""
    command = [sys.executable, "-m", "kvaware_cli", "demo", "--no-replay", "--plain"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise AssertionError(f"kvaware demo: exit code {done.returncode}: {done.stderr}")
    return done.stdout
