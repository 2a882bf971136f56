"""``python -m kvaware_testing.controlplane build|path|versions``: have the programs before the tests want them."""

import argparse
import os
import sys

from kvaware_testing.controlplane.binaries import (
    BuildFailedError,
    UnavailableError,
    cache_folder,
    locate,
    missing_of,
    obtain,
)
from kvaware_testing.controlplane.versions import ETCD, HELM, KUBERNETES, KWOK, PROGRAMS, go_version_needed


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status says whether every program is there."""
    parser = argparse.ArgumentParser(prog="python -m kvaware_testing.controlplane", description=__doc__)
    parser.add_argument(
        "command",
        choices=("build", "path", "versions"),
        help="build: find the programs, build what is missing. path: where each is now. versions: what is pinned.",
    )
    command = parser.parse_args(arguments).command
    if command == "versions":
        print(f"kubernetes {KUBERNETES}\netcd {ETCD}\nkwok {KWOK}\nhelm {HELM}")
        print(f"go {'.'.join(map(str, go_version_needed()))} or newer to build\ncache {cache_folder(os.environ)}")
        return 0
    if command == "build":
        try:
            binaries = obtain(report=lambda line: print(line, file=sys.stderr, flush=True))
        except (UnavailableError, BuildFailedError) as error:
            print(error, file=sys.stderr)
            return 1
    else:
        binaries = locate()
    for program in PROGRAMS:
        print(f"{program} {binaries.paths.get(program, 'missing')}")
    return 1 if missing_of(binaries) else 0


if __name__ == "__main__":
    sys.exit(main())
