"""``python -m kvaware_crds.generate [--check] [DIR]``: write the CRDs' YAML, or say which files are out of step."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvaware_crds.crd import render_crds

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns: The exit status: 1 when ``--check`` found a file that differs or is missing.
    """
    parser = argparse.ArgumentParser(
        prog="python -m kvaware_crds.generate",
        description="Write the CustomResourceDefinitions of kvaware's kinds, generated from their types.",
    )
    parser.add_argument("directory", nargs="?", type=Path, default=Path("crds"), help="where the files lie (crds)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of step")
    chosen = parser.parse_args(arguments)

    stale = {
        chosen.directory / name: text for name, text in render_crds().items() if _read(chosen.directory / name) != text
    }
    for path, text in stale.items():
        if chosen.check:
            sys.stderr.write(f"{path} differs from its types in kvaware_crds: run make generate\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 1 if chosen.check and stale else 0


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
