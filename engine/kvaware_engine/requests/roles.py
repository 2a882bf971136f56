"""What one model's workers do, as columns: prefill, decode, or both. Made once per change of their facts."""

from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np

from kvaware_engine.requests.candidates import WorkerFacts
from kvaware_engine.requests.words import FloatArray

__all__ = ["DECODE", "PREFILL", "Roles"]

PREFILL: Final = "prefill"
DECODE: Final = "decode"


class Roles:
    """Nothing in it changes."""

    __slots__ = ("_barred", "adapters", "splits")

    def __init__(self, facts: Sequence[WorkerFacts | None]) -> None:
        roles = [None if each is None else each.role for each in facts]
        self.splits = PREFILL in roles and DECODE in roles
        """Whether some workers only prefill and others only decode."""
        self.adapters = frozenset[str]().union(*[each.adapters for each in facts if each is not None and each.adapters])
        """Names of the adapters that any of them says it serves."""
        self._barred = {name: np.array([inf if role == name else 0.0 for role in roles]) for name in (PREFILL, DECODE)}

    def barred(self, role: str) -> FloatArray:
        """Infinite where a worker has this role and no other, else 0. Shape (slots,)."""
        return self._barred[role]
