"""What is installed is what the lock files say: whatever pyproject.toml asks for has to be in them."""

import re
import tomllib

import pytest

from kvaware_testing.repository import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
NEEDED = PROJECT["project"]["dependencies"]
DEVELOPING = PROJECT["dependency-groups"]["dev"]


def name_of(requirement: str) -> str:
    """``PyZMQ>=26.2; …`` → ``pyzmq``, as lock files write it."""
    [name] = re.findall(r"^[A-Za-z0-9._-]*[A-Za-z0-9]", requirement)
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("lock", "asked"), [("requirements.lock", NEEDED), ("requirements-dev.lock", [*NEEDED, *DEVELOPING])]
)
def test_every_dependency_is_locked(lock: str, asked: list[str]) -> None:
    """A new clone, and the image, get nothing else."""
    locked = re.findall(r"^([a-z0-9-]+)==", (REPOSITORY / lock).read_text("utf-8"), re.MULTILINE)
    assert {name_of(each) for each in asked} - set(locked) == set()
