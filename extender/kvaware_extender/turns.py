"""Long work in the event loop, cut by time: calls of kube-scheduler and of gateways come between."""

import asyncio
from time import perf_counter
from typing import Final

__all__ = ["TURN_S", "Turn"]

TURN_S: Final = 0.002
"""What others wait for at most, beside one item of the work."""


class Turn:
    """Begins when it is made; between two items: ``if turn.over(): await turn.pass_on()``, 0.1 µs while it is not."""

    __slots__ = ("_ends_s",)

    def __init__(self) -> None:
        self._ends_s = perf_counter() + TURN_S

    def over(self) -> bool:
        """Whether it is others' turn."""
        return perf_counter() >= self._ends_s

    async def pass_on(self) -> None:
        """Let all who wait have theirs; then begin another."""
        await asyncio.sleep(0)
        self._ends_s = perf_counter() + TURN_S
