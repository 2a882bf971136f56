"""Bindings of which the API server has not said whether it made them: kept booked, and read until it is known."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kvaware_cluster import Source
from kvaware_crds.errors import UpstreamError
from kvaware_engine import Engine
from kvaware_extender.locks import KeyedLocks

__all__ = ["Doubt", "Doubts"]

log = structlog.get_logger(__name__)

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Doubt:
    """One binding in doubt. Compared by identity: a later attempt makes a new doubt."""

    uid: str
    namespace: str
    name: str
    node: str
    since_s: float
    """When the answer was given up; the request may take effect until ``limit_s`` later."""


class Doubts:
    """The table of doubts, by pod UID, and how each is cleared up."""

    def __init__(
        self,
        *,
        engine: Engine,
        source: Source,
        locks: KeyedLocks,
        limit_s: float,
        read_timeout_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._source = source
        self._locks = locks
        self._limit_s = limit_s
        self._read_timeout_s = read_timeout_s
        self._clock = clock
        self.sleep = sleep
        self._doubts: dict[str, Doubt] = {}

    def __len__(self) -> int:
        return len(self._doubts)

    def get(self, uid: str) -> Doubt | None:
        """The open doubt about this pod."""
        return self._doubts.get(uid)

    def add(self, *, uid: str, namespace: str, name: str, node: str) -> Doubt:
        """Note a binding in doubt; it replaces an earlier one of this pod, which was to the same node."""
        doubt = Doubt(uid=uid, namespace=namespace, name=name, node=node, since_s=self._clock())
        self._doubts[uid] = doubt
        return doubt

    def drop(self, uid: str) -> None:
        """A later attempt learned what became of the pod."""
        self._doubts.pop(uid, None)

    def learn(self, doubt: Doubt, raw: Mapping[str, Any] | None, *, read_at_s: float | None) -> bool:
        """Draw the conclusion from the pod as the API server has it.

        Args:
            doubt: The binding in doubt.
            raw: The pod of that name, None when there is none.
            read_at_s: When the read began; None: do not conclude from the time that has passed.
        Returns: Whether the doubt is cleared up.
        """
        if self._doubts.get(doubt.uid) is not doubt:
            return True
        metadata, spec = (raw or {}).get("metadata") or {}, (raw or {}).get("spec") or {}
        node = spec.get("nodeName") or None
        if raw is None or metadata.get("uid") != doubt.uid:
            found = "gone"
        elif node == doubt.node:
            found = "bound"
        elif node is not None:
            found = "bound elsewhere"
        elif read_at_s is not None and read_at_s - doubt.since_s > self._limit_s:
            found = "not bound"
        else:
            return False
        if found == "bound":
            self._engine.settle(doubt.uid, doubt.node, now_s=self._clock())
        else:
            self._engine.release(doubt.uid, doubt.node)
        self.drop(doubt.uid)
        log.info("binding in doubt cleared up", uid=doubt.uid, node=doubt.node, found=found)
        return True

    async def clear_up(self, doubt: Doubt) -> None:
        """Read the pod, less and less often, until it is known whether it was bound."""
        wait_s = FIRST_WAIT_S
        while self._doubts.get(doubt.uid) is doubt:
            await self.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            # Under the lock: an attempt that runs now may bind the pod, and must not lose its booking to this read.
            async with self._locks.hold(doubt.uid):
                if self._doubts.get(doubt.uid) is not doubt:
                    return
                read_at_s = self._clock()
                try:
                    async with asyncio.timeout(self._read_timeout_s):
                        raw = await self._source.get_pod(doubt.namespace, doubt.name)
                except (UpstreamError, TimeoutError):
                    continue  # unknown still; the booking stays
                self.learn(doubt, raw, read_at_s=read_at_s)
