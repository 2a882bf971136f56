"""Memory in which the columns of a cost are added up: one row per addend, one BLAS call for all of them.

Twelve calls of numpy, each with an array of its own, are 9 µs at 64 workers on a machine where this takes 4. It belongs
to one fleet and one decision at a time; what is kept of a decision gets none and makes its own.
"""

from typing import Any, Final, cast

import numpy as np

from kvaware_engine.requests.candidates import Candidates
from kvaware_engine.requests.rows import CONFIDENCE, FREE_AT, HALF_STEP, PRESSURE, RISK
from kvaware_engine.requests.words import FloatArray

__all__ = ["Workspace"]

_COLD_ROWS: Final = 7
"""Barred, half a step, decoding, pressure, risk, queue, one."""
_ROWS: Final = _COLD_ROWS + 3
"""And where something is held: those tokens, their square, and their pressure."""
_MS_PER_S: Final = 1000.0


class Workspace:
    """For columns of one length."""

    __slots__ = (
        "_barred",
        "_cold",
        "_copied",
        "_held",
        "_matrix",
        "_now",
        "_pressed",
        "_queue",
        "_squared",
        "_weight",
        "_weights",
        "_weights_cold",
        "_zeros",
        "slots",
    )

    def __init__(self, slots: int) -> None:
        self.slots = slots
        matrix = self._matrix = np.zeros((_ROWS, slots))
        matrix[_COLD_ROWS - 1] = 1.0
        self._cold = matrix[:_COLD_ROWS]
        self._barred = matrix[0]
        self._copied = matrix[1:5]
        self._queue = matrix[5]
        self._held, self._squared, self._pressed = matrix[_COLD_ROWS:]
        self._weights = np.ones(_ROWS)
        self._weights_cold = self._weights[:_COLD_ROWS]
        self._weight: Any = memoryview(cast("Any", self._weights))  # an item is written in 0.05 µs, of an array in 0.09
        self._weight[_ROWS - 1] = -1.0
        self._zeros = np.zeros(slots)
        self._now = np.zeros(())

    def add(
        self,
        seen: Candidates,
        *,
        output_tokens: float,
        room_tokens: float,
        constant_ms: float,
        linear_ms: float,
        squared_ms: float,
    ) -> FloatArray:
        """Add up what every worker costs by itself, where all hardware is of one class.

        Args:
            seen: With nothing in lower tiers whose loading cannot be priced.
            output_tokens: Decoded there.
            room_tokens: That the demand needs in the pool.
            constant_ms: The same for all.
            linear_ms: What a held token spares,
            squared_ms: and its square.
        Returns: Milliseconds, infinite where barred. Shape (slots,); a new array.
        """
        figures, weight, queue = seen.figures, self._weight, self._queue
        self._barred[:] = seen.barred
        self._copied[:] = figures[HALF_STEP : RISK + 1]
        waits = seen.waits_ahead_ms
        if waits is None:
            self._now[()] = seen.now_s
            np.subtract(figures[FREE_AT], self._now, out=queue)
            np.maximum(queue, self._zeros, out=queue)
            weight[5] = _MS_PER_S
        else:
            np.maximum(waits, self._zeros, out=queue)
            weight[5] = 1.0
        weight[2], weight[3], weight[6] = output_tokens, room_tokens, constant_ms
        if seen.deepest_tokens <= 0:
            return cast("FloatArray", self._weights_cold.dot(self._cold))
        held = self._held
        np.multiply(seen.matched_tokens, figures[CONFIDENCE], out=held)
        np.multiply(held, held, out=self._squared)
        np.multiply(held, figures[PRESSURE], out=self._pressed)
        weight[7], weight[8] = -linear_ms, -squared_ms
        return cast("FloatArray", self._weights.dot(self._matrix))
