"""Builds the programs from their Go modules into the cache, once: about 9 minutes on 2 cores, 1.3 GB of Go modules."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvaware_testing.controlplane.go import find_go, go_environment
from kvaware_testing.controlplane.versions import MODULES_FOLDER, Module, module_of

__all__ = ["BuildFailedError", "build"]


class BuildFailedError(Exception):
    """``go build`` failed; the message ends with the tail of its log."""


def build(programs: Iterable[str], *, into: Path, environ: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Build what is missing of the programs into a folder.

    Each program appears by a rename, so a folder never holds half a file, and what an interrupted run finished stays.
    A second run waits for the first.

    Raises: BuildFailedError; GoUnavailableError.
    """
    into.mkdir(parents=True, exist_ok=True)
    with _alone(into / ".lock", report):
        missing = [program for program in programs if not (into / program).exists()]
        if not missing:
            return
        go = find_go(cache=into.parent, environ=environ, report=report)
        for program in missing:
            module = module_of(program)
            if module is None:
                raise BuildFailedError(f"{program} is not built from a Go module")
            report(f"building {program} ({module.requires}), log in {into / f'{program}.log'}")
            _build_one(program, module, go=go, into=into, environ=environ)


def _build_one(program: str, module: Module, *, go: Path, into: Path, environ: Mapping[str, str]) -> None:
    flags = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in module.stamps)])
    log = into / f"{program}.log"
    with tempfile.TemporaryDirectory(dir=into, prefix=f".{program}.") as unfinished, log.open("wb") as output:
        result = Path(unfinished) / program
        command = [str(go), "build", "-trimpath", "-ldflags", flags, "-o", str(result), dict(module.packages)[program]]
        done = subprocess.run(
            command,
            cwd=MODULES_FOLDER / module.folder,
            env=go_environment(environ),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            tail = log.read_text("utf-8", errors="replace")[-1500:]
            raise BuildFailedError(f"building {program} failed with exit status {done.returncode}:\n{tail}")
        result.replace(into / program)


@contextmanager
def _alone(lock: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a file lock; the kernel lets go of it when the process ends, however it ends."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another run is building: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
