"""A file of bearer tokens: one per line, read again when it changes, compared in constant time.

A line may say more than the token; what it says is kept beside it (``Line``).
"""

import asyncio
import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from kvaware_crds.errors import ConfigError

__all__ = ["Line", "TokenFile", "fingerprint", "token_alone"]

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
"""A new token is in force within this time; a look is one call of ``stat``."""
LEAST_CHARACTERS: Final = 16
"""A shorter token could be guessed."""
MOST_BYTES: Final = 64 * 1024
"""Some thousand tokens; a larger file is the wrong one."""

Seen = tuple[int, int, int]
"""What tells that a file has changed: inode, time of the last change, size."""
Line = Callable[[str], tuple[str, str]]
"""A line without blanks around it → its token, and what is said of it. Raises: ConfigError."""


def token_alone(line: str) -> tuple[str, str]:
    """A line that is a token."""
    return line, ""


def fingerprint(token: str) -> bytes:
    """What is kept of a token: enough to know it again, and nothing that could be used."""
    return sha256(token.encode()).digest()


class TokenFile:
    """The tokens of one file. ``open`` must have succeeded before it is asked."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic, line: Line = token_alone) -> None:
        self._path = path
        self._clock = clock
        self._line = line
        self._seen: Seen | None = None
        self._tokens: tuple[tuple[bytes, str], ...] = ()
        """Each by its hash, with what its line says of it."""
        self._looked_at_s = float("-inf")
        self._broken = False

    async def open(self) -> None:
        """Read it for the first time. Raises: ConfigError when it cannot be used."""
        await asyncio.to_thread(self._read)
        self._looked_at_s = self._clock()

    async def holds(self, token: str) -> bool:
        """Whether the token is one of the file's, as it is now."""
        return await self.said_of(token) is not None

    async def said_of(self, token: str) -> str | None:
        """What the file, as it is now, says of the token beside it; None: it does not hold it."""
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
        found: str | None = None
        for known, said in self._tokens:  # all of them, always: the time taken tells nothing
            if hmac.compare_digest(known, wanted):
                found = said
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
        stripped = [line.strip() for line in lines]
        try:
            tokens = [self._line(line) for line in stripped if line and not line.startswith("#")]
        except ConfigError as e:
            raise ConfigError(f"token file {self._path}: {e}") from e
        if not tokens:
            raise ConfigError(f"token file {self._path}: expected a token per line, got none")
        if any(len(token) < LEAST_CHARACTERS for token, _ in tokens):
            raise ConfigError(f"token file {self._path}: expected tokens of {LEAST_CHARACTERS} characters or more")
        if len({token for token, _ in tokens}) < len(set(tokens)):
            raise ConfigError(f"token file {self._path}: expected one line per token, got one that stands for several")
        self._tokens, self._seen = tuple((fingerprint(token), said) for token, said in tokens), seen
