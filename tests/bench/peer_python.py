"""The peers' own virtual environment, made once under ``build/peers``: what we are compared with is no dependency."""

import shutil
import subprocess
import sys
from pathlib import Path

from kvaware_testing.repository import REPOSITORY

__all__ = ["peer_python"]

NEEDS = "ai-dynamo-runtime>=1.6,<1.7"
FOLDER = REPOSITORY / "build" / "peers"


def peer_python() -> Path:
    """The Python that has the peers; the first call downloads them.

    Raises: subprocess.CalledProcessError.
    """
    python = FOLDER / "bin" / "python"
    made = FOLDER / ".installed"
    if made.is_file() and made.read_text("utf-8") == NEEDS:
        return python
    print(f"making the peers' virtual environment {FOLDER} (once)", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    if (uv := shutil.which("uv")) is not None:
        _run(uv, "venv", "--quiet", "--python", sys.executable, FOLDER)
        _run(uv, "pip", "install", "--quiet", "--python", python, NEEDS)
    else:
        _run(sys.executable, "-m", "venv", FOLDER)
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NEEDS)
    made.write_text(NEEDS, "utf-8")
    return python


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)
