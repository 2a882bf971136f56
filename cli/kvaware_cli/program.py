"""How the user can start this program again: the words for "Try next" and for messages."""

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["is_plugin", "program", "shown"]


def is_plugin(argv0: str) -> bool:
    """Whether kubectl started it."""
    return Path(argv0).name in {"kubectl-kvaware", "kubectl_kvaware"}


def program() -> str:
    """``kvaware`` where the shell finds it by that name, else its path, as short as can be."""
    started = Path(sys.argv[0])
    if is_plugin(sys.argv[0]):
        return "kubectl kvaware"
    if started.name == "__main__.py":  # python -m kvaware_cli: the installed command lies beside the interpreter
        started = Path(sys.executable).with_name("kvaware")
        if not started.exists():
            return f"{shlex.quote(shown(Path(sys.executable)))} -m kvaware_cli"
    found = shutil.which(started.name)
    if found is not None and Path(found).resolve() == started.resolve():
        return started.name
    return shlex.quote(shown(started))


def shown(path: Path) -> str:
    """A path relative to where the user is, when it is below. Links are kept: a virtual environment is full of them."""
    absolute, here = Path.cwd() / path, Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)
