"""The same input gives the same answers: what production decided can be replayed, and its explanation believed."""

import os
import subprocess
import sys

import pytest

from kvaware_testing.repository import REPOSITORY
from kvaware_testing.request_script import POLICIES


def played(hash_seed: str) -> list[str]:
    """The script's answers, from a process of its own: there alone the hashes of texts can be other ones."""
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY / "tests")}
    command = [sys.executable, "-m", "kvaware_testing.request_script", "2"]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.fixture(scope="module")
def answers() -> list[str]:
    return played("0")


def test_another_process_gives_the_same_answers(answers):
    """What a process draws by itself, the order of its sets, decides nothing."""
    assert played("4711") == answers


@pytest.mark.parametrize(
    "seen",
    [
        *POLICIES,
        "RequestExplanation(",
        "BlockGroup(",
        "Action.REMOTE_READ",
        "Action.LOCAL",
        "late",
        "stored=1",
        "Tier.CPU",
        "PlacementReason.DEADLINE_UNREACHABLE",
        "PlacementReason.NO_WORKER",
        "PlacementReason.PREFIX_RESIDENT",
        "PlacementReason.TENANT_QUOTA_EXCEEDED",
        "PlacementReason.TOO_MANY_REFUSALS",
    ],
)
def test_the_script_comes_by_what_is_to_be_compared(answers, seen):
    assert any(seen in answer for answer in answers)
