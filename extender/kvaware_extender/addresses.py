"""Which worker listens where, for callers who name workers by their addresses."""

from collections.abc import Callable
from typing import Final

from kvaware_engine import ObjectKey, Workers

__all__ = ["Addresses"]

KEPT_S: Final = 1.0
"""A model's addresses are looked up together: of 7,000 workers that takes some 10 ms. A new worker is found by its
address within this time, by its id at once."""
MOST_MODELS: Final = 1000
"""Of which addresses are kept."""


class Addresses:
    """Workers by model and address. It asks; nobody has to tell it."""

    def __init__(self, workers: Workers, *, clock: Callable[[], float]) -> None:
        self._workers = workers
        self._clock = clock
        self._of_model: dict[ObjectKey, tuple[float, dict[str, str]]] = {}
        """Until when it may be used, and address to worker."""

    def worker_at(self, model: ObjectKey, address: str) -> str | None:
        """The model's worker at this address; None: there is none. Of two, as while one replaces another, either."""
        now_s = self._clock()
        until_s, known = self._of_model.get(model, (now_s, {}))
        if now_s >= until_s:
            known = {}
            for worker in self._workers.of_model(model):
                at = self._workers.address(worker)
                if at is not None:
                    known[at] = worker
            if len(self._of_model) >= MOST_MODELS:
                self._of_model.clear()
            self._of_model[model] = (now_s + KEPT_S, known)
        return known.get(address)
