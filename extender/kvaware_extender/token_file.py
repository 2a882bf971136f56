"""A file of bearer tokens: one per line, read again when it changes, compared in constant time."""

import asyncio
import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from kvaware_crds.errors import ConfigError

__all__ = ["TokenFile", "fingerprint"]

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
"""A new token is in force within this time; a look is one call of ``stat``."""
LEAST_CHARACTERS: Final = 16
"""A shorter token could be guessed."""
MOST_BYTES: Final = 64 * 1024
"""Some thousand tokens; a larger file is the wrong one."""

Seen = tuple[int, int, int]
"""What tells that a file has changed: inode, time of the last change, size."""


def fingerprint(token: str) -> bytes:
    """What is kept of a token: enough to know it again, and nothing that could be used."""
    return sha256(token.encode()).digest()


class TokenFile:
    """The tokens of one file. ``open`` must have succeeded before it is asked."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._seen: Seen | None = None
        self._tokens: tuple[bytes, ...] = ()
        self._looked_at_s = float("-inf")
        self._broken = False

    async def open(self) -> None:
        """Read it for the first time. Raises: ConfigError when it cannot be used."""
        await asyncio.to_thread(self._read)
        self._looked_at_s = self._clock()

    async def holds(self, token: str) -> bool:
        """Whether the token is one of the file's, as it is now."""
        if self._clock() - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = self._clock()
            try:
                await asyncio.to_thread(self._read)
                self._broken = False
            except ConfigError as e:
                # Half-written, or replaced at this very moment: the tokens that it held stay in force.
                if not self._broken:
                    log.warning("token file cannot be read, its last tokens hold", error=str(e))
                self._broken = True
        wanted = fingerprint(token)
        found = False
        for known in self._tokens:  # all of them, always: the time taken tells nothing
            found |= hmac.compare_digest(known, wanted)
        return found

    def _read(self) -> None:
        """Look at the file, and read it when it is not as before. Not for the event loop."""
        try:
            state = self._path.stat()
            seen = (state.st_ino, state.st_mtime_ns, state.st_size)
            if seen == self._seen:
                return
            if state.st_size > MOST_BYTES:
                raise ConfigError(f"token file {self._path}: expected at most {MOST_BYTES} bytes, got {state.st_size}")
            lines = self._path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"token file {self._path}: cannot be read: {e}") from e
        tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not tokens:
            raise ConfigError(f"token file {self._path}: expected a token per line, got none")
        if any(len(token) < LEAST_CHARACTERS for token in tokens):
            raise ConfigError(f"token file {self._path}: expected tokens of {LEAST_CHARACTERS} characters or more")
        self._tokens, self._seen = tuple(fingerprint(token) for token in tokens), seen
